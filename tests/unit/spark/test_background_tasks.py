"""Tasks beside the stream: all of them are done, in order, and a busy stream keeps most of the slots."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.support.patience import until

from cairn.coordinator.compactor import ranges_of
from cairn.model.manifest import OperatorState, StateHandle
from cairn.spark.background_tasks import Background


class FakeContext:
    """As much of Spark as is asked for: a job of one task, run where it is started."""

    def __init__(self, slots: int) -> None:
        self.defaultParallelism = slots
        self.running = 0
        self.most = 0
        self.groups: set[str] = set()
        self._lock = threading.Lock()

    def setJobGroup(self, group: str, what: str, interruptOnCancel: bool) -> None:
        self.groups.add(group)

    def setLocalProperty(self, key: str, value: str) -> None:
        assert (key, value) == ("spark.scheduler.pool", "cairn-background")

    def parallelize(self, work: list[Any], slices: int) -> FakeJob:
        assert slices == len(work) == 1
        return FakeJob(self, work)


class FakeJob:
    def __init__(self, context: FakeContext, work: list[Any], call: Callable[[Any], Any] = lambda piece: piece) -> None:
        self.context = context
        self.work = work
        self.call = call

    def map(self, call: Callable[[Any], Any]) -> FakeJob:
        return FakeJob(self.context, self.work, call)

    def collect(self) -> list[Any]:
        with self.context._lock:
            self.context.running += 1
            self.context.most = max(self.context.most, self.context.running)
        try:
            return [self.call(piece) for piece in self.work]
        finally:
            with self.context._lock:
                self.context.running -= 1


class FakeSpark:
    def __init__(self, slots: int) -> None:
        self.sparkContext = FakeContext(slots)


def background(slots: int, idle: Callable[[], float]) -> tuple[Background, FakeContext]:
    spark: Any = FakeSpark(slots)
    return Background(spark, idle), spark.sparkContext


def at_work() -> float:
    return 0.0


def at_rest() -> float:
    return 60.0


def slow(piece: int) -> int:
    time.sleep(0.02)
    return piece * 10


def slow_until(context: FakeContext, most: int) -> Callable[[int], int]:
    """Tasks that last until so many of them have run at once."""

    def task(piece: int) -> int:
        until(lambda: context.most >= most)
        return slow(piece)

    return task


@pytest.mark.parametrize(
    ("slots", "idle", "most"), [(4, at_rest, 4), (4, at_work, 1), (14, at_work, 2), (2, at_work, 1)]
)
def test_a_busy_stream_keeps_most_of_the_slots(slots: int, idle: Callable[[], float], most: int) -> None:
    tasks, context = background(slots, idle)
    done: list[int] = []
    assert tasks.run(slow_until(context, most), range(9), "g", "what", done.append) == [
        piece * 10 for piece in range(9)
    ]
    assert sorted(done) == list(range(9))
    assert context.most == most
    assert context.groups == {"g"}


def test_with_two_slots_a_busy_stream_is_left_alone_most_of_the_time() -> None:
    began = time.monotonic()
    busy, _ = background(2, at_work)
    busy.run(slow, range(10), "g", "what")
    assert time.monotonic() - began >= 0.2 + 9 * 0.046, "ten tasks and nine pauses of more than twice their length"


def test_the_moment_between_two_epochs_is_no_rest() -> None:
    """Spark plans the next epoch then; tasks that took the slots would make it wait."""
    tasks, context = background(4, lambda: 0.2)
    tasks.run(slow, range(9), "g", "what")
    assert context.most == 1


def test_a_stream_that_comes_to_rest_hands_over_its_slots() -> None:
    done: list[int] = []
    tasks, context = background(4, lambda: 0.0 if len(done) < 3 else 60.0)
    alone: list[int] = []

    def task(piece: int) -> int:
        if len(done) < 3:
            alone.append(context.running)
            return slow(piece)
        until(lambda: context.most == 4)
        return slow(piece)

    tasks.run(task, range(20), "g", "what", done.append)
    assert alone == [1, 1, 1]
    assert context.most == 4


def test_the_first_error_ends_the_work() -> None:
    tasks, _ = background(1, at_rest)
    asked = []

    def fails(piece: int) -> int:
        asked.append(piece)
        if piece == 2:
            raise RuntimeError("on purpose")
        return piece

    with pytest.raises(RuntimeError, match="on purpose"):
        tasks.run(fails, range(9), "g", "what")
    assert asked == [0, 1, 2]


def test_work_that_is_given_up_begins_no_further_piece() -> None:
    tasks, _ = background(1, at_rest)
    done: list[int] = []
    assert tasks.run(slow, range(9), "g", "what", done.append, lambda: len(done) >= 3) == [0, 10, 20]


def test_nothing_to_do_is_done_at_once() -> None:
    tasks, _ = background(4, at_work)
    assert tasks.run(slow, [], "g", "what") == []


def ranges(rows: int, parallelism: int, groups: int = 128) -> list[tuple[int, int]]:
    chain = [StateHandle(0, 0, groups - 1, rows * 30, "", "p", rows=rows)]
    operator = OperatorState("op", "op", parallelism, "k string", [], chain)
    found = [(r.start, r.end) for r in ranges_of(operator, groups)]
    assert found[0][0] == 0
    assert found[-1][1] == groups - 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(found))
    return found


def test_much_state_is_worked_on_in_many_pieces_and_little_in_few() -> None:
    assert len(ranges(1_000, 2)) == 2
    assert len(ranges(2_000_000, 2)) == 10
    assert len(ranges(100_000_000, 2)) == 32
    assert len(ranges(100_000_000, 2, groups=8)) == 8
