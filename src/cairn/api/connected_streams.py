"""Two connected streams, and the operators that see the rows of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column

from cairn.api.data_stream import DataStream, Key, check_same_job, function_name, is_function_key
from cairn.api.keyed_stream import KeyedStream
from cairn.errors import InvalidInputError
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.process_functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.simple_functions import CoFlatMapFunction, CoMapFunction
from cairn.model.types import DataType
from cairn.runtime.map_functions import CoSimple
from cairn.runtime.operator_kinds import BROADCAST, CO
from cairn.spark.operator_request import OperatorRequest, add_two_input_operator
from cairn.spark.output_types import Declared, output_type_of
from cairn.spark.plan_checks import refuse_native_state
from cairn.spark.stream_joins import check_same_keys

Side = DataStream | KeyedStream


class BroadcastStream(PyFlinkNames):
    """A stream whose elements go to every subtask. Connect a stream to it: `stream.connect(rules.broadcast(...))`."""

    def __init__(self, stream: DataStream, descriptors: Sequence[MapStateDescriptor]) -> None:
        names: set[str] = set()
        for descriptor in descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise InvalidInputError(
                    f"broadcast takes MapStateDescriptors, not {type(descriptor).__name__}: broadcast state is a map"
                )
            if descriptor.ttl is not None:
                raise InvalidInputError(f"broadcast state '{descriptor.name}' cannot have a time to live")
            if descriptor.name in names:
                raise InvalidInputError(f"broadcast got two states with the name '{descriptor.name}'")
            names.add(descriptor.name)
        refuse_native_state(stream.df)
        self.stream = stream
        self.descriptors = tuple(descriptors)


def connect(first: Side, second: Any) -> ConnectedStreams | BroadcastConnectedStream:
    """Connect two streams. Both are keyed, or neither is; a broadcast one connects to either."""
    if isinstance(second, BroadcastStream):
        check_same_job(first, second.stream, "connect")
        return BroadcastConnectedStream(first, second)
    if not isinstance(second, (DataStream, KeyedStream)):
        raise InvalidInputError(f"connect takes a stream or a broadcast stream, not {type(second).__name__}")
    if isinstance(first, KeyedStream) is not isinstance(second, KeyedStream):
        raise InvalidInputError(
            "connect: one of the two streams is keyed and the other is not; key both, or connect them first and call "
            "key_by(...) on the result"
        )
    check_same_job(first, second, "connect")
    return ConnectedStreams(first, second)


class ConnectedStreams:
    """Two connected streams."""

    def __init__(self, first: Side, second: Side) -> None:
        self.env = first.env
        self._first = first
        self._second = second
        if isinstance(first, KeyedStream) and isinstance(second, KeyedStream):
            check_same_keys(first.input, second.input)

    def key_by(
        self,
        key1: Key | Sequence[str | Column],
        key2: Key | Sequence[str | Column],
        key_type: str | DataType | None = None,
    ) -> ConnectedStreams:
        """Key the first stream by `key1` and the second by `key2`: a column each, or a list of columns.

        Python functions and `KeySelector`s do as well, with the type of their keys:
        `key_by(lambda a: a[0], lambda b: b[1], Types.STRING())`.
        """
        first, second = self._first, self._second
        if isinstance(first, KeyedStream) or isinstance(second, KeyedStream):
            raise InvalidInputError("key_by: these streams are keyed already")
        if key_type is not None and not (is_function_key(key1) or is_function_key(key2)):
            raise InvalidInputError("key_by: key_type is the type of what a Python function gives; columns have theirs")
        return ConnectedStreams(_keyed(first, key1, key_type), _keyed(second, key2, key_type))

    def process(
        self,
        func: KeyedCoProcessFunction | CoProcessFunction,
        output_type: Declared,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a `KeyedCoProcessFunction` to keyed streams, a `CoProcessFunction` to others."""
        keyed = isinstance(self._first, KeyedStream)
        wanted = KeyedCoProcessFunction if keyed else CoProcessFunction
        if not isinstance(func, wanted):
            raise InvalidInputError(
                f"process on connected streams {'with' if keyed else 'without'} keys takes a {wanted.__name__}, not "
                f"{type(func).__name__}"
            )
        timers = keyed and getattr(type(func), "on_timer", None) is not KeyedCoProcessFunction.on_timer
        output = output_type_of(output_type)
        request = OperatorRequest(func, output, uid, name or type(func).__name__, CO, timers)
        return with_two_inputs(self._first, self._second, request)

    def map(
        self, func: CoMapFunction, output_type: Declared, uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """One value out for every value of either stream."""
        return self._apply("map", func, CoMapFunction, output_type, uid, name)

    def flat_map(
        self, func: CoFlatMapFunction, output_type: Declared, uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """Any number of values out for every value of either stream."""
        return self._apply("flat_map", func, CoFlatMapFunction, output_type, uid, name)

    def _apply(
        self, kind: str, func: Any, wanted: type[Any], output_type: Declared, uid: str | None, name: str | None
    ) -> DataStream:
        if not isinstance(func, wanted):
            raise InvalidInputError(f"{kind} on connected streams takes a {wanted.__name__}, not {type(func).__name__}")
        label = name or function_name(func)
        request = OperatorRequest(CoSimple(kind, func, uid or label), output_type_of(output_type), uid, label, CO)
        return with_two_inputs(self._first, self._second, request)


def _keyed(stream: DataStream, key: Any, key_type: str | DataType | None) -> KeyedStream:
    if is_function_key(key):
        return stream.key_by(key, key_type=key_type)
    if isinstance(key, (str, Column)) or not isinstance(key, Sequence):
        return stream.key_by(key)
    return stream.key_by(*key)


class BroadcastConnectedStream:
    """A stream, keyed or not, connected to a broadcast one."""

    def __init__(self, first: Side, second: BroadcastStream) -> None:
        self.env = first.env
        self._first = first
        self._second = second

    def process(
        self,
        func: BroadcastProcessFunction,
        output_type: Declared,
        uid: str | None = None,
        name: str | None = None,
    ) -> DataStream:
        """Apply a `KeyedBroadcastProcessFunction` if the stream is keyed, else a `BroadcastProcessFunction`."""
        keyed = isinstance(self._first, KeyedStream)
        function: Any = func
        of_keyed = isinstance(function, KeyedBroadcastProcessFunction)
        if not isinstance(function, BroadcastProcessFunction) or of_keyed is not keyed:
            wanted = KeyedBroadcastProcessFunction if keyed else BroadcastProcessFunction
            raise InvalidInputError(
                f"process on a broadcast stream and a stream {'with' if keyed else 'without'} keys takes a "
                f"{wanted.__name__}, not {type(func).__name__}"
            )
        if not self._second.descriptors:
            raise InvalidInputError(
                "the broadcast stream has no state: give broadcast(...) at least one MapStateDescriptor"
            )
        timers = keyed and getattr(type(func), "on_timer", None) is not KeyedBroadcastProcessFunction.on_timer
        request = OperatorRequest(
            func, output_type_of(output_type), uid, name or type(func).__name__, BROADCAST, timers,
            broadcast=self._second.descriptors,
        )  # fmt: skip
        return with_two_inputs(self._first, self._second.stream, request)


def with_two_inputs(first: Side, second: Side, request: OperatorRequest) -> DataStream:
    """Add an operator that reads both streams. Returns its main output."""
    node = add_two_input_operator(first.env.definition, request, first.input, second.input)
    return DataStream(first.env, node, request.output.bare)
