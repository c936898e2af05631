"""The window operator: assigns elements to windows, asks the trigger, puts out results, cleans up. Row by row.

It is a process function on a keyed stream like those of users. The meaning of every step is Flink's;
docs/design/0005-windows.md describes the differences in time. Common aggregations take the faster path of
`aggregate_operator.py`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any

from cairn.errors import StateMisuseError, UserFunctionError
from cairn.model.functions import AggregateFunction, KeyedProcessFunction, ReduceFunction, RuntimeContext, TimeDomain
from cairn.model.manifest import NO_WATERMARK
from cairn.model.output_tags import OutputTag
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.simple_functions import Function
from cairn.model.types import EPOCH_UTC
from cairn.model.windows import (
    MAX_TIME,
    CountWindow,
    MergingWindowAssigner,
    ProcessWindowFunction,
    Trigger,
    TriggerResult,
    WindowAssigner,
    WindowFunction,
)
from cairn.runtime.map_functions import checked_rows
from cairn.runtime.windowing.merging_windows import MergingWindows
from cairn.runtime.windowing.window_contents import Contents, checked_window, contents_of
from cairn.runtime.windowing.window_state import NoWindowState, Numbers, Scope, WindowStates
from cairn.runtime.windowing.window_timers import WindowTimers


class WindowOperator(KeyedProcessFunction):
    """A window of a keyed stream as a process function."""

    def __init__(
        self,
        assigner: WindowAssigner[Any, Any],
        trigger: Trigger[Any, Any],
        contents: Contents,
        function: ProcessWindowFunction[Any, Any, Any, Any] | WindowFunction[Any, Any, Any, Any] | None,
        lateness: int = 0,
        late: OutputTag | None = None,
    ) -> None:
        self._assigner = assigner
        self._trigger = trigger
        self._kept = contents
        self._function = function
        self._lateness = lateness
        self._late = late

    def open(self, runtime_context: RuntimeContext) -> None:
        self._runtime = runtime_context
        self._serializer = self._assigner.get_window_serializer()
        self._event_time = self._assigner.is_event_time()
        self._contents = contents_of(self._kept, runtime_context)
        self._timers = WindowTimers(runtime_context)
        self._scope = Scope()
        self._trigger_states = WindowStates(runtime_context, self._scope, "trigger")
        self._merging: MergingWindows | None = None
        self._window_states: WindowStates | NoWindowState = WindowStates(runtime_context, self._scope, "window")
        if isinstance(self._assigner, MergingWindowAssigner):
            self._merging = MergingWindows(runtime_context, self._assigner, self._serializer)
            self._window_states = NoWindowState()
        for descriptor in self._trigger.state_descriptors():
            self._trigger_states.of(descriptor)
        for of_key in self._assigner.state_descriptors():
            runtime_context.get_state(of_key)
        for part in (self._function, self._kept.function):
            if isinstance(part, (Function, ReduceFunction)):
                part.open(runtime_context)

    def close(self) -> None:
        for part in (self._function, self._kept.function):
            if isinstance(part, (Function, ReduceFunction)):
                part.close()

    # Elements.

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        at = ctx.timestamp()
        service = ctx.timer_service()
        if at is None:
            if self._event_time:
                raise UserFunctionError(
                    "a row has no event time, so no event-time window: filter out rows whose time is null"
                )
            at = service.current_processing_time()
        view = _View(self, ctx)
        in_time = False
        for assigned in self._assigner.assign_windows(value, at, view):
            window = assigned
            if self._merging is not None:
                window = self._merging.add(assigned, view.merged)
            numbers = checked_window(window, self._serializer)
            if self._is_late(window, view):
                if self._merging is not None:
                    self._merging.retire(numbers)
                continue
            in_time = True
            place = self._place(numbers)
            assert place is not None
            self._contents.add(place, value)
            view.enter(window, numbers)
            result = self._trigger.on_element(value, at, window, view)
            yield from self._outcome(result, view, place)
            self._timers.register(self._domain(), self._cleanup_time(window), numbers, service)
        if not in_time and self._late is not None and self._event_time and at + self._lateness <= view.watermark:
            yield self._late, value

    def _place(self, window: Numbers) -> Numbers | None:
        """Under which window the contents of a window lie; None if it is no more."""
        return window if self._merging is None else self._merging.contents_window(window)

    def _domain(self) -> TimeDomain:
        return TimeDomain.EVENT_TIME if self._event_time else TimeDomain.PROCESSING_TIME

    def _cleanup_time(self, window: Any) -> int:
        end: int = window.max_timestamp()
        return min(end + self._lateness, MAX_TIME) if self._event_time else end

    def _is_late(self, window: Any, view: _View) -> bool:
        return self._event_time and self._cleanup_time(window) <= view.watermark

    # Timers.

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        domain = ctx.time_domain()
        time = timestamp - 1
        view = _View(self, ctx)
        for numbers in self._timers.take(domain, timestamp):
            place = self._place(numbers)
            if place is None:
                continue
            window = self._serializer.from_numbers(*numbers)
            view.enter(window, numbers)
            if domain is TimeDomain.EVENT_TIME:
                result = self._trigger.on_event_time(time, window, view)
            else:
                result = self._trigger.on_processing_time(time, window, view)
            yield from self._outcome(result, view, place)
            if domain is self._domain() and time == self._cleanup_time(window):
                self._clear(view, place)

    # What becomes of a window.

    def _outcome(self, result: TriggerResult, view: _View, place: Numbers) -> Iterator[Any]:
        if not isinstance(result, TriggerResult):
            raise UserFunctionError(f"{type(self._trigger).__name__} gave {result!r}, which is no TriggerResult")
        if result.is_fire():
            elements = self._contents.get(place)
            if elements is not None:
                yield from self._results(elements, view)
        if result.is_purge():
            self._contents.clear(place)
            if isinstance(view.window(), CountWindow):
                self._clear(view, place)  # it is full, and no element will come into it any more

    def _results(self, elements: list[Any], view: _View) -> Iterable[Any]:
        function = self._function
        if function is None:
            return elements
        key = view.key()
        if isinstance(function, ProcessWindowFunction):
            result: Any = function.process(key, view, elements)
            call = "process"
        else:
            result = function.apply(key, view.window(), elements)
            call = "apply"
        return () if result is None else checked_rows(result, type(function).__name__, call)

    def _clear(self, view: _View, place: Numbers) -> None:
        self._contents.clear(place)
        self._trigger.clear(view.window(), view)
        if isinstance(self._function, ProcessWindowFunction):
            self._function.clear(view)
        if self._merging is not None:
            self._merging.retire(view.numbers)


class _View(PyFlinkNames):
    """What assigners, triggers and window functions are given: `WindowAssignerContext`, `OnMergeContext` and
    `ProcessWindowFunction.Context` in one, for one element or timer.
    """

    def __init__(self, operator: WindowOperator, ctx: Any) -> None:
        self._operator = operator
        self._ctx = ctx
        self._service = ctx.timer_service()
        watermark: int = self._service.current_watermark()
        self.watermark = watermark - 1 if watermark > NO_WATERMARK else watermark
        """Flink's: nothing at or before this time will come."""
        self._window: Any = None
        self.numbers: Numbers = (0, 0)
        self._sources: list[Numbers] | None = None

    def enter(self, window: Any, numbers: Numbers) -> None:
        """Make a window the current one."""
        self._window = window
        self.numbers = numbers
        self._operator._scope.window = numbers

    def merged(self, result: Any, windows: list[Any], target: Numbers, sources: list[Numbers]) -> None:
        """Windows have become one: merge what triggers know of them, then their contents."""
        operator = self._operator
        if operator._is_late(result, self):
            raise UserFunctionError(
                f"{type(operator._assigner).__name__} merged windows into {result!r}, which is over already"
            )
        numbers = operator._serializer.to_numbers
        made = numbers(result)
        self._sources = [each for each in map(numbers, windows) if each != made]
        self.enter(result, made)
        operator._trigger.on_merge(result, self)
        self._sources = None
        for window in windows:
            old = numbers(window)
            if old == made:
                continue
            self.enter(window, old)
            operator._trigger.clear(window, self)
            operator._timers.delete(operator._domain(), operator._cleanup_time(window), old, self._service)
        if sources:
            operator._contents.merge(target, sources)

    # Assigners and triggers.

    def get_current_processing_time(self) -> int:
        time: int = self._service.current_processing_time()
        return time

    def get_current_watermark(self) -> int:
        return self.watermark

    def get_runtime_context(self) -> RuntimeContext:
        return self._operator._runtime

    def register_event_time_timer(self, time: int) -> None:
        self._operator._timers.register(TimeDomain.EVENT_TIME, time, self.numbers, self._service)

    def register_processing_time_timer(self, time: int) -> None:
        self._operator._timers.register(TimeDomain.PROCESSING_TIME, time, self.numbers, self._service)

    def delete_event_time_timer(self, time: int) -> None:
        self._operator._timers.delete(TimeDomain.EVENT_TIME, time, self.numbers, self._service)

    def delete_processing_time_timer(self, time: int) -> None:
        self._operator._timers.delete(TimeDomain.PROCESSING_TIME, time, self.numbers, self._service)

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        return self._operator._trigger_states.of(state_descriptor)

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        if self._sources is None:
            raise StateMisuseError("merge_partitioned_state can be called in on_merge only")
        self._operator._trigger_states.of(state_descriptor).merge(self._sources)

    # Window functions.

    def key(self) -> Any:
        return self._ctx.get_current_key()

    def window(self) -> Any:
        return self._window

    def current_processing_time(self) -> int:
        return self.get_current_processing_time()

    def current_watermark(self) -> int:
        return self.watermark

    def window_state(self) -> Any:
        return self._operator._window_states

    def global_state(self) -> Any:
        return self._operator._runtime

    def output(self, tag: OutputTag, value: Any) -> None:
        self._ctx.output(tag, value)


