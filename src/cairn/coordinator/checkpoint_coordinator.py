"""The checkpoint coordinator: when a checkpoint starts, where it is cut, how it ends (docs/design/0002-checkpoints.md).

`CheckpointCoordinator` hears of epochs from the epoch loop, of requests from anyone, and of time from its clock. `step`
does what is due and returns when to come back; `checkpoint_thread.py` calls it. Each part has a module:

* `coordinator_step.py`: what the coordinator's thread does, in order
* `checkpoint_schedule.py`: which requests wait, and when a periodic checkpoint is due
* `checkpoint_cuts.py`: at which epoch a checkpoint is cut
* `checkpoint_completion.py`: writing its snapshot and its metadata
* `checkpoint_failures.py`: what follows when it fails
* `retained_checkpoints.py`: which completed checkpoints are kept
* `checkpoint_ledger.py`: the checkpoints in progress, and the locks

Clock, store and snapshot runner are passed in, so that a test can play any order of events, and play it again from a
seed. The coordinator knows nothing of Spark, of sinks, or of how a job is restarted.
"""

from __future__ import annotations

from cairn.coordinator.checkpoint_completion import CheckpointCompletion
from cairn.coordinator.checkpoint_cuts import CutPoint
from cairn.coordinator.checkpoint_failures import CheckpointFailures
from cairn.coordinator.checkpoint_fence import CheckpointFence
from cairn.coordinator.checkpoint_ledger import CheckpointLedger
from cairn.coordinator.checkpoint_schedule import CheckpointSchedule
from cairn.coordinator.checkpoint_statistics import Tasks
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.coordinator_step import CoordinatorStep
from cairn.coordinator.pending_checkpoint import CheckpointRequest, SavepointOrder
from cairn.coordinator.retained_checkpoints import RetainedCheckpoints
from cairn.coordinator.snapshot_writers import SnapshotWriters
from cairn.model.checkpoint_records import CheckpointInfo, FailureReason
from cairn.model.manifest import Manifest
from cairn.storage.cleanup import Pins
from cairn.storage.run_records import Runs


class CheckpointCoordinator:
    """Decides about the checkpoints of one run.

    Threads: every method may be called from any thread, except that `step` and `wait` belong to the coordinator's own.
    What is decided is guarded by the ledger's `lock`, which is never held during a call to the storage. Such calls are
    made in `step` and `close` only, by one thread at a time, which holds the ledger's `work`.
    """

    def __init__(self, setup: CoordinatorSetup) -> None:
        settings, store, run = setup.settings, setup.store, setup.facts.run
        self._settings = settings
        self._ledger = CheckpointLedger(setup.facts, setup.clock, store.next_number())
        self._schedule = CheckpointSchedule(setup, self._ledger)
        self._cuts = CutPoint(settings, setup.current, setup.published)
        self._retained = RetainedCheckpoints(store, run, settings.num_retained, setup.clock)
        self._writers = SnapshotWriters(setup)
        fence = CheckpointFence(Runs(store.files), run, self._ledger, self._schedule)
        self._failures = CheckpointFailures(setup, self._ledger, self._writers, self._retained)
        completion = CheckpointCompletion(setup, self._ledger, self._writers, self._retained, self._failures, fence)
        self._step = CoordinatorStep(setup, self._schedule, self._cuts, completion, self._failures, fence)
        self.events = setup.events
        self.periodic = settings.interval_ms > 0
        """Whether checkpoints are taken without a request."""

    # Called by the epoch loop.

    def epoch_began(self, epoch: int, offsets: str) -> int:
        """An epoch starts; returns the number of the checkpoint whose barrier it carries, or 0."""
        with self._ledger.lock:
            return self._cuts.epoch_began(epoch, offsets, self._ledger.without_cut())

    def epoch_committed(self, manifest: Manifest, tasks: Tasks) -> None:
        self._retained.collected(manifest.garbage.files)
        with self._ledger.lock:
            self._cuts.epoch_committed(manifest, tasks, self._ledger.without_cut())
            self._ledger.lock.notify_all()

    def epoch_failed(self, epoch: int, error: BaseException) -> None:
        """This run will not commit the running epoch: the checkpoints that waited for its end are given up."""
        with self._ledger.lock:
            self._cuts.epoch_failed()
            for pending in self._ledger.without_cut():
                self._ledger.abort(pending, FailureReason.TASK_FAILURE, f"epoch {epoch} failed: {error}")
            self._ledger.lock.notify_all()  # the coordinator's thread does the rest

    def take_notices(self) -> list[tuple[int, bool]]:
        """What the next epoch reports to the tasks: the number of each ended checkpoint, and whether it completed."""
        with self._ledger.lock:
            return self._ledger.take_notices()

    def pins(self) -> Pins:
        """What must not be deleted, because retained checkpoints or those in progress need it.

        The running epoch is about to be committed with this knowledge.
        """
        with self._ledger.lock:
            self._cuts.epoch_committing()
            return self._retained.pins(self._ledger.manifests())

    # Called by anyone.

    def request(self, full: bool | None = None) -> CheckpointRequest:
        """Request a checkpoint; it starts as soon as the settings allow. `full` None means: as configured."""
        request = CheckpointRequest(not self._settings.incremental if full is None else full)
        with self._ledger.lock:
            self._schedule.add(request)
        return request

    def savepoint(self, order: SavepointOrder) -> CheckpointRequest:
        """Request a savepoint. The same request id, in this run or a later one, always means the same savepoint."""
        request, fresh = self._writers.savepoint_requests.take(order)
        if fresh:
            with self._ledger.lock:
                self._schedule.add(request)
        return request

    def known_savepoint(self, order: SavepointOrder) -> CheckpointRequest | None:
        """The savepoint that the same request id has made or is making, with its order. None if there is none."""
        return self._writers.savepoint_requests.known(order) if self._writers.writes_savepoints else None

    @property
    def published(self) -> bool:
        """Whether the output of the newest epoch is visible, so that a checkpoint can be cut there."""
        with self._ledger.lock:
            return self._cuts.published

    def current_epoch(self) -> int:
        """The newest committed epoch, -1 if there is none."""
        with self._ledger.lock:
            return self._cuts.epoch

    def infos(self) -> list[CheckpointInfo]:
        """Checkpoints in progress, newest first."""
        with self._ledger.lock:
            newest_first = self._ledger.pending()[::-1]
            running = self._cuts.running_epoch
        return [self._writers.info(pending, running) for pending in newest_first]

    # Called by the coordinator's thread.

    def step(self) -> float:
        """Do what is due; returns the milliseconds after which to come back, sooner if something happens."""
        with self._ledger.work:
            return self._step.run()

    def wait(self, millis: float) -> None:
        """Wait for an event or until the timeout."""
        with self._ledger.lock:
            self._ledger.lock.wait(millis / 1000)

    def close(self) -> None:
        """The run ends. Checkpoints in progress are given up, completed ones stay."""
        self._retained.hurry()
        ledger = self._ledger
        with ledger.lock:
            ledger.closed = True
            self._schedule.refuse_all("the job has ended")
            for pending in ledger.pending():
                if not pending.finalizing:  # else a step is completing it just now
                    ledger.abort(pending, FailureReason.SHUTDOWN, "the job has ended")
            ledger.lock.notify_all()
        self._failures.settle_outside_step()
