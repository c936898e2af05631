"""The workload, its limit (the same job without state), and cairn's variants of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from benchmarks.measure import Bench, Series, run_job, run_plain
from cairn import (
    BatchContext,
    JobHandle,
    KeyedProcessFunction,
    KeyedStream,
    ListStateDescriptor,
    MapStateDescriptor,
    NoopSink,
    RuntimeContext,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from cairn.api.data_stream import DataStream
from cairn.coordinator.epoch_loop import EpochReport
from cairn.runtime.aggregations import running
from cairn.spark.arrow_batches import LIFTED

PARALLELISM = 2
GROUPS = 128
TOTAL = "user string, total bigint"
_SCATTER = 7_368_787
"""A prime: multiplied by it, consecutive numbers fall all over the key space without meeting."""


# The source.


def source(bench: Bench, rows: int) -> DataFrame:
    """So many rows in every batch, numbered on from the batch before."""
    reader = bench.spark.readStream.format("rate-micro-batch")
    return reader.option("rowsPerBatch", rows).option("numPartitions", PARALLELISM).load()


def _user(number: Column) -> Column:
    return F.concat(F.lit("user-"), number.cast("string")).alias("user")


def events(bench: Bench, rows: int, keys: int) -> DataFrame:
    """Rows (user, v) over so many keys."""
    number = F.pmod(F.hash("value"), F.lit(keys))
    return source(bench, rows).select(_user(number), F.col("value").alias("v"))


def events_with_entry(bench: Bench) -> DataFrame:
    """Rows (user, entry, v): another hash than that of the key chooses the entry."""
    plan = bench.plan
    number = F.pmod(F.hash("value"), F.lit(plan.nested_keys))
    entry = F.pmod(F.hash("value", F.lit(1)), F.lit(plan.map_entries)).alias("entry")
    return source(bench, plan.rows).select(_user(number), entry, F.col("value").alias("v"))


# The limit: cairn's shuffle and transfer to Python and back, nothing in between. Spark runs it with its own settings,
# as a pipeline has them that somebody writes without cairn. Those that cairn chooses for its queries make Spark itself
# faster (`spark/arrow_batches.py`); the limit with them, `limit-tuned`, is shown beside it. Small epochs are compared
# with them alone: they make those of Spark itself so much shorter that nothing would be left for cairn to add.


def _through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def stateless(frame: DataFrame) -> DataFrame:
    """The same key groups, the same shuffle, and rows passed through Python as they are."""
    grouped = frame.withColumn("kg", F.pmod(F.hash("user"), F.lit(GROUPS)).cast("int"))
    shuffled = grouped.repartitionById(PARALLELISM, F.expr(f"int(kg * {PARALLELISM} DIV {GROUPS})"))
    return shuffled.mapInArrow(_through, shuffled.schema)


def limit(bench: Bench) -> Series:
    plan = bench.plan
    frame = stateless(events(bench, plan.rows, plan.keys))
    return run_plain(bench, frame, "limit", plan.rows, plan.warmup, plan.measured, tuned=False)


def limit_tuned(bench: Bench) -> Series:
    plan = bench.plan
    frame = stateless(events(bench, plan.rows, plan.keys))
    return run_plain(bench, frame, "limit-tuned", plan.rows, plan.warmup, plan.measured, extra=LIFTED)


def limit_nested(bench: Bench) -> Series:
    plan = bench.plan
    frame = stateless(events_with_entry(bench))
    return run_plain(bench, frame, "limit-nested", plan.rows, plan.warmup, plan.measured, tuned=False)


def limit_nested_tuned(bench: Bench) -> Series:
    plan = bench.plan
    frame = stateless(events_with_entry(bench))
    return run_plain(bench, frame, "limit-nested-tuned", plan.rows, plan.warmup, plan.measured, extra=LIFTED)


def limit_small(bench: Bench) -> Series:
    plan = bench.plan
    frame = stateless(events(bench, plan.small_rows, plan.keys))
    return run_plain(bench, frame, "limit-small", plan.small_rows, plan.small_warmup, plan.small_measured)


# User code.


class Total(KeyedProcessFunction):
    """The running sum of each key, row by row."""

    def __init__(self, state: str = "total") -> None:
        self.state = state

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor(self.state, "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.total.value() or 0) + value.v
        self.total.update(total)
        yield value.user, total


class EntryTotal(KeyedProcessFunction):
    """The running sum of each entry of each key: one `get` and one `put` a row."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.totals = runtime_context.get_map_state(MapStateDescriptor("totals", "int", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.totals.get(value.entry) or 0) + value.v
        self.totals.put(value.entry, total)
        yield value.user, total