class WindowedValue(ProcessWindowFunction[Any, Any, Any, Any]):
    """One row per firing: the key columns, the bounds of the window if it is one of time, and the aggregate."""

    def __init__(self, keys: int, bounds: bool) -> None:
        self._keys = keys
        self._bounds = bounds

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        (value,) = elements
        keys = () if self._keys == 0 else (key,) if self._keys == 1 else tuple(key)
        if not self._bounds:
            return [(*keys, value)]
        window = context.window()
        return [(*keys, _moment(window.start), _moment(window.end), value)]


def _moment(ms: int) -> dt.datetime:
    return EPOCH_UTC + dt.timedelta(milliseconds=ms)


class ColumnAggregate(AggregateFunction):
    """`sum`, `min`, `max`, `count` or `avg` of a column, for windows of every kind. Nulls do not count, as in SQL.

    The accumulator is a pair: the number of values and their aggregate, which for an average is their sum.
    """

    def __init__(self, kind: str, column: int, bare: bool) -> None:
        self._kind = kind
        self._column = column
        self._bare = bare

    def create_accumulator(self) -> Any:
        return (0, None)

    def add(self, value: Any, accumulator: Any) -> Any:
        count, before = accumulator
        if self._kind == "count":
            return (count + 1, None)
        given = value if self._bare else value[self._column]
        return accumulator if given is None else (count + 1, self._combined(before, given))

    def _combined(self, before: Any, given: Any) -> Any:
        if before is None:
            return given
        if self._kind in ("sum", "avg"):
            total = before + given
            if isinstance(total, int) and not -(1 << 63) <= total < 1 << 63:
                raise UserFunctionError("the sum of a window leaves the range of bigint; sum a double column instead")
            return total
        if before != before or given != given:  # NaN is larger than any number, as in Spark
            smaller, larger = (given, before) if before != before else (before, given)
        else:
            smaller, larger = min(before, given), max(before, given)
        return smaller if self._kind == "min" else larger

    def get_result(self, accumulator: Any) -> Any:
        count, value = accumulator
        if self._kind == "count":
            return count
        return value / count if self._kind == "avg" and count else value

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        count = acc_a[0] + acc_b[0]
        if acc_a[1] is None or acc_b[1] is None:
            return (count, acc_b[1] if acc_a[1] is None else acc_a[1])
        return (count, self._combined(acc_a[1], acc_b[1]))
