"""What follows when a checkpoint fails: clean up, record it, notify, and count towards the tolerable failures."""

from __future__ import annotations

from cairn.coordinator.checkpoint_ledger import CheckpointLedger
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.pending_checkpoint import End
from cairn.coordinator.retained_checkpoints import RetainedCheckpoints
from cairn.coordinator.snapshot_writers import SnapshotWriters
from cairn.events import CheckpointAborted
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo

_log = get_logger("cairn.checkpoint")
_PATIENCE_SECONDS = 10.0


class CheckpointFailures:
    """Handles the ends of failed checkpoints, and counts those in a row.

    Threads: `settle` is called by the thread that holds the ledger's `work`, without its `lock`, since it calls the
    storage, Spark and listeners. The count is guarded by the `lock`.
    """

    def __init__(
        self, setup: CoordinatorSetup, ledger: CheckpointLedger, writers: SnapshotWriters, retained: RetainedCheckpoints
    ) -> None:
        self._setup = setup
        self._ledger = ledger
        self._writers = writers
        self._retained = retained
        self._in_a_row = 0

    def reset(self) -> None:
        """A checkpoint has completed. The caller holds the lock."""
        self._in_a_row = 0

    def settle_outside_step(self) -> None:
        """Settle when no step is running. A step that hangs in the storage settles when it returns."""
        if self._ledger.work.acquire(timeout=_PATIENCE_SECONDS):
            try:
                self.settle()
            finally:
                self._ledger.work.release()

    def settle(self) -> None:
        """Do what failed checkpoints leave to do, and delete what is no longer retained."""
        with self._ledger.lock:
            ends = self._ledger.take_ends()
        for end in ends:
            try:
                self._clean_up(end)
            except Exception:  # noqa: BLE001 - the request must end in any case
                _log.exception("while giving up checkpoint %d", end.info.id)
            finally:
                end.pending.request.end(end.info)
            if end.counts:
                self._count(end.info)
        self._retained.delete_doomed()

    def _clean_up(self, end: End) -> None:
        if end.pending.writing:
            self._writers.cancel(end.pending)
        if end.discard:
            self._retained.give_up(end.info.id)
        if not self._ledger.fenced:
            self._setup.store.remember(end.info)
        if not end.pending.is_savepoint:
            self._setup.events.publish(CheckpointAborted(self._setup.facts.job_id, end.info.id))

    def _count(self, info: CheckpointInfo) -> None:
        tolerable = self._setup.settings.tolerable_failures
        with self._ledger.lock:
            self._in_a_row += 1
            intolerable = self._in_a_row > tolerable and not self._ledger.closed
            if intolerable:
                self._in_a_row = 0
        if intolerable:
            self._setup.intolerable(info)
