"""Spark's streaming query, as the life of a job sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cairn.errors import CairnError, FencedError


class RunningQuery(Protocol):
    """A query that has been started. Threads: every method may be called from any thread.

    Where Spark no longer answers, methods raise what they meet; `why_unreachable` explains it.
    """

    def is_active(self) -> bool: ...

    def wait(self, timeout: float) -> None:
        """Wait until the query has ended, at most `timeout` seconds. How it ended is told by `why_failed`."""

    def stop(self) -> None:
        """End the query, and wait until it has ended."""

    def waits_for_input(self) -> bool:
        """Whether its sources have nothing new."""

    def why_failed(
        self, epoch_error: BaseException | None, find_newer_run: Callable[[], FencedError | None]
    ) -> CairnError | None:
        """Why the query has failed; None if it has not.

        `epoch_error` is what an epoch raised in this process: Spark passes on its text only. `find_newer_run` says
        whether another run has taken the job.
        """

    def why_unreachable(self, error: Exception) -> CairnError | None:
        """What an error means that a call to Spark has raised; None if Spark is still there."""