class Append(KeyedProcessFunction):
    """Every value appended to the list of its key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.values = runtime_context.get_list_state(ListStateDescriptor("values", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.values.add(value.v)
        yield value.user, value.v


def running_sum(batch: pa.RecordBatch, ctx: BatchContext) -> pa.RecordBatch:
    """The running sum of each key, a batch at a time."""
    before = ctx.get("total")
    known = np.asarray(before.is_valid())
    initial = np.asarray(before.fill_null(0))
    totals, final = running("sum", np.asarray(batch.column("v")), ctx.key_index, initial, known)
    ctx.put("total", pa.array(final))
    return pa.RecordBatch.from_arrays([batch.column("user"), pa.array(totals)], names=["user", "total"])


# cairn's variants.


def _keyed(
    bench: Bench, frame: DataFrame, backend: str, local: str = "local", options: Mapping[str, Any] | None = None
) -> KeyedStream:
    config = {
        "execution.checkpointing.dir": str(bench.work / "jobs"),
        "execution.checkpointing.local-backup.dirs": str(bench.work / local),
        "parallelism.default": PARALLELISM,
        "pipeline.max-parallelism": GROUPS,
        "state.backend.type": backend,
        "cairn.web.enabled": False,
        **(options or {}),
    }
    env = StreamExecutionEnvironment.get_execution_environment(bench.spark, config)
    return env.from_df(frame).key_by("user")


def _start(stream: DataStream, name: str) -> JobHandle:
    stream.sink_to(NoopSink(), uid="noop")
    return stream.env.execute_async(name)


def _measure(bench: Bench, stream: DataStream, name: str) -> Series:
    plan = bench.plan
    return run_job(bench, _start(stream, name), plan.rows, plan.warmup, plan.measured)


def _process(bench: Bench, backend: str) -> Series:
    plan = bench.plan
    keyed = _keyed(bench, events(bench, plan.rows, plan.keys), backend)
    return _measure(bench, keyed.process(Total(), TOTAL, uid="totals"), f"process-{backend}")


def process_lmdb(bench: Bench) -> Series:
    return _process(bench, "lmdb")


def process_hashmap(bench: Bench) -> Series:
    return _process(bench, "hashmap")


def process_rocksdb(bench: Bench) -> Series:
    return _process(bench, "rocksdb")


def process_batch(bench: Bench) -> Series:
    plan = bench.plan
    keyed = _keyed(bench, events(bench, plan.rows, plan.keys), "lmdb")
    stream = keyed.process_batch(running_sum, TOTAL, states={"total": "bigint"}, uid="totals")
    return _measure(bench, stream, "process-batch")


def builtin_sum(bench: Bench) -> Series:
    plan = bench.plan
    keyed = _keyed(bench, events(bench, plan.rows, plan.keys), "lmdb")
    return _measure(bench, keyed.sum("v", uid="totals"), "sum")


def tumbling_sum(bench: Bench) -> Series:
    """Sums over windows of five seconds of event time, which are five epochs: a window is over in every fifth."""
    plan = bench.plan
    number = F.pmod(F.hash("value"), F.lit(plan.keys))
    rows = source(bench, plan.rows).select(_user(number), F.col("value").alias("v"), F.col("timestamp").alias("ts"))
    keyed = _keyed(bench, rows.withWatermark("ts", "0 seconds"), "lmdb")
    keyed.env.set_trigger(processing_time="0 seconds")
    sums = keyed.window(TumblingEventTimeWindows.of(Time.seconds(5))).sum("v", uid="totals")
    with_tick = plan.rows + 1  # a job with timers has a source more, with one row in every epoch
    return run_job(bench, _start(sums, "tumbling-sum"), with_tick, plan.warmup, plan.measured)


def map_state(bench: Bench) -> Series:
    keyed = _keyed(bench, events_with_entry(bench), "lmdb")
    return _measure(bench, keyed.process(EntryTotal(), TOTAL, uid="totals"), "map-state")


def list_state(bench: Bench) -> Series:
    keyed = _keyed(bench, events_with_entry(bench), "lmdb")
    return _measure(bench, keyed.process(Append(), TOTAL, uid="totals"), "list-state")


def process_native_size(bench: Bench) -> Series:
    """Per-record `process` on the smaller workload that Spark's own Python operators get."""
    plan = bench.plan
    keyed = _keyed(bench, events(bench, plan.native_rows, plan.native_keys), "lmdb")
    job = _start(keyed.process(Total(), TOTAL, uid="totals"), "process-native-size")
    return run_job(bench, job, plan.native_rows, plan.warmup, plan.measured)


