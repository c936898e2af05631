"""Joins of keyed streams: the interval join, and a join of streams built on it."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructField, StructType

from cairn.api.connected_streams import check_same_keys, two_input_operator
from cairn.api.data_stream import DataStream, Declared
from cairn.api.keyed_stream import KeyedStream
from cairn.errors import InvalidInputError
from cairn.model.ddl import as_type, parse_type
from cairn.model.descriptors import Time
from cairn.model.output_tags import OutputTag, check_same_columns, check_tag
from cairn.model.process_functions import ProcessJoinFunction
from cairn.model.types import Types
from cairn.runtime import join_functions
from cairn.runtime.operator_kinds import CO
from cairn.spark.operator_plan import event_time_of

_OUTER = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}
_BOUND = "a bound is a Time such as Time.seconds(-5), or whole milliseconds"


class IntervalJoin:
    """An interval join in the making: `a.interval_join(b).between(Time.seconds(-5), Time.seconds(5)).process(...)`."""

    def __init__(self, left: KeyedStream, right: Any) -> None:
        if not isinstance(right, KeyedStream):
            raise InvalidInputError(
                f"interval_join takes a keyed stream, not {type(right).__name__}: call key_by(...) on it"
            )
        check_sides(left, right, "interval_join")
        self._left = left
        self._right = right
        self._bounds: tuple[int, int] | None = None
        self._exclusive = [False, False]
        self._late: list[OutputTag | None] = [None, None]

    def between(self, lower_bound: Time | int, upper_bound: Time | int) -> IntervalJoin:
        """Pairs a left row at t with right rows from t + lower to t + upper, both included."""
        self._bounds = bounds_of(lower_bound, upper_bound)
        return self

    def lower_bound_exclusive(self) -> IntervalJoin:
        self._exclusive[0] = True
        return self

    def upper_bound_exclusive(self) -> IntervalJoin:
        self._exclusive[1] = True
        return self

    def side_output_left_late_data(self, output_tag: OutputTag) -> IntervalJoin:
        """Left rows that are older than the watermark go to this side output instead of nowhere."""
        check_tag(output_tag)
        self._late[0] = output_tag
        return self

    def side_output_right_late_data(self, output_tag: OutputTag) -> IntervalJoin:
        """Right rows that are older than the watermark go to this side output instead of nowhere."""
        check_tag(output_tag)
        self._late[1] = output_tag
        return self

    def process(
        self, func: ProcessJoinFunction, output_type: Declared, uid: str | None = None, name: str | None = None
    ) -> DataStream:
        """Apply a `ProcessJoinFunction` to every pair."""
        if not isinstance(func, ProcessJoinFunction):
            raise InvalidInputError(f"process of a join takes a ProcessJoinFunction, not {type(func).__name__}")
        if self._bounds is None:
            raise InvalidInputError("interval_join: call between(lower, upper) before process(...)")
        lower, upper = self._bounds[0] + self._exclusive[0], self._bounds[1] - self._exclusive[1]
        if lower > upper:
            raise InvalidInputError(f"interval_join: no time lies between {self._bounds} with these bounds left out")
        return _interval(
            self._left, self._right, func, output_type, uid, name or type(func).__name__, (lower, upper),
            late=(self._late[0], self._late[1]),
        )  # fmt: skip


def join(
    left: KeyedStream, right: KeyedStream, how: str, between: tuple[Time | int, Time | int] | None,
    ttl: Time | None, uid: str | None, name: str | None,
) -> DataStream:  # fmt: skip
    """`KeyedStream.join`."""
    if how not in _OUTER:
        raise InvalidInputError(f"join: how is one of {', '.join(_OUTER)}, not {how!r}")
    if not isinstance(right, KeyedStream):
        raise InvalidInputError(f"join takes a keyed stream, not {type(right).__name__}: call key_by(...) on it")
    streams = (left._stream, right._stream)
    schema = _joined_schema(left.schema, right.schema)
    rows = join_functions.JoinedRows((len(left.schema), len(right.schema)), (streams[0].bare, streams[1].bare))
    if between is not None:
        if ttl is not None:
            raise InvalidInputError("join: with between=... rows go when their time is over; leave out ttl")
        check_sides(left, right, "join with between=...")
        bounds = bounds_of(*between)
        return _interval(left, right, rows, schema, uid, name or "Join", bounds, outer=_OUTER[how])
    if how != "inner":
        raise InvalidInputError(
            f"join: a {how} join needs between=(lower, upper): without bounds in event time nobody knows that a row "
            "has no partner"
        )
    _check_alike(left, right, "join")
    kept: Any = 0 if ttl is None else getattr(ttl, "to_milliseconds", lambda: 0)()
    if ttl is not None and kept <= 0:
        raise InvalidInputError(f"join: ttl is a positive Time such as Time.hours(1), not {ttl!r}")
    function = join_functions.HistoryJoin(rows, _row_types(left, right), kept)
    return two_input_operator(left, right, function, schema, uid, name or "Join", CO, False)


def _interval(
    left: KeyedStream, right: KeyedStream, func: ProcessJoinFunction, output: Declared, uid: str | None, name: str,
    bounds: tuple[int, int], outer: tuple[bool, bool] = (False, False),
    late: tuple[OutputTag | None, OutputTag | None] = (None, None),
) -> DataStream:  # fmt: skip
    for tag, stream in zip(late, (left, right), strict=True):
        if tag is not None:
            check_same_columns(tag, [as_type(field.dataType.simpleString()).ddl for field in stream.schema.fields])
    function = join_functions.IntervalJoin(func, bounds, _row_types(left, right), outer, late)
    made = two_input_operator(left, right, function, output, uid, name, CO, True)
    for tag in late:
        if tag is not None:  # late rows must find their output also if nobody reads it
            made.get_side_output(tag)
    return made


def check_sides(left: KeyedStream, right: KeyedStream, what: str) -> None:
    """Both sides are of one job, keyed alike, and have event time."""
    _check_alike(left, right, what)
    for side, stream in (("left", left), ("right", right)):
        if event_time_of(stream.schema) < 0:
            raise InvalidInputError(
                f"{what}: the {side} stream has no event time; declare it with transform(lambda df: "
                "df.withWatermark('<time column>', '10 seconds'))"
            )


def _check_alike(left: KeyedStream, right: KeyedStream, what: str) -> None:
    if left.env is not right.env:
        raise InvalidInputError(f"{what}: the streams belong to two environments, that is, to two jobs")
    check_same_keys(left, right)


def bounds_of(lower: Time | int, upper: Time | int) -> tuple[int, int]:
    bounds = []
    for bound in (lower, upper):
        if isinstance(bound, bool) or not isinstance(bound, (Time, int)):
            raise InvalidInputError(f"{_BOUND}, not {bound!r}")
        bounds.append(bound.to_milliseconds() if isinstance(bound, Time) else bound)
    if bounds[0] > bounds[1]:
        raise InvalidInputError(f"the lower bound, {bounds[0]} ms, is above the upper one, {bounds[1]} ms")
    return bounds[0], bounds[1]


def _row_types(left: KeyedStream, right: KeyedStream) -> tuple[str, str]:
    """The types of the rows of both sides, as they are kept in state."""
    found = []
    for stream in (left, right):
        fields = [(field.name, parse_type(field.dataType.simpleString())) for field in stream.schema.fields]
        row = fields[0][1] if stream._stream.bare else Types.ROW_NAMED([n for n, _ in fields], [t for _, t in fields])
        found.append(row.ddl)
    return found[0], found[1]


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
