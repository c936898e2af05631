"""What a windowed stream was told, checked, and made into the function that runs it, for the API and the harness."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cairn.errors import InvalidInputError
from cairn.model.assigners import CountSlidingWindowAssigner, GlobalWindows, SessionWindows, TimeWindows
from cairn.model.functions import AggregateFunction, ReduceFunction
from cairn.model.output_tags import OutputTag, check_same_columns
from cairn.model.triggers import ContinuousEventTimeTrigger, EventTimeTrigger, PurgingTrigger, without_timers
from cairn.model.windows import (
    AllWindowFunction,
    MergingWindowAssigner,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    Trigger,
    WindowAssigner,
    WindowFunction,
)
from cairn.runtime.windowing.window_contents import Contents
from cairn.runtime.windowing.window_operator import ColumnAggregate, WindowedValue, WindowOperator

NO_EVENT_TIME = (
    "{} works on event time, and the stream has none: name its time column with "
    'with_watermark("<time column>", Time.seconds(10)) before key_by(...)'
)


@dataclass(slots=True)
class WindowPlan:
    """A window in the making."""

    assigner: WindowAssigner[Any, Any]
    event_time: bool
    """Whether the stream has a column of event time."""
    row_type: str
    """The type of its elements."""
    given_trigger: Trigger[Any, Any] | None = None
    lateness: int = 0
    late: OutputTag | None = None

    def __post_init__(self) -> None:
        given: Any = self.assigner
        if not isinstance(given, WindowAssigner):
            hint = f"; call {given.__name__}.of(...)" if isinstance(given, type) else ""
            raise InvalidInputError(f"window takes a WindowAssigner, not {type(given).__name__}{hint}")
        if self.assigner.is_event_time() and not self.event_time:
            raise InvalidInputError(NO_EVENT_TIME.format(type(self.assigner).__name__))

    @property
    def trigger(self) -> Trigger[Any, Any]:
        return self.given_trigger or self.assigner.get_default_trigger(None)

    def set_trigger(self, trigger: Any) -> None:
        if not isinstance(trigger, Trigger):
            raise InvalidInputError(f"trigger takes a Trigger, not {type(trigger).__name__}")
        if isinstance(self.assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise InvalidInputError(
                f"{type(self.assigner).__name__} merges windows, and {type(trigger).__name__} cannot: it must say so "
                "in can_merge() and define on_merge(window, ctx)"
            )
        innermost = trigger
        while isinstance(innermost, PurgingTrigger):
            innermost = innermost.nested_trigger
        if isinstance(innermost, (EventTimeTrigger, ContinuousEventTimeTrigger)) and not self.event_time:
            raise InvalidInputError(NO_EVENT_TIME.format(type(innermost).__name__))
        self.given_trigger = trigger

    def set_lateness(self, lateness: int) -> None:
        if lateness < 0:
            raise InvalidInputError(f"the allowed lateness cannot be negative, as {lateness} ms is")
        self._only_event_time("allowed_lateness")
        self.lateness = lateness

    def set_late(self, tag: Any, columns: Iterable[str]) -> None:
        """`columns` are the types of the stream's columns: what is late goes out as it came in."""
        if not isinstance(tag, OutputTag):
            raise InvalidInputError(f"side_output_late_data takes an OutputTag, not {type(tag).__name__}")
        self._only_event_time("side_output_late_data")
        check_same_columns(tag, columns)
        self.late = tag

    def _only_event_time(self, call: str) -> None:
        if not self.assigner.is_event_time():
            raise InvalidInputError(
                f"{call}: nothing is late in {type(self.assigner).__name__}, which does not work on event time"
            )

    @property
    def timers(self) -> bool:
        """Whether time must advance without rows."""
        untimed = isinstance(self.assigner, (GlobalWindows, CountSlidingWindowAssigner))
        return not (untimed and without_timers(self.trigger))

    @property
    def time_windows(self) -> bool:
        """Whether windows have a start and an end."""
        return isinstance(self.assigner, (TimeWindows, SessionWindows))

    @property
    def columnar(self) -> bool:
        """Whether aggregations of a column can take the fast way."""
        own_trigger = self.given_trigger is None or type(self.given_trigger) is EventTimeTrigger
        return isinstance(self.assigner, TimeWindows) and self.assigner.is_event_time() and own_trigger

    # The functions.

    def reduce(self, function: Any, window_function: Any = None) -> WindowOperator:
        if not isinstance(function, ReduceFunction) and not callable(function):
            raise InvalidInputError("reduce takes a ReduceFunction or a function of two elements")
        return self._operator(Contents("reduce", self.row_type, function), _function(window_function, "reduce", True))

    def aggregate(self, function: Any, accumulator_type: str, window_function: Any = None) -> WindowOperator:
        if not isinstance(function, AggregateFunction):
            raise InvalidInputError(f"aggregate takes an AggregateFunction, not {type(function).__name__}")
        merges = type(function).merge is not AggregateFunction.merge
        if isinstance(self.assigner, MergingWindowAssigner) and not merges:
            raise InvalidInputError(
                f"{type(self.assigner).__name__} merges windows: {type(function).__name__} must define "
                "merge(acc_a, acc_b)"
            )
        contents = Contents("aggregate", accumulator_type, function)
        return self._operator(contents, _function(window_function, "aggregate", True))

    def process(self, function: Any, call: str = "process") -> WindowOperator:
        return self._operator(Contents("elements", self.row_type), _function(function, call, False))

    def column(self, kind: str, column: int, bare: bool, result: str, keys: int) -> WindowOperator:
        """An aggregation of a column: see `ColumnAggregate`. `result` is the type of a single value."""
        function = ColumnAggregate(kind, column, bare)
        contents = Contents("aggregate", f"struct<count:bigint,value:{result}>", function)
        return self._operator(contents, WindowedValue(keys, self.time_windows))

    def _operator(self, contents: Contents, function: Any) -> WindowOperator:
        return WindowOperator(self.assigner, self.trigger, contents, function, self.lateness, self.late)


class AllProcess(ProcessWindowFunction[Any, Any, Any, Any]):
    """A function for a stream without key, which is not told the key that all rows have."""

    def __init__(self, function: ProcessAllWindowFunction[Any, Any, Any] | AllWindowFunction[Any, Any, Any]) -> None:
        self._function = function

    def open(self, runtime_context: Any) -> None:
        self._function.open(runtime_context)

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        if isinstance(self._function, ProcessAllWindowFunction):
            return self._function.process(context, elements)
        return self._function.apply(context.window(), elements)

    def clear(self, context: Any) -> None:
        if isinstance(self._function, ProcessAllWindowFunction):
            self._function.clear(context)

    def close(self) -> None:
        self._function.close()


_FUNCTIONS = (ProcessWindowFunction, WindowFunction, ProcessAllWindowFunction, AllWindowFunction)


def _function(function: Any, call: str, optional: bool) -> Any:
    if optional and function is None:
        return None
    if not isinstance(function, _FUNCTIONS):
        wanted = "WindowFunction" if call == "apply" else "ProcessWindowFunction"
        raise InvalidInputError(f"{call} of a window takes a {wanted}, not {type(function).__name__}")
    return AllProcess(function) if isinstance(function, (ProcessAllWindowFunction, AllWindowFunction)) else function


__all__ = ["NO_EVENT_TIME", "WindowPlan"]
