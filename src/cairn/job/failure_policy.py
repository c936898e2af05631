"""What follows from a failure: whether the job is started again, and what the next start has to know."""

from __future__ import annotations

import contextlib
import time

from cairn.coordinator.restart_policy import RestartPolicy, worth_restarting
from cairn.errors import CairnError, CorruptFileError, FencedError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint
from cairn.quantities import shell_word
from cairn.restore.damage import damage
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem
from cairn.storage.run_records import Runs

_log = get_logger("cairn.job")
OUTSIDE = "outside"
"""Fact of an error whose cause is neither the job nor its state."""
JVM_GONE = "jvm_gone"
"""Fact of an error after which Spark can no longer be reached from this process."""
COLLISION = "collision"
"""Fact of an error that an older run of the job caused by writing to Spark's log."""
_COLLISIONS = 3
_PAUSE_MS = 1000


def from_outside(failure: CairnError | None) -> bool:
    """Whether neither the job nor its state is to blame: the job will be started again, and keeps what it has."""
    return failure is not None and OUTSIDE in failure.facts


def newer_run(files: FileSystem, run: int) -> FencedError | None:
    """The error that ends a run if a newer one has taken the job; None if it has not."""
    try:
        Runs(files).check(run)
    except FencedError as error:
        return error
    return None


class FailurePolicy:
    """Decides after each failure of a job whether it is started again.

    After an older run has written to Spark's log the job is restarted a few times whatever its restart strategy: the
    older run stops by itself as soon as it looks, so a short pause is enough.

    Threads: owned by the supervisor's thread.
    """

    def __init__(self, name: str, strategy: RestartPolicy) -> None:
        self._name = name
        self._strategy = strategy
        self._collisions = 0

    def restart_delay_ms(self, failure: CairnError) -> int | None:
        """How long to wait before the job is started again; None if it stays down. Called once for each failure."""
        if not worth_restarting(failure) or JVM_GONE in failure.facts:  # this process has one JVM only
            return None
        if COLLISION in failure.facts and self._collisions < _COLLISIONS:
            self._collisions += 1
            return _PAUSE_MS * self._collisions
        delay = self._strategy.next_delay(time.monotonic_ns() // 1_000_000)
        if delay is None and self._strategy.type != "none":
            strategy = self._strategy.describe()
            _log.error("job %s stays down: its restart strategy (%s) is exhausted", self._name, strategy)
        return delay


def note_damage(files: FileSystem, failure: CorruptFileError) -> CorruptFileError:
    """Leave a mark that makes the next start read every byte, and say so; returns the error to be shown.

    It names the newest checkpoint that does not need what the error names, if there is one.
    """
    with contextlib.suppress(CairnError, FileExistsError):  # without the mark the same error comes once more
        files.create(layout.DAMAGED, failure.message.encode())
    advice = "The next start of the job reads every byte of its state"
    usable = None
    with contextlib.suppress(CairnError):
        usable = next((c for c in reversed(CheckpointStore(files).current()) if _spared(files, c, failure)), None)
    if usable is None:
        advice += "; there is no checkpoint without that file, so restore it from a backup first."
    else:
        path = f"{files.root}/{layout.checkpoint_folder(usable.id)}"
        advice += (
            f" and, if some of it is damaged, falls back to the newest intact checkpoint: {path}, unless that is "
            f"damaged, too. To restore it yourself: `cairn run JOB.py -s {shell_word(path)}`."
        )
    explained = CorruptFileError(f"{failure.message.rstrip('. ')}. {advice}", **failure.facts)
    explained.__cause__ = failure.__cause__
    return explained


def _spared(files: FileSystem, checkpoint: Checkpoint, failure: CorruptFileError) -> bool:
    """Whether a checkpoint is whole, as far as can be seen quickly, and does not need a file that the error names."""
    named = any(path in failure.message for path in checkpoint.files())
    return not named and not damage(files, checkpoint.manifest, checkpoint=checkpoint)
