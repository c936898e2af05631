"""Sinks without a target of their own: rows are printed, given to a function, or thrown away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cairn.connectors.sink_base import BaseSink
from cairn.errors import EpochFailedError, InvalidInputError


class PrintSink(BaseSink):
    """Prints the rows of each committed epoch, at most `limit` of them."""

    kind = "print"
    only_writes = True
    materialised = True

    def __init__(self, limit: int = 20, stream: Any = None) -> None:
        super().__init__()
        self.limit = limit
        self._stream = stream
        self._held: dict[int, tuple[list[Any], int]] = {}

    def prepare(self, frame: Any, epoch: int, attempt: str) -> None:
        rows = frame.take(self.limit)
        total = frame.count() if len(rows) == self.limit else len(rows)
        self._held = {epoch: (rows, total)}
        self.rows = total

    def commit(self, data: Any, epoch: int) -> None:
        rows, total = self._held.pop(epoch, ([], 0))
        out = self._stream or sys.stdout
        for row in rows:
            print(f"{epoch}> {', '.join(f'{k}={v!r}' for k, v in row.asDict().items())}", file=out)
        if total > len(rows):
            print(f"{epoch}> ... and {total - len(rows)} more rows", file=out)
        out.flush()


class ForeachEpochSink(BaseSink):
    """Calls `function(frame, epoch)` in every epoch, before it is committed.

    The frame is a plain Spark DataFrame that may be read any number of times. If the job dies before the commit, the
    function is called again with the same epoch id and the same rows. An error in it fails the epoch.
    """

    kind = "foreach"
    materialised = True

    def __init__(self, function: Callable[[Any, int], None]) -> None:
        super().__init__()
        if not callable(function):
            raise InvalidInputError("ForeachEpochSink takes a function of a DataFrame and an epoch id")
        self.function = function

    def prepare(self, frame: Any, epoch: int, attempt: str) -> None:
        try:
            self.function(frame, epoch)
        except Exception as error:
            raise EpochFailedError(
                f"sink '{self.uid}': the function raised {type(error).__name__}: {error}; epoch {epoch} is refused and "
                "the state stays as it was"
            ) from error


class NoopSink(BaseSink):
    """Computes everything and keeps nothing: for measurements, and for jobs whose state is the result."""

    kind = "noop"
    only_writes = True

    def prepare(self, frame: Any, epoch: int, attempt: str) -> None:
        frame.write.format("noop").mode("overwrite").save()
