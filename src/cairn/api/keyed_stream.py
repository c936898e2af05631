"""Keyed streams: rows partitioned by key, and the operators on them, which have keyed state and timers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, NumericType, StructType
from pyspark.sql.types import DataType as SparkType

from cairn.api.data_stream import KEY_PREFIX, DataStream, Declared, Key, check_simple, function_name, slug
from cairn.api.results import CloseableIterator, DataStreamSink
from cairn.api.sinks import BaseSink
from cairn.errors import InvalidInputError
from cairn.model.ddl import INTEGER_TYPES, as_type, parse_type
from cairn.model.functions import KeyedProcessFunction, ReduceFunction
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.simple_functions import FilterFunction, FlatMapFunction, MapFunction
from cairn.model.types import DataType, Types
from cairn.runtime.aggregations import RunningAggregate
from cairn.runtime.batches import GROUP_COLUMN
from cairn.runtime.map_functions import KeyedSimple
from cairn.runtime.operator_spec import OperatorSpec
from cairn.runtime.reduce_function import Accumulate, Reduce
from cairn.spark.operator_plan import (
    OutputType,
    arrow_schema_of,
    check_pickles,
    event_time_of,
    group_of,
    output_type_of,
    plain_names,
    run_operator,
    to_subtasks,
)
from cairn.spark.plan_checks import refuse_native_state
from cairn.state.codec import check_key_type
from cairn.storage import layout

if TYPE_CHECKING:
    from cairn.api.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from cairn.api.interval_join import IntervalJoin
    from cairn.api.windowed_stream import AllWindowedStream, WindowedStream
    from cairn.model.descriptors import Time
    from cairn.model.windows import WindowAssigner

_UNORDERED = (ArrayType, MapType, StructType)


class KeyedStream(PyFlinkNames):
    """A stream partitioned by key. Operators on it have keyed state and timers."""

    def __init__(self, stream: DataStream, keys: tuple[str | Column, ...]) -> None:
        self.env = stream.env
        self._stream = stream
        self._keys = keys
        df = stream.df
        refuse_native_state(df)
        if not df.isStreaming:
            raise InvalidInputError("the DataFrame is not a streaming one: read it with spark.readStream")
        self._user_columns = [name for name in df.columns if not name.startswith(KEY_PREFIX)]
        if GROUP_COLUMN in self._user_columns:
            raise InvalidInputError(f"the column name {GROUP_COLUMN} is taken by cairn")
        self._key_names: list[str] = []
        hidden: list[Column] = []
        for number, key in enumerate(keys):
            if isinstance(key, str):
                self._key_names.append(key if key.startswith(KEY_PREFIX) else self._column_name(key))
            elif isinstance(key, Column):
                name = f"{KEY_PREFIX}{number}"
                hidden.append(key.alias(name))
                self._key_names.append(name)
            else:
                raise InvalidInputError(f"a key is a column name or a Spark column, not {type(key).__name__}")
        self._hidden = hidden
        try:
            self._df = self._with_keys(df)
        except AnalysisException as error:
            told = (str(error).splitlines() or [""])[0]
            raise InvalidInputError(
                f"key_by: Spark cannot compute the key: {told} The stream has {', '.join(self._user_columns)}"
            ) from error
        self._key_types: list[tuple[str, DataType]] = []
        for name in self._key_names:
            declared = self._df.schema[name].dataType
            try:
                dtype = parse_type(declared.simpleString())
            except InvalidInputError:
                dtype = DataType(declared.simpleString(), as_type("binary").storage, _never, _never)
            check_key_type(name, dtype)
            self._key_types.append((_shown(name), dtype))

    @property
    def schema(self) -> StructType:
        """The columns of the rows that functions are given."""
        return StructType([field for field in self._stream.df.schema.fields if field.name in self._user_columns])

    def _with_keys(self, df: DataFrame) -> DataFrame:
        """The stream's rows with the columns of key expressions."""
        return df.select("*", *self._hidden) if self._hidden else df

    def _column_name(self, given: Any, call: str = "key_by") -> str:
        """The column that a name or position means. Names are matched as in Spark: without regard to case unless it is
        configured otherwise.
        """
        names = self._user_columns
        if isinstance(given, int) and not isinstance(given, bool):
            if not 0 <= given < len(names):
                raise InvalidInputError(
                    f"{call}: there is no column at position {given}; the stream has {len(names)}, counted from 0: "
                    f"{', '.join(names)}"
                )
            return names[given]
        if not isinstance(given, str):
            raise InvalidInputError(
                f"{call} takes the name or the position of a column, not {type(given).__name__}; the stream has "
                f"{', '.join(names)}"
            )
        if given in names:
            return given
        alike = [name for name in names if name.lower() == given.lower()]
        if len(alike) == 1:
            return alike[0]
        purpose = "to key by" if call == "key_by" else f"for {call}"
        raise InvalidInputError(
            f"there is no column '{given}' {purpose}; the stream has {', '.join(names)}", column=given
        )

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
        return self._operator(func, output_type, uid, name or type(func).__name__, timers=timers)

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
        names = [F.col(f"`{name}`") for name in self._user_columns]
        if len(names) == len(self._stream.df.columns):
            return self._stream
        rows = self._stream.transform(lambda df: df.select(*names))
        rows.bare = self._stream.bare
        return rows

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
        return self._rows()._execute_and_collect(job_execution_name, limit)

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
        from cairn.api.interval_join import join

        return join(self, other, how, between, ttl, uid, name)

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Group the rows of each key into windows: `.window(TumblingEventTimeWindows.of(Time.minutes(1))).sum("v")`."""
        from cairn.api.windowed_stream import WindowedStream

        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of so many rows of a key; with `slide`, a new one begins every so many rows."""
        from cairn.model.assigners import CountSlidingWindowAssigner, CountTumblingWindowAssigner

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
        return self._operator(func, output_type, uid, label, vectorised=True, states=declared)

    def map(
        self,
        func: MapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """As `DataStream.map`, but the function may have keyed state: it gets the handles in `open`."""
        return self._simple("map", func, output_type, uid, name)

    def filter(
        self, func: FilterFunction | Callable[[Any], bool], uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """As `DataStream.filter`, but the function may have keyed state."""
        return self._simple("filter", func, None, uid, name)

    def flat_map(
        self,
        func: FlatMapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """As `DataStream.flat_map`, but the function may have keyed state."""
        return self._simple("flat_map", func, output_type, uid, name)

    def _simple(self, kind: str, func: Any, declared: Declared | None, uid: str | None, name: str | None) -> DataStream:
        check_simple(kind, func)
        label = name or function_name(func)
        own = OutputType(self.schema, self._stream.bare)
        return self._operator(KeyedSimple(kind, func, uid or label), own if declared is None else declared, uid, label)

    def reduce(
        self,
        func: ReduceFunction | Callable[[Any, Any], Any],
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Combine the rows of each key, two at a time; emits the combined row after every row."""
        if not isinstance(func, ReduceFunction) and not callable(func):
            raise InvalidInputError("reduce takes a ReduceFunction or a function of two rows")
        schema = self.schema
        own = OutputType(schema, self._stream.bare)
        return self._operator(Reduce(func, self._row_type().ddl), own, uid, name or "Reduce")

    def _row_type(self) -> DataType:
        """The type of the stream's elements, as state keeps them."""
        fields = [(f.name, parse_type(f.dataType.simpleString())) for f in self.schema.fields]
        if self._stream.bare:
            return fields[0][1]
        return Types.ROW_NAMED([name for name, _ in fields], [dtype for _, dtype in fields])

    def sum(self, column: str | int = 0, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running sum of a column per key, for every row. Nulls do not count.

        A column that is given by name makes rows (keys, `sum`), in whole Arrow batches. One that is given by position,
        as in PyFlink, makes rows like those of the stream: the first row of the key with the sum in that column.
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
        column = self._column_name(column, kind)
        declared = self.schema[column].dataType
        if not isinstance(declared, NumericType) and (kind == "sum" or isinstance(declared, _UNORDERED)):
            wanted = "numbers" if kind == "sum" else "values that have an order"
            raise InvalidInputError(
                f"{kind}: column '{column}' has type {declared.simpleString()}, and {kind} takes {wanted}; use reduce"
            )
        place = self.schema.names.index(column)
        return self.reduce(Accumulate(kind, place, self._stream.bare), uid, name or kind.title().replace("_", ""))

    def _aggregate(self, kind: str, column: str | int | None, uid: str | None, name: str | None) -> DataStream:
        if isinstance(column, int):
            return self._accumulate(kind, column, uid, name)
        result = "bigint"
        if column is not None:
            column, ddl = self._number_column(kind, column)
            result = "bigint" if ddl in INTEGER_TYPES else "double"
        keys = tuple(self._key_names)
        shown = [_shown(key) for key in keys]
        output = ", ".join(f"`{key}` {dtype.ddl}" for key, (_, dtype) in zip(shown, self._key_types, strict=True))
        function = RunningAggregate(kind, column or "", kind, keys, tuple(shown), kind)
        return self._operator(
            function, f"{output}, `{kind}` {result}", uid, name or kind.capitalize(),
            vectorised=True, states=((kind, result),), with_keys=True,
        )  # fmt: skip

    def _number_column(self, kind: str, column: str | int) -> tuple[str, str]:
        """A column that can be aggregated, as the stream calls it, and its type."""
        column = self._column_name(column, kind)
        declared: SparkType = self._df.schema[column].dataType
        ddl = declared.simpleString()
        if not isinstance(declared, NumericType) or ddl.startswith("decimal"):
            raise InvalidInputError(
                f"{kind}('{column}'): the column has type {ddl}; {kind} takes whole or floating-point numbers "
                "(cast the column, or use reduce or process)"
            )
        return column, ddl

    def _operator(
        self,
        function: Any,
        output_type: Declared | OutputType,
        uid: str | None,
        name: str,
        vectorised: bool = False,
        states: tuple[tuple[str, str], ...] = (),
        timers: bool = False,
        with_keys: bool = False,
        kind: str = "process",
    ) -> DataStream:
        """Add an operator with keyed state: `kind` names what runs the function (`runtime/operator_kinds.py`)."""
        env = self.env
        claimed = env._claim_uid(uid, slug(name), "operator")
        check_pickles(function, claimed)
        parallelism, groups = env._parallelism()
        output = output_type if isinstance(output_type, OutputType) else output_type_of(output_type)
        columns = self._df.columns
        spec = OperatorSpec(
            uid=claimed,
            name=name,
            function=function,
            vectorised=vectorised,
            parallelism=parallelism,
            max_parallelism=groups,
            key_columns=tuple(columns.index(key) for key in self._key_names),
            key_types=self._stored_key_types(),
            columns=tuple(columns if with_keys else self._user_columns),
            output=arrow_schema_of(output.schema),
            event_time=event_time_of(self._df.schema),
            backend=env._settings.backend,
            states=states,
            kind=kind,
            bare_in=self._stream.bare and not vectorised,
            bare_out=output.bare,
        )

        def make(frames: Any, tagged: bool, sides: Any) -> DataFrame:
            now = env._settled(spec)
            df = plain_names(self._with_keys(frames[0]))
            keys = [df.columns[place] for place in now.key_columns]
            rows = df.withColumn(GROUP_COLUMN, group_of(keys, now.max_parallelism))
            shuffled = to_subtasks(rows, parallelism, now.max_parallelism)
            return run_operator(now, shuffled, output.schema, tagged, sides, env._acks())

        env._add_operator(spec, timers)
        return self._stream._function(claimed, [self._stream.node], make, output.bare)

    def _stored_key_types(self) -> tuple[tuple[str, str], ...]:
        return tuple((shown, dtype.ddl) for shown, dtype in self._key_types)


def _shown(name: str) -> str:
    """Key expressions are called key_0, key_1, ... where users see them."""
    return re.sub(r"^__cairn_", "", name)


def _never(value: Any) -> Any:
    raise InvalidInputError("this type cannot be a key")
