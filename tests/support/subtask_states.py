"""Jobs with operator, broadcast and raw state, for tests of their savepoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
from tests.support.restore_lab import OUTPUT, shape_of

from cairn import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    ValueStateDescriptor,
)
from cairn.testing import KeyedProcessHarness, ProcessHarness, TwoInputHarness
from cairn.testing.keyed_harness import UID

LIMITS = MapStateDescriptor("limits", "string", "int")


class Buffer(ProcessFunction, CheckpointedFunction):
    """Holds every value, and counts them: two lists that are dealt out, one union list."""

    held_type = "int"
    counts_type = "bigint"
    name = "held"

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.held = store.get_list_state(ListStateDescriptor(self.name, self.held_type))
        self.counts = store.get_union_list_state(ListStateDescriptor("counts", self.counts_type))
        self.raw = store.get_raw_state("raw")
        self.seen = max(self.counts.get(), default=0)

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        self.held.add(value)
        self.seen += 1
        yield str(value)

    def snapshot_state(self, context: Any) -> None:
        self.counts.update([self.seen])
        self.raw.update([bytes([self.seen])])


class Rules(KeyedBroadcastProcessFunction):
    """Sums by key, with limits from a broadcast stream."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(LIMITS).put(value.name, value.n)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.key, str(sorted(ctx.get_broadcast_state(LIMITS).items()))


def buffer(function: ProcessFunction, folder: Path, parallelism: int) -> ProcessHarness:
    return ProcessHarness(function, "int", "string", parallelism=parallelism, state_dir=folder, inline_threshold=100)


def rules(folder: Path, parallelism: int, limits: MapStateDescriptor = LIMITS, function: Any = None) -> TwoInputHarness:
    return TwoInputHarness(
        function or Rules(), ("key", None), ("key string, n int", "name string, n int"), OUTPUT,
        parallelism=parallelism, state_dir=folder, broadcast=[limits],
    )  # fmt: skip


def run_buffer(folder: Path, parallelism: int = 2, values: int = 7) -> None:
    with buffer(Buffer(), folder, parallelism) as job:
        job.push(*range(values))
        job.run_epoch()
        job.push(100)
        job.run_epoch()


def run_rules(folder: Path, parallelism: int = 3) -> None:
    with rules(folder, parallelism) as job:
        job.push2(("a", 1), ("b", 2), ("c", 3))
        job.push1(*[(f"k{n % 5}", n) for n in range(20)])
        job.run_epoch()
        job.push2(("b", 20))
        job.run_epoch()


def shape(made: Any, folder: Path, **more: Any) -> Any:
    with made as job:
        return shape_of(job, **more)


def everything(job: KeyedProcessHarness, names: tuple[str, ...] = ("held", "counts", "raw")) -> dict[str, Any]:
    return {name: job.operator_state(name) for name in names}


def by_duckdb(path: str, state: str) -> list[Any]:
    """The rows of a table as DuckDB reads them."""
    found = duckdb.sql(f"select * from read_parquet('{path}/tables/{UID}/{state}/*.parquet') order by all")
    assert found is not None
    return found.fetchall()
