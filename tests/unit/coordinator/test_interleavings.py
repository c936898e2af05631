"""Coordinator, retained checkpoints and control run together, with the steps of their threads interleaved by a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.support.interleaved_runs import manifest, noticed, play
from tests.support.interleaving import Actor, Deadlock, Interleaving, NoLock

from cairn.config import CheckpointSettings
from cairn.coordinator import (
    checkpoint_completion,
    checkpoint_coordinator,
    checkpoint_cuts,
    checkpoint_deletion,
    checkpoint_failures,
    checkpoint_fence,
    checkpoint_ledger,
    checkpoint_schedule,
    checkpoint_thread,
    compactor,
    control,
    coordinator_step,
    pending_checkpoint,
    retained_checkpoints,
    run_watch,
    savepoint_requests,
    snapshot_writers,
)
from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.checkpoint_thread import CheckpointThread
from cairn.coordinator.control import Control, ask
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.pending_checkpoint import CheckpointRequest, SavepointOrder
from cairn.coordinator.ports import JobFacts, WrittenSavepoint
from cairn.errors import CheckpointFailedError, StorageError
from cairn.model.manifest import Garbage, Manifest, StateHandle, TaskMetrics
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import collect, plan_garbage
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_records import Runs

COORDINATOR: list[ModuleType] = [
    checkpoint_completion, checkpoint_coordinator, checkpoint_cuts, checkpoint_deletion, checkpoint_failures,
    checkpoint_fence, checkpoint_ledger, checkpoint_schedule, checkpoint_thread, compactor, control, coordinator_step,
    pending_checkpoint, retained_checkpoints, run_watch, savepoint_requests, snapshot_writers,
]  # fmt: skip
EPOCHS = 6
RETAINED = 2


class WatchedStore(CheckpointStore):
    """Notices two threads that delete at the same time."""

    deleting: Actor | None = None
    run: Interleaving

    def discard(self, number: int) -> None:
        self._alone(lambda: super(WatchedStore, self).discard(number))

    def abandon(self, number: int, run: int) -> None:
        self._alone(lambda: super(WatchedStore, self).abandon(number, run))

    def _alone(self, delete: Callable[[], None]) -> None:
        me = self.run.current
        assert self.deleting in (None, me), "two threads delete checkpoints at the same time"
        before, self.deleting = self.deleting, me
        self.run.give_way()
        delete()
        self.run.give_way()
        self.deleting = before


class Job:
    """A driver with all threads that deal with checkpoints."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.run = Interleaving(seed, COORDINATOR)
        self.run.install(patch, *COORDINATOR)
        folder.mkdir(parents=True)
        self.files = LocalFileSystem(str(folder))
        Runs(self.files).take(2, 0)
        self.files.create(layout.full_snapshot_path(1, "op", 0, 1, "deadbeef"), b"left by a crash")
        self.store = WatchedStore(self.files)
        self.store.run = self.run
        self.savepoints: Counter[str] = Counter()
        self.under_way: dict[int, SavepointOrder] = {}
        self.requests: list[CheckpointRequest] = []
        self.answers: list[dict[str, Any] | None] = []
        self.coordinator = CheckpointCoordinator(
            CoordinatorSetup(
                CheckpointSettings(
                    incremental=True, interval_ms=40, num_retained=RETAINED, max_concurrent=2, tolerable_failures=1000,
                    timeout_ms=5000, unaligned=seed % 3 == 0, aligned_timeout_ms=20,
                ),
                self.store, JobFacts("job", "Job", 1), self, None, lambda info: None, savepoints=self, clock=self.run,
            )
        )  # fmt: skip
        self.control = Control(self.files, self.coordinator, {"savepoint": self._savepoint_action})
        self.busy = 0

    def _savepoint_action(self, asked: Any) -> Callable[[], Any]:
        return self.coordinator.savepoint(SavepointOrder("/savepoints", asked["id"])).wait

    # Writes snapshots and savepoints, each on a thread of its own.

    def find(self, order: SavepointOrder) -> WrittenSavepoint | None:
        self.run.give_way()
        made = self.savepoints[order.request]
        return WrittenSavepoint(f"/savepoints/{order.request}", 1, 0) if made else None

    def progress(self, number: int) -> tuple[int, int]:
        return 0, 1

    def start(self, number: int, cut: Manifest, *rest: Any) -> None:
        done = rest[-1]
        savepoint = len(rest) == 2
        if savepoint:
            self.under_way[number] = rest[0]

        def write() -> None:
            fails = self.run.random.random() < 0.2
            if savepoint:
                done(StorageError("away") if fails else None)
                return
            path = layout.full_snapshot_path(number, "op", 0, 1, "0123abcd")
            self.files.create(path, b"snapshot")
            handle = StateHandle(cut.epoch, 0, 127, 1, "c", path, snapshot=True)
            done(StorageError("away") if fails else {"op": [handle]})

        self.run.spawn(f"snapshot-{number}", write)

    def complete(self, number: int) -> WrittenSavepoint:
        order = self.under_way.pop(number)
        self.savepoints[order.request] += 1
        return WrittenSavepoint(f"/savepoints/{order.request}", 1, 0)

    def cancel(self, number: int) -> None:
        self.under_way.pop(number, None)

    # The threads.

    def epochs(self) -> None:
        """What the epoch loop does."""
        manifests = ManifestStore(self.files)
        known: dict[int, Manifest] = {}
        left = Garbage()
        for epoch in range(EPOCHS):
            self.coordinator.take_notices()
            self.coordinator.epoch_began(epoch, f"offsets of {epoch}")
            made = manifest(epoch)
            for path in sorted(made.files()):
                if not self.files.exists(path):
                    self.files.create(path, b"state")
            if self.run.random.random() < 0.15:
                self.coordinator.epoch_failed(epoch, StorageError("away"))
                self.coordinator.epoch_began(epoch, f"offsets of {epoch}")
            pins = self.coordinator.pins()
            known[epoch] = made
            made = msgspec.structs.replace(made, garbage=plan_garbage(known, 1, pins, left))
            self.run.give_way()
            manifests.publish(made)
            known[epoch] = made
            self.coordinator.epoch_committed(made, [("op", 0, TaskMetrics()), ("op", 1, TaskMetrics())])
            left = collect(manifests, made.garbage)
            for gone in made.garbage.epochs:
                known.pop(gone, None)
            self.run.wait_for(lambda: False, self.run.random.random() / 20)
            self.check()

    def user(self) -> None:
        """Requests checkpoints in the process of the driver."""
        for _ in range(3):
            request = self.coordinator.request(self.run.random.random() < 0.5)
            self.requests.append(request)
            if self.run.random.random() < 0.5:
                self.coordinator.infos()
                with suppress(CheckpointFailedError, TimeoutError):
                    request.wait(1.0)

    def asker(self, question: dict[str, Any], request: str = "") -> Callable[[], None]:
        """Asks by files, as a command does."""
        return lambda: self.answers.append(ask(self.files, question, 60.0, request))

    def check(self) -> None:
        """Every checkpoint that exists is whole."""
        with self.run.atomic():
            reader = CheckpointStore(self.files)
            for number in reader.numbers():
                checkpoint = reader.load(number)
                missing = [path for path in checkpoint.files() if not self.files.exists(path)]
                assert not missing, f"checkpoint {number} needs {missing}, which is deleted"

    def play(self) -> None:
        thread = CheckpointThread(self.coordinator, self.control.serve)
        workers = [
            self.run.spawn("epochs", self.epochs),
            self.run.spawn("user", self.user),
            self.run.spawn("other user", self.user),
            self.run.spawn("command", self.asker({"action": "checkpoint", "full": True})),
            self.run.spawn("stop", self.asker({"action": "savepoint"}, "same-id")),
            self.run.spawn("stop again", self.asker({"action": "savepoint"}, "same-id")),
        ]
        patience = self.run.random.choice([0.05, 0.5, 100.0])

        def end() -> None:
            self.run.wait_for(lambda: all(worker.done for worker in workers), patience)
            thread.stop()
            self.control.finish(60.0)
            self.run.wait_for(lambda: all(worker.done for worker in workers), 100.0)

        self.run.spawn("end", end)
        self.run.run()

    def verify(self) -> None:
        self.check()
        assert all(request.ended for request in self.requests), "a request was never answered"
        assert all(count == 1 for count in self.savepoints.values()), "a request id made two savepoints"
        numbers = CheckpointStore(self.files).numbers()
        assert len(numbers) <= RETAINED, f"too many checkpoints are kept: {numbers}"
        folders = [layout.checkpoint_number(name) for name in self.files.folders("")]
        assert sorted(n for n in folders if n is not None) == numbers, "what is not kept was not deleted"


