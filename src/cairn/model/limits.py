"""What the numbers and texts of a snapshot may be at most.

One from elsewhere is not believed: nothing in it can bring a job to the end of its numbers, or keep a reader busy.
"""

from __future__ import annotations

import json
from typing import Any

from cairn.errors import InvalidInputError
from cairn.model.manifest import OPERATOR_KINDS, StateSpec

MAX_EPOCH = 10**11
"""State files carry the epoch in twelve digits."""
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999: a job's time never runs back, so it must not be sent to the end of time."""
MAX_NESTING = 64
MAX_TYPE_CHARACTERS = 1 << 20
_INT64 = 1 << 63
_KINDS = ("value", "reducing", "aggregating", "raw", "list", "map", "timer", *OPERATOR_KINDS)


def wrong_numbers(epoch: int, time_ms: int, watermark: int) -> str:
    """What is impossible about the numbers of an epoch; empty if nothing is."""
    if not -1 <= epoch <= MAX_EPOCH:
        return f"epoch {epoch} is impossible; the greatest is {MAX_EPOCH}"
    if not 0 <= time_ms <= MAX_TIME_MS:
        return f"a time of {time_ms} milliseconds is impossible; the greatest is {MAX_TIME_MS}"
    if not -_INT64 <= watermark < _INT64:
        return f"a watermark of {watermark} is impossible"
    return ""


def wrong_type(ddl: str) -> str:
    """Why a type is not even looked at; empty if it is."""
    if len(ddl) > MAX_TYPE_CHARACTERS:
        return f"its text has {len(ddl)} characters, at most {MAX_TYPE_CHARACTERS} are read"
    depth = 0
    for character in ddl if ddl.count("<") > MAX_NESTING else "":
        depth += (character == "<") - (character == ">")
        if depth > MAX_NESTING:
            return f"it is nested more than {MAX_NESTING} deep"
    return ""


def wrong_state(spec: StateSpec, key_type: str) -> str:
    """What is impossible about a state of an operator with this key; empty if nothing is."""
    if spec.kind not in _KINDS:
        return f"state {spec.name!r} is of the unknown kind {spec.kind!r}"
    if not 0 <= spec.ttl_ms < _INT64:
        return f"state {spec.name!r} has the impossible time to live {spec.ttl_ms}"
    why = next(filter(None, map(wrong_type, (key_type, spec.key_type, spec.value_type))), "")
    return f"state {spec.name!r} has a type that this cairn does not know: {why}" if why else ""


def wrong_entry(offsets: str) -> str:
    """Why this is no entry of Spark's offset log (a version, metadata in JSON, a line per source); empty if it is."""
    lines = offsets.split("\n")
    try:
        if not isinstance(json.loads(lines[1]), dict):
            return f"its second line is no JSON object: {lines[1][:80]!r}"
        read_positions(offsets)
    except IndexError:
        return f"it has one line only: {offsets[:80]!r}"
    except InvalidInputError as error:
        return error.message
    except (ValueError, RecursionError):
        return f"its second line is no JSON: {lines[1][:80]!r}"
    return ""


def read_positions(offsets: str) -> list[Any]:
    """The position of each source in an entry of Spark's offset log; None for one that has none.

    Raises `InvalidInputError` for one that cannot be.
    """
    return [_position(number, line) for number, line in enumerate(offsets.split("\n")[2:])]


def _position(number: int, line: str) -> Any:
    if line in ("-", ""):
        return None
    try:
        position = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidInputError(f"the position of source {number} is no JSON: {line[:80]!r}") from None
    last = position.get("logOffset", 0) if isinstance(position, dict) else 0
    if isinstance(last, bool) or not isinstance(last, int) or not -1 <= last < _INT64:
        raise InvalidInputError(f"the position of source {number} is impossible: {line[:80]!r}")
    return position
