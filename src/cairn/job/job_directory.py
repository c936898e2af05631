"""The directory of a job whose state lives as long as the driver, and the removal of what crashed runs left in any."""

from __future__ import annotations

import atexit
import shutil
import tempfile

from cairn.errors import CairnError
from cairn.logs import get_logger
from cairn.storage.cleanup import sweep
from cairn.storage.filesystem import LocalFileSystem

_log = get_logger("cairn.api")


def driver_directory() -> str:
    """A directory that lives as long as the driver."""
    directory = tempfile.mkdtemp(prefix="cairn-jobmanager-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def jobmanager_directory() -> str:
    """The directory of a job with `JobManagerCheckpointStorage`."""
    _log.warning(
        "the driver holds state and checkpoints (JobManagerCheckpointStorage): they are deleted when it ends, and the "
        "next start begins with empty state; set execution.checkpointing.dir to keep them"
    )
    return driver_directory()


def sweep_leftovers(files: LocalFileSystem) -> None:
    """Remove what crashed runs left behind. A job never fails for this: what cannot be deleted now can be later."""
    try:
        swept = sweep(files)
    except (CairnError, OSError) as error:
        _log.warning("cannot look for files that no epoch needs: %s", error)
        return
    if swept:
        size = sum(info.size for info in swept)
        _log.info("removed %d files (%d bytes) that no epoch names", len(swept), size)
