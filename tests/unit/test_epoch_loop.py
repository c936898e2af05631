"""The driver's loop against storage that fails: crash at every call, torn manifests, fences, acknowledgements."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cairn.api.recovery import recover, spark_batches
from cairn.config import Settings
from cairn.coordinator import compaction as compaction_module
from cairn.coordinator.compaction import Compactor
from cairn.coordinator.epochs import EpochLoop, OperatorPlan
from cairn.coordinator.offsets import LocalOffsets
from cairn.errors import CairnError, CorruptFileError, EpochFailedError, FencedError, InvalidInputError, StorageError
from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.model.manifest import TaskAck
from cairn.runtime import compact as compact_task
from cairn.state import store
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifests import ManifestStore, Runs, encode_manifest
from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem
from cairn.testing.harness import UID, KeyedProcessHarness, LocalCluster, local_compaction

INPUT = "key string, n bigint"
OUTPUT = "key string, n bigint"
EPOCHS: list[list[tuple[str, int]]] = [
    [("a", 1), ("b", 2), ("a", 3)],
    [("b", 4), ("c", 5)],
    [("a", 6), ("c", 7), ("d", 8)],
    [("d", 9)],
]


class Ledger(KeyedProcessFunction):
    """Keeps a total, a list and a map, and a timer that fires one epoch later."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.last = runtime_context.get_map_state(MapStateDescriptor("last", "string", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        self.seen.add(value.n)
        self.last.put("n", value.n)
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + 500)
        yield value.key, self.total.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        self.last.remove("n")
        yield ctx.get_current_key(), -timestamp


def model(epochs: Sequence[Sequence[tuple[str, int]]]) -> tuple[dict[str, int], dict[str, list[int]], list[list[Any]]]:
    """What plain dicts say: totals, lists, and the sorted output of each epoch."""
    totals: dict[str, int] = {}
    seen: dict[str, list[int]] = {}
    outputs = []
    for epoch, rows in enumerate(epochs):
        before = {key for key, _ in epochs[epoch - 1]} if epoch else set()
        made: list[Any] = [(key, -(1000 * (epoch - 1) + 500)) for key in before]
        for key, n in rows:
            totals[key] = totals.get(key, 0) + n
            seen.setdefault(key, []).append(n)
            made.append((key, totals[key]))
        outputs.append(sorted(made))
    return totals, seen, outputs


class StoredSink:
    """Two phases over the job's own storage: rows travel in the manifest and are written when it is committed."""

    uid = "sink"
    kind = "stored"

    def __init__(self, files: Any) -> None:
        self.files = files
        self.fail: dict[str, int] = {}

    def prepare(self, frame: Any, epoch: int, attempt: str) -> Any:
        rows = [list(row) for row in frame]
        if self.fail.get("prepare") == epoch:
            raise EpochFailedError("the sink refused")
        return rows

    def commit(self, data: Any, epoch: int) -> None:
        if self.fail.get("commit") == epoch:
            raise StorageError("the sink is away")
        path = f"tables/out/{epoch:03d}"
        if not self.files.exists(path):
            self.files.create(path, json.dumps(sorted(data)).encode())
        else:
            assert json.loads(self.files.read(path)) == sorted(data)


class Loop(EpochLoop):
    hook: Callable[[str, int], None] | None = None

    def step(self, name: str, epoch: int) -> None:
        super().step(name, epoch)
        if self.hook is not None:
            self.hook(name, epoch)


