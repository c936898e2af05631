"""The built-in triggers. Names and meanings are PyFlink's.

A trigger's times are Flink's: a window ends at its last moment, `max_timestamp()`, and the watermark is the last moment
of which nothing more will come (docs/design/0005-windows.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cairn.errors import InvalidInputError
from cairn.model.descriptors import ReducingStateDescriptor, StateDescriptor, Time
from cairn.model.windows import MAX_TIME, Trigger, TriggerResult


class EventTimeTrigger(Trigger[Any, Any]):
    """Fires when the watermark passes the end of a window, and at once for each element that comes after that."""

    @staticmethod
    def create() -> EventTimeTrigger:
        return EventTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger[Any, Any]):
    """Fires when the clock passes the end of a window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        return ProcessingTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class _ContinuousTrigger(Trigger[Any, Any]):
    """What the two continuous triggers share: the next time at which a window fires is its state."""

    def __init__(self, interval: Time | int) -> None:
        length = interval.to_milliseconds() if isinstance(interval, Time) else interval
        if isinstance(length, bool) or not isinstance(length, int) or length <= 0:  # type: ignore[redundant-expr]
            raise InvalidInputError(
                f"{type(self).__name__} fires every so often: give it a Time that is longer than nothing, not "
                f"{interval!r}"
            )
        self.interval = length

    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return (ReducingStateDescriptor("fire-time", min, "bigint"),)

    def _next(self, ctx: Any) -> Any:
        return ctx.get_partitioned_state(*self.state_descriptors())

    def _after(self, time: int, window: Any) -> int:
        """The next multiple of the interval after a time, or the end of the window if that comes first."""
        end: int = window.max_timestamp()
        return min(time - time % self.interval + self.interval, end)

    def can_merge(self) -> bool:
        return True


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires every so often in event time while a window is open, and at its end."""

    @staticmethod
    def of(interval: Time | int) -> ContinuousEventTimeTrigger:
        return ContinuousEventTimeTrigger(interval)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        state = self._next(ctx)
        if state.get() is None:
            due = self._after(timestamp, window)
            state.add(due)
            ctx.register_event_time_timer(due)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        state = self._next(ctx)
        if state.get() != time:
            return TriggerResult.CONTINUE
        due = self._after(time, window)
        state.clear()
        state.add(due)
        ctx.register_event_time_timer(due)
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(*self.state_descriptors())
        due = self._next(ctx).get()
        if due is not None:
            ctx.register_event_time_timer(due)
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())
        state = self._next(ctx)
        if state.get() is not None:
            ctx.delete_event_time_timer(state.get())
            state.clear()


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires every so often by the clock while a window has elements."""

    @staticmethod
    def of(interval: Time | int) -> ContinuousProcessingTimeTrigger:
        return ContinuousProcessingTimeTrigger(interval)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        state = self._next(ctx)
        if state.get() is None:
            self._again(ctx.get_current_processing_time(), window, ctx, state)
        return TriggerResult.CONTINUE

    def _again(self, time: int, window: Any, ctx: Any, state: Any) -> None:
        due = self._after(time, window)
        if due > time:
            state.add(due)
            ctx.register_processing_time_timer(due)

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        state = self._next(ctx)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        self._again(max(time, ctx.get_current_processing_time() - 1), window, ctx, state)
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(*self.state_descriptors())
        due = self._next(ctx).get()
        if due is not None:
            ctx.register_processing_time_timer(due)

    def clear(self, window: Any, ctx: Any) -> None:
        state = self._next(ctx)
        if state.get() is not None:
            ctx.delete_processing_time_timer(state.get())
            state.clear()


class CountTrigger(Trigger[Any, Any]):
    """Fires when a window has got so many elements since it fired last."""

    def __init__(self, window_size: int) -> None:
        if isinstance(window_size, bool) or not isinstance(window_size, int) or window_size <= 0:  # type: ignore[redundant-expr]
            raise InvalidInputError(f"CountTrigger needs a number of elements of at least 1, not {window_size!r}")
        self.window_size = window_size

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        return CountTrigger(window_size)

    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return (ReducingStateDescriptor("count", _add, "bigint"),)

    def _count(self, ctx: Any) -> Any:
        return ctx.get_partitioned_state(*self.state_descriptors())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        state = self._count(ctx)
        state.add(1)
        if state.get() < self.window_size:
            return TriggerResult.CONTINUE
        state.clear()
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(*self.state_descriptors())

    def clear(self, window: Any, ctx: Any) -> None:
        self._count(ctx).clear()


def _add(a: int, b: int) -> int:
    return a + b


class PurgingTrigger(Trigger[Any, Any]):
    """Another trigger, but the contents of a window go whenever it fires."""

    def __init__(self, nested_trigger: Trigger[Any, Any]) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise InvalidInputError(f"PurgingTrigger takes another trigger, not {type(nested_trigger).__name__}")
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger[Any, Any]) -> PurgingTrigger:
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def state_descriptors(self) -> Sequence[StateDescriptor]:
        return self.nested_trigger.state_descriptors()

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Any, ctx: Any) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: Any, ctx: Any) -> None:
        self.nested_trigger.clear(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result


class NeverTrigger(Trigger[Any, Any]):
    """Never fires."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        """Nothing was set, so nothing is merged."""

    def clear(self, window: Any, ctx: Any) -> None:
        """Nothing was set."""


def without_timers(trigger: Any) -> bool:
    """Whether a trigger is known to set no timers, so that a job need not make time advance for it."""
    while isinstance(trigger, PurgingTrigger):
        trigger = trigger.nested_trigger
    return isinstance(trigger, (CountTrigger, NeverTrigger))


__all__ = [
    "MAX_TIME",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "without_timers",
]
