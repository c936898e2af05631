"""How often a job was started by somebody, and how often it came back after a failure: told by its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cairn.view.journal import Event

GOOD_ENDS = ("finished", "stopped", "canceled")
_ENDS = (*GOOD_ENDS, "failed", "restarting")


class StartCount(msgspec.Struct, frozen=True):
    """`restarts` are runs after one that failed or crashed (Flink's numRestarts), `starts` all the others."""

    starts: int = 0
    restarts: int = 0
    begun_ms: int = 0
    """When somebody last started it: restarts after a failure go on with what was begun then."""


def lives_of(events: Sequence[Event]) -> StartCount:
    """Counted over the events, oldest first. What a run told of itself counts more: old events are let go."""
    restarts = begun = run = 0
    for at, event in enumerate(events):
        if event.kind != "started":
            continue
        run, again = event.run, event.facts.get("after_failure")
        if again is None:  # told by an earlier release
            again = after_failure(events[:at])
            restarts += int(again)
        else:
            restarts = int(event.facts.get("restarts", restarts + int(again)))
        begun = begun if again and begun else int(event.facts.get("begun_ms", event.time_ms))
    return StartCount(max(0, run - restarts), restarts, begun)


def after_failure(events: Sequence[Event], alive: bool = False) -> bool:
    """Whether the run that begins after these events follows on a failure. A run without an end has crashed, unless its
    process is alive: then it was taken over."""
    last = next((event for event in reversed(events) if event.kind in ("started", *_ENDS)), None)
    if last is None:
        return False
    return not alive if last.kind == "started" else last.kind not in GOOD_ENDS


def next_life(events: Sequence[Event], alive: bool, now_ms: int) -> dict[str, Any]:
    """What the run that begins now tells of itself, for `lives_of`."""
    before = lives_of(events)
    again = after_failure(events, alive)
    begun = before.begun_ms if again and before.begun_ms else now_ms
    return {"after_failure": again, "restarts": before.restarts + int(again), "begun_ms": begun}
