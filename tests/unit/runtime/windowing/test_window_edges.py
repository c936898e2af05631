"""Windows where things meet: lateness and merging, early firing and restarts, count windows and rescaling."""

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
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from cairn.testing import WindowAggregateHarness, WindowHarness


def test_a_late_row_joins_a_session_that_has_fired_with_one_that_has_not() -> None:
    """In the allowed lateness both are there: the joined session is open until its new end, and fires whole."""
    with counting(EventTimeSessionWindows.with_gap(10), allowed_lateness=30, late=LATE) as harness:
        harness.push(row(0), row(18))
        harness.run_epoch()
        harness.advance_watermark(12)
        assert harness.run_epoch() == [("a", 0, 10, 1)]
        harness.restart(parallelism=3)
        harness.push(row(9))  # touches both: 0-10 and 18-28
        assert harness.run_epoch() == []
        harness.advance_watermark(28)
        assert harness.run_epoch() == [("a", 0, 28, 3)]
        harness.push(row(27))  # late, and its end is not reached yet: the session is open again
        assert harness.run_epoch() == []
        harness.push(row(5))  # inside the session, which is open: it fires at its end
        assert harness.run_epoch() == []
        harness.advance_watermark(37)
        assert harness.run_epoch() == [("a", 0, 37, 5)]
        harness.push(row(6))  # inside, and past its end: fires at once
        assert harness.run_epoch() == [("a", 0, 37, 6)]
        harness.advance_watermark(67)
        harness.push(row(6))
        assert harness.run_epoch() == []
        assert [late.time for late in harness.side_outputs["late"]] == [WindowHarness.at(6)]
        nothing_left(harness)
        assert harness.state("window-sessions", "a") == {}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_early_results_go_on_where_they_stood_after_a_restart(parallelism: int) -> None:
    with counting(TumblingEventTimeWindows.of(100), trigger=CountTrigger.of(3)) as harness:
        harness.push(row(1), row(2))
        assert harness.run_epoch() == []
        harness.restart(parallelism=parallelism)
        harness.push(row(3), row(4))
        assert harness.run_epoch() == [("a", 0, 100, 3)]
        harness.fail_epoch()
        harness.restart(parallelism=parallelism)
        harness.push(row(5), row(6))
        assert harness.run_epoch() == [("a", 0, 100, 6)]
    with counting(TumblingEventTimeWindows.of(100), trigger=ContinuousEventTimeTrigger.of(30)) as harness:
        harness.push(row(5))
        harness.run_epoch()
        harness.advance_watermark(31)
        assert harness.run_epoch() == [("a", 0, 100, 1)]
        harness.restart(parallelism=parallelism)
        assert harness.run_epoch() == []  # what was told is not told again
        harness.push(row(50))
        harness.advance_watermark(61)
        assert harness.run_epoch() == [("a", 0, 100, 1)]  # timers come before the rows of their epoch
        harness.restart(parallelism=parallelism)
        harness.advance_watermark(100)
        assert harness.run_epoch() == [("a", 0, 100, 2)] * 2  # at 90 and at the end
        nothing_left(harness)
    with counting(TumblingEventTimeWindows.of(100), trigger=ContinuousProcessingTimeTrigger.of(10)) as harness:
        harness.push(row(5))
        harness.run_epoch()
        harness.restart(parallelism=parallelism)
        harness.advance_processing_time(11)
        assert harness.run_epoch() == [("a", 0, 100, 1)]
        harness.restart(parallelism=parallelism)
        assert harness.run_epoch() == []


def test_early_results_that_purge_tell_each_row_once() -> None:
    trigger = PurgingTrigger.of(ContinuousEventTimeTrigger.of(30))
    with counting(TumblingEventTimeWindows.of(100), trigger=trigger) as harness:
        told = 0
        for ms in range(0, 100, 10):
            harness.push(row(ms))
            told += sum(n for *_, n in harness.run_epoch())
            harness.advance_watermark(ms)
            if ms == 50:
                harness.restart(parallelism=2)
        harness.advance_watermark(100)
        told += sum(n for *_, n in harness.run_epoch())
        assert told == 10
        nothing_left(harness)


