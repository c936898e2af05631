"""A progress bar on stderr for work that takes long; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cairn.cli.output import Output


@contextmanager
def progress(out: Output, text: str, total: int, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how much more is done."""
    if out.as_json or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.advance(task, done)
