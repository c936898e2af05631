"""Windowed streams: `keyed.window(...)`, what can be set on it, and the functions that are applied to its windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cairn.api.data_stream import DataStream, with_operator
from cairn.api.keyed_stream import KeyedStream
from cairn.errors import InvalidInputError
from cairn.model.assigners import TimeWindows, millis
from cairn.model.ddl import as_type
from cairn.model.descriptors import Time
from cairn.model.functions import AggregateFunction, ReduceFunction
from cairn.model.output_tags import OutputTag
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.types import DataType
from cairn.model.windows import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    Trigger,
    WindowAssigner,
    WindowFunction,
)
from cairn.runtime.operator_kinds import WINDOW
from cairn.runtime.windowing.aggregate_operator import END_COLUMN, START_COLUMN, WindowAggregate, result_type
from cairn.runtime.windowing.window_operator import WindowOperator
from cairn.runtime.windowing.window_plan import WindowPlan
from cairn.spark.operator_request import OperatorRequest
from cairn.spark.output_types import Declared, OutputType, output_type_of
from cairn.spark.stream_graph import OutputNode
from cairn.spark.stream_input import event_time_of

_AnyWindowFunction = (
    ProcessWindowFunction[Any, Any, Any, Any]
    | WindowFunction[Any, Any, Any, Any]
    | ProcessAllWindowFunction[Any, Any, Any]
    | AllWindowFunction[Any, Any, Any]
)


class WindowedStream(PyFlinkNames):
    """The windows of a keyed stream. Made by `keyed.window(...)` and `keyed.count_window(...)`."""

    def __init__(self, keyed: KeyedStream, assigner: WindowAssigner[Any, Any]) -> None:
        self._keyed = keyed
        self._event_time = event_time_of(keyed.stream.df.schema)
        self._plan = WindowPlan(assigner, self._event_time >= 0, keyed.input.row_type().ddl)

    # Settings.

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """When windows fire. Each kind of window has a trigger of its own without this."""
        self._plan.set_trigger(trigger)
        return self

    def allowed_lateness(self, time_ms: int | Time) -> Self:
        """Keep windows so long after their end: a row that comes in this time makes them fire again."""
        self._plan.set_lateness(millis(time_ms, "allowed_lateness: the time"))
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Rows that are too late for all their windows go to this side output instead of nowhere."""
        fields = self._keyed.schema.fields
        self._plan.set_late(output_tag, [as_type(field.dataType.simpleString()).ddl for field in fields])
        return self

    # Functions.

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: _AnyWindowFunction | None = None,
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Combine the rows of a window, two at a time. A window function gets the one combined row."""
        operator = self._plan.reduce(reduce_function, window_function)
        if output_type is None and window_function is not None:
            raise InvalidInputError("reduce: the window function needs an output_type")
        own = OutputType(self._keyed.schema, self._keyed.stream.bare)
        return self._run(operator, own if output_type is None else output_type, uid, name or "WindowReduce")

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: _AnyWindowFunction | None = None,
        accumulator_type: str | DataType | None = None,
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Fold the rows of a window into an accumulator, which is all that is kept of them.

        Without `accumulator_type` the accumulator is pickled. A window function gets the one result.
        """
        operator = self._plan.aggregate(aggregate_function, as_type(accumulator_type).ddl, window_function)
        return self._run(operator, output_type, uid, name or type(aggregate_function).__name__)

    def apply(
        self,
        window_function: WindowFunction[Any, Any, Any, Any] | AllWindowFunction[Any, Any, Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a `WindowFunction` to all rows of a window."""
        operator = self._plan.process(window_function, "apply")
        return self._run(operator, output_type, uid, name or type(window_function).__name__)

    def process(
        self,
        process_window_function: ProcessWindowFunction[Any, Any, Any, Any] | ProcessAllWindowFunction[Any, Any, Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a `ProcessWindowFunction` to all rows of a window."""
        operator = self._plan.process(process_window_function)
        return self._run(operator, output_type, uid, name or type(process_window_function).__name__)

    def sum(self, column: str | int, uid: str | None = None, name: str | None = None) -> DataStream:
        """The sum of a column in each window: keys, `window_start`, `window_end`, `sum`. Nulls do not count."""
        return self._aggregate("sum", column, uid, name)

    def min(self, column: str | int, uid: str | None = None, name: str | None = None) -> DataStream:
        """The minimum of a column in each window. Nulls do not count."""
        return self._aggregate("min", column, uid, name)

    def max(self, column: str | int, uid: str | None = None, name: str | None = None) -> DataStream:
        """The maximum of a column in each window. Nulls do not count."""
        return self._aggregate("max", column, uid, name)

    def avg(self, column: str | int, uid: str | None = None, name: str | None = None) -> DataStream:
        """The mean of a column in each window. Nulls do not count."""
        return self._aggregate("avg", column, uid, name)

    def count(self, uid: str | None = None, name: str | None = None) -> DataStream:
        """The number of rows in each window."""
        return self._aggregate("count", None, uid, name)

    # Inside.

    def _key_output(self) -> str:
        """The key columns in the output of aggregations, as DDL that ends with a comma."""
        return "".join(f"`{name}` {ddl}, " for name, ddl in self._keyed.key.types)

    def _aggregate(self, kind: str, column: str | int | None, uid: str | None, name: str | None) -> DataStream:
        keyed = self._keyed
        stream = keyed.stream
        place, ddl = -1, "bigint"
        if column is not None:
            column, ddl = keyed.input.number_column(column, kind)
            place = stream.df.columns.index(column)
        stored, result = result_type(kind, ddl)
        label = name or f"Window{kind.capitalize()}"
        bounds = f"`{START_COLUMN}` timestamp, `{END_COLUMN}` timestamp, " if self._plan.time_windows else ""
        output = f"{self._key_output()}{bounds}`{kind}` {result}"
        assigner = self._plan.assigner
        with_zone = self._event_time >= 0 and stream.df.schema[self._event_time].dataType.simpleString() == "timestamp"
        if not (self._plan.columnar and isinstance(assigner, TimeWindows) and with_zone and self._key_output()):
            keys = len(keyed.key.names) if self._key_output() else 0
            return self._run(self._plan.column(kind, place, stream.bare, stored, keys), output, uid, label)
        if START_COLUMN in stream.df.columns:
            raise InvalidInputError(
                f"{kind}: the stream has a column '{START_COLUMN}', which is what the start of a window is called; "
                "rename it"
            )
        moment = stream.df.schema[self._event_time].name
        timed = stream.transform(lambda df: _with_start(df, moment, assigner.size, assigner.slide, assigner.offset))
        windows = KeyedStream(timed, (*keyed.key.keys, START_COLUMN))
        function = WindowAggregate(
            kind, place, stored, len(keyed.schema), len(stream.df.columns), assigner.size, assigner.slide,
            self._plan.lateness, self._plan.late,
        )  # fmt: skip
        request = OperatorRequest(
            function, output_type_of(output), uid, label, WINDOW, timers=True, vectorised=True, states=function.states,
            with_keys=True,
        )  # fmt: skip
        return self._with_late(with_operator(windows, request))

    def _run(
        self, operator: WindowOperator, output_type: Declared | OutputType | None, uid: str | None, name: str
    ) -> DataStream:
        if output_type is None:
            raise InvalidInputError(
                f"{name}: a window needs an output_type, such as 'user string, total bigint' or Types.LONG()"
            )
        output = output_type if isinstance(output_type, OutputType) else output_type_of(output_type)
        request = OperatorRequest(operator, output, uid, name, timers=self._plan.timers)
        return self._with_late(with_operator(self._keyed, request))

    def _with_late(self, results: DataStream) -> DataStream:
        """Adds the side output of late rows, whether it is read or not."""
        assert isinstance(results.node, OutputNode)
        results.node.function.awaits_watermark = self._plan.assigner.is_event_time()
        if self._plan.late is not None:
            results.get_side_output(self._plan.late)
        return results


class AllWindowedStream(WindowedStream):
    """The windows of a stream without key: all rows go through one subtask. Made by `stream.window_all(...)`."""

    def __init__(self, stream: DataStream, assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(KeyedStream(stream, (F.lit(0),)), assigner)

    def _key_output(self) -> str:
        return ""


def _with_start(df: DataFrame, column: str, size: int, slide: int, offset: int) -> DataFrame:
    """The rows with the start of their window; once per window where windows overlap."""
    quoted = "`" + column.replace("`", "``") + "`"
    last = f"(unix_millis({quoted}) - pmod(unix_millis({quoted}) - {offset}L, {slide}L))"
    if size == slide:
        return df.select("*", F.expr(f"timestamp_millis({last})").alias(START_COLUMN))
    count = -(-size // slide)
    starts = f"transform(sequence(0, {count - 1}), i -> {last} - i * {slide}L)"
    if size % slide:
        starts = f"filter({starts}, s -> s IS NULL OR s > unix_millis({quoted}) - {size}L)"
    exploded = F.explode(F.expr(f"transform({starts}, s -> timestamp_millis(s))"))
    return df.select("*", exploded.alias(START_COLUMN))