class World:
    """A job directory, Spark's logs in it, and working stores: what outlives a crash of the driver."""

    def __init__(self, folder: Path, backend: str = "hashmap", parallelism: int = 2) -> None:
        self.root = folder / "job"
        self.local = folder / "local"
        self.parallelism = parallelism
        self.settings = Settings(
            directory=str(self.root), local_directory=str(self.local), backend=backend, inline_threshold=900,
            compaction_chain=2, epochs_retained=2,
        )  # fmt: skip
        self.cluster_type: type[LocalCluster] = LocalCluster
        self.hook: Callable[[str, int], None] | None = None
        self.sink_fails: dict[str, int] = {}

    def log(self, name: str, epoch: int) -> None:
        """What Spark writes: the plan of a batch, and later its commit."""
        path = self.root / "spark" / name / str(epoch)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1000 * epoch}
            path.write_text(f"v1\n{json.dumps(metadata)}\n{epoch}")

    def start(self, files: Any) -> Loop:
        recovered = recover(files, "job", "job", self.settings, self.parallelism, 128, [UID], now_ms=0)
        probe = KeyedProcessHarness(
            Ledger(), "key", INPUT, OUTPUT, backend=self.settings.backend, parallelism=self.parallelism
        )
        spec, shuffle = probe.spec, probe._shuffle
        probe.close()
        cluster = self.cluster_type(spec, shuffle, files)
        cluster.attempts = 1000 * recovered.run.run
        sink = StoredSink(files)
        sink.fail = self.sink_fails
        loop = Loop(
            files=files,
            identity=recovered.identity,
            run=recovered.run,
            operators=[OperatorPlan(UID, "ledger", self.parallelism)],
            sinks=[sink],
            cluster=cluster,
            offsets=LocalOffsets(str(self.root / "spark")),
            settings=self.settings,
            current=recovered.manifest,
            compactor=Compactor(local_compaction(files.root, recovered.run.run), 2, 1, background=False),
        )
        loop.hook = self.hook
        return loop

    def run(self, plan: FaultPlan | None = None, until: int = len(EPOCHS), files: Any = None) -> FaultyFileSystem:
        """One life of the driver: recover, then the batches that Spark would ask for."""
        files = files or FaultyFileSystem(LocalFileSystem(str(self.root)), plan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compact_task, "open_filesystem", lambda url: files)
            loop = self.start(files)
            planned, committed = (spark_batches(str(self.root), name) for name in ("offsets", "commits"))
            epoch = committed[-1] + 1 if committed else 0
            assert not planned or planned[-1] in (epoch, epoch - 1)
            for number in range(epoch, until):
                self.log("offsets", number)
                loop.run_epoch(EPOCHS[number], number)
                self.log("commits", number)
        return files

    def check(self, epochs: int = len(EPOCHS)) -> None:
        """State and outputs are those of a run without faults, and what is retained is whole."""
        totals, seen, outputs = model(EPOCHS[:epochs])
        published = sorted((self.root / "tables" / "out").glob("*"))
        assert [json.loads(path.read_text()) for path in published] == [[list(row) for row in rows] for rows in outputs]
        manifests = ManifestStore(LocalFileSystem(str(self.root)))
        for epoch in manifests.epochs()[-self.settings.epochs_retained :]:
            manifest = manifests.load(epoch)
            assert all((self.root / path).is_file() for path in manifest.files())
            assert manifest.inline_epochs() <= set(manifests.epochs())
        assert manifests.epochs()[-1] == epochs - 1
        copied = self.root.parent / "copy"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.root, copied)
        with KeyedProcessHarness(Ledger(), "key", INPUT, OUTPUT, parallelism=3, state_dir=copied) as harness:
            for key, total in totals.items():
                assert harness.state("total", key) == total
                assert harness.state("seen", key) == seen[key]
            assert sorted(timer.key for timer in harness.timers()) == sorted({key for key, _ in EPOCHS[epochs - 1]})

    def lose_stores(self) -> None:
        for key in [key for key in store._resident if key.startswith(str(self.local))]:
            store._resident.pop(key)
        shutil.rmtree(self.local, ignore_errors=True)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compactions are adopted by the next epoch, so that a short job sees them."""
    monkeypatch.setattr(compaction_module, "DEFER_EPOCHS", -1)
    monkeypatch.setattr(store, "DEFER_EPOCHS", 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lose_stores()


def calls_of_a_run(tmp_path: Path) -> list[tuple[int, str, str]]:
    world = World(tmp_path)
    log = world.run().log
    world.lose_stores()
    return log


def test_a_run_without_faults(world: World) -> None:
    log = world.run().log
    world.check()
    kinds = {operation for _, operation, _ in log}
    assert {"create", "read", "exists", "list", "delete"} <= kinds
    assert any("snapshot" in path for _, operation, path in log if operation == "create")
    assert any(path.startswith("shared/") for _, operation, path in log if operation == "delete")
    world.run()  # nothing is left to do
    world.check()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("lost", [False, True], ids=["same-workers", "new-workers"])
def test_a_crash_at_every_storage_call(tmp_path: Path, after: bool, lost: bool) -> None:
    """Crash, start again, finish: state equals a plain dict, and each output is there exactly once."""
    total = len(calls_of_a_run(tmp_path / "count"))
    assert total > 40
    for number in range(1, total + 1):
        world = World(tmp_path / str(number))
        with pytest.raises(Crash):
            world.run(FaultPlan([Fault("crash", call=number, after=after)]))
        if lost:
            world.lose_stores()
        world.run()
        world.check()
        world.lose_stores()
        shutil.rmtree(tmp_path / str(number))


def test_crashes_while_recovering_from_crashes(tmp_path: Path) -> None:
    """Five crashes in a row, each a little later in the life of a driver."""
    for seed in range(12):
        world = World(tmp_path / str(seed))
        for life in range(5):
            plan = FaultPlan([Fault("crash", call=5 + (seed * 7 + life * 11) % 60, after=bool((seed + life) % 2))])
            try:
                world.run(plan)
            except Crash:
                continue
        world.run()
        world.check()
        world.lose_stores()


@pytest.mark.parametrize("keep", [0, 1, 19, 20, 60, 300])
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_torn_manifest_is_an_epoch_that_did_not_happen(world: World, epoch: int, keep: int) -> None:
    fault = Fault("torn", operation="create", pattern=f"epochs/*{epoch}", keep=keep)
    with pytest.raises(Crash):
        world.run(FaultPlan([fault]))
    world.run()
    world.check()
    aside = [path.name for path in (world.root / "epochs").iterdir() if "unfinished" in path.name]
    assert len(aside) == 1


def test_a_torn_delta_or_snapshot_is_never_named(tmp_path: Path) -> None:
    for number, operation, path in calls_of_a_run(tmp_path / "count"):
        if operation == "create" and path.startswith("shared/"):
            for keep in (0, 100):
                world = World(tmp_path / f"{number}-{keep}")
                with pytest.raises(Crash):
                    world.run(FaultPlan([Fault("torn", call=number, keep=keep)]))
                world.run()
                world.check()
                world.lose_stores()


def test_a_full_disk_at_every_write(tmp_path: Path) -> None:
    for number, operation, path in calls_of_a_run(tmp_path / "count"):
        if operation != "create":
            continue
        world = World(tmp_path / str(number))
        plan = FaultPlan([Fault("full", call=number)])
        if "snapshot" in path:
            world.run(plan)  # a compaction that fails stops nothing
        else:
            with pytest.raises(StorageError, match="disk is full"):
                world.run(plan)
            world.run()
        world.check()
        world.lose_stores()


def test_failing_deletes_do_not_stop_the_job(world: World) -> None:
    world.run(FaultPlan([Fault("error", operation="delete", times=1000)]))
    world.check()
    world.run()
    world.check()


def test_an_intact_manifest_that_is_damaged_stops_the_start(world: World) -> None:
    world.run(until=2)
    newest = max((world.root / "epochs").iterdir())
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"does not match its checksum.*older epochs: 0"):
        world.run()


def test_a_cut_manifest_of_a_batch_that_spark_committed_stops_the_start(world: World) -> None:
    world.run(until=2)
    newest = max((world.root / "epochs").iterdir())
    newest.write_bytes(newest.read_bytes()[:50])
    with pytest.raises(CorruptFileError, match="cut short"):
        world.run()


def test_manifests_gone_while_spark_has_committed(world: World) -> None:
    world.run(until=2)
    shutil.rmtree(world.root / "epochs")
    with pytest.raises(CorruptFileError, match=r"committed batch 1.*missing"):
        world.run()


def test_spark_log_gone_while_manifests_are_there(world: World) -> None:
    world.run(until=2)
    shutil.rmtree(world.root / "spark")
    with pytest.raises(CorruptFileError, match="source positions are gone"):
        world.run()


def test_a_directory_of_something_else_is_refused(world: World) -> None:
    world.root.mkdir(parents=True)
    (world.root / "data.csv").write_text("mine")
    with pytest.raises(InvalidInputError, match="not empty"):
        world.run()
    assert [path.name for path in world.root.iterdir()] == ["data.csv"]


def test_a_crash_within_the_very_first_write_does_not_block_the_job(world: World) -> None:
    world.root.mkdir(parents=True)
    (world.root / ".job.json.0123.tmp").write_text("{")
    world.run()
    world.check()


def test_the_same_positions_are_asked_of_a_roll_forward(world: World) -> None:
    def crash(name: str, epoch: int) -> None:
        if (name, epoch) == ("committed", 1):
            raise Crash

    world.hook = crash
    with pytest.raises(Crash):
        world.run()
    world.hook = None
    entry = world.root / "spark" / "offsets" / "1"
    kept = entry.read_text()
    entry.write_text(kept + "0")
    with pytest.raises(CorruptFileError, match="other source positions"):
        world.run()
    entry.write_text(kept)
    world.run()
    world.check()


@pytest.mark.parametrize(
    "step", ["begin", "announced", "prepared", "acknowledged", "committed", "published", "cleaned"]
)
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_crash_between_any_two_steps(world: World, step: str, epoch: int) -> None:
    def crash(name: str, number: int) -> None:
        if (name, number) == (step, epoch):
            raise Crash

    world.hook = crash
    with pytest.raises(Crash):
        world.run()
    world.hook = None
    world.run()
    world.check()


# Sinks.


def test_a_sink_that_fails_in_its_first_phase_keeps_the_state_back(world: World) -> None:
    world.sink_fails = {"prepare": 1}
    with pytest.raises(EpochFailedError, match="the sink refused"):
        world.run()
    world.check(1)
    world.sink_fails = {}
    world.run()
    world.check()


def test_a_sink_that_fails_in_its_second_phase_is_called_again(world: World) -> None:
    world.sink_fails = {"commit": 1}
    with pytest.raises(StorageError, match="the sink is away"):
        world.run()
    world.sink_fails = {}
    world.run()
    world.check()


# Two drivers.


def test_an_older_run_stops_at_its_next_epoch(world: World) -> None:
    files = LocalFileSystem(str(world.root))
    old = world.start(files)
    world.log("offsets", 0)
    old.run_epoch(EPOCHS[0], 0)
    world.log("commits", 0)
    new = world.start(files)
    world.log("offsets", 1)
    with pytest.raises(FencedError, match=r"this is run 1 .* run 2 .* has taken it over"):
        old.run_epoch(EPOCHS[1], 1)
    assert ManifestStore(files).epochs() == [0]
    new.run_epoch(EPOCHS[1], 1)
    world.log("commits", 1)
    world.check(2)


def test_a_run_that_is_overtaken_while_it_works_does_not_commit(world: World) -> None:
    files = LocalFileSystem(str(world.root))
    old = world.start(files)
    world.log("offsets", 0)

    def overtake(name: str, epoch: int) -> None:
        if name == "acknowledged":
            Runs(files).take(1, 0)

    old.hook = overtake
    with pytest.raises(FencedError):
        old.run_epoch(EPOCHS[0], 0)
    assert ManifestStore(files).epochs() == []


def test_the_last_commit_of_an_older_run_is_taken_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old run passes its last check, then stalls; the new one starts, and the old commit lands in between."""
    files = LocalFileSystem(str(world.root))
    old = world.start(files)
    world.log("offsets", 0)
    late: list[Any] = []
    monkeypatch.setattr(old._manifests, "publish", late.append)

    def stall(name: str, epoch: int) -> None:
        if name == "committed":
            raise Crash

    old.hook = stall
    with pytest.raises(Crash):
        old.run_epoch(EPOCHS[0], 0)
    new = world.start(files)

    def land(name: str, epoch: int) -> None:
        if name == "acknowledged" and late:
            files.create("epochs/" + "0" * 20, encode_manifest(late.pop()))

    new.hook = land
    new.run_epoch(EPOCHS[0], 0)
    world.log("commits", 0)
    assert ManifestStore(files).load(0).run == 1
    assert new.current is not None
    assert new.current.run == 1
    world.log("offsets", 1)
    new.run_epoch(EPOCHS[1], 1)
    world.log("commits", 1)
    world.check(2)


