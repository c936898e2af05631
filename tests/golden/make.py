"""Makes the golden checkpoint and savepoint of the present format: `python -m tests.golden.make` in the project's root.

What is checked in under `v1` was made once and is never made again: `test_golden.py` restores it from now
on, whatever the code has become. A new format gets a folder of its own beside it.
"""

from __future__ import annotations

import datetime as dt
import decimal
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.restore_lab import checkpoint_of, savepoint_of

from cairn import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from cairn.testing.keyed_harness import KeyedProcessHarness

Job = Callable[[Path], KeyedProcessHarness]
FOLDER = Path(__file__).parent / "v1"
COLUMNS = "user string, shop int, n bigint"
WIDE = "struct<i:int,d:double,s:string,b:binary,t:timestamp,day:date,m:decimal(9,2),l:array<int>,e:map<string,bigint>>"
ROWS = [(f"u{n % 7}", n % 3, n) for n in range(60)]
FIRST = dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]


class Golden(KeyedProcessFunction):
    """Every kind of state, and most types."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.wide = runtime_context.get_state(ValueStateDescriptor("wide", WIDE))
        recent = ValueStateDescriptor("recent", "string")
        recent.enable_time_to_live(StateTtlConfig.new_builder(Time.days(365_000)).build())
        self.recent = runtime_context.get_state(recent)
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.by_day = runtime_context.get_map_state(MapStateDescriptor("by day", "date", "double"))
        self.least = runtime_context.get_reducing_state(ReducingStateDescriptor("least", min, "bigint"))
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), "struct<sum:bigint,count:bigint>")
        )
        self.any = runtime_context.get_state(ValueStateDescriptor("any"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n = value.n
        self.total.update((self.total.value() or 0) + n)
        self.wide.update(wide(n))
        self.recent.update(f"r{n}")
        self.seen.add(n)
        self.by_day.put(day(n), n / 4)
        self.least.add(n)
        self.mean.add(n)
        self.any.update({"n": n})
        ctx.timer_service().register_event_time_timer(1_000_000 + n)
        ctx.timer_service().register_processing_time_timer(9_000_000_000_000 + n)
        yield (value.user, "")


def day(n: int) -> dt.date:
    return dt.date(2024, 1, 1) + dt.timedelta(days=n % 4)


def wide(n: int) -> tuple[Any, ...]:
    return (
        n, n / 3, f"text {n} \u00e9", bytes([n]), FIRST + dt.timedelta(seconds=n), day(n), decimal.Decimal(n) / 4,
        [n, n + 1], {"k": n},
    )  # fmt: skip


def job(folder: Path, parallelism: int = 2) -> KeyedProcessHarness:
    return KeyedProcessHarness(
        Golden(), ["user", "shop"], COLUMNS, "key string, out string", parallelism=parallelism, max_parallelism=16,
        state_dir=folder, inline_threshold=1500, compaction_chain=3,
    )  # fmt: skip


def write_golden(folder: Path, job: Job, rows: Sequence[Any], portion: int) -> None:
    """Run a job over the rows, `portion` of them in an epoch, and keep a checkpoint and a savepoint of it."""
    if folder.exists():
        raise SystemExit(f"{folder} is there already, and golden files are never made again")
    with job(folder / "job") as made:
        for start in range(0, len(rows), portion):
            made.push(*rows[start : start + portion])
            made.run_epoch()
    checkpoint_of(folder / "job")
    path = savepoint_of(folder / "job", folder)
    Path(path).rename(folder / "savepoint")
    shutil.rmtree(folder / "job" / "runs")


if __name__ == "__main__":
    write_golden(FOLDER, job, ROWS, 15)
