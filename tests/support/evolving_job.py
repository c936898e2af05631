"""A job with state of every kind, and a later version of it with other types and names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.restore_lab import harness

from cairn.model.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from cairn.model.functions import KeyedProcessFunction
from cairn.testing.keyed_harness import UID, KeyedProcessHarness

ROWS = [(f"k{n % 23}", n) for n in range(120)]


class Old(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "int"))
        self.row = runtime_context.get_state(ValueStateDescriptor("row", "struct<n:int,gone:string>"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "int"))
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", "string", "float"))
        self.least = runtime_context.get_reducing_state(ReducingStateDescriptor("least", min, "bigint"))
        self.spare = runtime_context.get_state(ValueStateDescriptor("spare", "string"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        self.row.update((value.n, "g"))
        self.seen.add(value.n)
        self.days.put(f"d{value.n % 3}", value.n / 2)
        self.least.add(value.n)
        self.spare.update("s")
        ctx.timer_service().register_event_time_timer(10_000 + value.n)
        yield (value.key, "")


class New(Old):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        fields = {"kind": "first"}
        self.row = runtime_context.get_state(
            ValueStateDescriptor("row", "struct<kind:string,n:bigint,inner:struct<x:int>>", field_defaults=fields)
        )
        seen = ListStateDescriptor("seen", "double")
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.seen = runtime_context.get_list_state(seen)
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", "string", "double"))
        self.least = runtime_context.get_reducing_state(ReducingStateDescriptor("smallest", min, "bigint"))
        self.fresh = runtime_context.get_state(ValueStateDescriptor("fresh", "date"))


RENAMES = {f"{UID}.least": f"{UID}.smallest"}


def model() -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]] = {}
    for key, n in ROWS:
        mine = told.setdefault(key, {"total": 0, "seen": [], "days": {}, "least": n})
        mine["total"] += n
        mine["seen"].append(n)
        mine["days"][f"d{n % 3}"] = n / 2
        mine["least"] = min(mine["least"], n)
        mine["last"] = n
    return told


def run_old(folder: Path, parallelism: int = 2, **more: Any) -> None:
    with harness(Old(), folder, parallelism, **more) as job:
        for start in range(0, len(ROWS), 40):
            job.push(*ROWS[start : start + 40])
            job.run_epoch()


def check_same(job: KeyedProcessHarness) -> None:
    """State as `Old` left it, each key and timer in exactly one subtask."""
    for key, mine in model().items():
        assert job.state("total", key) == mine["total"]
        assert job.state("seen", key) == mine["seen"]
        assert job.state("days", key) == mine["days"]
        assert job.state("least", key) == mine["least"]
    assert sorted((timer.time - 10_000, timer.key) for timer in job.timers()) == sorted((n, key) for key, n in ROWS)


class Pickled(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.any = runtime_context.get_state(ValueStateDescriptor("any"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.any.update({"n": value.n})
        yield (value.key, "")
