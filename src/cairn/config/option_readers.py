"""How the value of an option is read: from text or from Python's own values; `ValueError` says what was expected."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from cairn.config.settings import CLAIM_MODES, MAX_INLINE, RESTART_TYPES

_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "k": 1 << 10, "mb": 1 << 20, "m": 1 << 20, "gb": 1 << 30, "g": 1 << 30}
_MILLISECONDS = {
    unit: length
    for length, units in (
        (1, ("", "ms", "milli", "millis", "millisecond", "milliseconds")),
        (1000, ("s", "sec", "secs", "second", "seconds")),
        (60_000, ("m", "min", "mins", "minute", "minutes")),
        (3_600_000, ("h", "hour", "hours")),
        (86_400_000, ("d", "day", "days")),
    )
    for unit in units
}


def integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value).strip()):
            raise ValueError(f"expected a whole number, found {value!r}")
        number = int(str(value))
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}, found {number}")
        return number

    return read


def boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, found {value!r}")
    return text == "true"


def size(value: Any) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match.group(2).lower() not in _UNITS:
        raise ValueError(f"expected a size such as '20 kb', found {value!r}")
    return int(match.group(1)) * _UNITS[match.group(2).lower()]


def inline(value: Any) -> int:
    number = size(value)
    if number > MAX_INLINE:
        raise ValueError(f"at most 1 mb is allowed, found {value!r}")
    return number


def text(value: Any) -> str:
    text = str(value).strip()
    if not text:
        raise ValueError("expected some text, found nothing")
    return text


def directory(value: Any) -> str:
    """A local path or a `file:` URL, as `storage.filesystem.local_root` takes them."""
    found = text(value)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.\-]*)://", found)
    if scheme is not None and scheme.group(1).lower() != "file":
        raise ValueError(
            f"expected a local path or a file: URL (on a cluster, a mount shared by all hosts), found {found!r}"
        )
    return found


def one_directory(value: Any) -> str:
    """A directory where Flink takes several, with commas between them."""
    found = directory(value)
    if "," in found:
        raise ValueError(
            f"expected one directory, found {found!r}: working stores of a host are in one place, not spread over "
            "several disks"
        )
    return found


def decimal(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a number such as 1.5, found {value!r}")
    return number


def duration(value: Any) -> int:
    match = re.fullmatch(r"\s*(-?\d+)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match.group(2).lower() not in _MILLISECONDS:
        raise ValueError(f"expected a duration such as '10 s', '2 min' or a number of milliseconds, found {value!r}")
    return int(match.group(1)) * _MILLISECONDS[match.group(2).lower()]


def interval(value: Any) -> int:
    return max(0, duration(value))


def choice(choices: tuple[str, ...], synonyms: Mapping[str, str] | None = None) -> Callable[[Any], str]:
    known = {choice.lower().replace("_", "-"): choice for choice in choices} | dict(synonyms or {})

    def read(value: Any) -> str:
        choice = known.get(str(value).strip().lower().replace("_", "-"))
        if choice is None:
            raise ValueError(f"expected {' or '.join(choices)}, found {value!r}")
        return choice

    return read


def attempts_before_reset(value: Any) -> int:
    if str(value).strip().lower() == "infinite":
        return 0
    return integer(1, LARGEST)(value)


LARGEST = (1 << 31) - 1
any_integer = integer(-LARGEST - 1, LARGEST)
restart_type = choice(
    RESTART_TYPES,
    {
        "off": "none",
        "disable": "none",
        "fixeddelay": "fixed-delay",
        "failurerate": "failure-rate",
        "exponentialdelay": "exponential-delay",
    },
)
_claim = choice(CLAIM_MODES)


def claim_mode(value: Any) -> str:
    if str(value).strip().upper() == "LEGACY":
        raise ValueError(
            "LEGACY leaves open who owns the snapshot, and Flink gives it up; take NO_CLAIM, where it stays yours, or "
            "CLAIM, where the job deletes it once newer checkpoints have replaced it"
        )
    return _claim(value)


def renames(value: Any) -> dict[str, str]:
    """A mapping, the same as JSON, or `old=new, old=new`."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except ValueError as error:
                raise ValueError(f"expected a JSON object of names, found {text!r} ({error})") from None
        else:
            pairs = [pair.split("=") for pair in text.split(",") if pair.strip()]
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError(f"expected old=new, or several with commas between them, found {text!r}")
            value = {old.strip(): new.strip() for old, new in pairs}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected old names and new ones, as in {{'old-uid': 'new-uid'}}, found {value!r}")
    named = {str(old).strip(): str(new).strip() for old, new in value.items()}
    if not all(named) or not all(named.values()):
        raise ValueError(f"expected names, found an empty one in {value!r}")
    twice = sorted({new for new in named.values() if list(named.values()).count(new) > 1})
    if twice:
        raise ValueError(f"two old names become {twice[0]!r}; each needs a new name of its own")
    return named


def names(value: Any) -> tuple[str, ...]:
    """A list of names, or text with commas between them."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"expected names with commas between them, found {value!r}")
    return tuple(str(name).strip() for name in given if str(name).strip())
