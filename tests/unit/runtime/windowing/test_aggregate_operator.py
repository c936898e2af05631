"""Aggregations over windows in columns, against the same ones row by row and against a plain model of windows."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from cairn import (
    EventTimeSessionWindows,
    InvalidInputError,
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    UserFunctionError,
)
from cairn.model.assigners import TimeWindows
from cairn.model.ddl import parse_columns
from cairn.runtime.windowing.aggregate_operator import AGGREGATES, result_type
from cairn.runtime.windowing.window_plan import WindowPlan
from cairn.testing import KeyedProcessHarness, WindowAggregateHarness, WindowHarness
from cairn.testing.window_harness import _plan

ROWS = "user string, v bigint, time timestamp"
LATE = OutputTag("late", ROWS)
at = WindowHarness.at


def fast(assigner: Any, kind: str, rows: str = ROWS, **settings: Any) -> WindowAggregateHarness:
    column = None if kind == "count" else "v"
    settings.setdefault("key_by", "user")
    return WindowAggregateHarness(assigner, kind, column, input_type=rows, event_time="time", **settings)


def row_by_row(assigner: Any, kind: str, rows: str, late: OutputTag, lateness: int) -> KeyedProcessHarness:
    """What `sum` and its like do for windows that have no fast way."""
    plan: WindowPlan = _plan(assigner, rows, "time", None, lateness, late)
    names = [name for name, _ in parse_columns(rows)]
    place = names.index("v")
    stored, result = result_type(kind, dict(parse_columns(rows))["v"].ddl)
    return KeyedProcessHarness(
        plan.column(kind, place, False, stored, 1), "user", rows,
        f"user string, window_start timestamp, window_end timestamp, {kind} {result}", event_time="time",
        side_outputs=[late],
    )  # fmt: skip


def same(rows: list[Any]) -> list[Any]:
    """Rows that compare equal: sorted, floats rounded, NaN as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return "nan" if math.isnan(value) else round(value, 6)
        return value

    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


@pytest.mark.parametrize("kind", AGGREGATES)
@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows.of(10), TumblingEventTimeWindows.of(10, 3), SlidingEventTimeWindows.of(10, 4)],
    ids=str,
)
def test_columns_and_rows_agree(kind: str, assigner: TimeWindows) -> None:
    """The last result of every window is the same, and so is what is late; nothing stays behind."""
    rng = random.Random(f"{kind} {assigner}")
    rows = "user string, v double, time timestamp"
    late = OutputTag("late", rows)
    lateness = rng.choice([0, 7])
    with (
        fast(assigner, kind, rows, parallelism=2, late=late, allowed_lateness=lateness) as columns,
        row_by_row(assigner, kind, rows, late, lateness) as one_by_one,
    ):
        watermark = 0
        results: list[dict[Any, Any]] = [{}, {}]
        for epoch in range(12):
            pushed = [
                (rng.choice("abc"), rng.choice([None, math.nan, *map(float, range(-9, 9))]),
                 at(watermark + rng.randrange(-25, 30)))
                for _ in range(rng.randrange(6))
            ]  # fmt: skip
            for harness, seen in zip((columns, one_by_one), results, strict=True):
                harness.push(*pushed)
                if rng.random() < 0.3:
                    harness.fail_epoch()
                    harness.restart(parallelism=rng.randrange(1, 4))
                seen.update({tuple(row[:3]): row[3] for row in harness.run_epoch()})
            watermark += rng.randrange(15)
            for harness in (columns, one_by_one):
                harness.advance_watermark(watermark if epoch < 10 else watermark + 1000)
        assert results[0]
        assert same([(*k, v) for k, v in results[0].items()]) == same([(*k, v) for k, v in results[1].items()])
        assert same(columns.side_outputs["late"]) == same(one_by_one.side_outputs["late"])
        assert columns.timers() == one_by_one.timers() == []


