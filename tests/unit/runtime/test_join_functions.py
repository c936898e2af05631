"""Joins without Spark, beside a model in plain Python: every pair once, rows without partner once, nothing kept."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest

from cairn import KeyedCoProcessFunction, OutputTag, ProcessJoinFunction, Time, UserFunctionError
from cairn.runtime.join_functions import HistoryJoin, IntervalJoinFunction, JoinedRows
from cairn.testing import TwoInputHarness

ROW = "struct<k:string,ts:timestamp,n:bigint>"
INPUT = "k string, ts timestamp, n bigint"
OUTPUT = "k string, n bigint, m bigint"
LATE = (OutputTag("late-left", INPUT), OutputTag("late-right", INPUT))


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        one = left if left is not None else right
        if left is not None and right is not None:
            assert ctx.get_timestamp() == max(ctx.get_left_timestamp(), ctx.get_right_timestamp())
        yield one.k, left.n if left is not None else None, right.n if right is not None else None


def at(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def harness(function: KeyedCoProcessFunction, **settings: Any) -> TwoInputHarness:
    return TwoInputHarness(
        function, ("k", "k"), (INPUT, INPUT), OUTPUT, event_time=("ts", "ts"), **settings
    )  # fmt: skip


def model(lefts: list[Any], rights: list[Any], bounds: tuple[int, int], outer: tuple[bool, bool]) -> list[Any]:
    pairs = [(a, b) for a in lefts for b in rights if a[0] == b[0] and bounds[0] <= b[1] - a[1] <= bounds[1]]
    found = [(a[0], a[2], b[2]) for a, b in pairs]
    if outer[0]:
        found += [(a[0], a[2], None) for a in lefts if not any(pair[0] is a for pair in pairs)]
    if outer[1]:
        found += [(b[0], None, b[2]) for b in rights if not any(pair[1] is b for pair in pairs)]
    return sorted(found, key=repr)


@pytest.mark.parametrize("outer", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("bounds", [(-5, 5), (2, 9), (-9, -2), (0, 0)])
def test_interval_join_finds_what_the_model_finds(bounds: tuple[int, int], outer: tuple[bool, bool]) -> None:
    rng = random.Random(f"{bounds}{outer}")
    lefts: list[Any] = []
    rights: list[Any] = []
    function = IntervalJoinFunction(Pairs(), bounds, (ROW, ROW), outer)
    with harness(function, parallelism=2) as test:
        for epoch in range(8):
            base = epoch * 20
            for rows, push in ((lefts, test.push1), (rights, test.push2)):
                for _ in range(6):
                    row = (rng.choice("xy"), base + rng.randrange(25), len(lefts) * 1000 + len(rights))
                    rows.append(row)
                    push((row[0], at(row[1]), row[2]))
            if epoch % 3 == 1:
                test.fail_epoch()
            test.run_epoch()
            test.advance_watermark(base + 20)
            if epoch == 4:
                test.restart(parallelism=3)
        test.advance_watermark(10_000)
        test.run_epoch()
        assert sorted(map(tuple, test.outputs), key=repr) == model(lefts, rights, bounds, outer)
        assert test.timers() == []
        assert [test.state(name, key) for name in ("left", "right") for key in "xy"] == [{}] * 4


def test_late_rows_are_dropped_or_put_aside() -> None:
    with harness(IntervalJoinFunction(Pairs(), (-5, 5), (ROW, ROW), late=LATE), side_outputs=LATE) as test:
        test.push1(("x", at(100), 1))
        test.run_epoch()
        test.advance_watermark(101)
        test.push1(("x", at(100), 2))
        test.push2(("x", at(100), 3), ("x", at(101), 4))
        assert test.run_epoch() == [("x", 1, 4)]
        assert [row.n for row in test.side_outputs["late-left"]] == [2]
        assert [row.n for row in test.side_outputs["late-right"]] == [3]
    with harness(IntervalJoinFunction(Pairs(), (-5, 5), (ROW, ROW))) as test:
        test.push1(("x", None, 1))
        with pytest.raises(UserFunctionError, match="left side of an interval join has no event time"):
            test.run_epoch()


def test_rows_of_a_join_without_bounds_go_with_their_time_to_live() -> None:
    function = HistoryJoin(JoinedRows((3, 3), (False, False)), (ROW, ROW), Time.seconds(1).to_milliseconds())
    types = "a string, b timestamp, n bigint, c string, d timestamp, m bigint"
    with TwoInputHarness(function, ("k", "k"), (INPUT, INPUT), types) as test:
        test.push1(("x", None, 1))
        test.run_epoch()
        test.advance_processing_time(900)
        test.push2(("x", None, 2))
        assert [(row.n, row.m) for row in test.run_epoch()] == [(1, 2)]
        test.advance_processing_time(1500)
        test.push1(("x", None, 3))
        test.push2(("x", None, 4))
        assert [(row.n, row.m) for row in test.run_epoch()] == [(3, 2), (3, 4)]
