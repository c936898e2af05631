"""Savepoints as the coordinator sees them: never subsumed, counted or deleted; one request, one savepoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.coordinator_lab import manifest
from tests.support.savepoint_lab import World

from cairn.coordinator.control import Control, ask
from cairn.errors import CheckpointFailedError, StorageError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.storage.cleanup import plan_garbage
from cairn.storage.run_records import Runs
from cairn.view import job_documents


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_savepoint_is_cut_written_completed_and_remembered(world: World) -> None:
    world.commit(4)
    request = world.ask()
    world.step()
    (running,) = world.coordinator.infos()
    assert (running.type, running.parts_done, running.parts) == (CheckpointType.SAVEPOINT, 3, 8)
    world.writer.started[1](None)
    world.step(40)
    info = request.wait(0)
    assert (info.id, info.status, info.type) == (1, CheckpointStatus.COMPLETED, CheckpointType.SAVEPOINT)
    assert (info.epoch, info.path, info.savepoint_bytes, info.duration_ms) == (4, "/sp/savepoint-1", 777, 40)
    told = job_documents.checkpoint(info)
    assert (told["checkpointed_size"], told["state_size"], told["savepoint_size"]) == (700, 700, 777)
    assert told["checkpointed_size"] == sum(task["checkpointed_size"] for task in told["tasks"].values())
    assert [(s.written_bytes, s.async_ms) for s in info.operators[0].subtasks] == [(500, 0.0), (200, 9.0)]
    assert world.store.numbers() == [], "it is no checkpoint of the job"
    assert [(i.id, i.discarded) for i in world.store.history()] == [(1, False)]
    assert world.coordinator.take_notices() == [], "functions hear of checkpoints only"


def test_newer_checkpoints_neither_subsume_nor_wait_for_a_savepoint(tmp_path: Path) -> None:
    world = World(tmp_path, num_retained=1)
    world.commit(0)
    request = world.ask()
    world.step()
    for epoch in (1, 2, 3):
        world.commit(epoch)
        checkpoint = world.coordinator.request()
        world.step()
        assert checkpoint.wait(0).epoch == epoch
    assert world.store.numbers() == [4]
    assert not request.ended
    world.writer.started[1](None)
    world.step()
    assert request.wait(0).epoch == 0
    assert world.store.numbers() == [4], "completing it subsumes no checkpoint"


def test_what_a_savepoint_reads_is_kept_until_it_ends(world: World) -> None:
    """D19: retention lets go of the epoch only when the savepoint is written."""
    world.commit(0)
    request = world.ask()
    world.step()
    known = {0: manifest(0), **{e: msgspec.structs.replace(manifest(e), operators=[]) for e in range(1, 5)}}
    assert set(plan_garbage(known, 1).files) == manifest(0).files(), "without the savepoint they would go"
    assert plan_garbage(known, 1, world.coordinator.pins()).files == []
    world.writer.started[1](None)
    world.step()
    request.wait(0)
    assert world.coordinator.pins().files == frozenset()


def test_failures_do_not_count_and_leave_the_job_alone(tmp_path: Path) -> None:
    world = World(tmp_path, tolerable_failures=0)
    world.commit(0)
    for number, result in ((1, RuntimeError("no room")), (2, None)):
        world.writer.fail = StorageError("rename failed") if result is None else None
        request = world.ask(f"r{number}")
        world.step()
        world.writer.started[number](result)
        world.step()
        with pytest.raises(CheckpointFailedError, match=r"no room|rename failed"):
            request.wait(0)
    expired = world.ask("r3")
    world.step()
    world.step(700_000)
    with pytest.raises(CheckpointFailedError, match="expired"):
        expired.wait(0)
    assert world.failed == [], "no savepoint ever fails the job"
    assert world.writer.canceled == [1, 2, 3], "what was written is removed"
    assert [i.reason.value for i in world.store.history() if i.reason] == [
        "CHECKPOINT_EXPIRED", "FINALIZE_CHECKPOINT_FAILURE", "CHECKPOINT_ASYNC_EXCEPTION",
    ]  # fmt: skip


def test_a_savepoint_during_a_failing_epoch_is_failed_as_a_whole(world: World) -> None:
    """J10: one consistent epoch, or none."""
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    request = world.ask()
    world.step()
    world.coordinator.epoch_failed(1, RuntimeError("gone"))
    world.step()
    with pytest.raises(CheckpointFailedError, match="epoch 1 failed"):
        request.wait(0)
    assert world.writer.started == {}


def test_a_savepoint_is_aligned_even_when_checkpoints_are_not(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=True)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    request = world.ask()
    world.step(10_000)
    assert world.writer.started == {}
    world.coordinator.epoch_committed(manifest(1), [])
    world.step()
    world.writer.started[1](None)
    world.step()
    assert request.wait(0).epoch == 1


def test_two_at_once_are_written_one_after_the_other(world: World) -> None:
    """E9."""
    world.commit(0)
    first, second = world.ask("r1"), world.ask("r2")
    world.step()
    assert len(world.writer.started) == 1
    while not (first.ended and second.ended):
        for number in list(world.writer.started):
            world.writer.started.pop(number)(None)
        world.step()
    assert {first.wait(0).path, second.wait(0).path} == {"/sp/savepoint-1", "/sp/savepoint-2"}


def test_the_same_request_is_the_same_savepoint_in_this_run_and_the_next(world: World) -> None:
    """C11."""
    world.commit(0)
    first = world.ask("same")
    assert world.ask("same") is first
    world.step()
    world.writer.started[1](None)
    world.step()
    made = first.wait(0)
    Runs(world.files).take(1, 0)
    world.start(manifest(3), run=1)
    again = world.ask("same").wait(0)
    assert (again.path, again.id, again.epoch) == (made.path, made.id, made.epoch)
    assert len(world.writer.complete_ones) == 1
    for path in world.files.list("history"):
        world.files.delete(path.path)  # killed after the savepoint, before the history was written
    world.start(manifest(3), run=1)
    assert world.ask("same").wait(0).path == made.path


def test_a_request_that_failed_may_be_made_again(world: World) -> None:
    world.commit(0)
    failed = world.ask("same")
    world.step()
    world.writer.started[1](RuntimeError("no room"))
    world.step()
    assert failed.failed
    again = world.ask("same")
    world.step()
    world.writer.started[2](None)
    world.step()
    assert again.wait(0).id == 2


def test_the_end_of_the_job_ends_the_savepoint(world: World) -> None:
    world.commit(0)
    request = world.ask()
    world.step()
    world.coordinator.close()
    with pytest.raises(CheckpointFailedError, match="the job has ended"):
        request.wait(0)
    assert world.writer.canceled == [1]
    world.writer.started[1](None)
    assert world.writer.complete_ones == {}
    with pytest.raises(CheckpointFailedError, match="the job has ended"):
        world.ask("late").wait(0)


def test_a_newer_run_takes_the_right_to_complete(world: World) -> None:
    world.commit(0)
    request = world.ask()
    world.step()
    Runs(world.files).take(1, 0)
    Runs(world.files).take(1, 0)
    world.writer.started[1](None)
    world.step()
    with pytest.raises(CheckpointFailedError, match="taken it over"):
        request.wait(0)
    assert world.writer.complete_ones == {}


def test_requests_through_files_carry_their_id(world: World) -> None:
    seen: list[str] = []
    info = CheckpointInfo(7, CheckpointStatus.COMPLETED, CheckpointType.SAVEPOINT, 0, path="/sp/x")

    def action(asked: Any) -> Callable[[], CheckpointInfo]:
        seen.append(asked["id"])
        if "bad" in asked:
            raise ValueError("bad is bad")
        return lambda: info

    control = Control(world.files, world.coordinator, {"savepoint": action})
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            control.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for _ in range(2):
            answer = ask(world.files, {"action": "savepoint"}, 10, request="mine")
            assert answer is not None
            assert answer["checkpoint"]["path"] == "/sp/x"
        assert seen == ["mine", "mine"]
        assert ask(world.files, {"action": "savepoint", "bad": 1}, 10) == {"error": "not a request: bad is bad"}
        answer = ask(world.files, {"action": "dance"}, 10)
        assert answer is not None
        assert "unknown request" in answer["error"]
    finally:
        stop.set()
        thread.join()
