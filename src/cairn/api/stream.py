"""Streams: DataFrames with a place in a job, keyed streams, and the operators on them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType as SparkType
from pyspark.sql.types import NumericType, StructType

from cairn.api.sinks import BaseSink
from cairn.api.spark import OperatorTask, refuse_native_state
from cairn.errors import InvalidInputError
from cairn.model.ddl import as_type, parse_type
from cairn.model.functions import KeyedProcessFunction, ReduceFunction
from cairn.model.types import DataType, Types
from cairn.runtime.batches import GROUP_COLUMN
from cairn.runtime.builtin import RunningAggregate
from cairn.runtime.operator import OperatorSpec
from cairn.runtime.reduce import Reduce
from cairn.state.codec import check_key_type
from cairn.storage import layout

if TYPE_CHECKING:
    from cairn.api.environment import StreamExecutionEnvironment

_log = logging.getLogger("cairn.api")
_WATERMARK = "spark.watermarkDelayMs"
_EXACT_INTEGERS = ("tinyint", "smallint", "int", "bigint")


class DataStream:
    """A streaming DataFrame in a job. `df` gives the DataFrame back, to be used with any Spark SQL."""

    def __init__(self, env: StreamExecutionEnvironment, df: DataFrame) -> None:
        self.env = env
        self.df = df

    def key_by(self, *keys: str | Column) -> KeyedStream:
        """Partition by columns (names) or expressions (Spark columns). Rows with equal keys share their state."""
        if not keys:
            raise InvalidInputError("key_by needs at least one column")
        return KeyedStream(self, keys)

    def sink_to(self, sink: BaseSink, uid: str | None = None) -> None:
        """Write the stream to a sink when the job runs."""
        if not isinstance(sink, BaseSink):
            raise InvalidInputError(f"sink_to takes a sink such as FileSink, not {type(sink).__name__}")
        if sink.uid:
            raise InvalidInputError(f"this {type(sink).__name__} is attached already; make one sink per stream")
        refuse_native_state(self.df)
        sink.uid = self.env._claim_uid(uid, f"sink-{sink.kind}", "sink")
        self.env._add_sink(self, sink)


class KeyedStream:
    """A stream partitioned by key. Operators on it have keyed state and timers."""

    def __init__(self, stream: DataStream, keys: tuple[str | Column, ...]) -> None:
        self.env = stream.env
        self._stream = stream
        df = stream.df
        refuse_native_state(df)
        if not df.isStreaming:
            raise InvalidInputError("the DataFrame is not a streaming one: read it with spark.readStream")
        self._user_columns = list(df.columns)
        if GROUP_COLUMN in self._user_columns:
            raise InvalidInputError(f"the column name {GROUP_COLUMN} is taken by cairn")
        self._key_names: list[str] = []
        hidden: list[Column] = []
        for number, key in enumerate(keys):
            if isinstance(key, str):
                self._key_names.append(self._column_name(key))
            elif isinstance(key, Column):
                name = f"__cairn_key_{number}"
                hidden.append(key.alias(name))
                self._key_names.append(name)
            else:
                raise InvalidInputError(f"a key is a column name or a Spark column, not {type(key).__name__}")
        self._df = df.select("*", *hidden) if hidden else df
        self._key_types: list[tuple[str, DataType]] = []
        for name in self._key_names:
            declared = self._df.schema[name].dataType
            try:
                dtype = parse_type(declared.simpleString())
            except InvalidInputError:
                dtype = DataType(declared.simpleString(), as_type("binary").storage, _never, _never)
            check_key_type(name, dtype)
            self._key_types.append((_shown(name), dtype))

    def _column_name(self, given: str) -> str:
        """The column that a name means, found as Spark finds it: without regard to case unless Spark is told to."""
        names = self._user_columns
        if given in names:
            return given
        alike = [name for name in names if name.lower() == given.lower()]
        if len(alike) == 1:
            return alike[0]
        raise InvalidInputError(
            f"there is no column '{given}' to key by; the stream has {', '.join(names)}", column=given
        )

    def process(
        self,
        func: KeyedProcessFunction,
        output_type: str | StructType,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a `KeyedProcessFunction` row by row."""
        if not isinstance(func, KeyedProcessFunction):
            raise InvalidInputError(f"process takes a KeyedProcessFunction, not {type(func).__name__}")
        timers = type(func).on_timer is not KeyedProcessFunction.on_timer
        return self._operator(func, output_type, uid, name or type(func).__name__, timers=timers)

    def process_batch(
        self,
        func: Callable[[pa.RecordBatch, Any], Any],
        output_type: str | StructType,
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

    def reduce(
        self,
        func: ReduceFunction | Callable[[Any, Any], Any],
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Combine the rows of each key, two at a time; emits the combined row after every row."""
        reduce_rows = func.reduce if isinstance(func, ReduceFunction) else func
        if not callable(reduce_rows):
            raise InvalidInputError("reduce takes a ReduceFunction or a function of two rows")
        schema = self._stream.df.schema
        fields = [(field.name, parse_type(field.dataType.simpleString())) for field in schema.fields]
        row_type = Types.ROW_NAMED([n for n, _ in fields], [t for _, t in fields])
        return self._operator(Reduce(reduce_rows, row_type.ddl), schema, uid, name or "Reduce")

    def sum(self, column: str, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running sum of a column per key; one row (keys, `sum`) for every row. Nulls do not count."""
        return self._aggregate("sum", column, uid, name)

    def min(self, column: str, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running minimum of a column per key; one row (keys, `min`) for every row. Nulls do not count."""
        return self._aggregate("min", column, uid, name)

    def max(self, column: str, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running maximum of a column per key; one row (keys, `max`) for every row. Nulls do not count."""
        return self._aggregate("max", column, uid, name)

    def count(self, uid: str | None = None, name: str | None = None) -> DataStream:
        """The running number of rows per key; one row (keys, `count`) for every row."""
        return self._aggregate("count", None, uid, name)

    def _aggregate(self, kind: str, column: str | None, uid: str | None, name: str | None) -> DataStream:
        result = "bigint"
        if column is not None:
            column = self._column_name(column)
            declared: SparkType = self._df.schema[column].dataType
            ddl = declared.simpleString()
            if not isinstance(declared, NumericType) or ddl.startswith("decimal"):
                raise InvalidInputError(
                    f"{kind}('{column}'): the column has type {ddl}; {kind} takes whole or floating-point numbers "
                    "(cast the column, or use reduce or process)"
                )
            result = "bigint" if ddl in _EXACT_INTEGERS else "double"
        keys = tuple(self._key_names)
        shown = [_shown(key) for key in keys]
        output = ", ".join(f"`{key}` {dtype.ddl}" for key, (_, dtype) in zip(shown, self._key_types, strict=True))
        function = RunningAggregate(kind, column or "", kind, keys, tuple(shown), kind)
        return self._operator(
            function, f"{output}, `{kind}` {result}", uid, name or kind.capitalize(),
            vectorised=True, states=((kind, result),), with_keys=True,
        )  # fmt: skip

    def _operator(
        self,
        function: Any,
        output_type: str | StructType,
        uid: str | None,
        name: str,
        vectorised: bool = False,
        states: tuple[tuple[str, str], ...] = (),
        timers: bool = False,
        with_keys: bool = False,
    ) -> DataStream:
        env = self.env
        position = "-".join([re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "operator"])
        claimed = env._claim_uid(uid, position, "operator")
        _check_pickles(function, claimed)
        parallelism, groups = env._parallelism()
        spark = env.spark
        schema = output_type if isinstance(output_type, StructType) else _spark_schema(output_type)
        df = self._df
        columns = df.columns
        event_time = [i for i, f in enumerate(df.schema.fields) if _WATERMARK in (f.metadata or {})]
        spec = OperatorSpec(
            uid=claimed,
            name=name,
            function=function,
            vectorised=vectorised,
            parallelism=parallelism,
            max_parallelism=groups,
            key_columns=tuple(columns.index(key) for key in self._key_names),
            key_types=tuple((shown, dtype.ddl) for shown, dtype in self._key_types),
            columns=tuple(columns if with_keys else self._user_columns),
            output=to_arrow_schema(schema),
            event_time=event_time[0] if event_time else -1,
            backend=env._settings.backend,
            states=states,
        )
        if len(set(columns)) < len(columns) or not all(map(str.isidentifier, columns)):
            df = df.toDF(*[f"c{place}" for place in range(len(columns))])  # mapInArrow takes plain names only
        group = F.pmod(F.hash(*[F.col(f"`{df.columns[i]}`") for i in spec.key_columns]), F.lit(groups)).cast("int")
        rows = df.withColumn(GROUP_COLUMN, group)
        everywhere = spark.range(0, parallelism, 1, 1).select(
            *[F.lit(None).cast(field.dataType).alias(field.name) for field in df.schema.fields],
            (-F.col("id") - 1).cast("int").alias(GROUP_COLUMN),
        )
        target = F.expr(
            f"int(CASE WHEN {GROUP_COLUMN} < 0 THEN -{GROUP_COLUMN} - 1 "
            f"ELSE {GROUP_COLUMN} * {parallelism} DIV {groups} END)"
        )
        shuffled = rows.union(everywhere).repartitionById(parallelism, target)
        task = OperatorTask(spec, env._acks())
        out = shuffled.mapInArrow(task, schema)
        env._add_operator(spec, timers)
        return DataStream(env, out)


def _shown(name: str) -> str:
    """Key expressions are called key_0, key_1, ... where users see them."""
    return re.sub(r"^__cairn_", "", name)


def _never(value: Any) -> Any:
    raise InvalidInputError("this type cannot be a key")


def _check_pickles(function: Any, uid: str) -> None:
    """A function that cannot travel to the workers is refused where it is defined."""
    try:
        cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidInputError(
            f"operator '{uid}': its function cannot be sent to the Spark workers ({type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else error!r}). Do not keep a Spark session, "
            "lock, socket or open file in it; make such things in open().",
            uid=uid,
        ) from error


def _spark_schema(ddl: str) -> StructType:
    try:
        schema = StructType.fromDDL(ddl)
        if not isinstance(schema, StructType):
            raise TypeError("it names a single type, not columns")
    except Exception as error:
        raise InvalidInputError(
            f"output type {ddl!r} is no Spark DDL such as 'user string, total bigint': {error}"
        ) from error
    return schema
