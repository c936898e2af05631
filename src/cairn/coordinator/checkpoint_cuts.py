"""Where a checkpoint is cut: after a committed epoch, or in front of the running one if it does not wait for it."""

from __future__ import annotations

from collections.abc import Iterable

from cairn.config import CheckpointSettings
from cairn.coordinator.checkpoint_statistics import Tasks, at_rest
from cairn.coordinator.pending_checkpoint import PendingCheckpoint
from cairn.model.checkpoint_records import CheckpointType
from cairn.model.manifest import Manifest


class CutPoint:
    """The newest committed epoch and the running one, as the epoch loop reports them.

    Threads: shared by the epoch loop's and the coordinator's. Every call holds the lock of the `CheckpointLedger`.
    """

    def __init__(self, settings: CheckpointSettings, current: Manifest | None, published: bool) -> None:
        self._settings = settings
        self.current = current
        self.published = published
        """Whether the output of the newest epoch is visible. Until then no checkpoint is cut there: a restore would
        begin after that epoch, and its output would be lost."""
        self._tasks: Tasks = ()
        self._running: tuple[int, str] | None = None
        self._committing = False

    @property
    def epoch(self) -> int:
        """The newest committed epoch, -1 if there is none."""
        return self.current.epoch if self.current is not None else -1

    @property
    def running_epoch(self) -> int:
        """The epoch that runs, -1 if none does."""
        return self._running[0] if self._running is not None else -1

    @property
    def reached(self) -> bool:
        """Whether the job has begun an epoch, so that there is a place for a cut, now or soon."""
        return self.current is not None or self._running is not None

    # Reported by the epoch loop. `waiting` are the checkpoints that have no cut yet.

    def epoch_began(self, epoch: int, offsets: str, waiting: Iterable[PendingCheckpoint]) -> int:
        """Returns the number of the newest checkpoint whose barrier the epoch carries, or 0."""
        self._running = (epoch, offsets)
        carried = [pending for pending in waiting if pending.waits_for in (None, epoch)]
        for pending in carried:
            pending.waits_for = epoch
        return max((pending.number for pending in carried), default=0)

    def epoch_committing(self) -> None:
        """The running epoch decides now which files its commit makes superfluous, from what is known of the cuts so
        far. From here until it has ended, no checkpoint is cut at the epoch before it."""
        self._committing = True

    def epoch_committed(self, manifest: Manifest, tasks: Tasks, waiting: Iterable[PendingCheckpoint]) -> None:
        self.epoch_failed()
        self.current = manifest
        self.published = True
        self._tasks = tasks
        for pending in waiting:
            self._cut(pending, tasks)

    def epoch_failed(self) -> None:
        self._running = None
        self._committing = False

    # Decided by the coordinator.

    def place(self, pending: PendingCheckpoint) -> None:
        """A checkpoint is triggered: cut it here, or let it wait for the end of the running epoch."""
        if self._running is None:
            if self.published:
                self._cut(pending, at_rest(self._tasks, pending.trigger_ms))
        elif self._settings.unaligned and self._settings.aligned_timeout_ms == 0 and not pending.is_savepoint:
            self._cut_unaligned(pending)
        else:
            pending.waits_for = self._running[0]

    def overtake(self, now: int, waiting: Iterable[PendingCheckpoint]) -> None:
        """Turn aligned checkpoints that have waited too long into unaligned ones. Savepoints are always aligned."""
        for pending in waiting:
            due = self.unaligned_at(pending)
            if due is not None and now >= due:
                self._cut_unaligned(pending)

    def unaligned_at(self, pending: PendingCheckpoint) -> int | None:
        """When a checkpoint without a cut turns unaligned; None if it never does."""
        if not self._settings.unaligned or pending.is_savepoint:
            return None
        return pending.since_ms + self._settings.aligned_timeout_ms

    def _cut_unaligned(self, pending: PendingCheckpoint) -> None:
        if self.current is None or self._running is None or self._committing:
            return  # nothing is committed yet, or the running epoch is about to be: it waits for that
        pending.type = CheckpointType.UNALIGNED_CHECKPOINT
        self._cut(pending, at_rest(self._tasks, pending.trigger_ms), in_flight=self._running[1])

    def _cut(self, pending: PendingCheckpoint, tasks: Tasks, in_flight: str = "") -> None:
        pending.manifest = self.current
        pending.tasks = tasks
        pending.in_flight = in_flight