def test_an_older_run_does_not_roll_a_newer_commit_forward(world: World) -> None:
    files = LocalFileSystem(str(world.root))
    old = world.start(files)
    world.log("offsets", 0)

    def overtake(name: str, epoch: int) -> None:
        if name == "acknowledged":
            world.start(files).run_epoch(EPOCHS[0], 0)

    old.hook = overtake
    with pytest.raises(FencedError):
        old.run_epoch(EPOCHS[0], 0)
    world.log("commits", 0)
    world.check(1)


def test_two_runs_never_get_the_same_number_though_the_listing_lags(tmp_path: Path) -> None:
    files = FaultyFileSystem(LocalFileSystem(str(tmp_path)), FaultPlan(list_lag=1000))
    assert [Runs(files).take(1, 0).run for _ in range(4)] == [1, 2, 3, 4]


def test_a_lagging_listing_never_starts_from_an_older_epoch(world: World) -> None:
    files = FaultyFileSystem(LocalFileSystem(str(world.root)), FaultPlan(list_lag=10_000))
    loop = world.start(files)
    for epoch in range(2):
        world.log("offsets", epoch)
        loop.run_epoch(EPOCHS[epoch], epoch)
        world.log("commits", epoch)
    with pytest.raises(CorruptFileError, match="committed batch 1"):
        world.start(files)
    files.plan = FaultPlan()
    world.run()
    world.check()


