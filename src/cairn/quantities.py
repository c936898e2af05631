"""Numbers and moments as people read them: the same words on pages, in the terminal and in notebooks."""

from __future__ import annotations

import shlex
import time

from cairn.text import escaped


def size(value: float) -> str:
    number = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def duration(millis: float) -> str:
    """A length of time: 85 ms, 1.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if millis < 0:
        return f"-{duration(-millis)}"
    if millis < 1000:
        return f"{millis:.0f} ms"
    seconds = millis / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for length, unit, below, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= length:
            rest = whole % length // below
            return f"{whole // length} {unit} {rest} {smaller}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"


def count(value: float) -> str:
    """A number of things: 950, 12.3 k, 4.5 M."""
    for length, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= length:
            return f"{value / (1e3 if unit == 'k' else length):.1f} {unit}"
    return f"{value:,.0f}"


def rate(per_second: float) -> str:
    """Things per second: 0.25, 3.1, 950, 12.3 k."""
    if 0 < per_second < 10:
        return f"{per_second:.2g}"
    return count(per_second)


def when(millis: float) -> str:
    """A moment, in UTC."""
    if millis <= 0:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(millis / 1000))


def ago(millis: float, now_ms: float) -> str:
    return f"{duration(max(0.0, now_ms - millis))} ago" if millis > 0 else "-"


def behind(saved: int, epoch: int) -> str:
    """How much older a savepoint is than the job's last epoch; empty if it is not older."""
    older = epoch - saved
    return f"epoch {saved}, {older:,} epoch{'' if older == 1 else 's'} older" if older > 0 else ""


def share(part: float) -> str:
    """A share to three digits, for axes: 2.5%, 40%."""
    return f"{100 * part:.3g}%"


def percent(share: float) -> str:
    return f"{share:.0%}"


def first_line(text: str, most: int = 300) -> str:
    """The first line of a text that may be a whole traceback, not longer than a table can bear."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def shell_word(text: str) -> str:
    """Text as one word of a shell command, which can be shown and copied: nothing in it is acted upon or unseen."""
    if text.isprintable():
        return shlex.quote(text)
    told = (c if c.isprintable() and c not in "\\'" else f"\\{c}" if c in "\\'" else _coded(c) for c in text)
    return f"$'{''.join(told)}'"


def _coded(character: str) -> str:
    """A character by its number as bash reads it in $'': from 128 on, \\x would be a byte and not a character."""
    return escaped(character) if ord(character) < 128 else f"\\U{ord(character):08x}"
