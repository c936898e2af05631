"""Measured epochs: how a streaming query is run for a number of epochs, and what is kept of them.

The time of an epoch is Spark's `triggerExecution`, for cairn's jobs and for the others alike, so that planning, Spark's
own logs and everything else outside of `foreachBatch` counts for all of them.
"""

from __future__ import annotations

import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cairn.api.job_handle import JobHandle
from cairn.coordinator.epoch_loop import EpochReport
from cairn.job.life_cycle import JobStatus
from cairn.spark.session import local_session, query_settings

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Plan:
    """Sizes of one run of the benchmarks."""

    rows: int = 1_000_000
    keys: int = 200_000
    warmup: int = 5
    measured: int = 5
    rounds: int = 3
    nested_keys: int = 50_000
    map_entries: int = 10
    native_rows: int = 250_000
    native_keys: int = 50_000
    native_warmup: int = 1
    native_measured: int = 2
    native_rounds: int = 2
    native_seconds: float = 240.0
    small_rows: int = 10
    small_warmup: int = 30
    small_measured: int = 40
    stored: int = 10_000_000
    stored_few: int = 200_000
    insert_rows: int = 2_000_000
    touched: int = 100_000
    touched_rounds: int = 2
    cold_starts: int = 3
    checkpoint_few: int = 100_000
    checkpoints_taken: int = 5
    checkpoint_rounds: int = 3
    checkpoint_interval: str = "10 s"
    long_measured: int = 20
    restart_keys: int = 1_000_000
    restart_rows: int = 1_000
    suite_seconds: float = 3600.0


QUICK = Plan(
    rows=20_000,
    keys=2_000,
    warmup=1,
    measured=3,
    rounds=2,
    nested_keys=500,
    native_rows=2_000,
    native_keys=400,
    native_measured=1,
    small_warmup=3,
    small_measured=8,
    stored=100_000,
    stored_few=20_000,
    insert_rows=50_000,
    touched=5_000,
    cold_starts=2,
    checkpoint_few=5_000,
    checkpoints_taken=2,
    checkpoint_rounds=1,
    checkpoint_interval="200 ms",
    long_measured=6,
    restart_keys=20_000,
    suite_seconds=600.0,
)


