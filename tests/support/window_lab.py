"""What the tests of windows share: rows, functions that tell what a window holds, and harnesses around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cairn import (
    OutputTag,
    ProcessWindowFunction,
    TimeWindow,
    WindowAssigner,
)
from cairn.testing import WindowHarness

ROWS = "user string, v bigint, time timestamp"
COUNTS = "user string, first bigint, last bigint, n bigint"
LATE = OutputTag("late", ROWS)
STATES = ("window-elements", "window-sizes", "window-timers-event", "window-timers-processing")


def row(ms: int, user: str = "a", v: int = 1) -> tuple[Any, ...]:
    return user, v, WindowHarness.at(ms)


class Count(ProcessWindowFunction[Any, Any, str, TimeWindow]):
    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        return [(key, context.window().start, context.window().end, len(list(elements)))]


class Values(ProcessWindowFunction[Any, Any, str, Any]):
    """All values of a window as text."""

    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, " ".join(str(element.v) for element in elements)


def counting(assigner: WindowAssigner[Any, Any], **settings: Any) -> WindowHarness:
    settings.setdefault("event_time", "time")
    return WindowHarness(assigner, Count(), "user", ROWS, COUNTS, **settings)


def values(assigner: WindowAssigner[Any, Any], **settings: Any) -> WindowHarness:
    return WindowHarness(assigner, Values(), "user", ROWS, "user string, text string", **settings)


def nothing_left(harness: WindowHarness, user: str = "a") -> None:
    assert harness.timers() == []
    for name in STATES:
        assert harness.state(name, user) == {}, name
