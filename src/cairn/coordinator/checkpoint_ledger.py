"""The checkpoints in progress, and how each of them ended.

The ledger owns the two locks of the checkpoint coordinator. `lock` is held for decisions only, never during a call to
the storage, to Spark or to a listener: what a failed checkpoint leaves to do is noted as an `End` and done later, by a
thread that holds `work`.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from cairn.coordinator.pending_checkpoint import CheckpointRequest, End, PendingCheckpoint
from cairn.coordinator.ports import Clock, JobFacts
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType, FailureReason
from cairn.model.manifest import Manifest

_log = get_logger("cairn.checkpoint")


class CheckpointLedger:
    """Everything that is pending in one run, by number.

    Threads: shared by all that deal with checkpoints. Every call holds `lock`, which also guards the
    `CheckpointSchedule` and the `CutPoint` of the run. It is notified of whatever the coordinator's thread may have
    to act on. Who needs both locks takes `work` first.
    """

    def __init__(self, facts: JobFacts, clock: Clock, next_number: int) -> None:
        self.lock = threading.Condition()
        self.work = threading.RLock()
        """Held by the one thread that calls the storage for the coordinator: during a step, or while it closes."""
        self.closed = False
        """The run has ended, or a newer one has the job: nothing is triggered any more."""
        self.fenced = False
        """A newer run has the job: this one changes nothing in its directory any more."""
        self.last_end_ms: int | None = None
        """When the last checkpoint completed or failed, by the monotonic clock; savepoints do not count."""
        self._facts = facts
        self._clock = clock
        self._next = next_number
        self._pending: dict[int, PendingCheckpoint] = {}
        self._ends: list[End] = []
        self._notices: list[tuple[int, bool]] = []

    def __contains__(self, pending: PendingCheckpoint) -> bool:
        return pending.number in self._pending

    def pending(self) -> list[PendingCheckpoint]:
        """All checkpoints in progress, oldest first."""
        return list(self._pending.values())

    def without_cut(self) -> list[PendingCheckpoint]:
        return [pending for pending in self._pending.values() if pending.manifest is None]

    def with_cut(self) -> list[PendingCheckpoint]:
        return [pending for pending in self._pending.values() if pending.manifest is not None]

    def manifests(self) -> list[Manifest]:
        """The manifests that checkpoints in progress were cut at."""
        return [pending.manifest for pending in self._pending.values() if pending.manifest is not None]

    def number_of(self, savepoints: bool) -> int:
        """How many checkpoints, or how many savepoints, are in progress."""
        return sum(1 for pending in self._pending.values() if pending.is_savepoint == savepoints)

    def trigger(self, request: CheckpointRequest, now: int, timeout_ms: int) -> PendingCheckpoint:
        pending = PendingCheckpoint(self._next, request, self._clock.now_ms(), now, now + timeout_ms)
        if request.order is not None:
            pending.type = CheckpointType.SAVEPOINT
        self._next += 1
        self._pending[pending.number] = pending
        _log.info(
            "Triggering checkpoint %d (type=%s) @ %d for job %s.",
            pending.number, pending.type.value, pending.trigger_ms, self._facts.job_id,
        )  # fmt: skip
        return pending

    def complete(self, pending: PendingCheckpoint) -> None:
        """The checkpoint is complete; tasks hear of it in the next epoch. Older ones still in progress are subsumed."""
        del self._pending[pending.number]
        self.last_end_ms = self._clock.monotonic_ms()
        for older in [p for p in self._pending.values() if p.number < pending.number and not p.is_savepoint]:
            self.abort(older, FailureReason.SUBSUMED, f"checkpoint {pending.number} completed first")
        self._notices.append((pending.number, True))

    def complete_savepoint(self, pending: PendingCheckpoint) -> None:
        self._pending.pop(pending.number, None)  # the job may have ended meanwhile; the savepoint exists

    def abort(self, pending: PendingCheckpoint, reason: FailureReason, why: str, discard: bool = True) -> None:
        """Give a checkpoint up. What it leaves to do is taken by `take_ends`."""
        del self._pending[pending.number]
        info = msgspec.structs.replace(
            pending.info(CheckpointStatus.FAILED), failure=why, reason=reason, end_ms=self._clock.now_ms()
        )
        if not pending.is_savepoint:
            self.last_end_ms = self._clock.monotonic_ms()
            self._notices.append((pending.number, False))
        level = logging.INFO if reason in (FailureReason.SUBSUMED, FailureReason.SHUTDOWN) else logging.WARNING
        _log.log(level, "Checkpoint %d of job %s failed (%s): %s", info.id, self._facts.job_id, reason.value, why)
        counts = reason.counts and not self.closed and not pending.is_savepoint
        self._ends.append(End(pending, info, discard and not pending.is_savepoint, counts))

    def refuse(self, request: CheckpointRequest, reason: FailureReason, why: str) -> None:
        """End a request that never became a checkpoint: it has no number and does not count."""
        now = self._clock.now_ms()
        _log.log(logging.DEBUG if request.periodic else logging.INFO, "no checkpoint is triggered: %s", why)
        kind = CheckpointType.CHECKPOINT if request.order is None else CheckpointType.SAVEPOINT
        failed = CheckpointInfo(0, CheckpointStatus.FAILED, kind, now, end_ms=now, failure=why)
        request.end(msgspec.structs.replace(failed, reason=reason))

    def take_ends(self) -> list[End]:
        """What checkpoints that were given up leave to do."""
        ends, self._ends = self._ends, []
        return ends

    def take_notices(self) -> list[tuple[int, bool]]:
        """Ends that no epoch has carried to the tasks yet: number, and whether it completed."""
        notices, self._notices = self._notices, []
        return notices