@dataclass
class Series:
    """The measured epochs of one variant, over all rounds."""

    rows: int = 0
    """Rows of one epoch."""
    values: list[float] = field(default_factory=list)
    """One number for each measured epoch: milliseconds, or keys per second for a cold start."""
    steps: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds by step of the tasks and of the driver, one number for each measured epoch."""
    error: str = ""

    def extend(self, other: Series) -> None:
        self.rows = other.rows
        self.values += other.values
        for step, spent in other.steps.items():
            self.steps.setdefault(step, []).extend(spent)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def rate(self) -> float:
        """Rows per second of the median epoch."""
        return self.rows / self.median * 1000


@dataclass(frozen=True)
class Bench:
    """What every variant gets: the session of the child process, a folder of its own, and the sizes."""

    spark: SparkSession
    work: Path
    plan: Plan


Variant = Callable[[Bench], Series]
"""Runs one round of one variant: some epochs to warm up, then the measured ones."""


def session() -> SparkSession:
    """The local session as cairn starts it, for every variant."""
    return local_session(
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "4g",
            "spark.ui.enabled": "false",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        }
    )


def interleave(
    bench: Bench, variants: Mapping[str, Variant], rounds: int, save: Callable[[dict[str, Series]], None]
) -> None:
    """Run all variants one after the other, then all again. One that fails is not run again; the others go on."""
    found = {name: Series() for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            series = found[name]
            if series.error:
                continue
            try:
                series.extend(variant(bench))
            except Exception as error:  # noqa: BLE001 - reported in the table
                traceback.print_exc()
                series.error = first_line(error)
            finally:
                for query in bench.spark.streams.active:
                    query.stop()
            save(found)


def first_line(error: BaseException) -> str:
    """An error in one line: the innermost cause that Spark tells of, or else its first line."""
    text = str(error).strip()
    causes = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
    told = causes[-1] if causes else (text.splitlines() or [""])[0]
    return f"{type(error).__name__}: {told}"[:300]


class _EnoughError(Exception):
    """Ends a query from within: no epoch is begun that nobody measures."""


def run_plain(
    bench: Bench,
    frame: DataFrame,
    folder: str,
    rows: int,
    warmup: int,
    measured: int,
    output_mode: str = "append",
    seconds: float | None = None,
    extra: Mapping[str, str] | None = None,
    tuned: bool = True,
) -> Series:
    """Run a query that cairn has no part in, with the same no-op write inside `foreachBatch`.

    `tuned` gives it the settings with which cairn starts its own queries; without, it has Spark's. With `seconds`, no
    further epoch is begun after that time, provided that one was measured. A folder that was used before goes on where
    it stopped.
    """
    begun = 0
    enough = False
    since = time.monotonic()

    def write(batch: DataFrame, _: int) -> None:
        nonlocal begun, enough
        late = seconds is not None and begun > warmup and time.monotonic() - since > seconds
        if begun == warmup + measured or late:
            enough = True
            raise _EnoughError
        begun += 1
        batch.write.format("noop").mode("overwrite").save()

    with query_settings(bench.spark) if tuned else nullcontext(), _conf(bench.spark, extra or {}):
        writer = frame.writeStream.foreachBatch(write).outputMode(output_mode)
        query = writer.option("checkpointLocation", str(bench.work / folder)).start()
    try:
        query.awaitTermination()
    except Exception:
        if not enough:
            raise
    epochs = _epochs(query, rows)
    return Series(rows, [spent for _, spent in epochs][warmup:][:measured])


def run_job(
    bench: Bench,
    job: JobHandle,
    rows: int,
    warmup: int,
    measured: int,
    check: Callable[[EpochReport], None] | None = None,
) -> Series:
    """Let a job of cairn run for so many epochs, then cancel it."""
    (query,) = bench.spark.streams.active
    wanted = warmup + measured
    try:
        while True:
            if job.status() is not JobStatus.RUNNING:
                raise job.exception() or RuntimeError(f"job {job.name} ended early: {job.status().value}")
            reports = {report.epoch: report for report in job.epochs() if not report.rolled_forward}
            last = query.lastProgress
            if last is not None and sum(1 for epoch in reports if epoch <= last.batchId) >= wanted:
                times = [(epoch, spent) for epoch, spent in _epochs(query, rows) if epoch in reports]
                if len(times) >= wanted:
                    break
            time.sleep(POLL_SECONDS)
    finally:
        job.cancel()
    series = Series(rows, [spent for _, spent in times[warmup:wanted]])
    for epoch, _ in times[warmup:wanted]:
        if check is not None:
            check(reports[epoch])
        for step, spent in _steps(reports[epoch]).items():
            series.steps.setdefault(step, []).append(spent)
    return series


def _epochs(query: Any, rows: int) -> list[tuple[int, float]]:
    """Batch number and time of the finished batches, oldest first. All must have had all their rows.

    Only the first may have another number: Spark had planned it before the query stopped the last time.
    """
    found = []
    for place, progress in enumerate(query.recentProgress):
        if progress.numInputRows == 0 or (place == 0 and progress.numInputRows != rows):
            continue
        if progress.numInputRows != rows:
            raise RuntimeError(f"batch {progress.batchId} had {progress.numInputRows} rows instead of {rows}")
        found.append((progress.batchId, float(progress.durationMs["triggerExecution"])))
    return found


def _steps(report: EpochReport) -> dict[str, float]:
    """Where the time went: the mean over the subtasks for each step of the tasks, and the steps of the driver."""
    spent: dict[str, float] = {}
    for _, _, metrics in report.tasks:
        for step, millis in metrics.times.items():
            spent[f"task {step}"] = spent.get(f"task {step}", 0.0) + millis / len(report.tasks)
    spent.update({f"driver {step}": millis for step, millis in report.times.items()})
    return spent


@contextmanager
def _conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Further Spark settings while a query starts."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
