"""Spark's words for what went wrong, in ours, and what a failure leaves for the next start."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JNetworkError

from cairn.errors import (
    CairnError,
    CorruptFileError,
    EpochFailedError,
    FencedError,
    IncompatibleStateError,
    from_traceback,
)
from cairn.model.checkpoint_records import Checkpoint
from cairn.quantities import shell_word
from cairn.restore.damage import damage
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem

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


def lost_jvm(name: str, query: Any, error: BaseException | None) -> EpochFailedError | None:
    """The same, if an epoch failed for want of a connection and the JVM, which was still dying then, is gone now.

    A function of the user's may lose a connection of its own: so the JVM is asked.
    """
    found = jvm_gone(name, error) if isinstance(error, Exception) else None
    if found is None:
        return None
    try:
        query.isActive  # noqa: B018 - whether there is an answer is the answer
    except Exception:  # noqa: BLE001
        return found
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
    except Exception as error:  # noqa: BLE001 - the JVM does not answer any more
        spark_error = error
        gone = jvm_gone(name, error)
    if own is None and spark_error is None:
        return None
    if isinstance(own, CairnError):
        return own
    text = f"{own}\n{spark_error}"
    gone = gone or lost_jvm(name, query, own)
    found = from_traceback(text) or overtaken() or gone or other_sources(text) or other_writer(text)
    if found is None:
        found = EpochFailedError(f"job '{name}' failed: {first_lines(str(own or spark_error))}")
    found.__cause__ = own if own is not None else spark_error
    return found


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


def note_damage(files: FileSystem, failure: CorruptFileError) -> CorruptFileError:
    """Leave a mark that makes the next start read every byte, and say so; returns the error to be shown.

    It names the newest checkpoint that does not need what the error names, if there is one.
    """
    with contextlib.suppress(CairnError, FileExistsError):  # without the mark the same error comes once more
        files.create(layout.DAMAGED, failure.message.encode())
    told = "The next start of the job reads every byte of its state"
    usable = None
    with contextlib.suppress(CairnError):
        usable = next((c for c in reversed(CheckpointStore(files).current()) if _spared(files, c, failure)), None)
    if usable is None:
        told += "; no checkpoint without that file is there, so bring it back from a copy first."
    else:
        path = f"{files.root}/{layout.checkpoint_folder(usable.id)}"
        told += (
            f" and, where some is damaged, goes back to the newest intact checkpoint: {path}, unless that is damaged, "
            f"too. To go back to it by hand, `cairn run JOB.py -s {shell_word(path)}`."
        )
    made = CorruptFileError(f"{failure.message.rstrip('. ')}. {told}", **failure.facts)
    made.__cause__ = failure.__cause__
    return made


def _spared(files: FileSystem, checkpoint: Checkpoint, failure: CorruptFileError) -> bool:
    """Whether a checkpoint is whole, as far as can be seen quickly, and does not need a file that the error names."""
    named = any(path in failure.message for path in checkpoint.files())
    return not named and not damage(files, checkpoint.manifest, checkpoint=checkpoint)
