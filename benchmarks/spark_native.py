"""The same running sum by what Spark itself offers, with Spark's RocksDB state store."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.jobs import PARALLELISM, TOTAL, events
from benchmarks.measure import Bench, Series, run_plain

STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": str(PARALLELISM),
}


class PandasTotal(StatefulProcessor):
    """For `transformWithStateInPandas`: the state is read and written once for each key and batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        found = self.total.get()
        total = found[0] if found is not None else 0
        for frame in rows:
            totals = frame["v"].cumsum() + total
            total = int(totals.iloc[-1])
            yield pd.DataFrame({"user": frame["user"], "total": totals})
        self.total.update((total,))

    def close(self) -> None:
        pass


class RowTotal(StatefulProcessor):
    """For `transformWithState`: the state is read and written once for each key and batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        found = self.total.get()
        total = found[0] if found is not None else 0
        for row in rows:
            total += row.v
            yield Row(user=row.user, total=total)
        self.total.update((total,))

    def close(self) -> None:
        pass


def group_total(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState`."""
    total = state.get[0] if state.exists else 0
    for frame in frames:
        totals = frame["v"].cumsum() + total
        total = int(totals.iloc[-1])
        yield pd.DataFrame({"user": frame["user"], "total": totals})
    state.update((total,))


def _run(bench: Bench, frame: DataFrame, folder: str) -> Series:
    plan = bench.plan
    return run_plain(
        bench, frame, folder, plan.native_rows, plan.native_warmup, plan.native_measured,
        output_mode="update", seconds=plan.native_seconds, extra=STATE,
    )  # fmt: skip


def _events(bench: Bench) -> DataFrame:
    return events(bench, bench.plan.native_rows, bench.plan.native_keys)


def _need_protobuf() -> None:
    """Without it Spark's worker ends without a word."""
    try:
        importlib.import_module("google.protobuf")
    except ImportError:
        raise RuntimeError("transformWithState needs the package protobuf") from None


def transform_in_pandas(bench: Bench) -> Series:
    _need_protobuf()
    grouped = _events(bench).groupBy("user")
    return _run(bench, grouped.transformWithStateInPandas(PandasTotal(), TOTAL, "Update", "None"), "transform-pandas")


def transform_rows(bench: Bench) -> Series:
    _need_protobuf()
    grouped = _events(bench).groupBy("user")
    return _run(bench, grouped.transformWithState(RowTotal(), TOTAL, "Update", "None"), "transform-rows")


def apply_in_pandas(bench: Bench) -> Series:
    grouped = _events(bench).groupBy("user")
    frame = grouped.applyInPandasWithState(group_total, TOTAL, "total bigint", "update", "NoTimeout")
    return _run(bench, frame, "apply-pandas")


def sql_sum(bench: Bench) -> Series:
    """`groupBy().agg(sum)`. Emits one row for each changed key, where cairn emits one for each row."""
    plan = bench.plan
    frame = events(bench, plan.rows, plan.keys).groupBy("user").agg(F.sum("v").alias("total"))
    return run_plain(
        bench, frame, "sql-sum", plan.rows, plan.warmup, plan.measured, output_mode="update", extra=STATE
    )  # fmt: skip
