"""Ctrl-C while a caller waits for a job: once ends it gracefully, with a last checkpoint; twice, immediately."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.errors import CairnError
from cairn.job.epoch_gate import EpochGate
from cairn.job.stopping import finish_newest
from cairn.logs import get_logger
from cairn.quantities import shell_word
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem

_log = get_logger("cairn.job")
PATIENCE = 30.0
"""Seconds for the running epoch and the last checkpoint together."""


class Interruptible(Protocol):
    """The part of a job that an interrupt needs."""

    name: str
    directory: str

    def cancel(self, grace: float = ...) -> None: ...


def wind_down(
    job: Interruptible, gate: EpochGate, coordinator: CheckpointCoordinator | None, suspend: Callable[[], None]
) -> None:
    """End an interrupted job: finish the running epoch, take a last checkpoint if checkpoints are on, say what is kept.

    `suspend` is called first: what is interrupted is not given up, so its checkpoints stay. A second Ctrl-C
    raises out of here, whatever is being done.
    """
    periodic = coordinator is not None and coordinator.periodic
    more = " and takes a last checkpoint" if periodic else ""
    _log.warning(
        "interrupted: job %s finishes its running epoch%s; press Ctrl-C again to end it immediately", job.name, more
    )
    suspend()
    try:
        number = _last_checkpoint(job, gate, coordinator) if coordinator is not None and periodic else 0
        job.cancel()
    except KeyboardInterrupt:
        epoch = coordinator.current_epoch() if coordinator is not None else -1
        _log.warning(
            "interrupted again: job %s ends immediately. %s", job.name, _kept(epoch, job.directory, 0, cut=True)
        )
        raise
    epoch = coordinator.current_epoch() if coordinator is not None else -1
    _log.warning("job %s has ended. %s", job.name, _kept(epoch, job.directory, number))


def _last_checkpoint(job: Interruptible, gate: EpochGate, coordinator: CheckpointCoordinator) -> int:
    """The number of a checkpoint of the last epoch, or 0 if none can be had in time. No further epoch begins."""
    if gate.hold(coordinator) is not None:
        return 0  # the job is being stopped already, with a savepoint
    deadline = time.monotonic() + PATIENCE
    if not gate.shut(PATIENCE):
        _log.warning("no last checkpoint was taken, because the running epoch did not end within %.0f s", PATIENCE)
        return 0
    epoch = coordinator.current_epoch()
    if epoch < 0:
        return 0
    try:
        done = CheckpointStore(LocalFileSystem(job.directory)).current()
        if done and done[-1].manifest.epoch == epoch:
            return done[-1].id
        finish_newest(gate, coordinator, deadline)
        return coordinator.request().wait(max(1.0, deadline - time.monotonic())).id
    except (CairnError, TimeoutError, OSError) as error:
        reason = error.message if isinstance(error, CairnError) else str(error)
        _log.warning("no last checkpoint was taken: %s", reason)
        return 0


def _kept(epoch: int, directory: str, checkpoint: int, cut: bool = False) -> str:
    """What is kept of an interrupted job, and how to resume it."""
    if epoch < 0:
        return "No epoch was committed. The next start begins with empty state; nothing is lost."
    progress = f"The job is committed up to epoch {epoch}, in {directory}"
    again = "; start it again to resume from there" + (", repeating the interrupted epoch" if cut else "")
    if not checkpoint:
        return f"{progress}{again}."
    path = os.path.join(directory, layout.checkpoint_folder(checkpoint))
    return (
        f"{progress}, and checkpoint {checkpoint} of that epoch, {path}{again}, "
        f"or: cairn run JOB.py -s {shell_word(path)}"
    )


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Says whether Ctrl-C was pressed; a second one raises at once.

    PySpark's own handler would cancel the Spark jobs of the running epoch, and an exception in the middle of a call to
    the JVM would break the connection.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = threading.Event()

    def note(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
