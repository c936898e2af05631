"""Joins of two keyed streams, as requests for operators with two inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StructField, StructType

from cairn.errors import InvalidInputError
from cairn.model.ddl import as_type
from cairn.model.descriptors import Time
from cairn.model.output_tags import OutputTag, check_same_columns
from cairn.runtime.join_functions import HistoryJoin, IntervalJoinFunction, JoinedRows
from cairn.runtime.operator_kinds import CO
from cairn.spark.job_definition import JobDefinition
from cairn.spark.operator_request import OperatorRequest, add_two_input_operator, side_output
from cairn.spark.output_types import output_type_of
from cairn.spark.stream_graph import OutputNode
from cairn.spark.stream_input import StreamInput, event_time_of

_OUTER = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}


@dataclass(frozen=True, slots=True)
class Interval:
    """The rows that an interval join pairs, and what becomes of the others."""

    bounds: tuple[int, int]
    """A left row at t is paired with right rows from t + lower to t + upper, in milliseconds, both included."""
    outer: tuple[bool, bool] = (False, False)
    """Whether rows of the left and of the right side are put out without a partner when their time is over."""
    late: tuple[OutputTag | None, OutputTag | None] = (None, None)
    """The side outputs of late rows of the left and of the right side."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The arguments of `KeyedStream.join`."""

    how: str
    between: tuple[Time | int, Time | int] | None
    ttl: Time | None
    uid: str | None
    name: str


def add_join(job: JobDefinition, join: JoinRequest, left: StreamInput, right: StreamInput) -> OutputNode:
    """Add a join that puts out the columns of both sides."""
    if join.how not in _OUTER:
        raise InvalidInputError(f"join: how is one of {', '.join(_OUTER)}, not {join.how!r}")
    output = output_type_of(_joined_schema(left.schema, right.schema))
    rows = JoinedRows((len(left.schema), len(right.schema)), (left.bare, right.bare))
    request = OperatorRequest(rows, output, join.uid, join.name, CO)
    if join.between is not None:
        if join.ttl is not None:
            raise InvalidInputError("join: with between=... rows go when their time is over; leave out ttl")
        check_event_time(left, right, "join with between=...")
        interval = Interval(bounds_of(*join.between), outer=_OUTER[join.how])
        return add_interval_join(job, request, left, right, interval)
    if join.how != "inner":
        raise InvalidInputError(
            f"join: a {join.how} join needs between=(lower, upper): without bounds, it is never certain that a row "
            "has no match"
        )
    check_same_keys(left, right)
    ttl: Any = 0 if join.ttl is None else getattr(join.ttl, "to_milliseconds", lambda: 0)()
    if join.ttl is not None and ttl <= 0:
        raise InvalidInputError(f"join: ttl is a positive Time such as Time.hours(1), not {join.ttl!r}")
    function = HistoryJoin(rows, (left.row_type().ddl, right.row_type().ddl), ttl)
    return add_two_input_operator(job, replace(request, function=function), left, right)


def add_interval_join(
    job: JobDefinition, request: OperatorRequest, left: StreamInput, right: StreamInput, interval: Interval
) -> OutputNode:
    """Add an interval join. The function of the request is the `ProcessJoinFunction` that sees the pairs."""
    for tag, stream in zip(interval.late, (left, right), strict=True):
        if tag is not None:
            check_same_columns(tag, [as_type(field.dataType.simpleString()).ddl for field in stream.schema.fields])
    types = (left.row_type().ddl, right.row_type().ddl)
    function = IntervalJoinFunction(request.function, interval.bounds, types, interval.outer, interval.late)
    joined = add_two_input_operator(job, replace(request, function=function, kind=CO, timers=True), left, right)
    for tag in interval.late:
        if tag is not None:  # late rows must find their output also if nobody reads it
            side_output(joined, tag)
    return joined


def check_event_time(left: StreamInput, right: StreamInput, call: str) -> None:
    """Both sides are keyed alike, and have event time."""
    check_same_keys(left, right)
    for side, stream in (("left", left), ("right", right)):
        if event_time_of(stream.schema) < 0:
            raise InvalidInputError(
                f"{call}: the {side} stream has no event time; declare it with transform(lambda df: "
                "df.withWatermark('<time column>', '10 seconds'))"
            )


def check_same_keys(first: StreamInput, second: StreamInput) -> None:
    types = [[ddl for _, ddl in stream.key.types] if stream.key is not None else [] for stream in (first, second)]
    if types[0] != types[1]:
        raise InvalidInputError(
            f"the two streams have keys of different types, ({', '.join(types[0])}) and ({', '.join(types[1])}); equal "
            "keys must have equal types: cast a column, as in key_by(F.col('id').cast('bigint'))"
        )


def bounds_of(lower: Time | int, upper: Time | int) -> tuple[int, int]:
    """The bounds of an interval in milliseconds."""
    bounds = []
    for bound in (lower, upper):
        if isinstance(bound, bool) or not isinstance(bound, (Time, int)):
            raise InvalidInputError(f"a bound is a Time such as Time.seconds(-5), or whole milliseconds, not {bound!r}")
        bounds.append(bound.to_milliseconds() if isinstance(bound, Time) else bound)
    if bounds[0] > bounds[1]:
        raise InvalidInputError(f"the lower bound, {bounds[0]} ms, is above the upper one, {bounds[1]} ms")
    return bounds[0], bounds[1]


def _joined_schema(left: StructType, right: StructType) -> StructType:
    """The columns of both sides. One of the right side whose name the left side has gets `_right` behind it."""
    taken = {name.lower() for name in left.names}
    fields = [StructField(field.name, field.dataType) for field in left.fields]
    for field in right.fields:
        name = f"{field.name}_right" if field.name.lower() in taken else field.name
        if name.lower() in taken:
            raise InvalidInputError(f"join: both sides have columns '{field.name}' and '{name}'; rename one of them")
        taken.add(name.lower())
        fields.append(StructField(name, field.dataType))
    return StructType(fields)
