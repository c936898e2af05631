"""Operator state without Spark: lists that follow their subtasks, even split, union, raw bytes, errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cairn import (
    CheckpointedFunction,
    InvalidInputError,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessFunction,
    StateMisuseError,
    ValueStateDescriptor,
)
from cairn.runtime.operator_state import even_split
from cairn.testing import KeyedProcessHarness, ProcessHarness


class Buffer(ProcessFunction, CheckpointedFunction):
    """Holds values back until three are there; what is held is operator state, like a counter of all that were seen."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.seen = 0

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.list = store.get_list_state(ListStateDescriptor("held", "bigint"))
        self.counts = store.get_union_list_state(ListStateDescriptor("counts", "bigint"))
        self.raw = store.get_raw_state("raw")
        if context.is_restored():
            assert context.get_restored_checkpoint_id() is not None
            self.held = list(self.list.get())
            self.all_counts = list(self.counts.get())
            self.seen = self.all_counts[-1] if self.all_counts else 0

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        self.held.append(value)
        self.seen += 1
        if len(self.held) == 3:
            yield str(self.held)
            self.held = []

    def snapshot_state(self, context: Any) -> None:
        assert context.get_checkpoint_id() >= 0
        self.list.update(self.held)
        self.counts.update([self.seen])
        self.raw.update([bytes(self.held)])


def test_a_list_is_there_again_in_the_next_epoch_and_after_a_restart() -> None:
    with ProcessHarness(Buffer(), "bigint", "string") as harness:
        harness.push(1, 2)
        assert harness.run_epoch() == []
        harness.push(3, 4)
        harness.fail_epoch()
        assert harness.operator_state("held") == [[1, 2]]
        assert harness.run_epoch() == ["[1, 2, 3]"]
        harness.restart()
        assert harness.operator_state("held") == [[4]]
        assert harness.operator_state("raw") == [[b"\x04"]]


def test_an_unchanged_list_is_not_written_again() -> None:
    with ProcessHarness(Buffer(), "bigint", "string") as harness:
        harness.push(1)
        harness.run_epoch()
        harness.run_epoch()
        assert harness.reports[-1].changed == 0
        assert harness.operator_state("held") == [[1]]


def test_even_split_when_the_parallelism_changes() -> None:
    with ProcessHarness(Buffer(), "bigint", "string", parallelism=3, compaction_chain=2) as harness:
        harness.push(0, 1, 2, 3, 4)  # to the subtasks in turn: 0 3, 1 4, 2
        harness.run_epoch()
        assert harness.operator_state("held") == [[0, 3], [1, 4], [2]]
        harness.restart(parallelism=2)
        assert harness.operator_state("held") == [[0, 3, 1], [4, 2]]
        harness.fail_epoch()
        assert harness.run_epoch() == []
        for _ in range(3):  # with stores and without, and past a compaction
            assert harness.operator_state("held") == [[0, 3, 1], [4, 2]]
            harness.restart(keep_stores=True)
            harness.run_epoch()
        harness.restart(parallelism=3)
        assert harness.operator_state("held") == [[0, 3], [1, 4], [2]]


def test_many_rescalings_lose_and_double_nothing() -> None:
    with ProcessHarness(Keeper(), "bigint", "string", parallelism=2, compaction_chain=3) as harness:
        pushed: list[int] = []
        for turn, parallelism in enumerate((2, 5, 3, 3, 1, 4, 7, 2)):
            harness.restart(parallelism=parallelism)
            rows = list(range(turn * 10, turn * 10 + 7))
            pushed += rows
            harness.push(*rows)
            harness.fail_epoch()
            harness.run_epoch()
            harness.run_epoch()
            lists = harness.operator_state("kept")
            assert sorted(value for part in lists for value in part) == sorted(pushed)


class Keeper(ProcessFunction, CheckpointedFunction):
    """Adds every value to its list, and never reads it."""

    def initialize_state(self, context: Any) -> None:
        self.kept = context.get_operator_state_store().get_list_state(ListStateDescriptor("kept", "bigint"))

    def process_element(self, value: int, ctx: Any) -> None:
        self.kept.add(value)

    def snapshot_state(self, context: Any) -> None:
        pass


def test_union_lists_come_together_after_a_restart_only() -> None:
    with ProcessHarness(Buffer(), "bigint", "string", parallelism=2) as harness:
        harness.push(1, 2, 3)
        harness.run_epoch()
        assert harness.operator_state("counts") == [[2], [1]]
        harness.run_epoch()
        assert harness.operator_state("counts") == [[2], [1]]
        harness.restart()
        assert harness.operator_state("counts") == [[2, 1], [2, 1]]
        harness.restart(parallelism=3)
        assert harness.operator_state("counts") == [[2, 1]] * 3


def test_a_list_that_is_not_asked_for_is_carried_over() -> None:
    with ProcessHarness(Keeper(), "bigint", "string", parallelism=2) as harness:
        harness.push(1, 2, 3)
        harness.run_epoch()
        harness.spec = replace(harness.spec, function=Silent())
        harness.restart(parallelism=3)
        harness.run_epoch()
        harness.spec = replace(harness.spec, function=Keeper())
        harness.restart(parallelism=1)
        assert sorted(harness.operator_state("kept")[0]) == [1, 2, 3]


