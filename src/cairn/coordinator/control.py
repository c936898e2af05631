"""The coordinator's thread, and requests to a running job as files: who can write its directory can ask, with no port.

A request is `control/<name>` with a JSON document; the job answers with `control/<name>.done` and removes the request.
Requests that were there before the run started are answered too; answers are removed by whoever asked, or after a day.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from cairn.coordinator.checkpoints import CheckpointCoordinator
from cairn.errors import CairnError, NotFoundError
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem

_log = logging.getLogger("cairn.checkpoint")
_DONE = ".done"
_KEPT_SECONDS = 86_400.0


class Control:
    """The job's side: looks for requests, answers them."""

    def __init__(self, files: FileSystem, coordinator: CheckpointCoordinator) -> None:
        self._files = files
        self._coordinator = coordinator
        self._taken: set[str] = set()

    def serve(self) -> None:
        """Take up new requests. Called again and again by the coordinator's thread; never waits."""
        for info in self._files.list(layout.CONTROL):
            if info.path.endswith(_DONE):
                if info.modified < time.time() - _KEPT_SECONDS:
                    self._files.delete(info.path)
            elif info.path not in self._taken:
                self._taken.add(info.path)
                self._take(info.path)

    def _take(self, path: str) -> None:
        try:
            asked = msgspec.json.decode(self._files.read(path), type=dict[str, Any])
            if asked.get("action") == "progress":
                self._answer(path, {"checkpoints": msgspec.to_builtins(self._coordinator.infos())})
                return
            if asked.get("action") != "checkpoint" or asked.get("full") not in (None, True, False):
                raise ValueError(f"unknown request {asked}")
        except NotFoundError:
            return
        except (ValueError, msgspec.MsgspecError) as error:
            self._answer(path, {"error": f"not a request: {error}"})
            return
        request = self._coordinator.request(asked.get("full"))

        def wait() -> None:
            try:
                self._answer(path, {"checkpoint": msgspec.to_builtins(request.wait())})
            except CairnError as error:
                self._answer(path, {"error": error.message})

        threading.Thread(target=wait, name="cairn-control", daemon=True).start()

    def _answer(self, path: str, answer: dict[str, Any]) -> None:
        try:
            self._files.create(path + _DONE, msgspec.json.encode(answer))
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


def ask(files: FileSystem, question: dict[str, Any], timeout: float) -> dict[str, Any] | None:
    """The asking side: the job's answer, or None if it gave none in time. Then the request is taken back."""
    path = f"{layout.CONTROL}/{uuid.uuid4().hex}"
    files.create(path, msgspec.json.encode(question))
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if files.exists(path + _DONE):
            answer = msgspec.json.decode(files.read(path + _DONE), type=dict[str, Any])
            files.delete(path + _DONE)
            return answer
        time.sleep(0.05)
    files.delete(path)
    return None
