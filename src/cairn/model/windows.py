"""Windows, and what users extend to work with them: assigners, triggers and window functions. Names are PyFlink's.

`model/assigners.py` and `model/triggers.py` have the ones that are built in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cairn.model.functions import RuntimeContext
from cairn.model.simple_functions import Function
from cairn.model.typevars import VALUE_IN, VALUE_OUT

if TYPE_CHECKING:
    from cairn.model.descriptors import StateDescriptor, ValueStateDescriptor
    from cairn.model.output_tags import OutputTag

MAX_TIME = (1 << 63) - 1
"""The end of time: the latest timestamp, and the watermark once all input has been read."""

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
T = TypeVar("T")
W = TypeVar("W")


class Window(ABC):
    """A group of elements. Equal windows of a key are the same window."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """The last moment that belongs to the window, in milliseconds."""


class TimeWindow(Window):
    """From `start`, included, to `end`, not included, in milliseconds."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def max_timestamp(self) -> int:
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback) -> None:
        """Call back for every group of two or more windows that overlap or touch."""
        merged: TimeWindow | None = None
        members: list[TimeWindow] = []
        for window in sorted(windows, key=lambda w: (w.start, w.end)):
            if merged is not None and merged.intersects(window):
                merged = merged.cover(window)
                members.append(window)
                continue
            if merged is not None and len(members) > 1:
                callback.merge(members, merged)
            merged, members = window, [window]
        if merged is not None and len(members) > 1:
            callback.merge(members, merged)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeWindow) and (other.start, other.end) == (self.start, self.end)

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __repr__(self) -> str:
        return f"TimeWindow(start={self.start}, end={self.end})"


class CountWindow(Window):
    """The `id`-th window of its key, counted from 0."""

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:  # noqa: A002 - PyFlink's name
        self.id = id

    def max_timestamp(self) -> int:
        return MAX_TIME

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountWindow) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class GlobalWindow(Window):
    """The one window that has no end."""

    @staticmethod
    def get() -> GlobalWindow:
        return GlobalWindow()

    def max_timestamp(self) -> int:
        return MAX_TIME

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalWindow)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "GlobalWindow()"


class WindowSerializer(ABC, Generic[W]):
    """Says which two 64-bit numbers a window is: that is what stands in state."""

    @abstractmethod
    def to_numbers(self, window: W) -> tuple[int, int]: ...

    @abstractmethod
    def from_numbers(self, first: int, second: int) -> W: ...


class TimeWindowSerializer(WindowSerializer[TimeWindow]):
    def to_numbers(self, window: TimeWindow) -> tuple[int, int]:
        return window.start, window.end

    def from_numbers(self, first: int, second: int) -> TimeWindow:
        return TimeWindow(first, second)


class CountWindowSerializer(WindowSerializer[CountWindow]):
    def to_numbers(self, window: CountWindow) -> tuple[int, int]:
        return window.id, 0

    def from_numbers(self, first: int, second: int) -> CountWindow:
        return CountWindow(first)


class GlobalWindowSerializer(WindowSerializer[GlobalWindow]):
    def to_numbers(self, window: GlobalWindow) -> tuple[int, int]:
        return 0, 0

    def from_numbers(self, first: int, second: int) -> GlobalWindow:
        return GlobalWindow()


class TriggerResult(Enum):
    """What becomes of a window: nothing, its result is put out, its contents go, or both."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        return bool(self.value[0])

    def is_purge(self) -> bool:
        return bool(self.value[1])


class Trigger(ABC, Generic[T, W]):
    """Decides when the result of a window is put out.

    One object serves all keys and windows: what it must remember belongs in `ctx.get_partitioned_state(descriptor)`,
    which is the state of the current key and window. Timers that it sets come back for the same key and window.
    """

    class TriggerContext(Protocol):
        def get_current_processing_time(self) -> int: ...
        def get_current_watermark(self) -> int: ...
        def register_processing_time_timer(self, time: int) -> None: ...
        def register_event_time_timer(self, time: int) -> None: ...
        def delete_processing_time_timer(self, time: int) -> None: ...
        def delete_event_time_timer(self, time: int) -> None: ...
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any: ...

    class OnMergeContext(TriggerContext, Protocol):
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Bring the state of the merged windows into that of the new one: list, reducing and aggregating state."""

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An element came into a window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """A processing-time timer of this trigger is due."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An event-time timer of this trigger is due."""

    def state_descriptors(self) -> Sequence[StateDescriptor]:
        """States that are declared when a task begins. Others come to be when they are first used."""
        return ()

    def can_merge(self) -> bool:
        """Whether `on_merge` is defined. Session windows take no other triggers."""
        return False

    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        """Windows were merged into this one."""
        raise TypeError(f"{type(self).__name__} says that it can merge windows, but has no on_merge(window, ctx)")

    @abstractmethod
    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        """The window goes: take away what is left of its state and timers."""


