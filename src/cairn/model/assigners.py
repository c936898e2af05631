"""The built-in window assigners. Names and meanings are PyFlink's; lengths of time are checked when they are given."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from cairn.errors import InvalidInputError, UserFunctionError
from cairn.model.descriptors import Time, ValueStateDescriptor
from cairn.model.triggers import CountTrigger, EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger, PurgingTrigger
from cairn.model.windows import (
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    MergingWindowAssigner,
    SessionWindowTimeGapExtractor,
    TimeWindow,
    Trigger,
    WindowAssigner,
    WindowSerializer,
)


def millis(value: Any, what: str) -> int:
    """A length of time in milliseconds, given as `Time` or as a whole number."""
    if isinstance(value, Time):
        value = value.to_milliseconds()
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(f"{what} is a Time such as Time.seconds(5), or whole milliseconds, not {value!r}")
    return value


_LONGEST = 1 << 50
"""Windows so long, in milliseconds, end within the times that there are."""


def _positive(value: Any, what: str) -> int:
    length = millis(value, what)
    if length <= 0:
        raise InvalidInputError(f"{what} must be longer than nothing, not {length} ms")
    if length > _LONGEST:
        raise InvalidInputError(f"{what} must be shorter than {_LONGEST} ms (thousands of years), not {length} ms")
    return length


class TimeWindows(WindowAssigner[Any, TimeWindow]):
    """Windows of one length that begin at regular times. Tumbling windows slide by their length."""

    event_time: bool

    def __init__(self, size: Time | int, slide: Time | int, offset: Time | int | None) -> None:
        self.size = _positive(size, f"{type(self).__name__}: the size of a window")
        self.slide = _positive(slide, f"{type(self).__name__}: the slide of a window")
        self.offset = 0 if offset is None else millis(offset, f"{type(self).__name__}: the offset of a window")
        if abs(self.offset) >= self.slide:
            raise InvalidInputError(
                f"{type(self).__name__}: the offset, {self.offset} ms, must be shorter than {self.slide} ms, after "
                "which windows begin anew"
            )

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        if not self.event_time:
            timestamp = context.get_current_processing_time()
        last = TimeWindow.get_window_start_with_offset(timestamp, self.offset, self.slide)
        return [TimeWindow(start, start + self.size) for start in range(last, timestamp - self.size, -self.slide)]

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger.create() if self.event_time else ProcessingTimeTrigger.create()

    def is_event_time(self) -> bool:
        return self.event_time

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size} ms, {self.slide} ms, {self.offset} ms)"


class TumblingEventTimeWindows(TimeWindows):
    """Windows of one length, one after the other, by event time."""

    event_time = True

    def __init__(self, size: Time | int, offset: Time | int | None = None) -> None:
        super().__init__(size, size, offset)

    @staticmethod
    def of(size: Time | int, offset: Time | int | None = None) -> TumblingEventTimeWindows:
        return TumblingEventTimeWindows(size, offset)


class TumblingProcessingTimeWindows(TimeWindows):
    """Windows of one length, one after the other, by the clock of the epochs."""

    event_time = False

    def __init__(self, size: Time | int, offset: Time | int | None = None) -> None:
        super().__init__(size, size, offset)

    @staticmethod
    def of(size: Time | int, offset: Time | int | None = None) -> TumblingProcessingTimeWindows:
        return TumblingProcessingTimeWindows(size, offset)


class SlidingEventTimeWindows(TimeWindows):
    """Windows of length `size` that begin every `slide`, by event time. An element is in several if they overlap."""

    event_time = True

    def __init__(self, size: Time | int, slide: Time | int, offset: Time | int | None = None) -> None:
        super().__init__(size, slide, offset)

    @staticmethod
    def of(size: Time | int, slide: Time | int, offset: Time | int | None = None) -> SlidingEventTimeWindows:
        return SlidingEventTimeWindows(size, slide, offset)


class SlidingProcessingTimeWindows(TimeWindows):
    """Windows of length `size` that begin every `slide`, by the clock of the epochs."""

    event_time = False

    def __init__(self, size: Time | int, slide: Time | int, offset: Time | int | None = None) -> None:
        super().__init__(size, slide, offset)

    @staticmethod
    def of(size: Time | int, slide: Time | int, offset: Time | int | None = None) -> SlidingProcessingTimeWindows:
        return SlidingProcessingTimeWindows(size, slide, offset)


class SessionWindows(MergingWindowAssigner[Any, TimeWindow]):
    """Windows that last until nothing has come for a gap. `gap` is fixed, or taken from each element."""

    event_time: bool

    def __init__(self, gap: Time | int | SessionWindowTimeGapExtractor) -> None:
        self.gap: int | SessionWindowTimeGapExtractor
        if isinstance(gap, SessionWindowTimeGapExtractor):
            self.gap = gap
        else:
            self.gap = _positive(gap, f"{type(self).__name__}: the gap of a session")

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        gap = self.gap
        if not isinstance(gap, int):
            extracted: Any = gap.extract(element)
            if isinstance(extracted, bool) or not isinstance(extracted, int) or extracted <= 0:
                raise UserFunctionError(
                    f"{type(self.gap).__name__}.extract() gave {extracted!r}; the gap of a session is a whole number "
                    "of milliseconds, at least 1"
                )
            gap = extracted
        if not self.event_time:
            timestamp = context.get_current_processing_time()
        return [TimeWindow(timestamp, timestamp + gap)]

    def merge_windows(self, windows: Sequence[TimeWindow], callback: MergingWindowAssigner.MergeCallback) -> None:
        TimeWindow.merge_windows(windows, callback)

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger.create() if self.event_time else ProcessingTimeTrigger.create()

    def is_event_time(self) -> bool:
        return self.event_time

    @classmethod
    def _dynamic(cls, extractor: Any) -> Any:
        if not isinstance(extractor, SessionWindowTimeGapExtractor):
            raise InvalidInputError(
                f"with_dynamic_gap takes a SessionWindowTimeGapExtractor, not {type(extractor).__name__}"
            )
        return cls(extractor)


class EventTimeSessionWindows(SessionWindows):
    """Sessions by event time."""

    event_time = True

    @staticmethod
    def with_gap(size: Time | int) -> EventTimeSessionWindows:
        return EventTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> EventTimeSessionWindows:
        made: EventTimeSessionWindows = EventTimeSessionWindows._dynamic(extractor)
        return made


class ProcessingTimeSessionWindows(SessionWindows):
    """Sessions by the clock of the epochs."""

    event_time = False

    @staticmethod
    def with_gap(size: Time | int) -> ProcessingTimeSessionWindows:
        return ProcessingTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> ProcessingTimeSessionWindows:
        made: ProcessingTimeSessionWindows = ProcessingTimeSessionWindows._dynamic(extractor)
        return made


class GlobalWindows(WindowAssigner[Any, GlobalWindow]):
    """One window for all elements of a key. It never fires by itself: give it a trigger."""

    @staticmethod
    def create() -> GlobalWindows:
        return GlobalWindows()

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[GlobalWindow]:
        return [GlobalWindow()]

    def get_default_trigger(self, env: Any) -> Trigger[Any, GlobalWindow]:
        return NeverTrigger()

    def get_window_serializer(self) -> WindowSerializer[Any]:
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountSlidingWindowAssigner(WindowAssigner[Any, CountWindow]):
    """Windows of `size` elements of a key, a new one every `slide` elements. A window fires when it is full."""

    def __init__(self, size: int, slide: int) -> None:
        for what, number in (("size", size), ("slide", slide)):
            if isinstance(number, bool) or not isinstance(number, int) or number <= 0:  # type: ignore[redundant-expr]
                raise InvalidInputError(
                    f"the {what} of a count window is a number of elements from 1 on, not {number!r}"
                )
        self.size = size
        self.slide = slide

    @staticmethod
    def of(size: int, slide: int) -> CountSlidingWindowAssigner:
        return CountSlidingWindowAssigner(size, slide)

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[CountWindow]:
        (descriptor,) = self.state_descriptors()
        counter = context.get_runtime_context().get_state(descriptor)
        number = counter.value() or 0
        counter.update(number + 1)
        first = max(0, -(-(number - self.size + 1) // self.slide))
        return [CountWindow(each) for each in range(first, number // self.slide + 1)]

    def state_descriptors(self) -> Sequence[ValueStateDescriptor]:
        """How many elements a key has had."""
        return (ValueStateDescriptor("count-windows", "bigint"),)

    def get_default_trigger(self, env: Any) -> Trigger[Any, CountWindow]:
        return PurgingTrigger.of(CountTrigger.of(self.size))

    def get_window_serializer(self) -> WindowSerializer[Any]:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(CountSlidingWindowAssigner):
    """Windows of `size` elements of a key, one after the other."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)

    @staticmethod
    def of(size: int, slide: int = 0) -> CountTumblingWindowAssigner:
        return CountTumblingWindowAssigner(size)
