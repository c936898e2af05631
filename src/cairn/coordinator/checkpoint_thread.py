"""The thread of the checkpoint coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.run_watch import RunWatch
from cairn.logs import get_logger

_log = get_logger("cairn.checkpoint")


class CheckpointThread:
    """The coordinator's thread: serves requests and calls `step` until it is stopped.

    Threads: started and stopped by the one that starts and ends the run.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        between: Callable[[], None] = lambda: None,
        watch: RunWatch | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._between = between
        self._watch = watch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cairn-checkpoints", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._watch is not None:
                self._watch.look()
            try:
                self._between()
            except Exception:  # noqa: BLE001 - requests are one thing, the coordinator's own work another
                _log.exception("requests could not be looked at")
            try:
                due = self._coordinator.step()
            except Exception:  # noqa: BLE001 - the next round may do better; the stream must not suffer
                _log.exception("a step of the checkpoint coordinator failed; the next one follows")
                due = 1000.0
            if not self._stop.is_set():
                self._coordinator.wait(due)

    def stop(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.end()
        self._coordinator.close()
        self._thread.join(10)
