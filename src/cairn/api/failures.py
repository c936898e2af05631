"""Spark's words for what went wrong, in ours."""

from __future__ import annotations

import re

from py4j.protocol import Py4JNetworkError

from cairn.errors import CairnError, EpochFailedError, IncompatibleStateError

_OUTSIDE = "outside"
"""Fact of an error whose cause is neither the job nor its state."""
_JVM_GONE = "jvm_gone"
_COLLISIONS = 3
_PAUSE_MS = 1000


def other_sources(text: str) -> IncompatibleStateError | None:
    """What Spark means when the number of sources is not that of its log."""
    found = re.search(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]", text)
    if found is None:
        return None
    return IncompatibleStateError(
        f"the job was started with {found.group(1)} source(s) and now has {found.group(2)}; their positions are kept "
        "by number, so it cannot go on. Read as many sources as before: a stream that feeds two branches counts twice, "
        "and the first operator with on_timer adds one. Or stop it with a savepoint and start from that: there, "
        "sources may change. The stored state is intact.",
    )


def other_writer(text: str) -> EpochFailedError | None:
    """What Spark means when an entry of its log is there already, while no newer run of the job is known."""
    found = re.search(r"Multiple streaming queries are concurrently using (\S+?)\.(?=\s|$)", text)
    if found is None and "Multiple streaming jobs detected" not in text:
        return None
    where = f" ({found.group(1)})" if found is not None else ""
    return EpochFailedError(
        f"somebody else wrote to Spark's log of this job{where}, and no newer run has taken the job: an older run that "
        "had not noticed yet that this one has it, or a query that is none of cairn's. Nothing was committed twice, "
        "and the last committed epoch is intact. End the other process and start the job again.",
        **{_OUTSIDE: True, "collision": True},
    )


def jvm_gone(name: str, error: Exception) -> EpochFailedError | None:
    """What it means that Spark's JVM cannot even be asked for the end of the query."""
    if not isinstance(error, (ConnectionError, EOFError, Py4JNetworkError)):
        return None
    return EpochFailedError(
        f"job '{name}' failed: Spark's JVM is gone ({error or type(error).__name__}). It was killed, ran out of "
        "memory, or the session was stopped; its own log, or that of the operating system, says why. The last "
        "committed epoch is intact: start the job again in a new process.",
        **{_OUTSIDE: True, _JVM_GONE: True},
    )


def from_outside(failure: CairnError | None) -> bool:
    """Whether neither the job nor its state is to blame: the job will be started again, and keeps what it has."""
    return failure is not None and _OUTSIDE in failure.facts


def needs_new_process(failure: CairnError) -> bool:
    """Whether no restart within this process can help, since it has one JVM only."""
    return _JVM_GONE in failure.facts


class Collisions:
    """Restarts after an older run had written to Spark's log: a few, whatever the restart strategy.

    The older run stops by itself as soon as it looks, so a short pause is enough.
    """

    def __init__(self) -> None:
        self._count = 0

    def next_delay(self, failure: CairnError) -> int | None:
        """Milliseconds to wait before a restart; None if the restart strategy is to decide."""
        if "collision" not in failure.facts or self._count >= _COLLISIONS:
            return None
        self._count += 1
        return _PAUSE_MS * self._count


def first_lines(text: str) -> str:
    """The beginning of a long text."""
    return "\n".join(text.strip().splitlines()[:8])
