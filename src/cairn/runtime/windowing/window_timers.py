"""The timers of windows: which windows of a key asked for which times."""

from __future__ import annotations

from typing import Any

from cairn.model.ddl import parse_type
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.functions import RuntimeContext, TimeDomain, TimerService
from cairn.model.windows import MAX_TIME
from cairn.runtime.windowing.window_state import WINDOW, Numbers
from cairn.state.drafts import SetDraft

TIMERS = {TimeDomain.EVENT_TIME: "window-timers-event", TimeDomain.PROCESSING_TIME: "window-timers-processing"}
_STORED_WINDOW = parse_type(WINDOW).to_storage


class WindowTimers:
    """Timers that belong to windows: for each time of a key, the windows that asked for it.

    The times that are given are Flink's. A timer is set a millisecond later, because rows at the time itself may
    still come: see the design note.
    """

    def __init__(self, runtime: RuntimeContext) -> None:
        self._windows: dict[TimeDomain, Any] = {
            domain: runtime.get_map_state(MapStateDescriptor(name, "bigint", f"array<{WINDOW}>"))
            for domain, name in TIMERS.items()
        }

    def register(self, domain: TimeDomain, time: int, window: Numbers, service: TimerService) -> None:
        if time >= MAX_TIME:
            return  # never
        state = self._windows[domain]
        windows = state.draft(time + 1, SetDraft)
        stored = _STORED_WINDOW(window)
        if stored in windows.parts:
            return
        windows.parts[stored] = None
        state.keep(time + 1, windows)
        if domain is TimeDomain.EVENT_TIME:
            service.register_event_time_timer(time + 1)
        else:
            service.register_processing_time_timer(time + 1)

    def delete(self, domain: TimeDomain, time: int, window: Numbers, service: TimerService) -> None:
        if time >= MAX_TIME:
            return
        state = self._windows[domain]
        windows = state.draft(time + 1, SetDraft)
        stored = _STORED_WINDOW(window)
        if stored not in windows.parts:
            return
        del windows.parts[stored]
        if windows.parts:
            state.keep(time + 1, windows)
            return
        state.remove(time + 1)
        if domain is TimeDomain.EVENT_TIME:
            service.delete_event_time_timer(time + 1)
        else:
            service.delete_processing_time_timer(time + 1)

    def take(self, domain: TimeDomain, timestamp: int) -> list[Numbers]:
        """The windows whose timer has fired; it is gone."""
        state = self._windows[domain]
        windows = state.get(timestamp) or []
        state.remove(timestamp)
        return [(start, end) for start, end in windows]
