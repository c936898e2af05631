"""The checkpoint coordinator under a clock that the test moves: triggers, cuts, ends, retention, tolerance, chance."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.support.coordinator_lab import World, manifest
from tests.support.patience import PATIENCE

from cairn.errors import CheckpointFailedError, CorruptFileError, IncompatibleStateError, StorageError
from cairn.events import CheckpointAborted
from cairn.model.checkpoint_records import CheckpointStatus, CheckpointType, FailureReason
from cairn.model.manifest import Manifest, StateHandle
from cairn.storage.checkpoint_store import CheckpointStore, decode_checkpoint
from cairn.storage.cleanup import plan_garbage
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_records import Runs
from cairn.testing.faults import Fault, FaultPlan


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_without_an_epoch_there_is_nothing_to_checkpoint(world: World) -> None:
    request = world.coordinator.request()
    world.step()
    with pytest.raises(CheckpointFailedError, match="first epoch"):
        request.wait(0)
    assert world.store.numbers() == []
    assert world.store.next_number() == 1, "a refused request takes no number"


def test_an_idle_job_is_cut_at_its_last_epoch(world: World) -> None:
    world.commit(4)
    request = world.coordinator.request()
    world.step()
    info = request.wait(0)
    assert (info.id, info.epoch, info.status) == (1, 4, CheckpointStatus.COMPLETED)
    assert world.store.load(1).manifest == manifest(4)
    assert [s.records for s in info.operators[0].subtasks] == [3, 0]
    assert info.operators[0].skew == 1.0


def test_an_aligned_checkpoint_waits_for_the_running_epoch(world: World) -> None:
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    request = world.coordinator.request()
    world.step()
    assert world.store.numbers() == []
    assert [info.status for info in world.coordinator.infos()] == [CheckpointStatus.IN_PROGRESS]
    world.coordinator.epoch_committed(manifest(1), [])
    world.step(50)
    info = request.wait(0)
    assert (info.epoch, info.duration_ms, info.type) == (1, 50, CheckpointType.CHECKPOINT)


def test_the_next_epoch_carries_the_barrier(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.coordinator.epoch_began(0, "offsets of 0")
    world.coordinator.request()
    world.step()
    world.coordinator.epoch_failed(0, RuntimeError("gone"))
    world.step()
    assert world.history() == [(1, "FAILED", "TASK_FAILURE")]
    assert world.coordinator.take_notices() == [(1, False)]
    assert world.coordinator.take_notices() == []


def test_an_unaligned_checkpoint_overtakes_the_running_epoch(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=True)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    request = world.coordinator.request()
    world.step()
    info = request.wait(0)
    assert (info.epoch, info.type) == (0, CheckpointType.UNALIGNED_CHECKPOINT)
    assert world.store.load(1).in_flight == "offsets of 1"


def test_an_aligned_checkpoint_turns_unaligned_when_it_waits_too_long(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=True, aligned_timeout_ms=1000)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    request = world.coordinator.request()
    world.step()
    world.step(999)
    assert world.store.numbers() == []
    world.step(1)
    assert request.wait(0).type is CheckpointType.UNALIGNED_CHECKPOINT


def test_a_full_checkpoint_is_complete_when_its_snapshots_are(tmp_path: Path) -> None:
    world = World(tmp_path, incremental=False)
    world.commit(2)
    request = world.coordinator.request()
    world.step()
    assert world.store.numbers() == []
    assert "shared/op/000000000001-1-0.state" in world.coordinator.pins().files, "what is being read must not go"
    made = StateHandle(2, 0, 127, 77, "c", "chk-1/op-g0-x.state", snapshot=True)
    world.runner.started[1]({"op": [made]})
    world.step(30)
    info = request.wait(0)
    assert info.full
    assert world.store.load(1).manifest.operators[0].chain == [made]
    assert (info.written_bytes, info.full_bytes) == (77, 77)
    assert world.coordinator.pins().files == {"chk-1/op-g0-x.state"}


def test_a_failed_snapshot_leaves_no_folder(tmp_path: Path) -> None:
    world = World(tmp_path, incremental=False, tolerable_failures=1)
    world.commit(0)
    request = world.coordinator.request()
    world.step()
    world.files.create("chk-1/op-g0-1-ab.state", b"half of it")
    world.runner.started[1](RuntimeError("no room"))
    world.step()
    with pytest.raises(CheckpointFailedError, match="no room"):
        request.wait(0)
    assert world.history() == [(1, "FAILED", "CHECKPOINT_ASYNC_EXCEPTION")]
    assert world.files.folders("") == ["history"]
    assert world.failed == []


def test_a_checkpoint_expires_and_its_late_snapshot_goes(tmp_path: Path) -> None:
    world = World(tmp_path, incremental=False, timeout_ms=500)
    world.commit(0)
    request = world.coordinator.request()
    world.step()
    world.step(500)
    with pytest.raises(CheckpointFailedError, match="expired"):
        request.wait(0)
    assert world.runner.canceled == [1]
    assert [info.reason for info in world.failed] == [FailureReason.EXPIRED], "none is tolerated"
    world.files.create("chk-1/op-g0-1-ab.state", b"late")
    world.runner.started[1]({"op": []})
    world.step()
    assert world.store.numbers() == []
    assert world.files.folders("") == ["history"]


def test_only_some_reasons_count_and_a_success_starts_anew(tmp_path: Path) -> None:
    world = World(tmp_path, tolerable_failures=1, timeout_ms=100)
    world.commit(0)
    for round_ in range(3):
        world.coordinator.epoch_began(1, "offsets of 1")
        world.coordinator.request()
        world.step()
        world.coordinator.epoch_failed(1, RuntimeError(str(round_)))
    assert world.failed == [], "failed epochs do not count"
    for expected in (0, 1):
        world.coordinator.epoch_began(1, "offsets of 1")
        world.coordinator.request()
        world.step()
        world.step(100)
        assert len(world.failed) == expected
        if expected == 0:
            world.coordinator.epoch_failed(1, RuntimeError("again"))
    world.failed.clear()
    world.commit(1)
    world.coordinator.request()
    world.step()
    world.coordinator.epoch_began(2, "offsets of 2")
    world.coordinator.request()
    world.step()
    world.step(100)
    assert world.failed == [], "one failure after a success is tolerated"


def test_metadata_that_cannot_be_written_fails_the_checkpoint_only(tmp_path: Path) -> None:
    world = World(tmp_path, FaultPlan([Fault("full", operation="create", pattern="chk-2/*")]), tolerable_failures=1)
    world.commit(0)
    world.coordinator.request()
    world.step()
    request = world.coordinator.request()
    world.step()
    with pytest.raises(CheckpointFailedError, match="disk is full"):
        request.wait(0)
    assert world.store.numbers() == [1]
    world.coordinator.request()
    world.step()
    assert world.store.numbers() == [3], "the number is not used again, and one is retained"
    assert world.history() == [
        (1, "COMPLETED", ""), (2, "FAILED", "FINALIZE_CHECKPOINT_FAILURE"), (3, "COMPLETED", ""),
    ]  # fmt: skip


def test_retention_keeps_the_newest_and_pins_what_they_need(tmp_path: Path) -> None:
    world = World(tmp_path, num_retained=2)
    for epoch in range(4):
        world.commit(epoch)
        world.coordinator.request()
        world.step()
    assert world.store.numbers() == [3, 4]
    assert world.coordinator.pins().files == manifest(2).files() | manifest(3).files()
    assert [info.discarded for info in world.store.history()] == [False, False, True, True]
    assert [info.written_bytes for info in world.store.history()] == [206, 204, 202, 200], "since the one before"


def test_several_at_a_time_end_together_or_are_subsumed(tmp_path: Path) -> None:
    world = World(tmp_path, incremental=False, max_concurrent=2, num_retained=5)
    world.commit(0)
    first, second, third = (world.coordinator.request() for _ in range(3))
    world.step()
    assert set(world.runner.started) == {1, 2}
    world.runner.started[2]({"op": []})
    world.step()
    assert second.wait(0).id == 2
    with pytest.raises(CheckpointFailedError, match="completed first"):
        first.wait(0)
    world.step()
    world.runner.started[3]({"op": []})
    world.step()
    assert third.wait(0).id == 3
    assert world.history() == [(1, "FAILED", "CHECKPOINT_SUBSUMED"), (2, "COMPLETED", ""), (3, "COMPLETED", "")]


def test_the_end_of_the_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(0)
    world.coordinator.request()
    world.step()
    world.coordinator.epoch_began(1, "offsets of 1")
    waiting = world.coordinator.request()
    world.step()
    world.coordinator.close()
    with pytest.raises(CheckpointFailedError, match="ended"):
        waiting.wait(0)
    with pytest.raises(CheckpointFailedError, match="ended"):
        world.coordinator.request().wait(0)
    assert world.store.numbers() == [1]
    assert world.failed == []


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(0)
    world.coordinator.request()
    world.step()
    world.coordinator.close()
    world.files.create("chk-7/op-g0-x.state", b"left by a crash")
    world.start(manifest(0))
    assert world.store.numbers() == [1]
    request = world.coordinator.request()
    world.step()
    assert request.wait(0).id == 8
    assert world.store.numbers() == [8]
    assert world.store.let_go() == []


def test_inlined_bytes_of_earlier_epochs_travel_with_the_checkpoint(world: World) -> None:
    for epoch in range(2):
        ManifestStore(world.files).publish(manifest(epoch, inlined=True))
    world.coordinator.epoch_committed(manifest(1, inlined=True), [])
    world.coordinator.request()
    world.step()
    checkpoint = world.store.load(1)
    operator = checkpoint.manifest.operators[0]
    assert all(checkpoint.inlined_bytes("op", handle) == b"bytes" for handle in operator.chain)


@pytest.mark.parametrize("cut", ["one byte", "half", "empty", "a bit"])
def test_damaged_metadata_is_named_and_no_checkpoint(world: World, cut: str) -> None:
    world.commit(0)
    world.coordinator.request()
    world.step()
    path = Path(world.files.root) / "chk-1" / "_metadata"
    data = path.read_bytes()
    changed = {
        "one byte": data[:-1], "half": data[: len(data) // 2], "empty": b"", "a bit": data[:-3] + b"x" + data[-2:],
    }[cut]  # fmt: skip
    path.write_bytes(changed)
    with pytest.raises(Exception, match="_metadata"):
        world.store.load(1)
    assert world.store.all() == []


def test_every_bit_of_metadata_counts(world: World) -> None:
    world.commit(0)
    world.coordinator.request()
    world.step()
    data = (Path(world.files.root) / "chk-1" / "_metadata").read_bytes()
    whole = decode_checkpoint(data, "whole")
    rng = random.Random(3)
    for _ in range(300):
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        changed = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
        with suppress(CorruptFileError, IncompatibleStateError):
            assert decode_checkpoint(changed, "changed") == whole


@pytest.mark.parametrize("seed", range(60))
def test_by_chance_what_is_listed_is_whole_and_numbers_only_grow(tmp_path: Path, seed: int) -> None:
    """Random settings, events and storage failures; the same seed plays the same run."""
    rng = random.Random(seed)
    faults = [Fault("error", call=rng.randrange(120, 520)) for _ in range(rng.randrange(6))]
    world = World(
        tmp_path, FaultPlan(faults), incremental=rng.random() < 0.5, unaligned=False, num_retained=rng.randrange(1, 4),
        max_concurrent=rng.randrange(1, 4), interval_ms=rng.choice([0, 50]), min_pause_ms=rng.choice([0, 70]),
        timeout_ms=rng.choice([60, 400]), tolerable_failures=1000,
    )  # fmt: skip
    epoch, running, seen = 0, False, 0
    requests = []
    for _ in range(120):
        event = rng.randrange(6)
        if event == 0 and not running:
            world.coordinator.epoch_began(epoch, f"offsets of {epoch}")
            running = True
        elif event == 1 and running:
            world.coordinator.epoch_committed(manifest(epoch), [])
            running, epoch = False, epoch + 1
        elif event == 2 and running:
            world.coordinator.epoch_failed(epoch, RuntimeError("by chance"))
            running = False
        elif event == 3:
            requests.append(world.coordinator.request())
        elif event == 4 and world.runner.started:
            number = rng.choice(list(world.runner.started))
            done = world.runner.started.pop(number)
            done({"op": []} if rng.random() < 0.8 else RuntimeError("by chance"))
        try:
            world.step(rng.randrange(40))
        except StorageError:
            continue
        numbers = _numbers(world)
        assert len(numbers) <= world.settings.num_retained + len(faults)
        assert not numbers or numbers[-1] >= seen, "a listed checkpoint never gives way to an older one"
        seen = max([seen, *numbers])
        for number in numbers:
            CheckpointStore(world.files.inner).load(number)
    world.files.plan = FaultPlan()
    world.coordinator.close()
    assert all(request._ended.is_set() for request in requests), "every request is answered"


def _numbers(world: World) -> list[int]:
    return CheckpointStore(world.files.inner).numbers()


def test_a_run_that_was_overtaken_takes_and_deletes_no_more(tmp_path: Path) -> None:
    """Both count from the same number: the old run must not touch what the new one completed."""
    old = World(tmp_path, interval_ms=100, num_retained=1)
    runs = Runs(old.files)
    assert runs.take(2, 0).run == 1
    old.commit(0)
    pending = old.coordinator
    pending.epoch_began(1, "offsets of 1")
    waiting = pending.request()
    old.step()
    new = World(tmp_path)
    assert Runs(new.files).take(2, 0).run == 2
    new.start(manifest(0), run=2)
    new.coordinator.request()
    new.step()
    assert new.store.numbers() == [1]
    pending.epoch_committed(manifest(1), [])
    old.step(500)
    with pytest.raises(CheckpointFailedError, match="has taken it over"):
        waiting.wait(0)
    old.step(500)
    pending.close()
    assert new.store.numbers() == [1]
    assert new.store.load(1).run == 2


def test_files_that_only_a_gone_checkpoint_needed_are_released(world: World) -> None:
    world.commit(1)
    world.coordinator.request()
    world.step()
    assert world.coordinator.pins().released == frozenset()
    world.coordinator.epoch_committed(_compacted(), [])
    world.coordinator.request()
    world.step()
    pins = world.coordinator.pins()
    assert pins.released == manifest(1).files()
    garbage = plan_garbage({5: _compacted()}, 1, pins)
    assert set(garbage.files) == manifest(1).files()
    world.coordinator.epoch_committed(msgspec.structs.replace(_compacted(), garbage=garbage), [])
    assert world.coordinator.pins().released == frozenset()


def _compacted() -> Manifest:
    made = manifest(5)
    snapshot = StateHandle(5, 0, 127, 10, "c", "shared/op/000000000005-1-g0-x.snapshot.state", snapshot=True)
    return msgspec.structs.replace(made, operators=[msgspec.structs.replace(made.operators[0], chain=[snapshot])])


def test_a_listener_may_do_what_it_likes(world: World) -> None:
    """It is called without the lock: whatever it asks of the coordinator from another thread is answered."""
    heard: list[int] = []

    def listener(event: CheckpointAborted) -> None:
        thread = threading.Thread(target=lambda: heard.append(len(world.coordinator.infos())))
        thread.start()
        thread.join(PATIENCE)
        raise RuntimeError("and then it fails")

    world.coordinator.events.subscribe(CheckpointAborted, listener)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    request = world.coordinator.request()
    world.step()
    world.coordinator.epoch_failed(1, RuntimeError("x"))
    world.step()
    assert heard == [0]
    with pytest.raises(CheckpointFailedError):
        request.wait(0)
