"""Event time as users declare it: which column has it, and how late its rows may be. Checked before Spark sees it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cairn.errors import InvalidInputError
from cairn.model.descriptors import Time

_WATERMARK = "EventTimeWatermark"
_SEVERAL = "spark.sql.streaming.statefulOperator.allowMultiple"
_NO_TIME = "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE"
"""What Spark calls a watermark over a column that is no time."""


def checked_watermark(schema: StructType, column: Any, delay: Any, call: str) -> tuple[str, str]:
    """A watermark as Spark takes it; an error that names column, type and remedy if the column is no time."""
    fields = {field.name: field.dataType.simpleString() for field in schema.fields}
    if column not in fields:
        raise InvalidInputError(f"{call}: there is no column {column!r}; the stream has {', '.join(fields)}")
    if fields[column] not in ("timestamp", "timestamp_ntz"):
        raise _no_time(column, fields[column], call)
    if isinstance(delay, Time):
        delay = f"{delay.to_milliseconds()} milliseconds"
    if not isinstance(delay, str):
        raise InvalidInputError(f"{call}: {delay!r} is not a valid delay, such as Time.seconds(10) or '10 seconds'")
    return column, delay


def with_watermark(df: DataFrame, column: str, delay: str, call: str) -> DataFrame:
    """Spark's `withWatermark` of what was checked; all that is left to be wrong is the delay."""
    try:
        return df.withWatermark(column, delay)
    except Exception as error:
        raise InvalidInputError(
            f"{call}: {delay!r} is not a valid delay, such as Time.seconds(10) or '10 seconds': {error}"
        ) from error


def refuse_second_watermark(df: DataFrame, call: str) -> None:
    """Refuse a watermark on rows that have come through another one. Spark fails such a query only when it runs, once
    the watermark moves; and before that the second one may hold the first back for ever.
    """
    plan = df._jdf.queryExecution().analyzed()
    if plan.toString().count(_WATERMARK) < 2 or df.sparkSession.conf.get(_SEVERAL, "true") == "false":
        return
    todo = [(plan, False)]
    while todo:
        node, above = todo.pop()
        if node.nodeName() == _WATERMARK:
            if above:
                raise InvalidInputError(
                    f"{call}: these rows have come through a watermark before, and Spark takes one on the way from a "
                    "source to a sink. Leave it out and use the time as an ordinary column, or write the rows to a "
                    "sink and read them in a second job (docs/windows.md, Event time downstream of windows and timers)"
                )
            above = True
        children = node.children()
        todo.extend((children.apply(i), above) for i in range(children.size()))


def refuse_no_time(error: Exception, call: str) -> None:
    """Raise a better error for one of Spark's that says that event time is no time; do nothing for any other."""
    condition = getattr(error, "getCondition", None)
    if condition is None or condition() != _NO_TIME:
        return
    names = dict(error.getMessageParameters() or {})  # type: ignore[attr-defined]
    column, kind = names.get("eventName", "").strip("`"), names.get("eventType", "").strip('"').lower()
    raise _no_time(column, kind, call) from error


def _no_time(column: str, kind: str, call: str) -> InvalidInputError:
    if kind in ("string", "date"):
        cast = f"F.to_timestamp('{column}')"
    elif kind in ("tinyint", "smallint", "int", "bigint"):
        cast = f"F.timestamp_millis('{column}')"
    elif kind in ("float", "double") or kind.startswith("decimal"):
        cast = f"F.timestamp_seconds('{column}')"
    else:
        cast = "..."
    return InvalidInputError(
        f"{call}: column '{column}' has type {kind}, which is not a time; make one of it, as in "
        f"transform(lambda df: df.withColumn('{column}', {cast})), and call with_watermark('{column}', ...) after that"
    )
