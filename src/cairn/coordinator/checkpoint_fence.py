"""A run that a newer one has overtaken takes no checkpoint, and deletes nothing, ever again."""

from __future__ import annotations

from cairn.coordinator.checkpoint_ledger import CheckpointLedger
from cairn.coordinator.checkpoint_schedule import CheckpointSchedule
from cairn.errors import FencedError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import FailureReason
from cairn.storage.run_records import Runs

_log = get_logger("cairn.checkpoint")


class CheckpointFence:
    """Checks whether the run still owns the job, and gives up everything in progress once it does not.

    Threads: called by the thread that does the coordinator's work, without the lock, since it reads the storage.
    """

    def __init__(self, runs: Runs, run: int, ledger: CheckpointLedger, schedule: CheckpointSchedule) -> None:
        self._runs = runs
        self._run = run
        self._ledger = ledger
        self._schedule = schedule

    def is_owner(self) -> bool:
        ledger = self._ledger
        try:
            self._runs.check(self._run)
        except FencedError as error:
            with ledger.lock:
                if not ledger.fenced:
                    _log.warning("no more checkpoints: %s", error.message)
                ledger.fenced = ledger.closed = True
                self._schedule.refuse_all(error.message)
                for pending in ledger.pending():
                    ledger.abort(pending, FailureReason.SHUTDOWN, error.message)
            return False
        with ledger.lock:
            return not ledger.fenced
