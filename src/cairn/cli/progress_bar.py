"""How far long work is: a bar on a terminal, a plain line now and then elsewhere, nothing beside a JSON document.

All of it goes to stderr, so that the result can be piped.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cairn import quantities
from cairn.cli.output import Output
from cairn.errors import CairnError
from cairn.text import one_line

LINE_SECONDS = 2.0
"""A line at most so often where there is no terminal."""
_LOOK_SECONDS = 0.4


@dataclass(frozen=True)
class Step:
    """What is being done, and how much of it; `total` 0 means that nobody knows yet."""

    text: str
    done: int = 0
    total: int = 0
    unit: str = ""


def on_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(out: Output, text: str, total: int, unit: str = "pieces") -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the amount of additional work done. `unit` is `bytes`, or what is counted."""
    if out.as_json or out.quiet:
        yield lambda _: None
        return
    show = _Bar(text) if on_terminal() else _Lines(out, text)
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        show.update(Step(text, done, total, unit))

    with show:
        show.update(Step(text, 0, total, unit))
        yield advance


@contextmanager
def watching(out: Output, text: str, look: Callable[[], Step | None]) -> Iterator[None]:
    """Polls `look` and shows its progress while the work is done elsewhere; None means no change."""
    if out.as_json or out.quiet:
        yield
        return
    show = _Bar(text) if on_terminal() else _Lines(out, text, first=True)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            with suppress(CairnError, OSError):  # whoever waits for the work itself hears of it
                step = look()
                if step is not None and not over.is_set():
                    show.update(step)

    thread = threading.Thread(target=watch, name="cairn-progress", daemon=True)
    with show:
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(5)


@contextmanager
def display(out: Output) -> Iterator[Callable[[Step | None], None]]:
    """Gives a function that shows a step when there is one, and nothing while there is none."""
    shown: _Bar | _Lines | None = None

    def show(step: Step | None) -> None:
        nonlocal shown
        if step is None:
            if shown is not None:
                shown.__exit__()
            shown = None
            return
        if shown is None:
            shown = _Bar(step.text) if on_terminal() else _Lines(out, "")
            shown.__enter__()
        shown.update(step)

    try:
        yield show
    finally:
        show(None)


class _Lines:
    """A line when there is something new to say, and not too often."""

    def __init__(self, out: Output, text: str, first: bool = False) -> None:
        self._out = out
        self._said: Step | None = Step(text)
        self._last = time.monotonic()
        if first:
            out.message(text)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, step: Step) -> None:
        now = time.monotonic()
        if step == self._said or now - self._last < LINE_SECONDS:
            return
        self._said, self._last = step, now
        self._out.message(f"{step.text}: {amount(step)}" if step.total else step.text)


class _Bar:
    """A bar of rich that is gone when the work is done."""

    def __init__(self, text: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24),
            TextColumn("{task.fields[amount]}", markup=False), TimeElapsedColumn(),
            TextColumn("left:"), TimeRemainingColumn(),
        )  # fmt: skip
        colour = not os.environ.get("NO_COLOR")
        console = Console(stderr=True, no_color=not colour)
        self._progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        self._task: Any = self._progress.add_task(one_line(text), total=None, amount="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, step: Step) -> None:
        self._progress.update(
            self._task, description=one_line(step.text), completed=step.done, total=step.total or None,
            amount=amount(step) if step.total else "",
        )  # fmt: skip


def amount(step: Step) -> str:
    """3 of 8 pieces; 1.5 MiB of 2.0 GiB."""
    if step.unit == "bytes":
        return f"{quantities.size(step.done)} of {quantities.size(step.total)}"
    return f"{step.done:,} of {step.total:,} {step.unit}".rstrip()
