"""Times of checkpoints: when subtasks acknowledge, when triggers are due, and clocks that somebody sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.coordinator_lab import World, manifest

from cairn.coordinator.checkpoint_statistics import Insight, Measurements, by_subtask, operator_stats
from cairn.model.checkpoint_records import CheckpointStatus
from cairn.model.manifest import OperatorState, TaskMetrics
from cairn.view import job_documents


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("unaligned", [False, True])
def test_what_was_durable_before_the_trigger_is_acknowledged_by_the_trigger(tmp_path: Path, unaligned: bool) -> None:
    """An idle job, and the epoch before the one that an unaligned checkpoint overtakes."""
    world = World(tmp_path, unaligned=unaligned, aligned_timeout_ms=0)
    told = TaskMetrics(rows_in=3, began_ms=997_000, ended_ms=998_000, times={"drain": 2.0, "delta": 5.0}, stage=7)
    world.coordinator.epoch_began(0, "offsets of 0")
    world.coordinator.epoch_committed(manifest(0), [("op", 0, told), ("op", 1, told)])
    if unaligned:
        world.coordinator.epoch_began(1, "offsets of 1")
    request = world.coordinator.request()
    world.step()
    info = request.wait(0)
    assert info.epoch == 0
    for subtask in info.operators[0].subtasks:
        assert (subtask.ack_ms, subtask.start_delay_ms, subtask.sync_ms) == (info.trigger_ms, 0, 0)
        assert subtask.records == 3, "rows of the epoch that it cuts at"


def test_a_task_that_ended_before_the_trigger_did_its_work_for_the_checkpoint_all_the_same(world: World) -> None:
    """Its epoch was still running: the changes count from its commit on."""
    world.coordinator.epoch_began(0, "offsets of 0")
    request = world.coordinator.request()
    world.step()
    early = TaskMetrics(began_ms=997_000, ended_ms=998_000, times={"drain": 2.0, "delta": 5.0})
    late = TaskMetrics(began_ms=1_000_400, ended_ms=1_000_900, times={"delta": 4.0})
    world.coordinator.epoch_committed(manifest(0), [("op", 0, early), ("op", 1, late)])
    world.step(later=1000)
    found = request.wait(0).operators[0].subtasks
    assert [(s.ack_ms, s.start_delay_ms, s.sync_ms) for s in found] == [(1_000_000, 0, 7.0), (1_000_900, 400, 4.0)]


def test_a_subtask_has_acknowledged_when_its_snapshot_is_written() -> None:
    operator = OperatorState("op", "op", 1, "k string", [], [])
    tasks = [("op", 0, TaskMetrics(rows_in=5, began_ms=1_010, ended_ms=1_050))]
    (subtask,) = operator_stats(operator, 128, Measurements(tasks, 1_000, True, 400.0, 0)).subtasks
    assert (subtask.ack_ms, subtask.async_ms) == (1_450, 400.0)


def test_each_subtask_has_the_time_of_its_own_snapshot(tmp_path: Path) -> None:
    ended = {group: 10.0 if group < 40 else 250.4 if group < 64 else 30.0 for group in range(128)}
    assert by_subtask(ended, "op", 2, 128) == {("op", 0): 250.0, ("op", 1): 30.0}
    assert by_subtask({}, "op", 1, 128) == {("op", 0): 0.0}, "nothing was written for it"
    world = World(tmp_path)
    insight = Insight(spent=lambda number: {("op", 0): 70.0, ("op", 1): 20.0})
    world.start(insight=insight)
    world.commit(0)
    request = world.coordinator.request(full=True)
    world.step()
    world.runner.started[1]({"op": []})
    world.step(90)
    found = request.wait(0).operators[0].subtasks
    assert [subtask.async_ms for subtask in found] == [70.0, 20.0]


def test_an_unaligned_checkpoint_keeps_so_many_bytes_of_what_is_in_flight(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=True, aligned_timeout_ms=0)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    request = world.coordinator.request()
    world.step()
    told = job_documents.checkpoint(request.wait(0))
    assert (told["checkpoint_type"], told["persisted_data"]) == ("UNALIGNED_CHECKPOINT", len("offsets of 1"))


def test_periodic_triggers_keep_interval_pause_and_concurrency(tmp_path: Path) -> None:
    world = World(tmp_path, interval_ms=100, min_pause_ms=150, num_retained=100)
    world.commit(0)
    for _ in range(61):
        world.step(10)
    assert world.store.numbers() == [1, 2, 3, 4], "every 150 ms: the pause is longer than the interval"
    busy = World(tmp_path / "busy", interval_ms=100, timeout_ms=10_000)
    busy.commit(0)
    busy.coordinator.epoch_began(1, "offsets of 1")
    for _ in range(50):
        busy.step(10)
    assert len(busy.coordinator.infos()) == 1, "one at a time"
    busy.coordinator.epoch_committed(manifest(1), [])
    busy.step()
    assert busy.store.numbers() == [1]


@pytest.mark.parametrize("jump", [86_400_000, -3_600_000])
def test_a_clock_that_is_set_expires_no_checkpoint_and_holds_none_up(tmp_path: Path, jump: int) -> None:
    world = World(tmp_path, interval_ms=10_000, min_pause_ms=1000, num_retained=9)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    waiting = world.coordinator.request()
    world.step()
    world.clock.set_by = jump
    world.step(100)
    assert [info.status for info in world.coordinator.infos()] == [CheckpointStatus.IN_PROGRESS]
    world.coordinator.epoch_committed(manifest(1), [])
    world.step()
    info = waiting.wait(0)
    assert info.end_ms == world.clock.now_ms(), "what is told is the time of day"
    assert info.duration_ms >= 0
    for _ in range(3):
        world.step(10_000)
    assert world.history() == [(number, "COMPLETED", "") for number in (1, 2, 3, 4)]
    assert not world.failed


def test_a_clock_that_is_set_neither_hurries_nor_delays_an_unaligned_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=True, aligned_timeout_ms=5000)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    world.coordinator.request()
    world.step()
    world.clock.set_by = 86_400_000
    world.step(4999)
    assert world.store.numbers() == []
    world.clock.set_by = -86_400_000
    world.step(1)
    assert world.store.numbers() == [1]
