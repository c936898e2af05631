"""PyFlink's function classes and their contexts, as programs name them in annotations and base classes.

Annotations are not postponed in this module: they are evaluated where a class is defined, as in PyFlink's programs.
"""

from collections.abc import Iterable
from typing import Any

import pytest

import cairn
from cairn import (
    AggregatingState,
    BroadcastProcessFunction,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListState,
    MapState,
    MergingWindowAssigner,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReadOnlyBroadcastState,
    ReducingState,
    TimeWindow,
    ValueState,
)

CONTEXTS = {
    "ProcessFunction": ("Context",),
    "KeyedProcessFunction": ("Context", "OnTimerContext"),
    "CoProcessFunction": ("Context",),
    "KeyedCoProcessFunction": ("Context", "OnTimerContext"),
    "BroadcastProcessFunction": ("Context", "ReadOnlyContext"),
    "KeyedBroadcastProcessFunction": ("Context", "ReadOnlyContext", "OnTimerContext"),
    "ProcessWindowFunction": ("Context",),
    "ProcessAllWindowFunction": ("Context",),
    "Trigger": ("TriggerContext", "OnMergeContext"),
    "WindowAssigner": ("WindowAssignerContext",),
    "MergingWindowAssigner": ("MergeCallback",),
}


@pytest.mark.parametrize(("function", "context"), [(f, c) for f, contexts in CONTEXTS.items() for c in contexts])
def test_every_context_class_of_pyflink_exists(function: str, context: str) -> None:
    assert isinstance(getattr(getattr(cairn, function), context), type)


def test_a_window_function_may_name_the_window_of_its_context() -> None:
    class Starts(ProcessWindowFunction[tuple[str, int], int, str, TimeWindow]):
        def process(
            self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple[str, int]]
        ) -> Iterable[int]:
            return [context.window().start]

        def clear(self, context: ProcessWindowFunction.Context[TimeWindow]) -> None:
            pass

    class AllStarts(ProcessAllWindowFunction[tuple[str, int], int, TimeWindow]):
        def process(
            self, context: ProcessAllWindowFunction.Context[TimeWindow], elements: Iterable[tuple[str, int]]
        ) -> Iterable[int]:
            return [context.window().start]

    def merged(callback: MergingWindowAssigner.MergeCallback[TimeWindow]) -> None:
        callback.merge([], TimeWindow(0, 1))

    class Context:
        def window(self) -> TimeWindow:
            return TimeWindow(7, 8)

    context: Any = Context()
    assert Starts().process("key", context, []) == [7]
    assert AllStarts().process(context, []) == [7]
    assert merged.__annotations__["callback"] is not Any


def test_broadcast_functions_may_name_their_types_and_contexts() -> None:
    class Rules(KeyedBroadcastProcessFunction[str, int, str, int]):
        def process_element(self, value: int, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[int]:
            return [value]

        def process_broadcast_element(self, value: str, ctx: KeyedBroadcastProcessFunction.Context) -> Iterable[int]:
            return []

        def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[int]:
            return [timestamp]

    class Plain(BroadcastProcessFunction[int, str, int]):
        def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[int]:
            return [value]

    class Bare(KeyedBroadcastProcessFunction):
        """Without types, as before."""

    ctx: Any = None
    assert Rules().process_element(5, ctx) == [5]
    assert Rules().on_timer(3, ctx) == [3]
    assert Plain().process_element(4, ctx) == [4]
    assert isinstance(Bare(), BroadcastProcessFunction)
    offered = dir(KeyedBroadcastProcessFunction.OnTimerContext)
    assert {"time_domain", "get_current_key", "timer_service", "get_broadcast_state"} <= set(offered)


def test_states_may_name_the_types_of_their_values() -> None:
    class Counts(KeyedProcessFunction):
        count: ValueState[int]
        names: ListState[str]
        seen: MapState[str, int]
        least: ReducingState[int]
        mean: AggregatingState[int, float]
        rules: ReadOnlyBroadcastState[str, int]
        own_rules: BroadcastState[str, int]

    assert len(Counts.__annotations__) == 7