# Acknowledgements.


class Doubling(LocalCluster):
    """Every task runs twice, and acknowledgements of earlier epochs and runs arrive once more."""

    def run(self, rows: Any) -> list[Any]:
        outputs = super().run(rows)
        super().run(rows)
        for raw in list(self.acks):
            ack = msgspec.msgpack.decode(raw, type=TaskAck)
            self.acks.append(msgspec.msgpack.encode(msgspec.structs.replace(ack, run=ack.run + 7)))
            self.acks.append(msgspec.msgpack.encode(msgspec.structs.replace(ack, epoch=ack.epoch - 1)))
        return outputs


def test_duplicate_and_late_acknowledgements_count_once(world: World) -> None:
    world.cluster_type = Doubling
    world.run()
    world.check()


class Changing(LocalCluster):
    change: Callable[[list[TaskAck]], list[TaskAck]] = staticmethod(lambda acks: acks)

    def acknowledgements(self) -> list[bytes]:
        acks = [msgspec.msgpack.decode(raw, type=TaskAck) for raw in self.acks]
        return [msgspec.msgpack.encode(ack) for ack in type(self).change(acks)]


def altered(**changes: Any) -> Callable[[list[TaskAck]], list[TaskAck]]:
    return lambda acks: [msgspec.structs.replace(acks[0], **changes), *acks[1:]]