def test_count_windows_of_many_keys_go_on_at_any_parallelism() -> None:
    users = [f"u{n}" for n in range(12)]
    for assigner, want in (
        (CountTumblingWindowAssigner.of(3), ["0 1 2", "3 4 5"]),
        (CountSlidingWindowAssigner.of(4, 2), ["0 1 2 3", "2 3 4 5"]),
        (CountSlidingWindowAssigner.of(2, 3), ["0 1", "3 4"]),  # every third row is in no window
    ):
        found: list[Any] = []
        with values(assigner, parallelism=2) as harness:
            for v, parallelism in zip(range(6), (3, 1, 5, 2, 4, 1), strict=True):
                harness.push(*[row(0, user, v) for user in users])
                found += harness.run_epoch()
                harness.restart(parallelism=parallelism)
            assert sorted(map(tuple, found)) == sorted((user, text) for user in users for text in want)


def test_processing_time_windows_fire_though_nothing_arrives() -> None:
    with counting(TumblingProcessingTimeWindows.of(10), event_time=None) as harness:
        harness.push(row(0), row(0, "b"))
        harness.run_epoch()
        harness.restart(parallelism=2)
        harness.advance_processing_time(1000)
        assert sorted(harness.run_epoch()) == [("a", 0, 10, 1), ("b", 0, 10, 1)]
        assert harness.run_epoch() == []
        nothing_left(harness)


def test_rows_between_windows_are_not_late() -> None:
    """Windows with gaps between them: a row in a gap is in no window, and no late row before the watermark says so."""
    with counting(SlidingEventTimeWindows.of(2, 10), late=LATE) as harness:
        harness.advance_watermark(4)
        harness.push(row(5), row(1), row(10))
        harness.run_epoch()
        assert [late.time for late in harness.side_outputs["late"]] == [WindowHarness.at(1)]
        harness.advance_watermark(12)
        assert harness.run_epoch() == [("a", 10, 12, 1)]


def test_a_row_that_is_late_for_some_of_its_windows_only_is_in_the_others() -> None:
    sliding = SlidingEventTimeWindows.of(10, 4)  # a row at 9 is in 0-10, 4-14 and 8-18
    with counting(sliding, late=LATE) as harness:
        harness.advance_watermark(12)
        harness.push(row(9), row(1))
        harness.run_epoch()
        harness.advance_watermark(100)
        assert harness.run_epoch() == [("a", 4, 14, 1), ("a", 8, 18, 1)]
        assert [late.time for late in harness.side_outputs["late"]] == [WindowHarness.at(1)]
    with WindowAggregateHarness(
        sliding, "count", None, "user", "user string, v bigint, time timestamp", event_time="time", late=LATE
    ) as columns:
        columns.advance_watermark(12)
        columns.push(row(9), row(1))
        columns.run_epoch()
        columns.advance_watermark(100)
        found = [(user, start, n) for user, start, _, n in columns.run_epoch()]
        assert sorted(found) == [("a", WindowHarness.at(4), 1), ("a", WindowHarness.at(8), 1)]
        assert [late.time for late in columns.side_outputs["late"]] == [WindowHarness.at(1)]


def test_a_global_window_without_a_trigger_keeps_what_it_holds() -> None:
    """It never fires, as in Flink; a trigger that is given later finds all rows."""
    with values(GlobalWindows.create(), parallelism=2) as harness:
        harness.push(row(0, v=1), row(0, v=2))
        assert harness.run_epoch() == []
        harness.restart(parallelism=1)
        assert harness.run_epoch() == []
        assert harness.state("window-sizes", "a") == {(0, 0): 2}