def coordinating(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    job = Job(seed, folder, patch)
    job.play()
    job.verify()


def test_coordinator_retained_checkpoints_and_control(tmp_path: Path) -> None:
    play(coordinating, tmp_path)


def test_a_seed_repeats_its_run(tmp_path: Path) -> None:
    seen = []
    for folder in ("first", "again"):
        with pytest.MonkeyPatch.context() as patch:
            job = Job(3, tmp_path / folder, patch)
            job.play()
            history = [(i.id, i.status, i.reason, i.end_ms) for i in job.store.history()]
            seen.append((job.run.switches, job.run.now, history))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("lock", ["work", "lock"])
def test_a_missing_lock_of_the_coordinator_is_noticed(tmp_path: Path, lock: str) -> None:
    def broken(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        job = Job(seed, folder, patch)
        free: Any = NoLock()
        free.notify_all = lambda: None
        free.wait = lambda timeout: job.run.wait_for(lambda: False, timeout)
        setattr(job.coordinator._ledger, lock, free)
        job.play()
        job.verify()

    noticed(broken, tmp_path)


def test_threads_that_wait_for_each_other_are_noticed() -> None:
    run = Interleaving(0, [])
    first, second = run.threading().Lock(), run.threading().Lock()

    def take(one: Any, other: Any) -> None:
        with one:
            run.wait_for(lambda: False, 1.0)
            with other:
                pass

    run.spawn("one", lambda: take(first, second))
    run.spawn("other", lambda: take(second, first))
    with pytest.raises(Deadlock, match="one, other"):
        run.run()