class WindowAssigner(ABC, Generic[T, W]):
    """Says to which windows an element belongs."""

    class WindowAssignerContext(Protocol):
        def get_current_processing_time(self) -> int: ...
        def get_runtime_context(self) -> RuntimeContext: ...

    @abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[W]:
        """The windows of an element. `timestamp` is its event time, or that of the clock if it has none."""

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]:
        """The trigger of a stream that names none."""

    def state_descriptors(self) -> Sequence[ValueStateDescriptor]:
        """States of the key that are declared when a task begins."""
        return ()

    def get_window_serializer(self) -> WindowSerializer[Any]:
        """How windows are stored. Needed by assigners with windows of their own only."""
        return TimeWindowSerializer()

    @abstractmethod
    def is_event_time(self) -> bool: ...


class MergingWindowAssigner(WindowAssigner[T, W]):
    """An assigner whose windows may grow together."""

    class MergeCallback(Protocol[VALUE_IN]):
        def merge(self, to_be_merged: Collection[VALUE_IN], merge_result: VALUE_IN) -> None: ...

    @abstractmethod
    def merge_windows(self, windows: Sequence[W], callback: MergingWindowAssigner.MergeCallback) -> None:
        """Call back once for each group of windows that become one."""


class SessionWindowTimeGapExtractor(ABC):
    """How long after an element its session ends, by the element."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """The gap in milliseconds, at least 1."""


class KeyedStateStore(Protocol):
    """State by descriptor, for a window or for a key."""

    def get_state(self, state_descriptor: Any) -> Any: ...
    def get_list_state(self, state_descriptor: Any) -> Any: ...
    def get_map_state(self, state_descriptor: Any) -> Any: ...
    def get_reducing_state(self, state_descriptor: Any) -> Any: ...
    def get_aggregating_state(self, state_descriptor: Any) -> Any: ...


class WindowContext(Protocol[VALUE_OUT]):
    """What process window functions are given."""

    def window(self) -> VALUE_OUT: ...
    def current_processing_time(self) -> int: ...
    def current_watermark(self) -> int: ...
    def window_state(self) -> KeyedStateStore:
        """State of this key and window. Clear it in `clear`: nobody else does."""

    def global_state(self) -> KeyedStateStore:
        """State of this key."""

    def output(self, tag: OutputTag, value: Any) -> None: ...


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Makes output of the elements of a window."""

    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        raise TypeError(f"{type(self).__name__} must define apply(key, window, inputs)")


class AllWindowFunction(Function, Generic[IN, OUT, W]):
    """Makes output of the elements of a window of a stream without key."""

    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        raise TypeError(f"{type(self).__name__} must define apply(window, inputs)")


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Makes output of the elements of a window, with state of the window and of the key."""

    class Context(WindowContext[VALUE_OUT], Protocol[VALUE_OUT]):
        """What `process` and `clear` are given."""

    def process(self, key: KEY, context: WindowContext, elements: Iterable[IN]) -> Iterable[OUT]:
        """Yield, or return an iterable of, rows of the output type. Called for every firing of the window."""
        raise TypeError(f"{type(self).__name__} must define process(key, context, elements)")

    def clear(self, context: WindowContext) -> None:
        """The window goes: clear the state that was kept for it."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, W]):
    """As `ProcessWindowFunction`, for a stream without key."""

    class Context(WindowContext[VALUE_OUT], Protocol[VALUE_OUT]):
        """What `process` and `clear` are given."""

    def process(self, context: WindowContext, elements: Iterable[IN]) -> Iterable[OUT]:
        raise TypeError(f"{type(self).__name__} must define process(context, elements)")

    def clear(self, context: WindowContext) -> None:
        """The window goes: clear the state that was kept for it."""


Merge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Called with the merged window, the windows that went into it, the window of its contents, and those added to it."""
