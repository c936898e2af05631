"""How Spark cuts an epoch's rows into the Arrow batches that it sends to Python.

Spark ends a batch at a number of rows or of bytes, whichever comes first. To know the bytes it adds up the buffers of
all columns after every single row, which costs more than writing the row: a third of the time of an epoch with narrow
rows. Without the limit in bytes rows of a megabyte each would fill the memory. So the limit is lifted, epoch by epoch,
while rows are known to be narrow, with batches of fewer rows instead; it is back as soon as they are not. The first
epoch of every run has it: what failed for want of memory is run again under the limit.

Nothing is lifted where rows also go to Python functions that do not tell how wide they are (the user's own UDFs,
`map`, `filter` and `flat_map` on plain streams), or where the user has set the limit in the Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cairn.api.graph import FUNCTION_PREFIX
from cairn.coordinator.epochs import EpochReport
from cairn.model.manifest import TaskMetrics

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
LIMITED_ROWS = "65536"
LIFTED = {ROWS: "8192", BYTES: str((1 << 31) - 1)}
"""Batches without a limit in bytes: this is the one number for which Spark counts nothing."""
NARROW = 2048
"""Mean bytes of a row up to which rows are narrow: a batch then has some 16 MiB."""


class ArrowBatches:
    """The batches of one run. Made before its query starts; learns from the reports of its epochs."""

    def __init__(self, spark: SparkSession, frame: DataFrame, operators: Collection[str]) -> None:
        self._may_lift = spark.conf.get(BYTES, None) is None and not _others_in(spark, frame, operators)
        self._narrow = False
        self._lifted = False

    def listening(self, listener: Callable[[EpochReport], None]) -> Callable[[EpochReport], None]:
        """A listener for the reports of the epochs, which passes them on."""

        def listen(report: EpochReport) -> None:
            tasks = [metrics for _, _, metrics in report.tasks if metrics.rows_in]
            if tasks:
                self._narrow = are_narrow(tasks)
            listener(report)

        return listen

    def between(self, run_epoch: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """`run_epoch`, and then the settings by which Spark plans the next one: those of the query's own session."""

        def run(frame: DataFrame, epoch: int) -> None:
            run_epoch(frame, epoch)
            if self._narrow != self._lifted and self._may_lift:
                settings = frame.sparkSession.conf
                settings.set(ROWS, LIFTED[ROWS] if self._narrow else LIMITED_ROWS)
                if self._narrow:
                    settings.set(BYTES, LIFTED[BYTES])
                else:
                    settings.unset(BYTES)
                self._lifted = self._narrow

        return run


def are_narrow(tasks: Sequence[TaskMetrics]) -> bool:
    """Whether the rows of an epoch were narrow in all tasks, on the average of each."""
    return all(metrics.bytes_in <= NARROW * metrics.rows_in for metrics in tasks)


def _others_in(spark: SparkSession, frame: DataFrame, operators: Collection[str]) -> bool:
    """Whether rows also go to Python functions other than these operators."""
    jvm: Any = spark._jvm
    python = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    ours = {FUNCTION_PREFIX + uid for uid in operators}
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        node = todo.pop()
        name = node.nodeName()
        if name == "Generate" and "Python" in node.generator().getClass().getSimpleName():
            return True
        if name != "MapInArrow" or str(node.functionExpr().toString()).split("(")[0] not in ours:
            expressions = node.expressions()
            if any(expressions.apply(i).containsPattern(python) for i in range(expressions.size())):
                return True
        children = node.children()
        todo.extend(children.apply(i) for i in range(children.size()))
    return False
