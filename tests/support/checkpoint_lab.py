"""What the tests of checkpoints share: a job that waits for files until it is canceled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.oracle import OUTPUT, Oracle, numbered_rows, ship
from tests.support.patience import PATIENCE, until
from tests.support.spark_lab import Lab

from cairn import (
    FileSink,
    JobHandle,
    JobStatus,
    KeyedProcessFunction,
)

ship(__name__)

ROWS = numbered_rows(240, 19, seed=11)
RETAIN = {
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": 20,
    "execution.checkpointing.incremental": True,
}


def running(lab: Lab, name: Any = "oracle", parallelism: Any = 2, function: Any = None, **config: Any) -> JobHandle:
    """The oracle job, waiting for files until it is canceled."""
    settings = {**RETAIN, **{key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}}
    env = lab.env(parallelism, **settings).set_trigger(processing_time="0 seconds")
    checked = lab.stream(env).key_by("key").process(function or Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.folder / f"output-{name}")), uid="out")
    return env.execute_async(name)


def processed(job: JobHandle, rows: int) -> None:
    until(lambda: sum(report.rows_in for report in job.epochs()) >= rows or job.status() is not JobStatus.RUNNING)
    if job.status() is not JobStatus.RUNNING:
        job.await_termination(PATIENCE)
        pytest.fail(f"the job ended: {job.status()}")


def outputs(lab: Lab, name: str) -> list[Any]:
    return lab.written(lab.folder / f"output-{name}")


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def held(gate: Path) -> Path:
    """The file that exists once a row waits at the gate."""
    return gate.with_name(f"{gate.name}-held")


class Slow(Oracle):
    """Holds an epoch up while a file exists. Another file says that it does (`held`)."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        while Path(self.gate).exists():
            held(Path(self.gate)).touch()
            time.sleep(0.02)
        yield from super().process_element(value, ctx)
