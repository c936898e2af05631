"""The driver's loop against storage that fails: crash at every call, torn manifests, full disks, failing sinks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.epoch_lab import World, calls_of_a_run

from cairn.coordinator import compactor as compaction_module
from cairn.errors import CorruptFileError, EpochFailedError, InvalidInputError, StorageError
from cairn.state import working_store
from cairn.testing.faults import Crash, Fault, FaultPlan

READS = {"read", "exists", "list", "walk", "folders"}


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
    """Crash, start again, finish: state equals a plain dict, and each output is there exactly once.

    After a call that only reads, everything is as it was before the call: one crash stands for both.
    """
    calls = calls_of_a_run(tmp_path / "count")
    assert len(calls) > 40
    for number, operation, _ in calls:
        if after and operation in READS:
            continue
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
    with pytest.raises(CorruptFileError, match="source positions are lost"):
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
