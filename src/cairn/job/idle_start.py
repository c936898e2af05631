"""Logs where a job resumes, and that there is no new input, so that a start does not seem to have no effect."""

from __future__ import annotations

from collections.abc import Callable

from cairn.job.running_query import RunningQuery
from cairn.logs import get_logger

_log = get_logger("cairn.job")


def tell_start(name: str, run: int, epoch: int) -> None:
    """A run continues from an epoch that an earlier one committed."""
    _log.warning("job %s resumes from epoch %d (run %d)", name, epoch, run)


def tell_end(name: str, epoch: int | None, epochs: int) -> None:
    """A job has finished after so many epochs of its own."""
    if epoch is not None and epochs == 0:
        _log.warning("job %s has finished: no new input since epoch %d", name, epoch)


class NothingNew:
    """Says once that a run which continues from an epoch waits for input. Called again and again until it has.

    Threads: owned by the coordinator's thread.
    """

    def __init__(self, name: str, epoch: int | None, query: RunningQuery, epochs: Callable[[], int]) -> None:
        self._name = name
        self._epoch = epoch
        self._query = query
        self._epochs = epochs
        self._done = epoch is None

    def look(self) -> None:
        if self._done:
            return
        if self._epochs():
            self._done = True
        elif self._waits():
            self._done = True
            _log.warning("job %s is waiting for input: no new input since epoch %d", self._name, self._epoch)

    def _waits(self) -> bool:
        try:
            return self._query.waits_for_input()
        except Exception as error:  # noqa: BLE001 - the JVM may be gone, which others find out
            _log.debug("the state of the query is not known: %s", error)
            return False
