"""Ends an epoch at once when user code raised in one of its tasks.

Spark tries a failed task up to `spark.task.maxFailures` times, which is right for a lost executor and wrong for a bug:
the same rows meet the same code, and every attempt starts a Python worker and reads the rows again. Spark's status
store tells why a task failed while Spark already tries it again. If user code is the reason, the Spark job is cancelled
with that error; the restart strategy of the job decides what happens next, as in Flink.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from cairn.errors import (
    CairnError,
    IncompatibleStateError,
    InvalidInputError,
    StateMisuseError,
    UserFunctionError,
    facts_note,
    from_traceback,
)
from cairn.logs import get_logger

_log = get_logger("cairn.job")
_MOST_TASKS = 20
"""Failed tasks of a stage whose errors are read."""
_LASTING = (UserFunctionError, InvalidInputError, StateMisuseError, IncompatibleStateError)
"""Errors that come again with the same rows and the same code."""
_PASSING = ("MemoryError",)
"""What user code may raise and another attempt, in another worker, may not."""


class FailFast:
    """Looks at the failed tasks of one run's epochs. Called again and again by a thread that may wait for Spark."""

    def __init__(self, spark: SparkSession, run_id: str) -> None:
        """`run_id` is that of the streaming query: Spark runs its jobs in a job group of this name."""
        self._spark = spark
        self._group = run_id
        self._seen: dict[int, int] = {}
        """Failed tasks of a running job when it was looked at last: their errors are read once."""

    def look(self) -> None:
        """Cancel what runs of an epoch in which user code raised."""
        context: Any = self._spark.sparkContext
        try:
            active = context.statusTracker().getActiveJobsIds()
            self._seen = {job: self._seen.get(job, 0) for job in active}
            store = context._jsc.sc().statusStore()
            for job in active:
                error = self._error_of(store, job)
                if error is not None:
                    _log.debug("job %d of Spark is cancelled: %s", job, error)
                    context._jsc.sc().cancelJob(job, as_reason(error))
        except Exception as error:  # noqa: BLE001 - Spark fails the epoch by itself, only later
            _log.debug("failed tasks cannot be looked at: %s", error)

    def _error_of(self, store: Any, job: int) -> CairnError | None:
        """The error of user code that failed a task of this job; None if there is none."""
        data = store.job(job)
        group, failed = data.jobGroup(), int(data.numFailedTasks())
        if not group.isDefined() or str(group.get()) != self._group or failed == self._seen[job]:
            return None
        self._seen[job] = failed
        return next(filter(is_lasting, map(from_traceback, self._texts(store, data))), None)

    def _texts(self, store: Any, data: Any) -> Iterator[str]:
        """Why tasks of a job failed, in Spark's words."""
        api: Any = self._spark.sparkContext._jvm.org.apache.spark.status.api.v1  # type: ignore[union-attr]
        failed = self._spark.sparkContext._jvm.java.util.ArrayList()  # type: ignore[union-attr]
        failed.add(api.TaskStatus.FAILED)
        stages = data.stageIds()
        for number in map(stages.apply, range(stages.size())):
            stage = store.lastStageAttempt(number)
            if stage.numFailedTasks() == 0:
                continue
            tasks = store.taskList(number, stage.attemptId(), 0, _MOST_TASKS, api.TaskSorting.ID, failed)
            for task in map(tasks.apply, range(tasks.size())):
                if task.errorMessage().isDefined():
                    yield str(task.errorMessage().get())


def is_lasting(error: CairnError | None) -> bool:
    """Whether another attempt at the task would end in the same way."""
    return isinstance(error, _LASTING) and error.facts.get("exception") not in _PASSING


def as_reason(error: CairnError) -> str:
    """The error as the text of a traceback has it, from which `from_traceback` reads it again."""
    text = f"{type(error).__module__}.{type(error).__name__}: {error}"
    note = facts_note(error.facts)
    return f"{text}\n{note}\n" if note else f"{text}\n"  # Spark adds words of its own
