"""The one server of a driver: started by the first job, shared by those after it, there until the process ends.

Nothing heavy is imported before a server is wanted. A server that cannot be started costs a job one line in its log.
"""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING

from cairn.config import WebSettings
from cairn.errors import CairnError
from cairn.logs import get_logger
from cairn.view.job_reader import JobReader
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import options_of

if TYPE_CHECKING:
    from cairn.web.web_server import Server

_log = get_logger("cairn.web")
_NEEDED = ("fastapi", "uvicorn", "jinja2", "prometheus_client")
_lock = threading.Lock()
_servers: dict[WebSettings, tuple[Server, Catalogue]] = {}


def missing() -> list[str]:
    """What must be installed before a server can be started."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def serve(settings: WebSettings, job_id: str, reader: JobReader) -> str | None:
    """Show a job; returns the address of its page, or None if there is none. Never raises."""
    if not settings.enabled:
        return None
    lacking = missing()
    if lacking:
        _log.info("no web page: %s not installed; run: pip install 'cairn-streaming[ui]'", ", ".join(lacking))
        return None
    try:
        with _lock:
            if settings not in _servers:
                _servers[settings] = _start(settings)
            server, catalogue = _servers[settings]
            catalogue.add(job_id, reader)
        return f"{server.url}/jobs/{job_id}"
    except (CairnError, OSError, ImportError) as error:
        _log.warning("no web page: %s", error)
    except Exception:  # noqa: BLE001 - whatever a server stumbles over, the job continues
        _log.warning("no web page", exc_info=True)
    return None


def _start(settings: WebSettings) -> tuple[Server, Catalogue]:
    from cairn.web.web_server import Server

    catalogue = Catalogue()
    server = Server(catalogue, options_of(settings))
    server.start()
    _log.warning("web page: %s", server.link)
    return server, catalogue


def stop_all() -> None:
    """End the servers of this process; for tests."""
    with _lock:
        for server, _ in _servers.values():
            server.stop()
        _servers.clear()
