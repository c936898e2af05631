"""How people name a state of an operator: `uid.state`, or `uid/state`, which is clear also where names have dots."""

from __future__ import annotations

from collections.abc import Collection

EVENT_TIMERS = "_timers.event"
PROCESSING_TIMERS = "_timers.processing"
"""The states that hold the timers of an operator."""
Pair = tuple[str, str]
"""A uid and the name of a state."""


def meant(name: str, known: Collection[Pair]) -> list[Pair]:
    """The states that a name may mean: none, one, or several where dots leave it open."""
    return [(uid, state) for uid, state in known if name in (f"{uid}.{state}", f"{uid}/{state}")]


def spelled(pair: Pair, known: Collection[Pair]) -> str:
    """The name of a state that means no other one."""
    uid, state = pair
    plain = f"{uid}.{state}"
    return plain if len(meant(plain, known)) <= 1 else f"{uid}/{state}"


def choices(name: str, found: Collection[Pair]) -> str:
    """What to say of a name that may mean several states."""
    told = " or ".join(f"state '{state}' of operator '{uid}' ('{uid}/{state}')" for uid, state in found)
    return f"'{name}' may mean {told}; write it with the slash"
