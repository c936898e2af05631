"""A streaming query of PySpark as the `RunningQuery` of a job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from cairn.errors import CairnError, FencedError
from cairn.spark.failure_causes import jvm_gone, why_failed

_WAITING = "Waiting for data to arrive"
"""What Spark calls the state of a query whose sources have nothing new."""


class SparkQuery:
    """`RunningQuery` on Spark."""

    def __init__(self, job_name: str, streaming_query: StreamingQuery) -> None:
        self._name = job_name
        self.streaming_query = streaming_query

    def is_active(self) -> bool:
        return self.streaming_query.isActive

    def wait(self, timeout: float) -> None:
        with suppress(StreamingQueryException):  # `why_failed` tells
            self.streaming_query.awaitTermination(timeout)  # type: ignore[arg-type]

    def stop(self) -> None:
        self.streaming_query.stop()

    def waits_for_input(self) -> bool:
        return bool(self.streaming_query.status["message"] == _WAITING)

    def why_failed(
        self, epoch_error: BaseException | None, find_newer_run: Callable[[], FencedError | None]
    ) -> CairnError | None:
        return why_failed(self._name, self.streaming_query, epoch_error, find_newer_run)

    def why_unreachable(self, error: Exception) -> CairnError | None:
        return jvm_gone(self._name, error)
