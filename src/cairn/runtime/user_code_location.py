"""Which line of the user's code raised: what an error of a function tells besides its own words.

A Spark worker's error reaches the driver as text. What belongs to it beyond the message travels in a note of the
exception, one line of JSON, which `cairn.errors.from_traceback` reads again.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from cairn.errors import CairnError, facts_note

MOST_FRAMES = 40
MOST_TEXT = 8000
MOST_ROW = 500
_LINE = 500
_CAIRN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SPARK = (f"{os.sep}pyspark{os.sep}", f"{os.sep}py4j{os.sep}", "pyspark.zip", "py4j-")

E = TypeVar("E", bound=CairnError)
Frame = tuple[str, int, str]
"""File, line and function."""


def frames_of(trace: TracebackType | None) -> list[Frame]:
    """The frames of a traceback, outermost first."""
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append((code.co_filename, trace.tb_lineno, code.co_qualname))
        trace = trace.tb_next
    return found


def culprit(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of user code; None if there is none.

    Libraries that user code calls are not to blame. A job that is installed like a library is found by the package of
    its outermost frame.
    """
    foreign = [frame for frame in frames if not _is_ours(frame[0])]
    own = [frame for frame in foreign if not _is_library(frame[0])]
    if own:
        return own[-1]
    if not foreign:
        return None
    package = _package(foreign[0][0])
    return [frame for frame in foreign if _package(frame[0]) == package][-1]


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(_CAIRN) or any(part in file for part in _SPARK) or file.startswith("<froz")


def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths}
    return tuple(found | {os.path.join(os.path.realpath(path), "") for path in found})


def _is_library(file: str) -> bool:
    path = os.path.abspath(file)
    return path.startswith(_libraries()) or f"{os.sep}site-packages{os.sep}" in path


def _package(file: str) -> str:
    """The folder of the installed package that a file belongs to, or the file itself."""
    path = os.path.abspath(file)
    for root in sorted(_libraries(), key=len, reverse=True):
        if path.startswith(root):
            return root + path[len(root) :].split(os.sep, 1)[0]
    return path


def failed_row(error: BaseException) -> str:
    """The row that an operator was working on when user code raised, as text; empty where it worked on none.

    Every loop over rows calls its variable `row`. Reading it out of the frame costs nothing while nothing fails.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_CAIRN):
        variables = trace.tb_frame.f_locals
        if "row" in variables:
            return row_text(variables["row"])
        trace = trace.tb_next
    return ""


def row_text(row: Any) -> str:
    """A row in one line of bounded length; `repr` escapes what a terminal would act upon."""
    text = repr(row)
    return text if len(text) <= MOST_ROW else f"{text[:MOST_ROW]}…"


def place(frame: Frame) -> str:
    """A frame in words."""
    return f"{frame[0]}, line {frame[1]}, in {frame[2]}"


def first_line(error: BaseException) -> str:
    """Type and text of an exception in one line of bounded length."""
    text = " ".join(str(error).split("\n", 1)[0].split())
    text = text if len(text) <= _LINE else f"{text[:_LINE]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_of(error: BaseException, *, show_values: bool) -> str:
    """The traceback from the first frame of user code on, with its causes; if values are not shown, the types alone."""
    told = traceback.TracebackException.from_exception(error, limit=-MOST_FRAMES)
    _trim(told, set())
    if show_values:
        text = "".join(told.format()).rstrip()
    else:
        head = "Traceback (most recent call last):\n"
        text = f"{head}{''.join(told.stack.format())}{type(error).__name__}"
    return text if len(text) <= MOST_TEXT else f"…{text[-MOST_TEXT:]}"


def _trim(told: traceback.TracebackException, seen: set[int]) -> None:
    """Take the frames of cairn away that led into user code, of an exception and of its causes."""
    if id(told) in seen:
        return
    seen.add(id(told))
    first = next((at for at, frame in enumerate(told.stack) if not _is_ours(frame.filename)), 0)
    del told.stack[:first]
    for inner in (told.__cause__, told.__context__):
        if inner is not None:
            _trim(inner, seen)


def facts_of(error: BaseException, *, show_values: bool) -> dict[str, Any]:
    """What is told of an exception that user code raised: its type, the line to look at, the whole traceback."""
    facts: dict[str, Any] = {
        "exception": type(error).__name__,
        "traceback": traceback_of(error, show_values=show_values),
    }
    if show_values:
        facts["cause"] = first_line(error)
    found = culprit(frames_of(error.__traceback__))
    if found is not None:
        facts |= {"file": found[0], "line": found[1], "function": found[2]}
    return facts


def location(error: BaseException) -> str:
    """` (file, line n, in function)` of the user code that an error came through, or nothing."""
    found = culprit(frames_of(error.__traceback__))
    return f" ({place(found)})" if found is not None else ""


def raised(error: BaseException, show_values: bool) -> str:
    """An exception and the line that raised it, in words."""
    if show_values:
        return f"{first_line(error)}{location(error)}"
    hint = "its text may hold data; cairn.errors.show-values shows it"
    return f"{type(error).__name__}{location(error)}, {hint}"


def noted(error: E) -> E:
    """The error with a note that brings its facts to the driver, if it has any of those that are carried."""
    note = facts_note(error.facts)
    if note:
        error.add_note(note)
    return error
