"""Streams: DataFrames with a place in a job, and the operators that need no key."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField, StructType

from cairn.api.results import CloseableIterator, Collect, DataStreamSink, PrintToStdout
from cairn.connectors.sink_base import BaseSink
from cairn.connectors.table_sink import TableSink
from cairn.errors import InvalidInputError
from cairn.job.job_directory import driver_directory
from cairn.model.ddl import as_type
from cairn.model.descriptors import MapStateDescriptor, Time
from cairn.model.functions import KeyedProcessFunction
from cairn.model.output_tags import OutputTag
from cairn.model.process_functions import CheckpointedFunction, ProcessFunction
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.simple_functions import FilterFunction, FlatMapFunction, KeySelector, MapFunction
from cairn.model.types import DataType
from cairn.model.windows import WindowAssigner
from cairn.runtime.map_functions import method_of
from cairn.runtime.operator_kinds import PLAIN
from cairn.spark.event_time import checked_watermark, refuse_no_time, refuse_second_watermark, with_watermark
from cairn.spark.operator_request import OperatorRequest, add_function, add_operator, side_output
from cairn.spark.output_types import Declared, OutputType, output_type_of
from cairn.spark.plan_checks import refuse_native_state
from cairn.spark.stream_graph import Node, OutputNode, SqlNode, functions_of
from cairn.spark.stream_input import KEY_PREFIX, StreamInput, event_time_of
from cairn.state.codec import check_key_type

if TYPE_CHECKING:
    from cairn.api.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from cairn.api.environment import StreamExecutionEnvironment
    from cairn.api.keyed_stream import KeyedStream
    from cairn.api.windowed_stream import AllWindowedStream

Key = str | Column | KeySelector | Callable[[Any], Any]
"""What rows are keyed by: the name of a column, an expression, or a Python function of an element."""


class DataStream(PyFlinkNames):
    """A streaming DataFrame in a job. `df` gives the DataFrame back, to be used with any Spark SQL.

    Use `transform` rather than `df` where an operator's output is read more than once: cairn then sees all readers
    and runs the operator once.
    """

    def __init__(self, env: StreamExecutionEnvironment, node: Node, bare: bool = False) -> None:
        self.env = env
        self.node = node
        self.bare = bare
        """Functions get the values of the only column rather than rows."""

    @property
    def df(self) -> DataFrame:
        return self.node.frame()

    @property
    def input(self) -> StreamInput:
        """The stream as operators read it."""
        return StreamInput(self.node, self.bare)

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
            return KeyedStream(_with_key(self, keys[0], key_type), (f"{KEY_PREFIX}0",))
        if key_type is not None:
            raise InvalidInputError("key_by: key_type is the type of what a Python function gives; columns have theirs")
        return KeyedStream(self, tuple(_checked_key(key) for key in keys))

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> DataStream:
        """Apply any Spark SQL that keeps no state: `stream.transform(lambda df: df.filter("amount > 0"))`.

        The function may be called more than once; it must depend on nothing but the DataFrame that it gets.
        """
        if not callable(function):
            raise InvalidInputError("transform takes a function that makes a DataFrame of a DataFrame")
        node = SqlNode([self.node], function)
        try:
            result = node.frame()
        except Exception as error:
            refuse_no_time(error, "transform")
            raise
        if not isinstance(result, DataFrame):
            raise InvalidInputError(f"transform: the function gave a {type(result).__name__}, not a DataFrame")
        if not result.isStreaming:
            raise InvalidInputError("transform: the function gave a DataFrame that is not made of the stream")
        refuse_native_state(result)
        if event_time_of(result.schema) >= 0 and event_time_of(self.df.schema) < 0:
            _refuse_behind_windows(node, "transform")
        refuse_second_watermark(result, "transform")
        return DataStream(self.env, node)

    def with_watermark(self, column: str, delay: Time | str) -> DataStream:
        """Event time: the column that has it, and how far behind the newest a row may be without being late.

        The same as Spark's `df.withWatermark(column, delay)`.
        """
        return add_watermark(self, column, delay, "with_watermark")

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
            check_same_job(self, other, "union")
            theirs = other.df.schema
            if [(f.name, f.dataType) for f in theirs.fields] != [(f.name, f.dataType) for f in mine.fields]:
                raise InvalidInputError(
                    f"union: the streams have different columns, ({mine.simpleString()}) and "
                    f"({theirs.simpleString()}); use transform(lambda df: df.select(...)) to make them alike"
                )

        def together(*frames: DataFrame) -> DataFrame:
            united = frames[0]
            for frame in frames[1:]:
                united = united.union(frame)
            return united

        node = SqlNode([self.node, *[other.node for other in streams]], together)
        return DataStream(self.env, node, self.bare and all(other.bare for other in streams))

    def map(
        self,
        func: MapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Turn every element into one of `output_type`; without that, into one of the stream's own type."""
        return self._apply("map", func, output_type, uid, name)

    def filter(
        self, func: FilterFunction | Callable[[Any], bool], uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """Keep the elements for which the function says true."""
        return self._apply("filter", func, None, uid, name)

    def flat_map(
        self,
        func: FlatMapFunction | Callable[[Any], Any],
        output_type: Declared | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Turn every element into any number of elements of `output_type` (of the stream's own type without that)."""
        return self._apply("flat_map", func, output_type, uid, name)

    def _apply(self, kind: str, func: Any, declared: Declared | None, uid: str | None, name: str | None) -> DataStream:
        check_simple(kind, func)
        output = output_type_of(declared) if declared is not None else OutputType(self.df.schema, self.bare)
        return _with_function(self, OperatorRequest(func, output, uid, name or function_name(func), kind))

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
        function: Any = func
        if not isinstance(function, ProcessFunction):
            hint = "; call key_by(...) first" if isinstance(function, KeyedProcessFunction) else ""
            raise InvalidInputError(
                f"process on a stream without key takes a ProcessFunction, not {type(function).__name__}{hint}"
            )
        output = output_type_of(output_type)
        return with_operator(self, OperatorRequest(func, output, uid, name or type(func).__name__, PLAIN))

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

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """The values that the operator of this stream puts out to a side output."""
        if not isinstance(output_tag, OutputTag):
            raise InvalidInputError(f"get_side_output takes an OutputTag, not {type(output_tag).__name__}")
        if not isinstance(self.node, OutputNode) or self.node.number:
            raise InvalidInputError(
                f"this stream is not the output of an operator, so there is no side output '{output_tag.tag_id}' of "
                "it; call get_side_output on what process(...), map(...) or another operator returned"
            )
        return DataStream(self.env, side_output(self.node, output_tag), output_tag.bare)

    def sink_to(self, sink: BaseSink, uid: str | None = None) -> DataStreamSink:
        """Write the stream to a sink when the job runs."""
        if not isinstance(sink, BaseSink):
            raise InvalidInputError(
                f"sink_to takes a sink such as FileSink, or ForeachEpochSink for your own function, not "
                f"{type(sink).__name__}"
            )
        if sink.uid:
            raise InvalidInputError(f"this {type(sink).__name__} is attached already; make one sink per stream")
        refuse_native_state(self.df)
        job = self.env.definition
        sink.uid = job.claim_uid(uid, f"sink-{sink.kind}", "sink")
        tables = [attached.sink.name for attached in job.sinks if isinstance(attached.sink, TableSink)]
        if isinstance(sink, TableSink) and sink.name in tables:
            raise InvalidInputError(f"the table '{sink.name}' has a sink already; give this one another name")
        job.add_sink(self.node, sink)
        return DataStreamSink(sink)

    def add_sink(self, sink_func: BaseSink, uid: str | None = None) -> DataStreamSink:
        """The same as `sink_to`."""
        return self.sink_to(sink_func, uid)

    def print(self, sink_identifier: str = "", uid: str | None = None) -> DataStreamSink:
        """Print the elements of committed epochs as Flink does: `value`, `subtask> value`, `prefix:subtask> value`.

        All elements of an epoch come to the driver. After a crash the epoch in progress may be missing on the
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
        kept like every other, and continues where it stopped.
        """
        return execute_and_collect(self, job_execution_name, limit)


def with_operator(stream: DataStream | KeyedStream, request: OperatorRequest) -> DataStream:
    """Add an operator that reads the stream. Returns its main output."""
    node = add_operator(stream.env.definition, request, stream.input)
    return DataStream(stream.env, node, request.output.bare)


def _with_function(stream: DataStream, request: OperatorRequest) -> DataStream:
    """Add a function without state that reads the stream. Returns its main output."""
    node = add_function(stream.env.definition, request, stream.input)
    return DataStream(stream.env, node, request.output.bare)


def execute_and_collect(stream: DataStream, name: str | None, limit: int | None) -> CloseableIterator | list[Any]:
    """`DataStream.execute_and_collect`, for any limit."""
    if limit is not None and limit < 1:
        raise InvalidInputError(f"execute_and_collect: limit must be 1 or more, not {limit}")
    sink = Collect(stream.bare)
    stream.sink_to(sink, uid="collect")
    if name is None:
        stream.env.definition.change(directory=driver_directory())
    elements = CloseableIterator(stream.env.execute_async("collect" if name is None else name), sink)
    if limit is None:
        return elements
    with elements:
        return list(itertools.islice(elements, limit))


def add_watermark(stream: DataStream, column: Any, delay: Any, call: str) -> DataStream:
    """The stream with event time, for the method `call`."""
    name, threshold = checked_watermark(stream.df.schema, column, delay, call)
    node = SqlNode([stream.node], lambda df: with_watermark(df, name, threshold, call))
    _refuse_behind_windows(node, call)
    refuse_second_watermark(node.frame(), call)
    return DataStream(stream.env, node, stream.bare)


def check_same_job(first: DataStream | KeyedStream, second: DataStream | KeyedStream, call: str) -> None:
    if first.env is not second.env:
        raise InvalidInputError(f"{call}: the streams belong to two environments, that is, to two jobs")


def _with_key(stream: DataStream, func: Any, key_type: str | DataType | None) -> DataStream:
    """The stream with one more column, which a function computes."""
    if key_type is None:
        raise InvalidInputError(
            "key_by with a function needs the type of its keys, as in key_by(f, key_type=Types.STRING()): pickled "
            "keys would be told apart by their bytes, which differ between equal objects"
        )
    dtype = as_type(key_type)
    check_key_type("of the function", dtype)
    key = output_type_of(dtype).schema.fields[0].dataType
    output = OutputType(StructType([*stream.df.schema.fields, StructField(f"{KEY_PREFIX}0", key)]), stream.bare)
    check_simple("key", func)
    return _with_function(stream, OperatorRequest(func, output, None, f"key by {function_name(func)}", "key"))


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
