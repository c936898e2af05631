"""What happens to the checkpoints of a job that has ended."""

from __future__ import annotations

import logging

from cairn.errors import CairnError, CorruptFileError, FencedError, IncompatibleStateError, StorageError
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem

_log = logging.getLogger("cairn.job")


def keeps_checkpoints(retention: str, canceled: bool, failure: CairnError | None) -> bool:
    """Whether they stay, by `execution.checkpointing.externalized-checkpoint-retention` and how the job ended."""
    if isinstance(failure, (FencedError, CorruptFileError, StorageError)):  # they may be all that is left
        return True
    if isinstance(failure, IncompatibleStateError):  # the code is at fault: its last version may need them
        return True
    if canceled:
        return retention == "RETAIN_ON_CANCELLATION"
    return failure is not None and retention != "NO_EXTERNALIZED_CHECKPOINTS"


def discard_all(files: LocalFileSystem, name: str) -> None:
    store = CheckpointStore(files)
    for number in store.numbers():
        try:
            store.discard(number)
        except CairnError as error:  # the job ended as it ended; its other checkpoints go all the same
            _log.warning("checkpoint %d of job %s is left: %s", number, name, error)
