"""The interval join of keyed streams: `keyed.interval_join(other)`, and what can be set on it."""

from __future__ import annotations

from typing import Any

from cairn.api.data_stream import DataStream, check_same_job
from cairn.api.keyed_stream import KeyedStream
from cairn.errors import InvalidInputError
from cairn.model.descriptors import Time
from cairn.model.output_tags import OutputTag, check_tag
from cairn.model.process_functions import ProcessJoinFunction
from cairn.spark.operator_request import OperatorRequest
from cairn.spark.output_types import Declared, output_type_of
from cairn.spark.stream_joins import Interval, add_interval_join, bounds_of, check_event_time


class IntervalJoin:
    """An interval join in the making: `a.interval_join(b).between(Time.seconds(-5), Time.seconds(5)).process(...)`."""

    def __init__(self, left: KeyedStream, right: Any) -> None:
        if not isinstance(right, KeyedStream):
            raise InvalidInputError(
                f"interval_join takes a keyed stream, not {type(right).__name__}: call key_by(...) on it"
            )
        check_same_job(left, right, "interval_join")
        check_event_time(left.input, right.input, "interval_join")
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
        output = output_type_of(output_type)
        request = OperatorRequest(func, output, uid, name or type(func).__name__)
        interval = Interval((lower, upper), late=(self._late[0], self._late[1]))
        env = self._left.env
        joined = add_interval_join(env.definition, request, self._left.input, self._right.input, interval)
        return DataStream(env, joined, output.bare)