def process_small(bench: Bench) -> Series:
    plan = bench.plan
    keyed = _keyed(bench, events(bench, plan.small_rows, plan.keys), "lmdb")
    job = _start(keyed.process(Total(), TOTAL, uid="totals"), "process-small")
    return run_job(bench, job, plan.small_rows, plan.small_warmup, plan.small_measured)


# Large state: filled once by the built-in sum, then used by jobs of the same name, uid and state.


def _sizes(bench: Bench) -> dict[str, int]:
    return {"stored-many": bench.plan.stored, "stored-few": bench.plan.stored_few}


def fill(bench: Bench) -> None:
    """Store the keys user-0 to user-<n - 1> in the jobs of the suite, in order, some millions an epoch."""
    for name, stored in _sizes(bench).items():
        rows = min(bench.plan.insert_rows, stored)
        frame = source(bench, rows).select(_user(F.pmod("value", F.lit(stored))), F.col("value").alias("v"))
        job = _start(_keyed(bench, frame, "lmdb").sum("v", uid="totals"), name)
        run_job(bench, job, rows, 0, -(-stored // rows))


def _touch(bench: Bench, name: str, backend: str) -> Series:
    """Every epoch touches the same number of keys, each once, spread over the whole key space of the job."""
    plan = bench.plan
    number = F.pmod(F.col("value") * F.lit(_SCATTER), F.lit(_sizes(bench)[name]))
    frame = source(bench, plan.touched).select(_user(number), F.col("value").alias("v"))
    job = _start(_keyed(bench, frame, backend).process(Total("sum"), TOTAL, uid="totals"), name)

    def check(report: EpochReport) -> None:
        if report.keys != plan.touched:
            raise RuntimeError(f"epoch {report.epoch} touched {report.keys} keys instead of {plan.touched}")

    return run_job(bench, job, plan.touched, plan.warmup, plan.measured, check)


def touch_few_lmdb(bench: Bench) -> Series:
    return _touch(bench, "stored-few", "lmdb")


def touch_many_lmdb(bench: Bench) -> Series:
    return _touch(bench, "stored-many", "lmdb")


def touch_few_rocksdb(bench: Bench) -> Series:
    return _touch(bench, "stored-few", "rocksdb")


def touch_many_rocksdb(bench: Bench) -> Series:
    return _touch(bench, "stored-many", "rocksdb")


def cold_start(bench: Bench) -> Series:
    """Keys per second while an empty working store is filled: all subtasks at once, the slowest one counts."""
    plan = bench.plan
    shutil.rmtree(bench.work / "cold", ignore_errors=True)
    number = F.pmod("value", F.lit(plan.stored))
    frame = source(bench, plan.small_rows).select(_user(number), F.col("value").alias("v"))
    stream = _keyed(bench, frame, "lmdb", local="cold").process(Total("sum"), TOTAL, uid="totals")
    job = _start(stream, "stored-many")
    run_job(bench, job, plan.small_rows, 0, 1)
    first = next(report for report in job.epochs() if not report.rolled_forward)
    shutil.rmtree(bench.work / "cold", ignore_errors=True)
    tasks = [metrics for _, _, metrics in first.tasks]
    restored = sum(metrics.restored_rows for metrics in tasks)
    if any(metrics.store != "rebuilt" for metrics in tasks) or restored < plan.stored:
        raise RuntimeError(f"no cold start: {[(m.store, m.restored_rows) for m in tasks]}")
    slowest = max(metrics.times["store"] for metrics in tasks)
    return Series(restored, [restored / slowest * 1000])