class LateAsker(ProcessFunction, CheckpointedFunction):
    """Asks for its union list when a row comes, adds what is positive, and puts out what it found."""

    def initialize_state(self, context: Any) -> None:
        self.store = context.get_operator_state_store()

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        union = self.store.get_union_list_state(ListStateDescriptor("u", "bigint"))
        yield str(sorted(union.get()))
        if value > 0:
            union.add(value)

    def snapshot_state(self, context: Any) -> None:
        pass


@pytest.mark.parametrize("backend", ["hashmap", "lmdb"])
def test_a_union_waits_until_a_subtask_asks_for_it(backend: str) -> None:
    with ProcessHarness(LateAsker(), "bigint", "string", backend, parallelism=2, compaction_chain=3) as harness:
        harness.push(1, 2)
        assert harness.run_epoch() == ["[]", "[]"]
        harness.restart()
        for turn in range(4):  # epochs that do not ask, with stores and without, failed, and past a compaction
            harness.fail_epoch()
            harness.run_epoch()
            assert harness.operator_state("u") == [[1, 2], [1, 2]]
            harness.restart(keep_stores=turn % 2 == 0)
        harness.run_epoch()
        harness.push(3)
        assert harness.run_epoch() == ["[1, 2]"]  # subtask 0 asks, and adds
        harness.push(-1, -1)
        assert harness.run_epoch() == ["[1, 2, 3]", "[1, 2]"]  # subtask 1 gets what there was at the restart
        harness.run_epoch()
        assert harness.reports[-1].changed == 0
        assert harness.operator_state("u") == [[1, 2, 3], [1, 2]]


def test_a_union_that_nobody_asks_for_is_neither_lost_nor_doubled_by_rescaling() -> None:
    with ProcessHarness(LateAsker(), "bigint", "string", parallelism=3) as harness:
        harness.push(1, 2, 3)
        harness.run_epoch()
        for parallelism in (2, 2, 5, 1, 4, 4, 3):
            harness.restart(parallelism=parallelism)
            harness.fail_epoch()
            harness.run_epoch()
            harness.run_epoch()
            assert sorted(harness.operator_state("u")[0]) == [1, 2, 3]
        harness.spec = replace(harness.spec, function=Silent())
        harness.restart(parallelism=2)
        harness.run_epoch()
        harness.spec = replace(harness.spec, function=LateAsker())
        harness.restart(parallelism=2)
        harness.run_epoch()
        harness.push(-1)  # of two subtasks one asks; the other goes on waiting
        assert harness.run_epoch() == ["[1, 2, 3]"]
        assert [sorted(part) for part in harness.operator_state("u")] == [[1, 2, 3]] * 2


class Silent(ProcessFunction):
    def process_element(self, value: int, ctx: Any) -> None:
        return None


class Both(KeyedProcessFunction, CheckpointedFunction):
    """Keyed state, raw keyed state and operator state in one function."""

    def initialize_state(self, context: Any) -> None:
        self.count = context.get_keyed_state_store().get_state(ValueStateDescriptor("count", "bigint"))
        self.list = context.get_operator_state_store().get_list_state(ListStateDescriptor("keys", "string"))

    def open(self, runtime_context: Any) -> None:
        self.raw = runtime_context.get_raw_state("raw")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        self.raw.update((self.raw.value() or b"") + b"\x00\xff")
        self.list.add(value.k)
        yield value.k, self.count.value()

    def snapshot_state(self, context: Any) -> None:
        pass


def test_keyed_and_operator_state_side_by_side() -> None:
    with KeyedProcessHarness(Both(), "k", "k string", "k string, n bigint", parallelism=2) as harness:
        harness.push("a", "b", "a")
        harness.run_epoch()
        harness.restart(parallelism=3)
        harness.push("a")
        assert harness.run_epoch() == [("a", 3)]
        assert harness.state("raw", "a") == b"\x00\xff" * 3
        assert sorted(key for part in harness.operator_state("keys") for key in part) == ["a", "a", "a", "b"]


class Misuse(ProcessFunction, CheckpointedFunction):
    def __init__(self, descriptor: Any, keyed: bool) -> None:
        self.descriptor = descriptor
        self.keyed = keyed

    def initialize_state(self, context: Any) -> None:
        if self.keyed:
            context.get_keyed_state_store().get_state(self.descriptor)
        else:
            context.get_operator_state_store().get_list_state(self.descriptor)

    def snapshot_state(self, context: Any) -> None:
        pass


def test_what_operator_state_refuses() -> None:
    with (
        ProcessHarness(Misuse(ValueStateDescriptor("v", "int"), True), "bigint", "string") as harness,
        pytest.raises(StateMisuseError, match="This state is only accessible by functions executed on a KeyedStream"),
    ):
        harness.run_epoch()
    with (
        ProcessHarness(Misuse(ValueStateDescriptor("v", "int"), False), "bigint", "string") as harness,
        pytest.raises(InvalidInputError, match="expected a ListStateDescriptor, got ValueStateDescriptor"),
    ):
        harness.run_epoch()


def test_even_split_deals_as_flink_does() -> None:
    assert even_split({"a": 5}, 3) == {"a": [(0, 2), (2, 4), (4, 5)]}
    assert even_split({"a": 1, "b": 1, "c": 4}, 3) == {
        "a": [(0, 1), (1, 1), (1, 1)],
        "b": [(1, 1), (0, 1), (1, 1)],
        "c": [(2, 3), (3, 4), (0, 2)],
    }
    assert even_split({"a": 0}, 2) == {"a": [(0, 0), (0, 0)]}
