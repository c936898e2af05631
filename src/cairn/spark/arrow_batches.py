"""How Spark cuts an epoch's rows into the Arrow batches that it sends to Python.

Spark ends a batch at a number of rows or of bytes, whichever comes first. To know the bytes it adds up the buffers of
all columns after every single row, which costs more than writing the row: a third of the time of an epoch with narrow
rows. Without the limit in bytes rows of a megabyte each would fill the memory. So the limit is lifted while rows are
known to be narrow, with batches of far fewer rows instead. The first epoch of every run has it, and so have all epochs
of a run after one with wide rows: what failed for want of memory is run again under the limit.

Nothing is lifted where rows also go to Python functions that do not tell how wide they are (the user's own UDFs,
`map`, `filter` and `flat_map` on plain streams, sinks that may run functions), or where the user has set one of the two
numbers in the Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cairn.connectors.sink_base import BaseSink
from cairn.coordinator.epoch_loop import EpochReport
from cairn.model.manifest import TaskMetrics
from cairn.spark.logical_plan import plan_nodes
from cairn.spark.worker_tasks import FUNCTION_PREFIX

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
LIMITED_ROWS = "65536"
LIFTED = {ROWS: "2048", BYTES: str((1 << 31) - 1)}
"""Batches without a limit in bytes: this is the one number for which Spark counts nothing."""
NARROW = 1024
"""Mean bytes of a row up to which rows are narrow: a batch then has some 2 MiB. It could still be sent if rows became
a hundred times as wide all of a sudden."""


class ArrowBatches:
    """The batches of one run. Made before its query starts; learns from the reports of its epochs."""

    def __init__(
        self, spark: SparkSession, frame: DataFrame, operators: Collection[str], sinks: Sequence[BaseSink]
    ) -> None:
        chosen = any(spark.conf.get(number, None) is not None for number in (ROWS, BYTES))
        unknown = not all(sink.only_writes for sink in sinks)
        self._may_lift = not chosen and not unknown and not _others_in(spark, frame, operators)
        self._lifts = False
        self._lifted = False

    def listening(self, listener: Callable[[EpochReport], None]) -> Callable[[EpochReport], None]:
        """A listener for the reports of the epochs, which passes them on."""

        def listen(report: EpochReport) -> None:
            tasks = [metrics for _, _, metrics in report.tasks if metrics.rows_in]
            if tasks:
                self._lifts = self._may_lift and are_narrow(tasks)
                self._may_lift = self._lifts  # once wide, never trusted again
            listener(report)

        return listen

    def between(self, run_epoch: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """`run_epoch`, and then the settings by which Spark plans the next one: those of the query's own session."""

        def run(frame: DataFrame, epoch: int) -> None:
            run_epoch(frame, epoch)
            if self._lifts != self._lifted:
                settings = frame.sparkSession.conf
                settings.set(ROWS, LIFTED[ROWS] if self._lifts else LIMITED_ROWS)
                if self._lifts:
                    settings.set(BYTES, LIFTED[BYTES])
                else:
                    settings.unset(BYTES)
                self._lifted = self._lifts

        return run


def are_narrow(tasks: Sequence[TaskMetrics]) -> bool:
    """Whether the rows of an epoch were narrow in all tasks, on the average of each."""
    return all(metrics.bytes_in <= NARROW * metrics.rows_in for metrics in tasks)


def _others_in(spark: SparkSession, frame: DataFrame, operators: Collection[str]) -> bool:
    """Whether rows also go to Python functions other than these operators."""
    jvm: Any = spark._jvm
    python = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    ours = {FUNCTION_PREFIX + uid for uid in operators}
    for node in plan_nodes(frame):
        name = node.nodeName()
        if name == "Generate" and "Python" in node.generator().getClass().getSimpleName():
            return True
        if name != "MapInArrow" or str(node.functionExpr().toString()).split("(")[0] not in ours:
            expressions = node.expressions()
            if any(expressions.apply(i).containsPattern(python) for i in range(expressions.size())):
                return True
    return False