def emptied(acks: list[TaskAck]) -> TaskAck:
    """Another attempt of a subtask that changed something, which changed nothing."""
    busy = next(ack for ack in acks if ack.handle is not None)
    return msgspec.structs.replace(busy, handle=None, attempt=busy.attempt + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda acks: acks[1:], "1 of 2 subtasks did not finish epoch 0"),
        (lambda acks: [], "2 of 2 subtasks"),
        (altered(epoch=5), "1 of 2 subtasks"),
        (altered(run=5), "1 of 2 subtasks"),
        (altered(base_commit="another"), "started from commit another"),
        (lambda acks: [*acks, emptied(acks)], "made different changes"),
    ],
)
def test_acknowledgements_that_do_not_fit_refuse_the_epoch(
    world: World, change: Callable[[list[TaskAck]], list[TaskAck]], message: str
) -> None:
    world.cluster_type = type("Wrong", (Changing,), {"change": staticmethod(change)})
    with pytest.raises(EpochFailedError, match=message):
        world.run()
    assert ManifestStore(LocalFileSystem(str(world.root))).epochs() == []
    world.cluster_type = LocalCluster
    world.run()
    world.check()


def test_a_batch_before_the_newest_epoch_is_refused(world: World) -> None:
    world.run(until=3)
    loop = world.start(LocalFileSystem(str(world.root)))
    (world.root / "epochs" / f"{1:020d}").unlink(missing_ok=True)
    with pytest.raises(CairnError, match="changed by hand"):
        loop.run_epoch(EPOCHS[1], 1)


def test_rescaling_after_a_crash_in_the_middle_of_an_epoch(world: World) -> None:
    def crash(name: str, number: int) -> None:
        if (name, number) == ("prepared", 2):
            raise Crash

    world.hook = crash
    with pytest.raises(Crash):
        world.run()
    world.hook = None
    for parallelism, until in ((8, 3), (3, 4)):
        world.parallelism = parallelism
        world.run(until=until)
    world.check()


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb"])
def test_crashes_with_stores_on_disk(tmp_path: Path, backend: str) -> None:
    for number in (12, 25, 38, 51):
        world = World(tmp_path / str(number), backend)
        with pytest.raises(Crash):
            world.run(FaultPlan([Fault("crash", call=number)]))
        world.run()
        world.check()
