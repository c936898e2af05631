"""Kinds of windows, triggers, lateness and merging, row by row and without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.window_lab import LATE, counting, nothing_left, row, values

from cairn import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    UserFunctionError,
)
from cairn.testing import WindowHarness


def test_tumbling_windows_with_an_offset_fire_once_when_the_watermark_reaches_their_end() -> None:
    with counting(TumblingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(3))) as harness:
        harness.push(row(3), row(12), row(13), row(2), row(12, "b"))
        assert harness.run_epoch() == []
        harness.advance_watermark(12)
        harness.push(row(12))  # at the watermark: in time
        assert harness.run_epoch() == [("a", -7, 3, 1)]
        harness.advance_watermark(13)
        assert sorted(harness.run_epoch()) == [("a", 3, 13, 3), ("b", 3, 13, 1)]
        assert harness.run_epoch() == []
        harness.advance_watermark(100)
        assert harness.run_epoch() == [("a", 13, 23, 1)]
        nothing_left(harness)


def test_sliding_windows_hold_an_element_several_times() -> None:
    with counting(SlidingEventTimeWindows.of(10, 4)) as harness:
        harness.push(row(9))
        harness.run_epoch()
        harness.advance_watermark(1000)
        assert harness.run_epoch() == [("a", 0, 10, 1), ("a", 4, 14, 1), ("a", 8, 18, 1)]
        nothing_left(harness)
    with counting(SlidingEventTimeWindows.of(2, 10)) as harness:  # gaps between windows
        harness.push(row(1), row(5))
        harness.run_epoch()
        harness.advance_watermark(1000)
        assert harness.run_epoch() == [("a", 0, 2, 1)]


def test_processing_time_windows_fire_after_their_last_moment() -> None:
    with counting(TumblingProcessingTimeWindows.of(10), event_time=None) as harness:
        for now, want in ((0, []), (9, []), (10, [("a", 0, 10, 2)]), (25, [("a", 10, 20, 1)])):
            harness.advance_processing_time(now)
            if now < 20:
                harness.push(row(0))
            assert harness.run_epoch() == want, now
        nothing_left(harness)
    with counting(SlidingProcessingTimeWindows.of(10, 5), event_time=None) as harness:
        harness.push(row(0))
        harness.run_epoch()
        harness.advance_processing_time(30)
        assert harness.run_epoch() == [("a", -5, 5, 1), ("a", 0, 10, 1)]
    with counting(ProcessingTimeSessionWindows.with_gap(10), event_time=None) as harness:
        for now, want in ((0, []), (9, []), (18, []), (28, [("a", 0, 28, 3)]), (100, [("a", 28, 38, 1)])):
            harness.advance_processing_time(now)
            if now < 50:
                harness.push(row(0))
            assert harness.run_epoch() == want, now
        nothing_left(harness)


class OwnTime(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return int(element.v)


def test_sessions_grow_touch_and_merge_within_and_across_epochs() -> None:
    for epochs in ([[1, 2, 3, 4, 8, 9, 15]], [[15, 9], [1], [8, 3], [2, 4]], [[t] for t in (4, 9, 15, 1, 8, 2, 3)]):
        with counting(EventTimeSessionWindows.with_gap(5)) as harness:
            for times in epochs:
                harness.push(*map(row, times))
                assert harness.run_epoch() == []
            harness.advance_watermark(14)
            assert harness.run_epoch() == [("a", 1, 14, 6)]
            harness.restart(parallelism=3)
            harness.advance_watermark(20)
            assert harness.run_epoch() == [("a", 15, 20, 1)]
            nothing_left(harness)
            assert harness.state("window-sessions", "a") == {}


def test_sessions_with_a_gap_of_each_element() -> None:
    with counting(EventTimeSessionWindows.with_dynamic_gap(OwnTime())) as harness:
        harness.push(*[row(t, v=t) for t in (1, 2, 3, 4, 8, 9, 15)])
        harness.run_epoch()
        harness.advance_watermark(1000)
        assert harness.run_epoch() == [("a", 1, 30, 7)]
    with counting(EventTimeSessionWindows.with_dynamic_gap(OwnTime())) as harness:
        harness.push(row(1, v=0))
        with pytest.raises(UserFunctionError, match=r"OwnTime.extract\(\) gave 0.*at least 1"):
            harness.run_epoch()


def test_late_elements_join_a_session_that_is_still_there() -> None:
    """A late row alone is dropped; one that touches an open session is not late."""
    with counting(EventTimeSessionWindows.with_gap(10), late=LATE) as harness:
        harness.push(row(100), row(120))
        harness.run_epoch()
        harness.advance_watermark(109)
        harness.push(row(95), row(80))
        assert harness.run_epoch() == []
        assert [late.time for late in harness.side_outputs["late"]] == [WindowHarness.at(80)]
        harness.push(row(112))  # joins 95-110, which is open at 109, no: 112 begins after its end; and touches 120
        harness.run_epoch()
        harness.advance_watermark(1000)
        assert harness.run_epoch() == [("a", 95, 110, 2), ("a", 112, 130, 2)]


def test_allowed_lateness_fires_again_then_drops() -> None:
    with counting(TumblingEventTimeWindows.of(10), allowed_lateness=Time.milliseconds(5), late=LATE) as harness:
        harness.push(row(1))
        harness.run_epoch()
        harness.advance_watermark(10)
        harness.push(row(2), row(3))
        assert harness.run_epoch() == [("a", 0, 10, 1), ("a", 0, 10, 2), ("a", 0, 10, 3)]
        harness.restart(parallelism=2)
        harness.advance_watermark(14)
        harness.push(row(4), row(5, "new"))
        assert sorted(harness.run_epoch()) == [("a", 0, 10, 4), ("new", 0, 10, 1)]
        harness.advance_watermark(15)
        harness.push(row(4))
        assert harness.run_epoch() == []
        assert len(harness.side_outputs["late"]) == 1
        nothing_left(harness)
        nothing_left(harness, "new")


def test_lateness_keeps_sessions_and_merges_a_fired_one() -> None:
    with counting(EventTimeSessionWindows.with_gap(10), allowed_lateness=20) as harness:
        harness.push(row(0))
        harness.run_epoch()
        harness.advance_watermark(10)
        assert harness.run_epoch() == [("a", 0, 10, 1)]
        harness.push(row(5))  # the merged session ends later and is open again
        assert harness.run_epoch() == []
        harness.advance_watermark(15)
        assert harness.run_epoch() == [("a", 0, 15, 2)]
        harness.advance_watermark(35)
        assert harness.run_epoch() == []
        nothing_left(harness)


def test_count_windows() -> None:
    with values(CountTumblingWindowAssigner.of(2)) as harness:
        harness.push(*[row(0, v=v) for v in range(5)])
        assert harness.run_epoch() == [("a", "0 1"), ("a", "2 3")]
        harness.restart(parallelism=2)
        harness.push(row(0, v=5))
        assert harness.run_epoch() == [("a", "4 5")]
        nothing_left(harness)
        assert harness.state("count-windows", "a") == 6
    with values(CountSlidingWindowAssigner.of(3, 2)) as harness:
        harness.push(*[row(0, v=v) for v in range(7)])
        assert harness.run_epoch() == [("a", "0 1 2"), ("a", "2 3 4"), ("a", "4 5 6")]
        assert harness.state("window-sizes", "a") == {(3, 0): 1}


def test_global_windows_fire_by_trigger_only() -> None:
    for trigger, want in (
        (PurgingTrigger.of(CountTrigger.of(2)), [("a", "0 1"), ("a", "2 3")]),
        (CountTrigger.of(2), [("a", "0 1"), ("a", "0 1 2 3")]),
        (NeverTrigger(), []),
        (None, []),
    ):
        with values(GlobalWindows.create(), trigger=trigger) as harness:
            harness.push(*[row(0, v=v) for v in range(5)])
            assert harness.run_epoch() == want
            assert harness.timers() == []


def test_early_firing() -> None:
    with counting(TumblingEventTimeWindows.of(100), trigger=ContinuousEventTimeTrigger.of(30)) as harness:
        harness.push(row(5), row(40))
        harness.run_epoch()
        harness.advance_watermark(31)
        assert harness.run_epoch() == [("a", 0, 100, 2)]
        harness.push(row(50))
        assert harness.run_epoch() == []
        harness.advance_watermark(95)
        assert harness.run_epoch() == [("a", 0, 100, 3)] * 2  # at 60 and at 90
        harness.advance_watermark(100)
        assert harness.run_epoch() == [("a", 0, 100, 3)]
        nothing_left(harness)
        assert harness.state("trigger.fire-time", "a") == {}
    with counting(TumblingEventTimeWindows.of(100), trigger=CountTrigger.of(2)) as harness:
        harness.push(row(1), row(2), row(3))
        assert harness.run_epoch() == [("a", 0, 100, 2)]
        harness.advance_watermark(100)
        assert harness.run_epoch() == []
        nothing_left(harness)
        assert harness.state("trigger.count", "a") == {}


def test_continuous_processing_time_on_event_time_windows() -> None:
    with counting(TumblingEventTimeWindows.of(100), trigger=ContinuousProcessingTimeTrigger.of(10)) as harness:
        harness.push(row(5))
        assert harness.run_epoch() == []
        harness.advance_processing_time(11)
        assert harness.run_epoch() == [("a", 0, 100, 1)]
        assert harness.run_epoch() == []
        harness.advance_processing_time(55)  # five firings are due: one of them is told
        assert harness.run_epoch() == [("a", 0, 100, 1)]
        harness.advance_watermark(200)
        assert harness.run_epoch() == []
        nothing_left(harness)


def test_triggers_of_merged_sessions_merge_their_counts() -> None:
    with counting(EventTimeSessionWindows.with_gap(5), trigger=CountTrigger.of(4)) as harness:
        harness.push(row(0), row(1), row(8))
        assert harness.run_epoch() == []
        harness.push(row(4))
        assert harness.run_epoch() == [("a", 0, 13, 4)]
    with counting(EventTimeSessionWindows.with_gap(5), trigger=ContinuousEventTimeTrigger.of(4)) as harness:
        harness.push(row(0), row(8))
        harness.run_epoch()
        harness.push(row(4))
        harness.run_epoch()
        harness.advance_watermark(100)
        assert harness.run_epoch() == [("a", 0, 13, 3)] * 3  # at 4, at 8, and at the end
        nothing_left(harness)
