"""Two connected streams, and the operators that see the rows of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame

from cairn.api.data_stream import DataStream, Declared, Key, function_name, is_function_key, slug
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
from cairn.runtime.operator_spec import InputSpec, OperatorSpec
from cairn.spark.operator_plan import (
    arrow_schema_of,
    check_pickles,
    event_time_of,
    output_type_of,
    run_operator,
    two_inputs,
)
from cairn.spark.plan_checks import refuse_native_state

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
        _same_job(first, second.stream)
        return BroadcastConnectedStream(first, second)
    if not isinstance(second, (DataStream, KeyedStream)):
        raise InvalidInputError(f"connect takes a stream or a broadcast stream, not {type(second).__name__}")
    if isinstance(first, KeyedStream) is not isinstance(second, KeyedStream):
        raise InvalidInputError(
            "connect: one of the two streams is keyed and the other is not; key both, or connect them first and call "
            "key_by(...) on the result"
        )
    _same_job(first, second)
    return ConnectedStreams(first, second)


def _same_job(first: Side, second: Side) -> None:
    if first.env is not second.env:
        raise InvalidInputError("connect: the streams belong to two environments, that is, to two jobs")


class ConnectedStreams:
    """Two connected streams."""

    def __init__(self, first: Side, second: Side) -> None:
        self.env = first.env
        self._first = first
        self._second = second
        if isinstance(first, KeyedStream) and isinstance(second, KeyedStream):
            check_same_keys(first, second)

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
        return two_input_operator(
            self._first, self._second, func, output_type, uid, name or type(func).__name__, CO, timers
        )

    def map(
        self, func: CoMapFunction, output_type: Declared, uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """One value out for every value of either stream."""
        return self._simple("map", func, CoMapFunction, output_type, uid, name)

    def flat_map(
        self, func: CoFlatMapFunction, output_type: Declared, uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """Any number of values out for every value of either stream."""
        return self._simple("flat_map", func, CoFlatMapFunction, output_type, uid, name)

    def _simple(
        self, kind: str, func: Any, wanted: type[Any], output_type: Declared, uid: str | None, name: str | None
    ) -> DataStream:
        if not isinstance(func, wanted):
            raise InvalidInputError(f"{kind} on connected streams takes a {wanted.__name__}, not {type(func).__name__}")
        label = name or function_name(func)
        return two_input_operator(
            self._first, self._second, CoSimple(kind, func, uid or label), output_type, uid, label, CO, False
        )


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
        given: Any = func
        of_keyed = isinstance(given, KeyedBroadcastProcessFunction)
        if not isinstance(given, BroadcastProcessFunction) or of_keyed is not keyed:
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
        return two_input_operator(
            self._first, self._second.stream, func, output_type, uid, name or type(func).__name__, BROADCAST, timers,
            self._second.descriptors,
        )  # fmt: skip


def check_same_keys(first: KeyedStream, second: KeyedStream) -> None:
    types = [[dtype.ddl for _, dtype in side._key_types] for side in (first, second)]
    if types[0] != types[1]:
        raise InvalidInputError(
            f"the two streams have keys of different types, ({', '.join(types[0])}) and ({', '.join(types[1])}); equal "
            "keys must have equal types: cast a column, as in key_by(F.col('id').cast('bigint'))"
        )


def two_input_operator(
    first: Side, second: Side, function: Any, output_type: Declared, uid: str | None, name: str, kind: str,
    timers: bool, broadcast: tuple[MapStateDescriptor, ...] = (),
) -> DataStream:  # fmt: skip
    """Add an operator with two inputs. Keyed if the first one is; the second one then is, too, unless broadcast."""
    env = first.env
    claimed = env._claim_uid(uid, slug(name), "operator")
    check_pickles(function, claimed)
    parallelism, groups = env._parallelism()
    output = output_type_of(output_type)
    streams = [side._stream if isinstance(side, KeyedStream) else side for side in (first, second)]
    for stream in streams:
        refuse_native_state(stream.df)
    schemas = [side.schema if isinstance(side, KeyedStream) else side.df.schema for side in (first, second)]
    keys: list[tuple[str, str]] = []
    key_types: tuple[tuple[str, str], ...] = ()
    if isinstance(first, KeyedStream):
        others = second._key_names if isinstance(second, KeyedStream) else first._key_names
        keys = list(zip(first._key_names, others, strict=True))
        key_types = first._stored_key_types()
    spec = OperatorSpec(
        uid=claimed, name=name, function=function, vectorised=False, parallelism=parallelism, max_parallelism=groups,
        key_columns=tuple(range(len(keys))), key_types=key_types, columns=tuple(schemas[0].names),
        output=arrow_schema_of(output.schema), event_time=event_time_of(schemas[0]), backend=env._settings.backend,
        kind=kind, bare_in=streams[0].bare, bare_out=output.bare,
        second=InputSpec(tuple(schemas[1].names), event_time_of(schemas[1]), streams[1].bare), broadcast=broadcast,
    )  # fmt: skip

    def make(frames: Any, tagged: bool, sides: Any) -> DataFrame:
        inputs = [
            side._with_keys(frame) if isinstance(side, KeyedStream) else frame
            for side, frame in zip((first, second), frames, strict=True)
        ]
        names = (schemas[0].names, schemas[1].names)
        now = env._settled(spec)
        shuffled = two_inputs(inputs[0], inputs[1], keys, names, parallelism, now.max_parallelism, bool(broadcast))
        return run_operator(now, shuffled, output.schema, tagged, sides, env._acks())

    env._add_operator(spec, timers)
    return streams[0]._function(claimed, [stream.node for stream in streams], make, output.bare)
