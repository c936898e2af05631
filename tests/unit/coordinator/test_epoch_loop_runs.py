"""The driver's loop beside another run of the job, and with acknowledgements that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.epoch_lab import EPOCHS, World

from cairn.coordinator import compactor as compaction_module
from cairn.errors import CairnError, CorruptFileError, EpochFailedError, FencedError
from cairn.model.manifest import TaskAck
from cairn.state import working_store
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore, encode_manifest
from cairn.storage.run_records import Runs
from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem
from cairn.testing.keyed_harness import LocalCluster


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compactions are adopted by the next epoch, so that a short job sees them."""
    monkeypatch.setattr(compaction_module, "DEFER_EPOCHS", -1)
    monkeypatch.setattr(working_store, "DEFER_EPOCHS", 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lose_stores()


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


def test_a_first_commit_of_an_older_run_that_comes_after_the_take_over_is_taken_over_by_the_next_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(EpochFailedError, match="created the manifest of epoch 0"):
        new.run_epoch(EPOCHS[0], 0)
    assert not late
    world.run()
    assert ManifestStore(files).load(2).run == 3
    world.check()


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
    late = world.start(files)
    assert late.current is not None
    assert late.current.epoch == 1
    files.plan = FaultPlan()
    world.run()
    world.check()


def test_an_epoch_after_one_that_the_run_does_not_know_is_refused(world: World) -> None:
    world.run(until=1)
    loop = world.start(LocalFileSystem(str(world.root)))
    world.log("offsets", 2)
    with pytest.raises(CorruptFileError, match=r"requests batch 2, .* is that of epoch 0"):
        loop.run_epoch(EPOCHS[2], 2)
    assert ManifestStore(LocalFileSystem(str(world.root))).epochs() == [0]


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
    with pytest.raises(CairnError, match="changed manually"):
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
