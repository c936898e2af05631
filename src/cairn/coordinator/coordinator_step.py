"""One step of the checkpoint coordinator: everything that is due, in order.

1. Queue a periodic checkpoint if its time has come, and expire checkpoints that took too long.
2. Settle what failed meanwhile. If requests wait, look whether this run still owns the job.
3. Trigger the requests that may start, and turn aligned checkpoints that waited too long into unaligned ones.
4. Take every checkpoint that has its cut one step further: start its snapshot, or complete it.
5. Settle what failed on the way, and say when the next step is due.
"""

from __future__ import annotations

from cairn.coordinator.checkpoint_completion import CheckpointCompletion
from cairn.coordinator.checkpoint_cuts import CutPoint
from cairn.coordinator.checkpoint_failures import CheckpointFailures
from cairn.coordinator.checkpoint_fence import CheckpointFence
from cairn.coordinator.checkpoint_schedule import CheckpointSchedule
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.pending_checkpoint import CheckpointRequest
from cairn.model.checkpoint_records import FailureReason

_POLL_MS = 500


class CoordinatorStep:
    """What the coordinator's thread does again and again.

    Threads: `run` is called by the thread that holds the ledger's `work`. It takes the ledger's `lock` for decisions
    and releases it for calls to the storage.
    """

    def __init__(
        self,
        setup: CoordinatorSetup,
        schedule: CheckpointSchedule,
        cuts: CutPoint,
        completion: CheckpointCompletion,
        failures: CheckpointFailures,
        fence: CheckpointFence,
    ) -> None:
        self._setup = setup
        self._ledger = schedule.ledger
        self._schedule = schedule
        self._cuts = cuts
        self._completion = completion
        self._failures = failures
        self._fence = fence

    def run(self) -> float:
        """The caller holds the ledger's `work`. Returns the milliseconds after which to come back."""
        with self._ledger.lock:
            now = self._setup.clock.monotonic_ms()
            self._schedule.add_periodic(now, possible=self._cuts.current is not None)
            self._expire(now)
            wanted = len(self._schedule) > 0
        self._failures.settle()
        if wanted and not self._fence.is_owner():
            self._failures.settle()
            return _POLL_MS
        with self._ledger.lock:
            self._start_waiting(now)
            self._cuts.overtake(now, self._ledger.without_cut())
            work = self._ledger.with_cut()
        for pending in work:
            self._completion.advance(pending)
        self._failures.settle()
        with self._ledger.lock:
            return self._next_due(self._setup.clock.monotonic_ms())

    def _expire(self, now: int) -> None:
        for pending in self._ledger.pending():
            if now >= pending.deadline_ms:
                what = "snapshot" if pending.writing else "running epoch"
                text = f"Checkpoint {pending.number} expired before completing: its {what} took over "
                self._ledger.abort(pending, FailureReason.EXPIRED, f"{text}{self._setup.settings.timeout_ms} ms")

    def _start_waiting(self, now: int) -> None:
        for request in self._schedule.startable(now, self._may_start):
            if self._cuts.reached:
                self._cuts.place(self._ledger.trigger(request, now, self._setup.settings.timeout_ms))
            else:
                self._ledger.refuse(request, FailureReason.NOT_RUNNING, request.nothing_yet())

    def _may_start(self, request: CheckpointRequest) -> bool:
        """Savepoints are written one at a time, whatever checkpoints are in progress; these do not wait for them."""
        savepoint = request.order is not None
        return self._ledger.number_of(savepoint) < (1 if savepoint else self._setup.settings.max_concurrent)

    def _next_due(self, now: int) -> float:
        dues = [now + _POLL_MS]
        if self._schedule.next_periodic is not None:
            dues.append(self._schedule.next_periodic)
        for pending in self._ledger.pending():
            dues.append(pending.deadline_ms)
            unaligned_at = self._cuts.unaligned_at(pending) if pending.manifest is None else None
            if unaligned_at is not None:
                dues.append(unaligned_at)
        return max(1, min(dues) - now)
