"""What Spark's errors mean for a job, in the words of cairn."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JNetworkError

from cairn.errors import (
    CairnError,
    EpochFailedError,
    FencedError,
    IncompatibleStateError,
    from_traceback,
)
from cairn.job.failure_policy import COLLISION, JVM_GONE, OUTSIDE


def other_sources(text: str) -> IncompatibleStateError | None:
    """What Spark means when the number of sources is not that of its log."""
    counts = re.search(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]", text)
    if counts is None:
        return None
    return IncompatibleStateError(
        f"the job was started with {counts.group(1)} source(s) and now has {counts.group(2)}; their positions are "
        "stored by number, so it cannot resume. Read the same number of sources as before: a stream that feeds two "
        "branches counts twice, and the first operator with on_timer adds one. Or stop it with a savepoint and start "
        "from it: then sources may change. The stored state is intact.",
    )


def other_writer(text: str) -> EpochFailedError | None:
    """What Spark means when an entry of its log is there already, while no newer run of the job is known."""
    log = re.search(r"Multiple streaming queries are concurrently using (\S+?)\.(?=\s|$)", text)
    if log is None and "Multiple streaming jobs detected" not in text:
        return None
    where = f" ({log.group(1)})" if log is not None else ""
    return EpochFailedError(
        f"another process wrote to Spark's log of this job{where}, although no newer run owns the job: an older run "
        "that has not noticed this run yet, or a query outside of cairn. Nothing was committed twice, "
        "and the last committed epoch is intact. End the other process and start the job again.",
        **{OUTSIDE: True, COLLISION: True},
    )


def jvm_gone(name: str, error: Exception) -> EpochFailedError | None:
    """What it means that Spark's JVM cannot even be asked for the end of the query."""
    if not isinstance(error, (ConnectionError, EOFError, Py4JNetworkError)):
        return None
    return EpochFailedError(
        f"job '{name}' failed: Spark's JVM has ended ({error or type(error).__name__}). It was killed, ran out of "
        "memory, or the session was stopped; its own log, or that of the operating system, says why. The last "
        "committed epoch is intact: start the job again in a new process.",
        **{OUTSIDE: True, JVM_GONE: True},
    )


def lost_jvm(name: str, query: Any, error: BaseException | None) -> EpochFailedError | None:
    """The same, if an epoch failed for want of a connection and the JVM, which was still dying then, is gone now.

    A function of the user's may lose a connection of its own: so the JVM is asked.
    """
    failure = jvm_gone(name, error) if isinstance(error, Exception) else None
    if failure is None:
        return None
    try:
        query.isActive  # noqa: B018 - whether there is an answer is the answer
    except Exception:  # noqa: BLE001
        return failure
    return None


def why_failed(
    name: str, query: Any, own: BaseException | None, overtaken: Callable[[], FencedError | None]
) -> CairnError | None:
    """Why a query has failed, in our words; None if it has not.

    `own` is what an epoch raised in this process: Spark passes only its text on. Where it says nothing of ours, the
    cause is looked for from the surest to the most general.
    """
    gone: CairnError | None = None
    try:
        spark_error = query.exception()
    except Exception as error:  # noqa: BLE001 - the JVM no longer answers
        spark_error = error
        gone = jvm_gone(name, error)
    if own is None and spark_error is None:
        return None
    if isinstance(own, CairnError):
        return own
    text = f"{own}\n{spark_error}"
    gone = gone or lost_jvm(name, query, own)
    failure = from_traceback(text) or overtaken() or gone or other_sources(text) or other_writer(text)
    if failure is None:
        failure = EpochFailedError(f"job '{name}' failed: {first_lines(str(own or spark_error))}")
    failure.__cause__ = own if own is not None else spark_error
    return failure


def first_lines(text: str) -> str:
    """The beginning of a long text."""
    return "\n".join(text.strip().splitlines()[:8])
