"""The last epoch of a drained job: its rows come before the end of event time, for functions and joins alike."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from cairn import (
    ContinuousEventTimeTrigger,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from cairn.runtime.join_functions import IntervalJoinFunction
from cairn.testing import KeyedProcessHarness, TwoInputHarness, WindowAggregateHarness, WindowHarness

END = (1 << 63) - 1
ROWS = "k string, ts timestamp"
TOLD = "k string, what string, at bigint, watermark bigint"
RULES = MapStateDescriptor("rules", "string", "bigint")


def at(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def drained(harness: Any) -> list[Any]:
    harness._loop.draining = True
    return sorted(harness.run_epoch())


class Silence(KeyedProcessFunction):
    """Every row moves the timer of its key to 50 ms later."""

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        if self.due.value() is not None:
            timers.delete_event_time_timer(self.due.value())
        self.due.update(ctx.timestamp() + 50)
        timers.register_event_time_timer(self.due.value())
        yield value.k, "row", ctx.timestamp(), timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), "timer", timestamp, ctx.timer_service().current_watermark()


def test_a_timer_that_a_row_of_the_last_epoch_moves_fires_once_and_after_it() -> None:
    with KeyedProcessHarness(Silence(), "k", ROWS, TOLD, event_time="ts") as harness:
        harness.push(("a", at(100)), ("b", at(10)), ("c", at(100)))
        harness.run_epoch()
        harness.advance_watermark(70)
        harness.push(("a", at(120)), ("b", at(75)))
        assert drained(harness) == [
            ("a", "row", 120, 70),
            ("a", "timer", 170, END),
            ("b", "row", 75, 70),
            ("b", "timer", 60, 70),  # due by the watermark of the sources: before the rows, as in any epoch
            ("b", "timer", 125, END),
            ("c", "timer", 150, END),
        ]
        assert harness.timers() == []


class Watermarks(KeyedBroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.name, "rule", 0, ctx.current_watermark()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 50)
        yield value.k, "row", ctx.timestamp(), ctx.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), "timer", timestamp, ctx.current_watermark()


def test_broadcast_elements_and_rows_see_the_watermark_of_the_sources() -> None:
    with TwoInputHarness(
        Watermarks(), ("k", None), (ROWS, "name string"), TOLD, event_time=("ts", None), broadcast=[RULES]
    ) as harness:
        harness.advance_watermark(70)
        harness.push1(("a", at(100)))
        harness.push2(("r",))
        assert drained(harness) == [("a", "row", 100, 70), ("a", "timer", 150, END), ("r", "rule", 0, 70)]


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield (left or right).k, left and left.n, right and right.n


def test_rows_of_the_last_epoch_find_their_partners_of_earlier_ones() -> None:
    row = "struct<k:string,ts:timestamp,n:bigint>"
    rows = "k string, ts timestamp, n bigint"
    function = IntervalJoinFunction(Pairs(), (-5, 5), (row, row), (True, True))
    with TwoInputHarness(
        function, ("k", "k"), (rows, rows), "k string, n bigint, m bigint", event_time=("ts", "ts")
    ) as harness:
        harness.push1(("x", at(100), 1), ("y", at(100), 2))
        harness.run_epoch()
        harness.advance_watermark(100)
        harness.push2(("x", at(104), 3), ("z", at(200), 4), ("y", at(99), 5))  # the last one is late
        harness._loop.draining = True
        assert sorted(harness.run_epoch(), key=repr) == [("x", 1, 3), ("y", 2, None), ("z", None, 4)]
        assert harness.timers() == []
        assert [harness.state(name, key) for name in ("left", "right") for key in "xyz"] == [{}] * 6


class Spans(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Iterator[Any]:
        window = context.window()
        yield key, window.start, window.end, len(list(elements))


LATE = OutputTag("late", "u string, t timestamp")
SESSIONS = EventTimeSessionWindows.with_gap(5)
TENS = TumblingEventTimeWindows.of(10)


@pytest.mark.parametrize(
    ("assigner", "first", "watermark", "last", "more"),
    [
        pytest.param(SESSIONS, [0, 5], 20, [3], {"late": LATE}, id="a late row inside a session that is due"),
        pytest.param(SESSIONS, [0, 2], 20, [4], {"late": LATE}, id="a late row that would widen it"),
        pytest.param(SESSIONS, [0, 5], 10, [10], {}, id="a row at the watermark beside it"),
        pytest.param(SESSIONS, [0, 5], 10, [8], {}, id="a row in time beside it"),
        pytest.param(TENS, [1, 2], 12, [3], {"allowed_lateness": 5}, id="a late row of a window that is kept"),
        pytest.param(
            TumblingEventTimeWindows.of(100), [1, 2], 12, [3],
            {"trigger": ContinuousEventTimeTrigger.of(10)}, id="early results",
        ),
    ],
)  # fmt: skip
def test_windows_that_are_due_fire_before_the_rows_as_in_any_epoch(
    assigner: Any, first: list[int], watermark: int, last: list[int], more: dict[str, Any]
) -> None:
    def run(drains: bool) -> tuple[list[Any], Any]:
        columns, output = "u string, t timestamp", "u string, start bigint, stop bigint, n bigint"
        with WindowHarness(assigner, Spans(), "u", columns, output, event_time="t", **more) as harness:
            harness.push(*[("a", harness.at(t)) for t in first])
            found = harness.run_epoch()
            harness.advance_watermark(watermark)
            harness.push(*[("a", harness.at(t)) for t in last])
            harness._loop.draining = drains
            found += harness.run_epoch()
            if not drains:
                harness.advance_watermark(10**6)
                found += harness.run_epoch()
            return found, dict(harness.side_outputs)

    assert run(drains=True) == run(drains=False)
    assert run(drains=True)[0]


def test_aggregated_windows_that_are_due_fire_before_the_rows_as_in_any_epoch() -> None:
    def run(drains: bool) -> list[Any]:
        columns = "k string, v bigint, t timestamp"
        with WindowAggregateHarness(TENS, "sum", "v", "k", columns, event_time="t", allowed_lateness=5) as harness:
            harness.push(("a", 1, harness.at(1)), ("b", 7, harness.at(25)))
            found = harness.run_epoch()
            harness.advance_watermark(12)
            harness.push(("a", 2, harness.at(2)), ("a", 4, harness.at(13)))
            harness._loop.draining = drains
            found += harness.run_epoch()
            if not drains:
                harness.advance_watermark(10**6)
                found += harness.run_epoch()
            return [(key, value) for key, _, _, value in found]

    assert run(drains=True) == run(drains=False) == [("a", 1), ("a", 3), ("a", 4), ("b", 7)]
