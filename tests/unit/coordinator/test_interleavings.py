"""What several threads share in a driver, with their steps interleaved by a seed.

Coordinator, retained checkpoints and control run together, as they do in a job; publisher, web host and background
snapshots by themselves. A run that fails names its seed: `INTERLEAVING_SEED=<seed>` repeats it, alone.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.interleaving import Actor, Deadlock, Interleaving, NoLock

from cairn.config import CheckpointSettings, Settings, WebSettings
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
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.control import Control, ask
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.epoch_loop import EpochReport
from cairn.coordinator.pending_checkpoint import CheckpointRequest, SavepointOrder
from cairn.coordinator.ports import JobFacts, WrittenSavepoint
from cairn.errors import CheckpointFailedError, StorageError
from cairn.job import publisher
from cairn.job.publisher import Publisher
from cairn.model.manifest import Garbage, Manifest, OperatorState, StateHandle, TaskMetrics
from cairn.spark import background_snapshots, background_tasks
from cairn.spark.background_snapshots import SparkSnapshots
from cairn.spark.background_tasks import Background
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import collect, plan_garbage
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_records import Runs
from cairn.view import journal
from cairn.view.journal import Journal
from cairn.web import driver_server, job_catalogue
from cairn.web.job_catalogue import Catalogue

COORDINATOR: list[ModuleType] = [
    checkpoint_completion, checkpoint_coordinator, checkpoint_cuts, checkpoint_deletion, checkpoint_failures,
    checkpoint_fence, checkpoint_ledger, checkpoint_schedule, checkpoint_thread, compactor, control, coordinator_step,
    pending_checkpoint, retained_checkpoints, run_watch, savepoint_requests, snapshot_writers,
]  # fmt: skip
EPOCHS = 6
RETAINED = 2
ROUNDS = int(os.environ.get("INTERLEAVING_ROUNDS", "12"))


def seeds(rounds: int = ROUNDS) -> Iterator[int]:
    """Fixed seeds, and as many new ones."""
    alone = os.environ.get("INTERLEAVING_SEED")
    if alone is not None:
        yield int(alone)
        return
    yield from range(rounds)
    first = time.time_ns() % 1_000_000_000
    yield from range(first, first + rounds)


Scenario = Callable[[int, Path, pytest.MonkeyPatch], None]


def play(scenario: Scenario, folder: Path, rounds: int = ROUNDS) -> None:
    for seed in seeds(rounds):
        with pytest.MonkeyPatch.context() as patch:
            try:
                scenario(seed, folder / str(seed), patch)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def noticed(scenario: Scenario, folder: Path, rounds: int = 300) -> None:
    """The run of one of the first seeds fails."""
    for seed in range(rounds):
        with pytest.MonkeyPatch.context() as patch:
            try:
                scenario(seed, folder / str(seed), patch)
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}")
                return
    pytest.fail(f"none of {rounds} seeds notices the broken version")


# Coordinator, retained checkpoints, control.


def manifest(epoch: int) -> Manifest:
    """The state of an epoch: what it wrote itself, and what the epoch before it wrote."""
    chain = [
        StateHandle(e, g, g + 63, 1, f"c{e}", f"shared/op/{e:012d}-1-{g}.state")
        for e in range(max(0, epoch - 1), epoch + 1)
        for g in (0, 64)
    ]
    return Manifest(
        "job", "inc", epoch, f"commit-{epoch}", 1, epoch - 1, 128, f"offsets of {epoch}", 0, 0,
        [OperatorState("op", "Op", 2, "key string", [], chain)], [], {},
    )  # fmt: skip


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


# The compactor.


class Merging:
    """Chains that grow by a file an epoch, and are merged on a thread beside the loop's."""

    adopted = 0

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.run = Interleaving(seed, [compactor])
        self.run.install(patch, compactor)
        self.compactor = Compactor(self._merge, 2)
        self.merged: list[StateHandle] = []
        self.chains: list[list[StateHandle]] = []

    def _merge(self, made: Manifest, operator: OperatorState, ranges: Any) -> list[StateHandle]:
        if self.run.random.random() < 0.3:
            raise StorageError("away")
        self.run.give_way()
        self.merged.append(StateHandle(made.epoch, 0, 127, 1, "c", f"merged-{made.epoch}", snapshot=True))
        return [self.merged[-1]]

    def epochs(self) -> None:
        chain: list[StateHandle] = []
        for epoch in range(40):
            chain = self.compactor.shortened("op", chain, epoch)
            chain = [*chain, StateHandle(epoch, 0, 127, 1, "c", f"delta-{epoch}")]
            self.chains.append(chain)
            made = manifest(epoch)
            state = msgspec.structs.replace(made.operators[0], chain=chain)
            self.compactor.consider(msgspec.structs.replace(made, operators=[state]))
            self.run.give_way()
        self.compactor.wait(100.0)

    def play(self) -> None:
        self.run.spawn("epochs", self.epochs)
        self.run.run()
        for epoch, chain in enumerate(self.chains):
            snapshots = [handle.epoch for handle in chain if handle.snapshot]
            Merging.adopted += bool(snapshots)
            covered = set(range(max(snapshots, default=-1) + 1)) | {h.epoch for h in chain if not h.snapshot}
            assert covered == set(range(epoch + 1)), f"the chain of epoch {epoch} lacks changes"


