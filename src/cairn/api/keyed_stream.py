"""Keyed streams: rows partitioned by key, and the operators on them, which have keyed state and timers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, NumericType, StructType

from cairn.api.data_stream import (
    DataStream,
    Key,
    check_same_job,
    check_simple,
    execute_and_collect,
    function_name,
    with_operator,
)
from cairn.api.results import CloseableIterator, DataStreamSink
from cairn.connectors.sink_base import BaseSink
from cairn.errors import InvalidInputError
from cairn.model.assigners import CountSlidingWindowAssigner, CountTumblingWindowAssigner
from cairn.model.ddl import INTEGER_TYPES, as_type
from cairn.model.descriptors import Time
from cairn.model.functions import KeyedProcessFunction, ReduceFunction
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.simple_functions import FilterFunction, FlatMapFunction, MapFunction
from cairn.model.types import DataType
from cairn.model.windows import WindowAssigner
from cairn.runtime.aggregations import RunningAggregate
from cairn.runtime.map_functions import KeyedSimple
from cairn.runtime.reduce_function import Accumulate, Reduce
from cairn.spark.operator_request import OperatorRequest
from cairn.spark.output_types import Declared, OutputType, output_type_of
from cairn.spark.plan_checks import refuse_native_state
from cairn.spark.stream_graph import SqlNode
from cairn.spark.stream_input import StreamInput, key_columns, shown_name
from cairn.spark.stream_joins import JoinRequest, add_join
from cairn.storage import layout

if TYPE_CHECKING:
    from cairn.api.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from cairn.api.interval_join import IntervalJoin
    from cairn.api.windowed_stream import AllWindowedStream, WindowedStream

_UNORDERED = (ArrayType, MapType, StructType)


class KeyedStream(PyFlinkNames):
    """A stream partitioned by key. Operators on it have keyed state and timers."""

    def __init__(self, stream: DataStream, keys: tuple[str | Column, ...]) -> None:
        refuse_native_state(stream.df)
        if not stream.df.isStreaming:
            raise InvalidInputError("the DataFrame is not a streaming one: read it with spark.readStream")
        self.env = stream.env
        self.stream = stream
        """The stream in front of `key_by`; with the key in a column, if a function computes it."""
        self.key = key_columns(stream.df, keys)
        self.input = StreamInput(stream.node, stream.bare, self.key)
        """The stream as operators read it."""

    @property
    def schema(self) -> StructType:
        """The columns of the rows that functions get."""
        return self.input.schema

    def process(
        self,
        func: KeyedProcessFunction,
        output_type: Declared,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a `KeyedProcessFunction` row by row."""
        if not isinstance(func, KeyedProcessFunction):
            raise InvalidInputError(f"process takes a KeyedProcessFunction, not {type(func).__name__}")
        timers = type(func).on_timer is not KeyedProcessFunction.on_timer
        output = output_type_of(output_type)
        return with_operator(self, OperatorRequest(func, output, uid, name or type(func).__name__, timers=timers))

    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...
    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...
    def connect(self, other: KeyedStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """This stream and another one keyed by the same types, or a broadcast one."""
        from cairn.api.connected_streams import connect

        return connect(self, other)

    def _rows(self) -> DataStream:
        """The stream without its keys."""
        names = [F.col(f"`{name}`") for name in self.schema.names]
        if len(names) == len(self.stream.df.columns):
            return self.stream
        return DataStream(self.env, SqlNode([self.stream.node], lambda df: df.select(*names)), self.stream.bare)

    def key_by(self, *keys: Key | DataType, key_type: str | DataType | None = None) -> KeyedStream:
        """The same rows by another key."""
        return self._rows().key_by(*keys, key_type=key_type)

    def union(self, *streams: DataStream) -> DataStream:
        """The rows of this stream and of others, without a key."""
        return self._rows().union(*streams)

    def sink_to(self, sink: BaseSink, uid: str | None = None) -> DataStreamSink:
        """Write the rows to a sink, as `DataStream.sink_to` does."""
        return self._rows().sink_to(sink, uid)

    def add_sink(self, sink_func: BaseSink, uid: str | None = None) -> DataStreamSink:
        """The same as `sink_to`."""
        return self.sink_to(sink_func, uid)

    def print(self, sink_identifier: str = "", uid: str | None = None) -> DataStreamSink:
        """Print the rows, as `DataStream.print` does."""
        return self._rows().print(sink_identifier, uid)

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Execute the job and iterate over the rows, as `DataStream.execute_and_collect` does."""
        return execute_and_collect(self._rows(), job_execution_name, limit)

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        """Windows over all rows, whatever their key."""
        return self._rows().window_all(window_assigner)

    def interval_join(self, other: KeyedStream) -> IntervalJoin:
        """Pairs of rows with equal keys whose event times are close: `.between(lower, upper).process(...)`."""
        from cairn.api.interval_join import IntervalJoin

        return IntervalJoin(self, other)

    def join(
        self,
        other: KeyedStream,
        how: str = "inner",
        between: tuple[Time | int, Time | int] | None = None,
        ttl: Time | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Join with another stream that is keyed alike: the columns of both sides in one row.

        `between` bounds the event time of the other row relative to this one's; then `how` may be `inner`, `left`,
        `right` or `full`, and a row without a partner is put out when its time is over. Without bounds it is an inner
        join over all rows, or over those younger than `ttl` in processing time. A column of the other side whose
        name this side has gets `_right` behind it.
        """
        if not isinstance(other, KeyedStream):
            raise InvalidInputError(f"join takes a keyed stream, not {type(other).__name__}: call key_by(...) on it")
        check_same_job(self, other, "join")
        request = JoinRequest(how, between, ttl, uid, name or "Join")
        return DataStream(self.env, add_join(self.env.definition, request, self.input, other.input))

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Group the rows of each key into windows: `.window(TumblingEventTimeWindows.of(Time.minutes(1))).sum("v")`."""
        from cairn.api.windowed_stream import WindowedStream

        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of so many rows of a key; with `slide`, a new one begins every so many rows."""
        return self.window(CountSlidingWindowAssigner(size, slide) if slide else CountTumblingWindowAssigner(size))

    def process_batch(
        self,
        func: Callable[[pa.RecordBatch, Any], Any],
        output_type: Declared,
        states: Mapping[str, str | DataType] | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a function to whole Arrow batches, with the state of all their keys at once in columns.

        `func(batch, ctx)` returns a RecordBatch of the output type; `states` declares value states by name and type.
        See `cairn.BatchContext` for what `ctx` offers.
        """
        if not callable(func):
            raise InvalidInputError("process_batch takes a function of a batch and a context")
        declared = tuple((state, as_type(dtype).ddl) for state, dtype in (states or {}).items())
        for state, ddl in declared:
            layout.checked(state, "state name")
            if ddl == "pickle" or "<" in ddl:
                raise InvalidInputError(f"state '{state}': process_batch keeps scalar types only, not {ddl}")
        label = name or str(getattr(func, "__name__", type(func).__name__))
        output = output_type_of(output_type)
        return with_operator(self, OperatorRequest(func, output, uid, label, vectorised=True, states=declared))

    def map(
        self,
        func: MapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """As `DataStream.map`, but the function may have keyed state: it gets the handles in `open`."""
        return self._apply("map", func, output_type, uid, name)

    def filter(
        self, func: FilterFunction | Callable[[Any], bool], uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """As `DataStream.filter`, but the function may have keyed state."""
        return self._apply("filter", func, None, uid, name)

    def flat_map(
        self,
        func: FlatMapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """As `DataStream.flat_map`, but the function may have keyed state."""
        return self._apply("flat_map", func, output_type, uid, name)

    def _apply(self, kind: str, func: Any, declared: Declared | None, uid: str | None, name: str | None) -> DataStream:
        check_simple(kind, func)
        label = name or function_name(func)
        output = self._own_type() if declared is None else output_type_of(declared)
        return with_operator(self, OperatorRequest(KeyedSimple(kind, func, uid or label), output, uid, label))

    def _own_type(self) -> OutputType:
        """The stream's own type, as an output type."""
        return OutputType(self.schema, self.stream.bare)

    def reduce(
        self,
        func: ReduceFunction | Callable[[Any, Any], Any],
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Combine the rows of each key, two at a time; emits the combined row after every row."""
        if not isinstance(func, ReduceFunction) and not callable(func):
            raise InvalidInputError("reduce takes a ReduceFunction or a function of two rows")
        function = Reduce(func, self.input.row_type().ddl)
        return with_operator(self, OperatorRequest(function, self._own_type(), uid, name or "Reduce"))

    def sum(self, column: str | int = 0, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running sum of a column per key, for every row. Nulls do not count.

        A column by name makes rows (keys, `sum`), in whole Arrow batches. A column by position, as in PyFlink, makes
        rows like those of the stream: the first row of the key with the sum in that column.
        """
        return self._aggregate("sum", column, uid, name)

    def min(self, column: str | int = 0, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running minimum of a column per key, for every row; by name or position, as in `sum`."""
        return self._aggregate("min", column, uid, name)

    def max(self, column: str | int = 0, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running maximum of a column per key, for every row; by name or position, as in `sum`."""
        return self._aggregate("max", column, uid, name)

    def min_by(self, column: str | int = 0, uid: str | None = None, name: str | None = None) -> DataStream:
        """For every row, the row of its key that has the smallest value in a column so far; the first of several."""
        return self._accumulate("min_by", column, uid, name)

    def max_by(self, column: str | int = 0, uid: str | None = None, name: str | None = None) -> DataStream:
        """For every row, the row of its key that has the largest value in a column so far; the first of several."""
        return self._accumulate("max_by", column, uid, name)

    def count(self, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running number of rows per key; one row (keys, `count`) for every row."""
        return self._aggregate("count", None, uid, name)

    def _accumulate(self, kind: str, column: str | int, uid: str | None, name: str | None) -> DataStream:
        """A reduction of whole rows by a column, as PyFlink has it."""
        column = self.input.column_name(column, kind)
        declared = self.schema[column].dataType
        if not isinstance(declared, NumericType) and (kind == "sum" or isinstance(declared, _UNORDERED)):
            wanted = "numbers" if kind == "sum" else "values that have an order"
            raise InvalidInputError(
                f"{kind}: column '{column}' has type {declared.simpleString()}, and {kind} takes {wanted}; use reduce"
            )
        place = self.schema.names.index(column)
        return self.reduce(Accumulate(kind, place, self.stream.bare), uid, name or kind.title().replace("_", ""))

    def _aggregate(self, kind: str, column: str | int | None, uid: str | None, name: str | None) -> DataStream:
        if isinstance(column, int):
            return self._accumulate(kind, column, uid, name)
        result = "bigint"
        if column is not None:
            column, ddl = self.input.number_column(column, kind)
            result = "bigint" if ddl in INTEGER_TYPES else "double"
        keys = self.key.names
        columns = "".join(f"`{name}` {ddl}, " for name, ddl in self.key.types)
        function = RunningAggregate(kind, column or "", kind, keys, tuple(map(shown_name, keys)), kind)
        request = OperatorRequest(
            function, output_type_of(f"{columns}`{kind}` {result}"), uid, name or kind.capitalize(),
            vectorised=True, states=((kind, result),), with_keys=True,
        )  # fmt: skip
        return with_operator(self, request)
