"""What happens to the checkpoints of a job that has ended."""

from __future__ import annotations

import os
import threading

from cairn.errors import CairnError, CorruptFileError, FencedError, IncompatibleStateError, StorageError
from cairn.job.failure_policy import from_outside, newer_run
from cairn.job.job_context import JobContext
from cairn.logs import get_logger
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_records import Runs

_log = get_logger("cairn.job")


def keeps_checkpoints(retention: str, canceled: bool, failure: CairnError | None) -> bool:
    """Whether they stay, by `execution.checkpointing.externalized-checkpoint-retention` and how the job ended."""
    if isinstance(failure, (FencedError, CorruptFileError, StorageError)):  # they may be all that is left
        return True
    if isinstance(failure, IncompatibleStateError):  # the code is at fault: its last version may need them
        return True
    if canceled:
        return retention == "RETAIN_ON_CANCELLATION"
    return failure is not None and retention != "NO_EXTERNALIZED_CHECKPOINTS"


class CheckpointRetention:
    """Discards the checkpoints of a job when it ends, or keeps them, as configured.

    Threads: `keep_all` may be called from any thread, `apply` is called by the supervisor's. They share one event.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._keeps_all = threading.Event()

    def keep_all(self) -> None:
        """Keep all checkpoints whatever the configuration: the job is interrupted, and will go on."""
        self._keeps_all.set()

    def apply(self, run: int, canceled: bool, failure: CairnError | None) -> None:
        """Called at the end of the job. The checkpoints of a job that a newer run has taken stay."""
        policy = self._context.settings.checkpoints.retention
        if self._keeps_all.is_set() or keeps_checkpoints(policy, canceled, failure) or from_outside(failure):
            return
        if newer_run(self._context.files, run) is None:
            discard_all(self._context.files, self._context.name, run)


def way_back(store: CheckpointStore) -> int:
    """The checkpoint that a restore in place went back to last, 0 if there is none or a newer one can take its place.

    As long as no checkpoint of the history since then is complete, it is the newest way back.
    """
    manifests = ManifestStore(store.files)
    restores = manifests.restores()
    if not restores:
        return 0
    target, restored = max(restores, key=lambda pair: pair[1])
    checkpoints = store.all()
    if any(checkpoint.manifest.epoch >= restored for checkpoint in checkpoints):
        return 0
    candidates = [checkpoint.id for checkpoint in checkpoints if checkpoint.manifest.epoch == target]
    newest = manifests.newest()
    origin = newest.origin.rpartition("#")[0] if newest is not None else ""
    named = layout.checkpoint_number(os.path.basename(origin)) if os.path.dirname(origin) == store.files.root else None
    return named if named in candidates else max(candidates, default=0)


def discard_all(files: LocalFileSystem, name: str, run: int) -> None:
    """Discard the checkpoints of a job that has ended.

    The decision is written down first. If no newer run has the job after that, every later one will read it, so the
    deletion may take its time; else the newer run may count on the checkpoints, and they stay.
    """
    store = CheckpointStore(files)
    retained = way_back(store)
    if retained:
        _log.warning("chk-%d of job %s stays: the job went back to it and has no newer checkpoint", retained, name)
    numbers = [number for number in store.numbers() if number != retained]
    if not numbers:
        return
    try:
        store.record_discards(run, numbers)
        Runs(files).check(run)
    except FencedError as error:
        _log.warning("the checkpoints of job %s stay: %s", name, error.message)
        return
    for number in numbers:
        try:
            store.discard(number)
        except CairnError as error:  # the job ended as it ended; its other checkpoints go all the same
            _log.warning("checkpoint %d of job %s is left: %s", number, name, error)
