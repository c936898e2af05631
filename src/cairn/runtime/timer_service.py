"""The timer service of one task: what functions are told of time, and where their timers go."""

from __future__ import annotations

from cairn.model.functions import TimeDomain
from cairn.model.manifest import EpochContext
from cairn.runtime.state_registry import StateRegistry


class TaskTimerService:
    """`TimerService` of one task. Watermark and processing time are those of the epoch, and stand still within it."""

    def __init__(self, registry: StateRegistry, context: EpochContext) -> None:
        self._event = registry.timers[TimeDomain.EVENT_TIME]
        self._processing = registry.timers[TimeDomain.PROCESSING_TIME]
        self._watermark = context.seen_watermark
        self._last_watermark = context.watermark
        self._time = context.time_ms

    def current_processing_time(self) -> int:
        return self._time

    def current_watermark(self) -> int:
        return self._watermark

    def end_rows(self) -> None:
        """The last row of the epoch is through: at the end of event time the watermark moves."""
        self._watermark = self._last_watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._event.register(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._processing.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._event.delete(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._processing.delete(timestamp)