class Model:
    """Windows of one key at a time, as the documentation tells them, without state, timers or merging code."""

    def __init__(self, assigner: Any, gap: int = 0) -> None:
        self.assigner = assigner
        self.gap = gap
        self.open: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        self.late = 0

    def epoch(self, watermark: int, rows: list[tuple[str, int, int]]) -> list[Any]:
        done = sorted(key for key in self.open if key[2] <= watermark)
        fired = [(*key, sum(self.open.pop(key))) for key in done]
        for user, value, time in rows:
            if self.gap:
                start, end, held = time, time + self.gap, [value]
                for key in [k for k in self.open if k[0] == user and k[1] <= end and k[2] >= start]:
                    held += self.open.pop(key)
                    start, end = min(start, key[1]), max(end, key[2])
                if end > watermark:
                    self.open[user, start, end] = held
                else:
                    self.late += 1
                continue
            windows = [w for w in self.assigner.assign_windows(None, time, None) if w.end > watermark]
            for window in windows:
                self.open[user, window.start, window.end].append(value)
            self.late += not windows
        return fired


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["tumbling", "sliding", "session"])
def test_every_row_in_time_counts_once_in_each_of_its_windows(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    assigner: Any = {
        "tumbling": TumblingEventTimeWindows.of(20), "sliding": SlidingEventTimeWindows.of(20, 5),
        "session": EventTimeSessionWindows.with_gap(8),
    }[name]  # fmt: skip
    model = Model(assigner, 8 if name == "session" else 0)
    output = "user string, window_start timestamp, window_end timestamp, sum bigint"
    if name == "session":
        plan = _plan(assigner, ROWS, "time", None, 0, LATE)
        made = KeyedProcessHarness(
            plan.column("sum", 1, False, "bigint", 1), "user", ROWS, output, event_time="time", side_outputs=[LATE],
            backend="lmdb",
        )  # fmt: skip
    else:
        made = fast(assigner, "sum", late=LATE, backend="lmdb")
    with made as harness:
        watermark = 0
        for _ in range(15):
            rows = [
                (rng.choice("ab"), rng.randrange(100), watermark + rng.randrange(-30, 60))
                for _ in range(rng.randrange(5))
            ]
            harness.push(*[(user, value, at(time)) for user, value, time in rows])
            harness.advance_watermark(watermark)
            if rng.random() < 0.3:
                harness.fail_epoch()
                harness.restart(parallelism=rng.randrange(1, 4), keep_stores=rng.random() < 0.5)
            want = [(user, at(start), at(end), total) for user, start, end, total in model.epoch(watermark, rows)]
            assert sorted(harness.run_epoch()) == sorted(want)
            assert len(harness.side_outputs["late"]) == model.late
            watermark += rng.randrange(20)


def test_late_rows_put_a_result_out_again_while_lateness_lasts() -> None:
    with fast(TumblingEventTimeWindows.of(10), "sum", allowed_lateness=5, late=LATE) as harness:
        harness.push(("a", 1, at(1)))
        harness.run_epoch()
        harness.advance_watermark(12)
        harness.push(("a", 2, at(2)), ("a", 3, at(3)), ("b", 9, at(3)))
        assert sorted(row[0::3] for row in harness.run_epoch()) == [("a", 1), ("a", 6), ("b", 9)]
        harness.advance_watermark(15)
        harness.push(("a", 2, at(2)))
        assert harness.run_epoch() == []
        assert harness.side_outputs["late"] == [("a", 2, at(2))]
        assert harness.timers() == []


def test_a_drained_job_fires_all_windows_with_the_rows_of_its_last_epoch() -> None:
    with fast(TumblingEventTimeWindows.of(10), "sum", allowed_lateness=100, late=LATE) as harness:
        harness.push(("a", 1, at(1)), ("a", 5, at(11)), ("b", 7, at(1)), ("n", None, at(1)))
        harness.run_epoch()
        harness.advance_watermark(10)
        harness.run_epoch()
        harness.push(("a", 1, at(2)), ("a", 1, at(12)), ("c", 3, at(55)), ("n", None, at(2)))
        harness._loop.draining = True
        found = [(row[0], row[1], row[3]) for row in harness.run_epoch()]
        harness._loop.draining = False
        assert same(found) == same([("a", at(0), 2), ("a", at(10), 6), ("c", at(50), 3), ("n", at(0), None)])
        assert harness.side_outputs["late"] == []
        assert harness.timers() == []


def test_a_row_of_the_last_epoch_that_is_too_late_is_late() -> None:
    """Its window is over and gone: a second result would stand for the whole of it."""
    with fast(TumblingEventTimeWindows.of(10), "sum", late=LATE) as harness:
        harness.push(("a", 5, at(1)), ("a", 7, at(31)))
        harness.run_epoch()
        harness.advance_watermark(20)
        assert [row[3] for row in harness.run_epoch()] == [5]
        harness.push(("a", 1000, at(2)), ("a", 1, at(32)))
        harness._loop.draining = True
        assert [(row[1], row[3]) for row in harness.run_epoch()] == [(at(30), 8)]
        harness._loop.draining = False
        assert harness.side_outputs["late"] == [("a", 1000, at(2))]
        assert harness.timers() == []


@pytest.mark.parametrize("size", [5, 20])
def test_windows_of_another_size_lose_nothing_that_is_stored(size: int, tmp_path: Path) -> None:
    """The size of an operator with state should not be changed; where it is, open windows still come to an end."""
    with fast(TumblingEventTimeWindows.of(10), "sum", state_dir=tmp_path / "job") as harness:
        harness.push(("a", 1, at(1)))
        harness.run_epoch()
    with fast(TumblingEventTimeWindows.of(size), "sum", state_dir=tmp_path / "job") as harness:
        harness.advance_watermark(12)
        found = harness.run_epoch()
        harness.advance_watermark(20)
        assert found + harness.run_epoch() == [("a", at(0), at(size), 1)]
        assert harness.timers() == []


def test_keys_of_several_columns_and_all_types() -> None:
    rows = (
        "s string, b binary, i int, f double, d date, t timestamp, x decimal(5,2), o boolean, v bigint, time timestamp"
    )
    value = ("", b"\0", -3, -1.5, at(0).date(), at(7), __import__("decimal").Decimal("1.50"), True)
    for keys in [["s"], ["b"], ["i"], ["f"], ["d"], ["t"], ["x"], ["o"], ["s", "i"], list("sbifdtxo")]:
        with fast(TumblingEventTimeWindows.of(10), "count", rows, key_by=keys) as harness:
            harness.push((*value, 1, at(1)), (*value, 1, at(2)))
            harness.run_epoch()
            harness.advance_watermark(10)
            (found,) = harness.run_epoch()
            wanted = [value["sbifdtxo".index(key)] for key in keys]
            assert list(found) == [*wanted, at(0), at(10), 2], keys
    with fast(TumblingEventTimeWindows.of(10), "count") as harness:
        texts = ["", "", "é", "a" * 5000, "b"]
        harness.push(*[(text, 1, at(1)) for text in texts])
        harness.run_epoch()
        harness.advance_watermark(10)
        assert sorted((row[0], row[3]) for row in harness.run_epoch()) == [
            ("", 2), ("a" * 5000, 1), ("b", 1), ("é", 1)]  # fmt: skip


def test_errors_of_rows_and_definitions() -> None:
    with fast(TumblingEventTimeWindows.of(10), "sum") as harness:
        harness.push(("a", 1, None))
        with pytest.raises(UserFunctionError, match="no event time, so no event-time window"):
            harness.run_epoch()
        harness.discard()
        harness.push(("a", (1 << 63) - 1, at(1)), ("a", 1, at(1)))
        with pytest.raises(UserFunctionError, match="leaves the range of bigint"):
            harness.run_epoch()
    with pytest.raises(InvalidInputError, match="test it with WindowHarness"):
        fast(EventTimeSessionWindows.with_gap(5), "sum")
