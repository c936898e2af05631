"""Runs the server: in a thread of the driver, or as `cairn ui` in the foreground."""

from __future__ import annotations

import errno
import socket
import threading
import time

import uvicorn

from cairn.errors import CairnError, StorageError
from cairn.logs import get_logger
from cairn.web.app import create_app
from cairn.web.connections import BoundedProtocol
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import WebOptions

_log = get_logger("cairn.web")
_TRIES = 100


def bound(options: WebOptions) -> socket.socket:
    """A socket on the wanted port, or on the next free one."""
    family = socket.AF_INET6 if ":" in options.address else socket.AF_INET
    ports = [0] if options.port == 0 else range(options.port, min(65536, options.port + _TRIES))
    for port in ports:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((options.address, port))
            made.listen(128)
            return made
        except OSError as error:
            made.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise StorageError(f"the web page cannot use {options.address}: {error.strerror}") from error
    raise StorageError(
        f"no port from {options.port} to {options.port + _TRIES - 1} is free on {options.address}; set rest.port"
    )


def url_of(listening: socket.socket) -> str:
    name = listening.getsockname()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name[0], name[0])  # noqa: S104 - shown, not bound
    return f"http://[{host}]:{name[1]}" if ":" in host else f"http://{host}:{name[1]}"


class Server:
    """One server. `start` returns when it answers; `run` blocks until it is stopped."""

    def __init__(self, catalogue: Catalogue, options: WebOptions) -> None:
        self.options = options
        self._catalogue = catalogue
        self._socket = bound(options)
        self.url = url_of(self._socket)
        config = uvicorn.Config(
            create_app(catalogue, options), log_config=None, access_log=False, server_header=False, lifespan="off",
            http=BoundedProtocol, timeout_keep_alive=5, timeout_graceful_shutdown=2, ws="none",
            proxy_headers=False, h11_max_incomplete_event_size=32 * 1024,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def link(self) -> str:
        """The address with the token: whoever opens it may change jobs."""
        return f"{self.url}/?token={self.options.token}"

    def open_connections(self) -> int:
        return len(self._server.server_state.connections)

    def run(self) -> None:
        # Read what is there before somebody asks: the first page of a long history is as quick as the next.
        threading.Thread(target=self._read_ahead, name="cairn-web-reading", daemon=True).start()
        self._server.run(sockets=[self._socket])

    def _read_ahead(self) -> None:
        try:
            self._catalogue.views()
        except (CairnError, OSError) as error:
            _log.debug("nothing could be read ahead: %s", error)

    def start(self, timeout: float = 30.0) -> None:
        self._thread = threading.Thread(target=self._serve, name="cairn-web", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + timeout
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _serve(self) -> None:
        try:
            self.run()
        except Exception:  # noqa: BLE001 - the page is gone, the job is not
            _log.exception("the web page ended; the job continues")

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(5)
        self._socket.close()
