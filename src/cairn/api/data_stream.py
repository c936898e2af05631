"""Streams: DataFrames with a place in a job, and the operators that need no key."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField, StructType

from cairn.api.results import CloseableIterator, Collect, DataStreamSink, PrintToStdout
from cairn.api.sinks import BaseSink
from cairn.errors import InvalidInputError
from cairn.model.ddl import as_type
from cairn.model.descriptors import Time
from cairn.model.functions import KeyedProcessFunction
from cairn.model.output_tags import OutputTag
from cairn.model.process_functions import CheckpointedFunction, ProcessFunction
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.simple_functions import FilterFunction, FlatMapFunction, KeySelector, MapFunction
from cairn.model.types import DataType
from cairn.runtime.batches import GROUP_COLUMN
from cairn.runtime.map_functions import SimpleSpec, method_of
from cairn.runtime.operator_kinds import PLAIN
from cairn.runtime.operator_spec import OperatorSpec
from cairn.spark.event_time import checked_watermark, refuse_no_time, refuse_second_watermark, with_watermark
from cairn.spark.operator_plan import (
    OutputType,
    arrow_schema_of,
    check_pickles,
    event_time_of,
    group_by_partition,
    output_type_of,
    plain_names,
    raw_schema,
    run_operator,
    side_schema,
    side_specs,
    to_subtasks,
)
from cairn.spark.plan_checks import refuse_native_state
from cairn.spark.stream_graph import FrameNode, FunctionNode, Node, OutputNode, SqlNode, functions_of
from cairn.spark.worker_tasks import SimpleTask
from cairn.state.codec import check_key_type

if TYPE_CHECKING:
    from cairn.api.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from cairn.api.environment import StreamExecutionEnvironment
    from cairn.api.keyed_stream import KeyedStream
    from cairn.api.windowed_stream import AllWindowedStream
    from cairn.model.descriptors import MapStateDescriptor
    from cairn.model.windows import WindowAssigner

KEY_PREFIX = "__cairn_key_"
"""What the names of columns begin with that hold computed keys."""

Declared = str | DataType | StructType
"""An output type: Spark DDL, `Types.*`, or a Spark StructType."""

Key = str | Column | KeySelector | Callable[[Any], Any]
"""What rows are keyed by: the name of a column, an expression, or a Python function of an element."""


class DataStream(PyFlinkNames):
    """A streaming DataFrame in a job. `df` gives the DataFrame back, to be used with any Spark SQL.

    Use `transform` rather than `df` where an operator's output is read more than once: cairn then sees all readers
    and runs the operator once.
    """

    def __init__(
        self, env: StreamExecutionEnvironment, df: DataFrame | None = None, node: Node | None = None, bare: bool = False
    ) -> None:
        self.env = env
        self.bare = bare
        """Functions are given the values of the only column rather than rows."""
        if node is None:
            if df is None:
                raise InvalidInputError("a stream needs a DataFrame")
            node = FrameNode(df)
        self.node = node

    @property
    def df(self) -> DataFrame:
        return self.node.frame()

    def key_by(self, *keys: Key | DataType, key_type: str | DataType | None = None) -> KeyedStream:
        """Partition by columns (names) or expressions (Spark columns). Rows with equal keys share their state.

        A Python function of an element or a `KeySelector` does as well, with the type of its keys:
        `key_by(lambda row: row[0], Types.STRING())`. Columns cost less, since Spark computes them without Python.
        """
        from cairn.api.keyed_stream import KeyedStream

        if not keys:
            raise InvalidInputError("key_by needs at least one column")
        if is_function_key(keys[0]) and key_type is None and isinstance(keys[-1], DataType) and len(keys) == 2:
            key_type = keys[-1]
            keys = keys[:1]
        if len(keys) == 1 and is_function_key(keys[0]):
            return KeyedStream(self._with_selected(keys[0], key_type), (f"{KEY_PREFIX}0",))
        if key_type is not None:
            raise InvalidInputError("key_by: key_type is the type of what a Python function gives; columns have theirs")
        return KeyedStream(self, tuple(_checked_key(key) for key in keys))

    def _with_selected(self, func: Any, key_type: str | DataType | None) -> DataStream:
        """The stream with one more column, which a function computes."""
        if key_type is None:
            raise InvalidInputError(
                "key_by with a function needs the type of its keys, as in key_by(f, key_type=Types.STRING()): pickled "
                "keys would be told apart by their bytes, which differ between equal objects"
            )
        dtype = as_type(key_type)
        check_key_type("of the function", dtype)
        key = output_type_of(dtype).schema.fields[0].dataType
        schema = StructType([*self.df.schema.fields, StructField(f"{KEY_PREFIX}0", key)])
        return self._simple("key", func, OutputType(schema, self.bare), None, f"key by {function_name(func)}")

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> DataStream:
        """Apply any Spark SQL that keeps no state: `stream.transform(lambda df: df.filter("amount > 0"))`.

        The function may be called more than once; it must depend on nothing but the DataFrame that it is given.
        """
        if not callable(function):
            raise InvalidInputError("transform takes a function that makes a DataFrame of a DataFrame")
        node = SqlNode([self.node], function)
        try:
            made = node.frame()
        except Exception as error:
            refuse_no_time(error, "transform")
            raise
        if not isinstance(made, DataFrame):
            raise InvalidInputError(f"transform: the function gave a {type(made).__name__}, not a DataFrame")
        if not made.isStreaming:
            raise InvalidInputError("transform: the function gave a DataFrame that is not made of the stream")
        refuse_native_state(made)
        if event_time_of(made.schema) >= 0 and event_time_of(self.df.schema) < 0:
            _refuse_behind_windows(node, "transform")
        refuse_second_watermark(made, "transform")
        return DataStream(self.env, node=node)

    def with_watermark(self, column: str, delay: Time | str) -> DataStream:
        """Event time: the column that has it, and how far behind the newest a row may be without being late.

        The same as Spark's `df.withWatermark(column, delay)`.
        """
        return self._with_watermark(column, delay, "with_watermark")

    def _with_watermark(self, column: Any, delay: Any, call: str) -> DataStream:
        name, threshold = checked_watermark(self.df.schema, column, delay, call)
        node = SqlNode([self.node], lambda df: with_watermark(df, name, threshold, call))
        _refuse_behind_windows(node, call)
        refuse_second_watermark(node.frame(), call)
        return DataStream(self.env, node=node, bare=self.bare)

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        """Windows over all rows of the stream, whatever their key. One subtask does all the work."""
        from cairn.api.windowed_stream import AllWindowedStream

        return AllWindowedStream(self, window_assigner)

    def union(self, *streams: DataStream) -> DataStream:
        """The rows of this stream and of others, which must have the same columns in the same order."""
        if not streams:
            raise InvalidInputError("union takes at least one other stream")
        mine = self.df.schema
        for other in streams:
            if not isinstance(other, DataStream):
                raise InvalidInputError(f"union takes streams, not {type(other).__name__}")
            if other.env is not self.env:
                raise InvalidInputError("union: the streams belong to two environments, that is, to two jobs")
            theirs = other.df.schema
            if [(f.name, f.dataType) for f in theirs.fields] != [(f.name, f.dataType) for f in mine.fields]:
                raise InvalidInputError(
                    f"union: the streams have different columns, ({mine.simpleString()}) and "
                    f"({theirs.simpleString()}); use transform(lambda df: df.select(...)) to make them alike"
                )

        def together(*frames: DataFrame) -> DataFrame:
            made = frames[0]
            for frame in frames[1:]:
                made = made.union(frame)
            return made

        node = SqlNode([self.node, *[other.node for other in streams]], together)
        return DataStream(self.env, node=node, bare=self.bare and all(other.bare for other in streams))

    def map(
        self,
        func: MapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Turn every element into one of `output_type`; without that, into one of the stream's own type."""
        return self._simple("map", func, output_type, uid, name)

    def filter(
        self, func: FilterFunction | Callable[[Any], bool], uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """Keep the elements for which the function says true."""
        return self._simple("filter", func, None, uid, name)

    def flat_map(
        self,
        func: FlatMapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Turn every element into any number of elements of `output_type` (of the stream's own type without that)."""
        return self._simple("flat_map", func, output_type, uid, name)

    def _simple(
        self, kind: str, func: Any, declared: Declared | OutputType | None, uid: str | None, name: str | None
    ) -> DataStream:
        check_simple(kind, func)
        label = name or function_name(func)
        claimed = self.env._claim_uid(uid, slug(label), kind)
        check_pickles(func, claimed)
        if isinstance(declared, OutputType):
            output = declared
        else:
            output = output_type_of(declared) if declared is not None else OutputType(self.df.schema, self.bare)
        spec = SimpleSpec(
            uid=claimed, kind=kind, function=func, columns=tuple(self.df.columns),
            output=arrow_schema_of(output.schema), parallelism=self.env.get_parallelism(), bare_in=self.bare,
            bare_out=output.bare,
        )  # fmt: skip

        def make(frames: Any, tagged: bool, sides: Any) -> DataFrame:
            told = replace(spec, tagged=tagged, sides=side_specs(sides)) if tagged else spec
            return plain_names(frames[0]).mapInArrow(SimpleTask(told), raw_schema(output.schema, tagged, sides))

        return self._function(claimed, [self.node], make, output.bare, label)

    def process(
        self,
        func: ProcessFunction,
        output_type: Declared,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a `ProcessFunction` row by row. With `CheckpointedFunction` mixed in it has operator state.

        The rows of one Spark partition go to one subtask, in their order.
        """
        given: Any = func
        if not isinstance(given, ProcessFunction):
            hint = "; call key_by(...) first" if isinstance(given, KeyedProcessFunction) else ""
            raise InvalidInputError(
                f"process on a stream without key takes a ProcessFunction, not {type(given).__name__}{hint}"
            )
        refuse_native_state(self.df)
        env = self.env
        label = name or type(func).__name__
        claimed = env._claim_uid(uid, slug(label), "operator")
        check_pickles(func, claimed)
        parallelism, groups = env._parallelism()
        output = output_type_of(output_type)
        schema = self.df.schema
        spec = OperatorSpec(
            uid=claimed, name=label, function=func, vectorised=False, parallelism=parallelism, max_parallelism=groups,
            key_columns=(), key_types=(), columns=tuple(schema.names), output=arrow_schema_of(output.schema),
            event_time=event_time_of(schema), backend=env._settings.backend, kind=PLAIN, bare_in=self.bare,
            bare_out=output.bare,
        )  # fmt: skip

        def make(frames: Any, tagged: bool, sides: Any) -> DataFrame:
            now = env._settled(spec)
            group = group_by_partition(parallelism, now.max_parallelism)
            rows = plain_names(frames[0]).withColumn(GROUP_COLUMN, group)
            shuffled = to_subtasks(rows, parallelism, now.max_parallelism)
            return run_operator(now, shuffled, output.schema, tagged, sides, env._acks())

        env._add_operator(spec, False)
        return self._function(claimed, [self.node], make, output.bare)

    @overload
    def connect(self, other: DataStream) -> ConnectedStreams: ...
    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...
    def connect(self, other: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Two streams of any types, for a function that sees the rows of both."""
        from cairn.api.connected_streams import connect

        return connect(self, other)

    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream:
        """Every element to every subtask of what it is connected to, which keeps it in these map states."""
        from cairn.api.connected_streams import BroadcastStream

        return BroadcastStream(self, descriptors)

    def _function(self, uid: str, parents: list[Node], make: Any, bare: bool, label: str = "") -> DataStream:
        node = self.env._functions[uid] = FunctionNode(uid, parents, make, self.env.get_parallelism(), label)
        return DataStream(self.env, node=node.main, bare=bare)

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """The values that the operator of this stream puts out to a side output."""
        if not isinstance(output_tag, OutputTag):
            raise InvalidInputError(f"get_side_output takes an OutputTag, not {type(output_tag).__name__}")
        if not isinstance(self.node, OutputNode) or self.node.number:
            raise InvalidInputError(
                f"this stream is not the output of an operator, so there is no side output '{output_tag.tag_id}' of "
                "it; call get_side_output on what process(...), map(...) or another operator returned"
            )
        function = self.node.function
        for number, known in enumerate(function.sides, 1):
            if known == output_tag:
                if known.ddl != output_tag.ddl:
                    raise InvalidInputError(
                        f"operator '{function.uid}': the side output '{known.tag_id}' has type ({known.ddl}) already "
                        f"and cannot also have type ({output_tag.ddl})"
                    )
                return DataStream(self.env, node=function.outputs[number], bare=known.bare)
        side_schema(output_tag)  # fails here if Spark does not know the type
        return DataStream(self.env, node=function.add_side(output_tag), bare=output_tag.bare)

    def sink_to(self, sink: BaseSink, uid: str | None = None) -> DataStreamSink:
        """Write the stream to a sink when the job runs."""
        if not isinstance(sink, BaseSink):
            raise InvalidInputError(
                f"sink_to takes a sink such as FileSink, or ForeachEpochSink for a function of one's own, not "
                f"{type(sink).__name__}"
            )
        if sink.uid:
            raise InvalidInputError(f"this {type(sink).__name__} is attached already; make one sink per stream")
        refuse_native_state(self.df)
        sink.uid = self.env._claim_uid(uid, f"sink-{sink.kind}", "sink")
        self.env._add_sink(self, sink)
        return DataStreamSink(sink)

    def add_sink(self, sink_func: BaseSink, uid: str | None = None) -> DataStreamSink:
        """The same as `sink_to`."""
        return self.sink_to(sink_func, uid)

    def print(self, sink_identifier: str = "", uid: str | None = None) -> DataStreamSink:
        """Print the elements of committed epochs as Flink does: `value`, `subtask> value`, `prefix:subtask> value`.

        All elements of an epoch come to the driver. After a crash the epoch that was under way may be missing on the
        screen. `sink_to(PrintSink())` prints the names of columns, and only the first rows of an epoch.
        """
        return self.sink_to(PrintToStdout(sink_identifier, self.bare, self.env.get_parallelism()), uid)

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, limit: None = None) -> CloseableIterator: ...
    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[Any]: ...
    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[Any]: ...
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Execute the job, and iterate over the elements of this stream as their epochs are committed.

        With `limit`, wait for so many elements (fewer if the job ends before), cancel the job and return them in a
        list. Without a name the job is kept in a temporary directory and starts anew in every program; with one it is
        kept like every other, and goes on where it stopped.
        """
        return self._execute_and_collect(job_execution_name, limit)

    def _execute_and_collect(self, job_execution_name: str | None, limit: int | None) -> CloseableIterator | list[Any]:
        if limit is not None and limit < 1:
            raise InvalidInputError(f"execute_and_collect: limit must be 1 or more, not {limit}")
        env = self.env
        sink = Collect(self.bare)
        self.sink_to(sink, uid="collect")
        job = env._execute_once("collect") if job_execution_name is None else env.execute_async(job_execution_name)
        elements = CloseableIterator(job, sink)
        if limit is None:
            return elements
        with elements:
            return list(itertools.islice(elements, limit))


def _refuse_behind_windows(node: Node, call: str) -> None:
    """A job has one watermark, the smallest of all that are declared: one made of windows' results would hold back
    the one that the windows wait for, and nothing would ever move.
    """
    for function in functions_of([node]):
        if function.awaits_watermark:
            raise InvalidInputError(
                f"{call}: the rows come from the event-time windows of '{function.uid}', which wait for the watermark; "
                "one that is made of their results would hold it back, and neither would ever move. Combine the "
                "results without event time, as in key_by(...).sum(...), or write them to a sink and read them in a "
                "second job"
            )


def is_function_key(key: Any) -> bool:
    return isinstance(key, KeySelector) or (callable(key) and not isinstance(key, (str, Column)))


def _checked_key(key: Any) -> str | Column:
    if isinstance(key, (str, Column)):
        return key
    if is_function_key(key):
        raise InvalidInputError(
            "key_by: a Python function must be the only one among the keys, followed by their type, as in "
            "key_by(f, Types.STRING())"
        )
    raise InvalidInputError(f"key_by: a key is a function, a column name or a Spark column, not {type(key).__name__}")


def check_simple(kind: str, func: Any) -> None:
    if method_of(kind, func) is None:
        wanted = {"map": "MapFunction", "filter": "FilterFunction", "flat_map": "FlatMapFunction"}.get(kind, "function")
        raise InvalidInputError(f"{kind} takes a {wanted} or a function of one value, not {type(func).__name__}")
    if isinstance(func, CheckpointedFunction):
        raise InvalidInputError(
            f"{kind}: {type(func).__name__} keeps operator state, which process functions have: make it a "
            "ProcessFunction and call process(...)"
        )


def function_name(func: Any) -> str:
    """What a function is called where users see it."""
    return re.sub(r"^<lambda>$", "lambda", str(getattr(func, "__name__", type(func).__name__)))


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "operator"
