"""Jobs without Spark: a supervisor over a query that tells what a test wants."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cairn.config import CheckpointSettings, RestartSettings, Settings
from cairn.job.job_context import JobContext
from cairn.job.job_run import JobRun
from cairn.job.life_cycle import JobState
from cairn.job.supervisor import Supervisor
from cairn.spark.spark_query import SparkQuery
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.run_records import Runs

DISCARDED = "NO_EXTERNALIZED_CHECKPOINTS"


def job_context(folder: Path, strategy: str = "none", retention: str = DISCARDED) -> JobContext:
    settings = Settings(
        restart=RestartSettings(type=strategy, delay_ms=0, attempts=1000),
        checkpoints=CheckpointSettings(retention=retention),
    )
    return JobContext("job", "job", LocalFileSystem(str(folder)), settings)


def ended_query(error: Any = None) -> Any:
    """A query of PySpark that has ended; an exception is raised by it, a text is what Spark tells."""

    def exception() -> Any:
        if isinstance(error, Exception):
            raise error
        return None if error is None else RuntimeError(error)

    return SimpleNamespace(isActive=False, exception=exception, stop=lambda: None)


def add_run(supervisor: Supervisor, query: Any, number: int | None = None) -> JobRun:
    """Give the job a run with this query, as its start would; nothing supervises it yet."""
    if number is None:
        number = Runs(supervisor.context.files).take(1, 0).run
    run = JobRun(supervisor.context, supervisor.gate, number, None)
    run.started(SparkQuery("job", query))
    supervisor.current = run
    supervisor.life.enter(JobState.RUNNING)
    return run
