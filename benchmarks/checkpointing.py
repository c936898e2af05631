"""What checkpoints cost: their duration and size, the stream beside them, snapshots, and restarts."""

from __future__ import annotations

import gc
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.jobs import TOTAL, Total, _keyed, _start, _user, events, source
from benchmarks.measure import Bench, Series, Variant, run_job, run_plain
from benchmarks.spark_native import STATE
from cairn import JobHandle, JobStatus
from cairn.api.data_stream import DataStream
from cairn.model.keygroups import key_group_range
from cairn.snapshots.compact_task import compact_range
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore

_SCATTER = 7_368_787
_RETAIN = {
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": 3,
    "execution.checkpointing.incremental": True,
    "execution.checkpointing.tolerable-failed-checkpoints": 10,
    "restart-strategy.type": "none",
}


def _sizes(bench: Bench) -> dict[str, int]:
    return {"chk-many": bench.plan.stored, "chk-few": bench.plan.checkpoint_few}


def fill(bench: Bench) -> None:
    """Store so many keys in each job, in order."""
    for name, stored in _sizes(bench).items():
        _fill(bench, name, stored)
    _fill(bench, "restart", bench.plan.restart_keys)


def _fill(bench: Bench, name: str, stored: int) -> None:
    rows = min(bench.plan.insert_rows, stored)
    frame = source(bench, rows).select(_user(F.pmod("value", F.lit(stored))), F.col("value").alias("v"))
    job = _start(_keyed(bench, frame, "lmdb").sum("v", uid="totals"), name)
    run_job(bench, job, rows, 0, -(-stored // rows))


def _touching(bench: Bench, stored: int, **options: Any) -> DataStream:
    number = F.pmod(F.col("value") * F.lit(_SCATTER), F.lit(stored))
    frame = source(bench, bench.plan.touched).select(_user(number), F.col("value").alias("v"))
    keyed = _keyed(bench, frame, "lmdb", options={**_RETAIN, **options})
    return keyed.process(Total("sum"), TOTAL, uid="totals")


def _epochs(job: JobHandle, count: int) -> None:
    """Wait until the run has so many epochs."""
    while len(job.epochs()) < count:
        if job.status() is not JobStatus.RUNNING:
            raise job.exception() or RuntimeError(f"job {job.name} ended early")
        time.sleep(0.02)


def _incremental(bench: Bench, name: str) -> Series:
    """Durations of incremental checkpoints, each after an epoch that touched some keys."""
    job = _start(_touching(bench, _sizes(bench)[name]), name)
    series = Series(bench.plan.touched)
    try:
        _epochs(job, 3)
        for _ in range(bench.plan.checkpoints_taken):
            before = len(job.epochs())
            since = time.perf_counter()
            job.trigger_checkpoint()
            series.values.append((time.perf_counter() - since) * 1000)
            _epochs(job, before + 1)
    finally:
        job.cancel()
    return series


def incremental_many(bench: Bench) -> Series:
    return _incremental(bench, "chk-many")


def incremental_few(bench: Bench) -> Series:
    return _incremental(bench, "chk-few")


def _written(bench: Bench, encoded: bool) -> Series:
    """Bytes that a checkpoint wrote for the epochs since the one before, or the encoded size of what these changed."""
    stored = _sizes(bench)["chk-few"]
    job = _start(_touching(bench, stored), "chk-few")
    series = Series(bench.plan.touched)
    try:
        _epochs(job, 1)
        first = job.trigger_checkpoint()
        for _ in range(3):
            _epochs(job, len(job.epochs()) + 1)
            info = job.trigger_checkpoint()
            epochs = [report for report in job.epochs() if first.epoch < report.epoch <= info.epoch]
            first = info
            changed = sum(report.changed for report in epochs)
            if encoded:  # two bytes of key group, the text, eight bytes of value
                text = statistics.mean(len(f"user-{number}") for number in range(0, stored, max(1, stored // 1000)))
                series.values.append(changed * (2 + text + 8))
            else:
                series.values.append(float(info.written_bytes))
    finally:
        job.cancel()
    return series


def written_bytes(bench: Bench) -> Series:
    return _written(bench, encoded=False)


def encoded_bytes(bench: Bench) -> Series:
    return _written(bench, encoded=True)


def _stream(bench: Bench, name: str, interval: str) -> Series:
    """The mean epoch over a longer time, so that what checkpoints cost is in it."""
    plan = bench.plan
    options = {**_RETAIN, **({"execution.checkpointing.interval": interval} if interval else {})}
    keyed = _keyed(bench, events(bench, plan.rows, plan.keys), "lmdb", options=options)
    job = _start(keyed.process(Total(), TOTAL, uid="totals"), name)
    series = run_job(bench, job, plan.rows, plan.warmup, plan.long_measured)
    if interval and not any(info.path for info in job.checkpoints()):
        raise RuntimeError("no checkpoint was taken while the stream was measured")
    return Series(plan.rows, [statistics.mean(series.values)])


def stream_alone(bench: Bench) -> Series:
    return _stream(bench, "stream-alone", "")


def stream_checkpointed(bench: Bench) -> Series:
    return _stream(bench, "stream-checkpointed", bench.plan.checkpoint_interval)


def alone(bench: Bench, name: str) -> Series:
    """Epochs of the job with nothing beside them."""
    job = _start(_touching(bench, bench.plan.stored), name)
    try:
        _epochs(job, 8)
    finally:
        job.cancel()
    return Series(bench.plan.touched, [report.duration_ms for report in job.epochs() if not report.rolled_forward][1:])


def beside(bench: Bench, name: str, write: Callable[[JobHandle], None]) -> Series:
    """The epochs of the job while something is written beside them.

    The epoch after the last committed one was running when the writing ended, and was slowed down, too.
    """
    job = _start(_touching(bench, bench.plan.stored), name)
    try:
        _epochs(job, 3)
        first = job.epochs()[-1].epoch
        write(job)
        last = job.epochs()[-1].epoch
        _epochs(job, len(job.epochs()) + 1)
    finally:
        job.cancel()
    reports = [report for report in job.epochs() if not report.rolled_forward]
    return Series(bench.plan.touched, [report.duration_ms for report in reports if first < report.epoch <= last + 1])


def before_snapshot(bench: Bench) -> Series:
    return alone(bench, "chk-many")


def during_snapshot(bench: Bench) -> Series:
    def write(job: JobHandle) -> None:
        if not job.trigger_checkpoint(full=True).full:
            raise RuntimeError("the checkpoint was not a full one")

    return beside(bench, "chk-many", write)


def snapshot(bench: Bench) -> Series:
    """Keys per second of a full checkpoint beside a stream that waits."""
    stream = _touching(bench, bench.plan.stored)
    stream.env.set_trigger(processing_time="600 seconds")
    job = _start(stream, "chk-many")
    try:
        _epochs(job, 1)
        info = job.trigger_checkpoint(full=True)
    finally:
        job.cancel()
    spent = max(subtask.async_ms for operator in info.operators for subtask in operator.subtasks)
    return Series(bench.plan.stored, [bench.plan.stored / spent * 1000])


def _merge(work: Any) -> float:
    """Merge a range in this worker; returns by how much the memory that it holds grew at most, in MiB.

    Resident memory, so pages of mapped files that are in use count, too.
    """
    pa.default_memory_pool().release_unused()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    compact_range(work)
    return max(0.0, _resident("VmHWM") - before)


def _resident(which: str) -> float:
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(which)) / 1024


def merge_memory(bench: Bench) -> Series:
    """Peak memory of the tasks that merge all state into snapshots, as a full checkpoint does."""
    folder = bench.work / "jobs" / "chk-many"
    store = ManifestStore(LocalFileSystem(str(folder)))
    manifest = store.load(store.epochs()[-1])
    number = 999_999_999
    work = []
    for operator in manifest.operators:
        pieces = min(manifest.max_parallelism, 8 * operator.parallelism)
        told = msgspec.msgpack.encode(operator)
        for piece in range(pieces):
            groups = key_group_range(piece, pieces, manifest.max_parallelism)
            work.append((str(folder), manifest.epoch, manifest.time_ms, told, groups.start, groups.end, 0, number))
    try:
        peaks = bench.spark.sparkContext.parallelize(work, len(work)).map(_merge).collect()
    finally:
        shutil.rmtree(folder / layout.checkpoint_folder(number), ignore_errors=True)
    return Series(bench.plan.stored, [max(peaks)])


# Restarts: from the start of the query to its first committed epoch.


def _restart_frame(bench: Bench) -> DataFrame:
    plan = bench.plan
    number = F.pmod(F.col("value") * F.lit(_SCATTER), F.lit(plan.restart_keys))
    return source(bench, plan.restart_rows).select(_user(number), F.col("value").alias("v"))


def _restart(bench: Bench, name: str, cold: bool) -> Series:
    local = "restart-cold" if cold else "local"
    if cold:
        shutil.rmtree(bench.work / local, ignore_errors=True)
    keyed = _keyed(bench, _restart_frame(bench), "lmdb", local=local, options=_RETAIN)
    stream = keyed.process(Total("sum"), TOTAL, uid="totals")
    since = time.perf_counter()
    job = _start(stream, name)
    try:
        while not any(not report.rolled_forward for report in job.epochs()):
            if job.status() is not JobStatus.RUNNING:
                raise job.exception() or RuntimeError("the job ended early")
            time.sleep(0.002)
        spent = time.perf_counter() - since
    finally:
        job.cancel()
    return Series(bench.plan.restart_rows, [spent * 1000])


def restart_warm(bench: Bench) -> Series:
    return _restart(bench, "restart", cold=False)


def restart_cold(bench: Bench) -> Series:
    return _restart(bench, "restart", cold=True)


def restart_empty(bench: Bench) -> Series:
    shutil.rmtree(bench.work / "jobs" / "restart-empty", ignore_errors=True)
    return _restart(bench, "restart-empty", cold=False)


def restart_spark(bench: Bench) -> Series:
    """Spark's own aggregation over as many keys, in its RocksDB state store. The first run fills it."""
    plan = bench.plan
    folder = "restart-spark"
    if not (bench.work / folder).exists():
        number = F.pmod("value", F.lit(plan.restart_keys))
        frame = source(bench, plan.restart_keys).select(_user(number), F.col("value").alias("v"))
        totals = frame.groupBy("user").agg(F.sum("v").alias("total"))
        run_plain(bench, totals, folder, plan.restart_keys, 0, 1, output_mode="update", extra=STATE)
        _restart_spark(bench, folder)  # it runs the epoch after, which has as many rows and was begun already
    return Series(plan.restart_rows, [_restart_spark(bench, folder) * 1000])


def _restart_spark(bench: Bench, folder: str) -> float:
    """Seconds from the start to the end of the first epoch; returns when that epoch is committed."""
    frame = _restart_frame(bench).groupBy("user").agg(F.sum("v").alias("total"))
    done: list[tuple[int, float]] = []

    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        done.append((epoch, time.perf_counter()))

    since = time.perf_counter()
    for key, value in STATE.items():
        bench.spark.conf.set(key, value)
    writer = frame.writeStream.foreachBatch(write).outputMode("update")
    query = writer.option("checkpointLocation", str(bench.work / folder)).start()
    try:
        while not done or not (bench.work / folder / "commits" / str(done[0][0])).exists():
            if not query.isActive:
                raise RuntimeError(f"Spark's query ended early: {query.exception()}")
            time.sleep(0.002)
    finally:
        query.stop()
        for key in STATE:
            bench.spark.conf.unset(key)
    return done[0][1] - since


VARIANTS: dict[str, Variant] = {
    "incremental-many": incremental_many,
    "incremental-few": incremental_few,
    "written-bytes": written_bytes,
    "encoded-bytes": encoded_bytes,
    "stream-alone": stream_alone,
    "stream-checkpointed": stream_checkpointed,
    "before-snapshot": before_snapshot,
    "during-snapshot": during_snapshot,
    "snapshot": snapshot,
    "merge-memory": merge_memory,
    "restart-empty": restart_empty,
    "restart-warm": restart_warm,
    "restart-cold": restart_cold,
    "restart-spark": restart_spark,
}