def merging(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    Merging(seed, patch).play()


def test_compactor(tmp_path: Path) -> None:
    play(merging, tmp_path)
    assert Merging.adopted > 0


# The publisher.


class Published:
    """A job that reports epochs, a coordinator's thread that writes them down, and readers."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.run = Interleaving(seed, [publisher, journal])
        self.run.install(patch, publisher, journal)
        folder.mkdir(parents=True)
        self.files = LocalFileSystem(str(folder))
        self.publisher = Publisher(self.files, "job", Settings(web=WebSettings(enabled=False)))
        self.publisher.recorder.begin(1)
        self.publisher.watch(self)
        self.committed = 0
        self.told = 0
        self.stream: Actor | None = None

    def news(self, now: bool = False) -> Iterator[tuple[int, dict[str, int]]]:
        """As Spark tells of the rows of sources: after the epoch."""
        while self.told < self.committed:
            self.told += 1
            yield self.told - 1, {"source": 10}

    def epochs(self) -> None:
        for epoch in range(20):
            tasks = (("op", 0, TaskMetrics(rows_in=3)), ("op", 1, TaskMetrics(rows_in=4)))
            self.publisher.recorder.record(EpochReport(epoch, 7, 7, 1, 1, 1, 1.0, 0, 0, tasks=tasks))
            self.committed += 1
            self.pause()

    def pause(self) -> None:
        self.run.wait_for(lambda: False, self.run.random.choice([0.0] * 9 + [30.0]))

    def look(self) -> None:
        while self.stream is not None and not self.stream.done:
            self.publisher.look()
            if self.run.random.random() < 0.5:
                self.publisher.recorder.flush()
            else:
                self.publisher.recorder.due()
            self.pause()

    def read(self) -> None:
        while self.stream is not None and not self.stream.done:
            epochs = [stats.epoch for stats in self.publisher.recorder.epochs()]
            assert epochs == list(range(len(epochs)))
            self.publisher.recorder.totals()
            self.pause()

    def play(self) -> None:
        self.stream = self.run.spawn("stream", self.epochs)
        others = [self.run.spawn("coordinator", self.look), self.run.spawn("page", self.read)]

        def end() -> None:
            self.run.wait_for(lambda: self.stream is not None and self.stream.done)
            self.publisher.look(now=True)  # beside the coordinator's thread, which may be looking, too
            self.publisher.recorder.flush()
            self.run.wait_for(lambda: all(other.done for other in others))
            self.publisher.recorder.flush()

        self.run.spawn("end", end)
        self.run.run()

    def verify(self) -> None:
        chunks = Journal(self.files).chunks()
        assert sorted(stats.epoch for chunk in chunks for stats in chunk.epochs) == list(range(20))
        recorder = self.publisher.recorder
        assert [load.rows_in for load in recorder.totals()["op"]] == [60, 80]
        assert recorder.ends() == {"source": 200}


def publishing(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    job = Published(seed, folder, patch)
    job.play()
    job.verify()


def test_publisher(tmp_path: Path) -> None:
    play(publishing, tmp_path)


def test_a_missing_lock_of_the_recorder_is_noticed(tmp_path: Path) -> None:
    def broken(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        job = Published(seed, folder, patch)
        patch.setattr(job.publisher.recorder, "_lock", NoLock())
        job.play()
        job.verify()

    noticed(broken, tmp_path)


# The web host.


def hosting(seed: int, folder: Path, patch: pytest.MonkeyPatch, lock: Any = None) -> None:
    """Jobs that start at the same time, some with the same settings of the server."""
    run = Interleaving(seed, [driver_server, job_catalogue])
    run.install(patch, driver_server, job_catalogue)
    servers: dict[WebSettings, tuple[Any, Catalogue]] = {}
    started: list[Any] = []

    def start(settings: WebSettings) -> tuple[Any, Catalogue]:
        run.give_way()
        started.append(settings)
        return SimpleNamespace(url=f"http://host/{len(started)}"), Catalogue()

    patch.setattr(driver_server, "_start", start)
    patch.setattr(driver_server, "_servers", servers)
    patch.setattr(driver_server, "_lock", lock or run.threading().Lock())
    patch.setattr(driver_server, "missing", list)
    urls: dict[str, str | None] = {}
    reader: Any = SimpleNamespace(live=None)

    def serve(number: int) -> None:
        settings = WebSettings(enabled=True, port=8000 + number % 2)
        urls[f"job-{number}"] = driver_server.serve(settings, f"job-{number}", reader)

    for number in range(5):
        run.spawn(f"job-{number}", lambda number=number: serve(number))  # type: ignore[misc]
    run.run()
    assert len(started) == len(servers) == 2, "settings have one server each"
    for job, url in urls.items():
        (catalogue,) = [known for server, known in servers.values() if url == f"{server.url}/jobs/{job}"]
        assert job in catalogue._readers


def test_web_host(tmp_path: Path) -> None:
    play(hosting, tmp_path)


def test_a_missing_lock_of_the_web_host_is_noticed(tmp_path: Path) -> None:
    noticed(lambda seed, folder, patch: hosting(seed, folder, patch, NoLock()), tmp_path)


# Background snapshots.


class Writing:
    """Full checkpoints that Spark writes in pieces, one of which is canceled on the way."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.run = Interleaving(seed, [background_snapshots, background_tasks])
        self.run.install(patch, background_snapshots, background_tasks)
        patch.setattr(background_snapshots, "compact_range", self._piece)
        context = SimpleNamespace(
            defaultParallelism=3, setJobGroup=lambda *a, **k: None, setLocalProperty=lambda *a: None,
            parallelize=lambda pieces, slices: SimpleNamespace(
                map=lambda call: SimpleNamespace(collect=lambda: [call(piece) for piece in pieces])
            ),
            cancelJobGroup=lambda group: None,
        )  # fmt: skip
        spark: Any = SimpleNamespace(sparkContext=context)
        self.snapshots = SparkSnapshots(spark, Background(spark, self._idle), "/job", 1)
        self.results: dict[int, list[Any]] = {1: [], 2: [], 3: []}

    def _idle(self) -> float:
        return self.run.random.choice([0.0, 60.0])

    def _piece(self, work: Any) -> list[bytes]:
        self.run.give_way()
        return [msgspec.msgpack.encode(StateHandle(work[1], work[4], work[5], 1, "c", "p", snapshot=True))]

    def coordinate(self) -> None:
        made = manifest(3)
        large = [msgspec.structs.replace(handle, rows=1_000_000) for handle in made.operators[0].chain]
        made = msgspec.structs.replace(made, operators=[msgspec.structs.replace(made.operators[0], chain=large)])
        for number in self.results:
            self.snapshots.start(number, made, self.results[number].append)
        while not all(self.results.values()):
            for number in self.results:
                assert set(self.snapshots.written(number)) <= {("op", 0), ("op", 1)}
            self.run.wait_for(lambda: False, 0.02)
            if self.run.random.random() < 0.2:
                self.snapshots.cancel(2)

    def play(self) -> None:
        self.run.spawn("coordinator", self.coordinate)
        self.run.run()

    def verify(self) -> None:
        assert all(len(results) == 1 for results in self.results.values()), "each end is reported once"
        for number in (1, 3):
            handles = self.results[number][0]["op"]
            groups = sorted((handle.first_group, handle.last_group) for handle in handles)
            assert [first for first, _ in groups] == [0, *(last + 1 for _, last in groups[:-1])]
            assert groups[-1][1] == 127
            assert self.snapshots.spent(number).keys() == {("op", 0), ("op", 1)}
            assert self.snapshots.spent(number) == {}
        if isinstance(self.results[2][0], CheckpointFailedError):
            assert self.snapshots.spent(2) == {}
        assert [self.snapshots.written(number) for number in self.results] == [[], [], []]


def writing(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    job = Writing(seed, patch)
    job.play()
    job.verify()


def test_background_snapshots(tmp_path: Path) -> None:
    play(writing, tmp_path)
