"""When a checkpoint starts: the requests that wait, the interval of periodic checkpoints and the pause between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cairn.coordinator.checkpoint_ledger import CheckpointLedger
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.pending_checkpoint import CheckpointRequest
from cairn.model.checkpoint_records import FailureReason

_MOST_REQUESTS = 1000


class CheckpointSchedule:
    """The queue of requests and the time of the next periodic checkpoint. All times are those of the monotonic clock.

    Threads: shared by those that request checkpoints, the epoch loop's and the coordinator's. Every call holds the
    lock of the `CheckpointLedger`.
    """

    def __init__(self, setup: CoordinatorSetup, ledger: CheckpointLedger) -> None:
        settings = setup.settings
        self.ledger = ledger
        self._settings = settings
        self._queue: list[CheckpointRequest] = []
        first: float = self._period
        if setup.failover:  # the job has just lost time: it does not wait for an interval once more
            first = settings.min_pause_ms
        elif setup.chance is not None:
            first = setup.chance.uniform(settings.min_pause_ms, self._period)
        self.next_periodic = setup.clock.monotonic_ms() + int(first) if settings.interval_ms > 0 else None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def _period(self) -> int:
        return max(self._settings.interval_ms, self._settings.min_pause_ms)

    def add(self, request: CheckpointRequest) -> None:
        """Queue a request: savepoints first, then requested checkpoints, then periodic ones. Or refuse it."""
        if self.ledger.closed:
            self.ledger.refuse(request, FailureReason.SHUTDOWN, "the job has ended")
        elif len(self._queue) >= _MOST_REQUESTS:
            self.ledger.refuse(request, FailureReason.TOO_MANY, f"{_MOST_REQUESTS} requests are waiting already")
        else:
            requested = sum(1 for waiting in self._queue if not waiting.periodic)
            self._queue.insert(0 if request.order is not None else requested, request)
            self.ledger.lock.notify_all()

    def add_periodic(self, now: int, possible: bool) -> None:
        """Queue a periodic checkpoint if one is due. It is left out if none is `possible` yet or one waits already."""
        if self.next_periodic is None or now < self.next_periodic:
            return
        self.next_periodic = now + self._period
        if possible and not any(request.periodic for request in self._queue):
            self._queue.append(CheckpointRequest(not self._settings.incremental, periodic=True))

    def startable(self, now: int, may_start: Callable[[CheckpointRequest], bool]) -> Iterator[CheckpointRequest]:
        """Take the requests that start now. `may_start` is called for each after those before it have started."""
        for request in list(self._queue):
            if not may_start(request):
                continue
            self._queue.remove(request)
            if request.periodic and self.ledger.last_end_ms is not None:
                earliest = self.ledger.last_end_ms + self._settings.min_pause_ms
                if now < earliest:
                    self.next_periodic = max(self.next_periodic or 0, earliest)
                    continue
            yield request

    def refuse_all(self, why: str) -> None:
        """The run is over: no request that waits becomes a checkpoint."""
        for request in self._queue:
            self.ledger.refuse(request, FailureReason.SHUTDOWN, why)
        self._queue.clear()
