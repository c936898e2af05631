"""What a row costs in a window does not grow with the number of rows, nor with the number of windows of its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.support.counted_cost import assert_linear
from tests.support.state_lab import Mean
from tests.support.window_lab import ROWS, row

from cairn import (
    AggregatingStateDescriptor,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessingTimeSessionWindows,
    ProcessJoinFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
)
from cairn.runtime.join_functions import IntervalJoinFunction
from cairn.runtime.windowing.aggregate_operator import WindowAggregateOperator
from cairn.runtime.windowing.window_operator import WindowOperator
from cairn.testing import TwoInputHarness, WindowAggregateHarness, WindowHarness

FAR = 1 << 40


class First(ProcessWindowFunction[Any, Any, str, Any]):
    """Puts out one row, whatever the window holds."""

    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        return [(key, len(list(elements)))]


class Total(Mean):
    """The mean of `v`, which can be merged."""

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return super().add(value.v, accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


CONTENTS: dict[str, dict[str, Any]] = {
    "elements": {"function": First()},
    "reduce": {"function": None, "reduce": lambda a, b: a},
    "aggregate": {"function": None, "aggregate": Total(), "accumulator_type": "array<bigint>"},
}
OUTPUTS = {"elements": "user string, n bigint", "reduce": ROWS, "aggregate": "mean double"}

WINDOWS: dict[str, tuple[Any, Any]] = {
    "tumbling event time": (TumblingEventTimeWindows.of(100), None),
    "tumbling processing time": (TumblingProcessingTimeWindows.of(100), None),
    "sliding event time": (SlidingEventTimeWindows.of(100, 25), None),
    "sliding processing time": (SlidingProcessingTimeWindows.of(100, 25), None),
    "one long tumbling window": (TumblingEventTimeWindows.of(FAR), None),
    "session that goes on, event time": (EventTimeSessionWindows.with_gap(100), None),
    "session that goes on, processing time": (ProcessingTimeSessionWindows.with_gap(100), None),
    "many sessions of a key": (EventTimeSessionWindows.with_gap(1), None),
    "many sessions of a key, fired at intervals": (
        EventTimeSessionWindows.with_gap(1),
        ContinuousEventTimeTrigger.of(FAR),
    ),
    "count tumbling": (CountTumblingWindowAssigner.of(5), None),
    "count sliding": (CountSlidingWindowAssigner.of(6, 2), None),
    "one long count window": (CountTumblingWindowAssigner.of(FAR), None),
    "global, never fired": (GlobalWindows.create(), None),
    "global, purged by count": (GlobalWindows.create(), PurgingTrigger.of(CountTrigger.of(4))),
    "global, fired at intervals of event time": (GlobalWindows.create(), ContinuousEventTimeTrigger.of(FAR)),
    "global, fired at intervals of processing time": (GlobalWindows.create(), ContinuousProcessingTimeTrigger.of(FAR)),
    "tumbling, purged at its end": (TumblingEventTimeWindows.of(100), PurgingTrigger.of(EventTimeTrigger.create())),
}


def lab(name: str, contents: str) -> WindowHarness:
    assigner, trigger = WINDOWS[name]
    return WindowHarness(
        assigner, key_by="user", input_type=ROWS, output_type=OUTPUTS[contents], event_time="time", trigger=trigger,
        **CONTENTS[contents],
    )  # fmt: skip


ORDERS = [(name, "forwards") for name in WINDOWS] + [(name, "backwards") for name in WINDOWS if "session" in name]


@pytest.mark.parametrize("contents", CONTENTS)
@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_a_row_costs_the_same_however_many_came_before_it(name: str, contents: str, order: str) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        made = lab(name, contents)
        times = range(10, rows * 10 + 10, 10)
        made.push(*[row(time) for time in (times if order == "forwards" else reversed(times))])
        return made.run_epoch

    assert_linear(prepared, WindowOperator, ("process_element",))


@pytest.mark.parametrize("contents", CONTENTS)
@pytest.mark.parametrize("name", WINDOWS)
def test_rows_that_meet_stored_windows_and_the_end_of_all_windows_cost_the_same(name: str, contents: str) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        made = lab(name, contents)
        made.push(*[row(time) for time in range(10, rows * 10 + 10, 10)])
        made.run_epoch()
        made.push(*[row(time) for time in range(10, rows * 10 + 10, 10)])

        def run() -> None:
            made.run_epoch()
            made.advance_watermark(2 * FAR)
            made.advance_processing_time(1 << 41)
            made.run_epoch()

        return run

    assert_linear(prepared, WindowOperator, ("process_element",))


@pytest.mark.parametrize("kind", ["sum", "min", "max", "count", "avg"])
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(50), SlidingEventTimeWindows.of(100, 50)], ids=str)
def test_a_row_of_an_aggregation_in_columns_costs_the_same(assigner: Any, kind: str) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        made = WindowAggregateHarness(assigner, kind, None if kind == "count" else "v", "user", ROWS, event_time="time")
        made.push(*[row(time) for time in range(10, rows * 10 + 10, 10)])

        def run() -> None:
            made.run_epoch()
            made.advance_watermark(FAR)
            made.run_epoch()

        return run

    assert_linear(prepared, WindowAggregateOperator, ("process", "fire_timers"))


class Nothing(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> None: ...


@pytest.mark.parametrize("apart", [10, 0], ids=["at different times", "at one time"])
def test_a_row_of_an_interval_join_costs_the_same_unless_it_has_more_partners(apart: int) -> None:
    join = IntervalJoinFunction(Nothing(), (1, 12), (f"struct<{ROWS}>".replace(" ", ":").replace(",:", ","),) * 2)

    def prepared(rows: int) -> Callable[[], Any]:
        made = TwoInputHarness(join, ("user", "user"), (ROWS, ROWS), ROWS, event_time=("time", "time"))
        for number in range(rows):
            made.push1(row(number * apart))
            made.push2(row(number * apart))

        def run() -> None:
            made.run_epoch()
            made.advance_watermark(FAR)
            made.run_epoch()

        return run

    assert_linear(prepared, IntervalJoinFunction, ("process_element1", "process_element2", "on_timer"))


# States of windows, as triggers have them.

DESCRIPTORS: dict[str, Any] = {
    "value": ValueStateDescriptor("s", "bigint"),
    "list": ListStateDescriptor("s", "bigint"),
    "map": MapStateDescriptor("s", "bigint", "bigint"),
    "reducing": ReducingStateDescriptor("s", max, "bigint"),
    "aggregating": AggregatingStateDescriptor("s", Mean(), "array<bigint>"),
}
CALLS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "value.update and value": ("value", lambda s, row: (s.update(row), s.value())),
    "list.add": ("list", lambda s, row: s.add(row)),
    "list.add_all": ("list", lambda s, row: s.add_all([row, row])),
    "list.update, add and get": ("list", lambda s, row: (s.update([row]), s.add(row), list(s.get()))),
    "map.put": ("map", lambda s, row: s.put(row, row)),
    "map.put and get": ("map", lambda s, row: (s.put(row, row), s.get(row))),
    "map.put and contains": ("map", lambda s, row: (s.put(row, row), s.contains(row))),
    "map.put and is_empty": ("map", lambda s, row: (s.put(row, row), s.is_empty())),
    "map.put, remove and items": ("map", lambda s, row: (s.put(row, row), s.remove(row - 1), list(s.items()))),
    "reducing.add and get": ("reducing", lambda s, row: (s.add(row), s.get())),
    "aggregating.add and get": ("aggregating", lambda s, row: (s.add(row), s.get())),
}


class Calling(Trigger[Any, Any]):
    """Makes one call for each row."""

    def __init__(self, call: str) -> None:
        kind, self.call = CALLS[call]
        self.descriptor = DESCRIPTORS[kind]

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        self.call(ctx.get_partitioned_state(self.descriptor), element.v)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    on_processing_time = on_event_time

    def on_merge(self, window: Any, ctx: Any) -> None: ...

    def clear(self, window: Any, ctx: Any) -> None: ...


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_the_state_of_a_window_costs_the_same_for_every_row(call: str) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        made = WindowHarness(
            GlobalWindows.create(), First(), "user", ROWS, OUTPUTS["elements"], event_time="time",
            trigger=Calling(call),
        )  # fmt: skip
        made.push(*[row(time, v=time) for time in range(rows)])
        return made.run_epoch

    assert_linear(prepared, WindowOperator, ("process_element",))
