"""What savepoints cost a job: how fast one is written, the stream beside it, a restore with rescale, and memory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from benchmarks import checkpointing
from benchmarks.jobs import TOTAL, Total, _keyed, _start, _user, source
from benchmarks.measure import Bench, Series, Variant, run_job
from cairn import JobHandle
from cairn.spark import savepoint_writer, state_mover

_NAME = "sp-many"
_RESCALED = 8
_HIGH_WATER = "VmHWM:"
_STEPS = ((savepoint_writer, "write_tables"), (state_mover, "load_tables"))


def fill(bench: Bench) -> None:
    """Store the keys of the job that savepoints are taken of, and take the one that restores start from."""
    stored = bench.plan.stored
    rows = min(bench.plan.insert_rows, stored)
    frame = source(bench, rows).select(_user(F.pmod("value", F.lit(stored))), F.col("value").alias("v"))
    job = _start(_keyed(bench, frame, "lmdb").sum("v", uid="totals"), _NAME)
    run_job(bench, job, rows, 0, -(-stored // rows))
    job = _waiting_job(bench)
    try:
        job.trigger_savepoint(str(bench.work / "savepoints"), request_id="first")
    finally:
        job.cancel()


def _waiting_job(bench: Bench) -> JobHandle:
    """The job with its stream at rest after one epoch."""
    stream = checkpointing._touching(bench, bench.plan.stored)
    stream.env.set_trigger(processing_time="600 seconds")
    job = _start(stream, _NAME)
    checkpointing._epochs(job, 1)
    return job


def _measured(step: Callable[[Any], Any], notes: str, work: Any) -> Any:
    """Run a task and note the most memory that its process had meanwhile, in KiB."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget earlier peaks
    except OSError:
        return step(work)
    made = step(work)
    told = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(_HIGH_WATER))
    with open(notes, "a", encoding="ascii") as file:
        file.write(f"{told.split()[1]}\n")
    return made


class _Peaks:
    """While it is entered, tasks of savepoints and restores note their memory."""

    def __init__(self, bench: Bench, name: str) -> None:
        self._notes = bench.work / f"peaks-{name}"
        self._notes.unlink(missing_ok=True)

    def __enter__(self) -> _Peaks:
        self._steps = [(module, name, getattr(module, name)) for module, name in _STEPS]
        for module, name, step in self._steps:
            setattr(module, name, partial(_measured, step, str(self._notes)))
        return self

    def __exit__(self, *error: object) -> None:
        for module, name, step in self._steps:
            setattr(module, name, step)

    def steps(self) -> dict[str, list[float]]:
        """The greatest peak in MiB, where the system can tell it."""
        if not self._notes.exists():
            return {}
        return {"peak memory of a task, MiB": [max(map(int, self._notes.read_text().split())) / 1024]}


def savepoint(bench: Bench) -> Series:
    """Keys per second of a savepoint beside a stream that waits."""
    job = _waiting_job(bench)
    try:
        with _Peaks(bench, "savepoint") as peaks:
            since = time.perf_counter()
            info = job.trigger_savepoint(str(bench.work / "savepoints"))
            spent = time.perf_counter() - since
    finally:
        job.cancel()
    shutil.rmtree(info.path)
    return Series(bench.plan.stored, [bench.plan.stored / spent], peaks.steps())


def before_savepoint(bench: Bench) -> Series:
    return checkpointing.alone(bench, _NAME)


def during_savepoint(bench: Bench) -> Series:
    def write(job: JobHandle) -> None:
        shutil.rmtree(job.trigger_savepoint(str(bench.work / "savepoints")).path)

    return checkpointing.beside(bench, _NAME, write)


def restore(bench: Bench) -> Series:
    """Keys per second of a restore at four times the parallelism: from the start of the job to the end of its first
    epoch. By then all state lies in files of the job's own and is loaded into its working stores.
    """
    name = "sp-rescaled"
    path = next(path for path in (bench.work / "savepoints").iterdir() if not path.name.startswith("."))
    number = F.pmod("value", F.lit(bench.plan.stored))
    frame = source(bench, 1).select(_user(number), F.col("value").alias("v"))
    options = {
        "execution.state-recovery.path": str(path),
        "parallelism.default": _RESCALED,
        "restart-strategy.type": "none",
    }
    stream = _keyed(bench, frame, "lmdb", local=name, options=options).process(Total("sum"), TOTAL, uid="totals")
    stream.env.set_trigger(processing_time="600 seconds")
    with _Peaks(bench, name) as peaks:
        since = time.perf_counter()
        job = _start(stream, name)
        checkpointing._epochs(job, 1)
        spent = time.perf_counter() - since
    job.cancel()
    shutil.rmtree(bench.work / "jobs" / name)
    shutil.rmtree(bench.work / name, ignore_errors=True)
    return Series(bench.plan.stored, [bench.plan.stored / spent], peaks.steps())


VARIANTS: dict[str, Variant] = {
    "savepoint": savepoint,
    "before-savepoint": before_savepoint,
    "during-savepoint": during_savepoint,
    "restore-rescale": restore,
}
