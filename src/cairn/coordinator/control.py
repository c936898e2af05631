"""The coordinator's thread, and requests to a running job as files: who can write its directory can ask, with no port.

A request is `control/<id>` with a JSON document; the job answers with `control/<id>.done` and removes the request.
Requests that were there before the run started are answered too; answers are removed by whoever asked, or after a day.
The id is the asker's: asking again with the same one never makes a second savepoint.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from cairn.coordinator.checkpoints import CheckpointCoordinator
from cairn.errors import CairnError, NotFoundError
from cairn.model.checkpoint import CheckpointInfo
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem

_log = logging.getLogger("cairn.checkpoint")
_DONE = ".done"
_TAKEN = ".taken"
PATIENCE = 30.0
"""Seconds after which a job that has not even taken a request up is held to be down."""
_KEPT_SECONDS = 86_400.0

Action = Callable[[Mapping[str, Any]], Callable[[], CheckpointInfo | None]]
"""Begins what a request asks for, and returns what waits for its end; `ValueError` for a request that is none."""


class Control:
    """The job's side: looks for requests, answers them."""

    def __init__(
        self,
        files: FileSystem,
        coordinator: CheckpointCoordinator,
        actions: Mapping[str, Action] | None = None,
    ) -> None:
        self._files = files
        self._coordinator = coordinator
        self._actions = {"checkpoint": self._checkpoint, **(actions or {})}
        self._taken: set[str] = set()
        self._waiting: list[threading.Thread] = []

    def finish(self, timeout: float) -> None:
        """Let those who wait for an end answer; called when the job is over and the process may go."""
        for thread in self._waiting:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def serve(self) -> None:
        """Take up new requests. Called again and again by the coordinator's thread; never waits."""
        present = self._files.list(layout.CONTROL)
        self._taken &= {info.path for info in present}  # an id that was answered may be asked again
        for info in present:
            if info.path.endswith(_DONE):
                if info.modified < time.time() - _KEPT_SECONDS:
                    self._files.delete(info.path)
            elif info.path not in self._taken and not info.path.endswith(_TAKEN):
                self._taken.add(info.path)
                self._take(info.path)

    def _take(self, path: str) -> None:
        try:
            asked = msgspec.json.decode(self._files.read(path), type=dict[str, Any])
            if asked.get("action") == "progress":
                self._answer(path, {"checkpoints": msgspec.to_builtins(self._coordinator.infos())})
                return
            action = self._actions.get(asked.get("action", ""))
            if action is None:
                raise ValueError(f"unknown request {asked}")
            wait_for_end = action({**asked, "id": path.rsplit("/", 1)[-1]})
        except NotFoundError:
            return
        except (ValueError, msgspec.MsgspecError) as error:
            self._answer(path, {"error": f"not a request: {error}"})
            return
        except CairnError as error:
            self._answer(path, {"error": error.message})
            return

        with suppress(FileExistsError, CairnError, OSError):
            self._files.create(path + _TAKEN, b"")

        def wait() -> None:
            try:
                info = wait_for_end()
                self._answer(path, {"done": True} if info is None else {"checkpoint": msgspec.to_builtins(info)})
            except CairnError as error:
                self._answer(path, {"error": error.message})

        thread = threading.Thread(target=wait, name="cairn-control", daemon=True)
        self._waiting = [*(known for known in self._waiting if known.is_alive()), thread]
        thread.start()

    def _checkpoint(self, asked: Mapping[str, Any]) -> Callable[[], CheckpointInfo]:
        if asked.get("full") not in (None, True, False):
            raise ValueError(f"full is true or false, not {asked['full']!r}")
        return self._coordinator.request(asked.get("full")).wait

    def _answer(self, path: str, answer: dict[str, Any]) -> None:
        try:
            try:
                self._files.create(path + _DONE, msgspec.json.encode(answer))
            except FileExistsError:  # answered before the job was killed, and asked again
                self._files.delete(path + _DONE)
                self._files.create(path + _DONE, msgspec.json.encode(answer))
            self._files.delete(path + _TAKEN)
            self._files.delete(path)
        except (CairnError, OSError) as error:
            _log.warning("a request could not be answered: %s", error)


class CheckpointThread:
    """Calls the coordinator until it is stopped."""

    def __init__(self, coordinator: CheckpointCoordinator, between: Callable[[], None] = lambda: None) -> None:
        self._coordinator = coordinator
        self._between = between
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cairn-checkpoints", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._between()
            except Exception:  # noqa: BLE001 - requests are one thing, the coordinator's own work another
                _log.exception("requests could not be looked at")
            try:
                due = self._coordinator.step()
            except Exception:  # noqa: BLE001 - the next round may do better; the stream must not suffer
                _log.exception("the checkpoint coordinator stumbled; it goes on")
                due = 1000.0
            if not self._stop.is_set():
                self._coordinator.wait(due)

    def stop(self) -> None:
        self._stop.set()
        self._coordinator.close()
        self._thread.join(10)


def ask(files: FileSystem, question: dict[str, Any], timeout: float, request: str = "") -> dict[str, Any] | None:
    """The asking side: the job's answer, or None if it gave none in time. Then the request is taken back.

    `request` is the id to ask with; an answer that is there already under that id is taken.
    """
    path = f"{layout.CONTROL}/{layout.checked(request, 'request id') if request else uuid.uuid4().hex}"
    if not files.exists(path + _DONE):
        try:
            files.create(path, msgspec.json.encode(question))
        except FileExistsError:
            _log.info("request %s is waiting already", request)
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        if files.exists(path + _DONE):
            answer = msgspec.json.decode(files.read(path + _DONE), type=dict[str, Any])
            files.delete(path + _DONE)
            return answer
        if time.monotonic() - began > PATIENCE and not files.exists(path + _TAKEN):
            break
        time.sleep(0.05)
    files.delete(path)
    files.delete(path + _TAKEN)
    return None
