"""Whether a directory keeps the promises that commits rest on. Asked once at a job's start, and by `cairn doctor`.

A store whose exclusive create silently replaces what is there would let two runs commit the same epoch, and nobody
would notice. So it is tried, with a file that nobody else has.
"""

from __future__ import annotations

import contextlib
import uuid

from cairn.errors import CairnError, NotFoundError, StorageError
from cairn.storage.filesystem import FileSystem


def broken_promise(files: FileSystem, folder: str = "") -> str:
    """The first promise that the store does not keep, in words; empty if it keeps all. Leaves nothing behind."""
    token = uuid.uuid4().hex
    prefix = f"{folder}/" if folder else ""
    first, second = f"{prefix}.probe-{token}.tmp", f"{prefix}.probe-{token}-moved.tmp"
    try:
        files.create(first, b"first")
        if not files.exists(first) or files.read(first) != b"first":
            return "a file that was created is there, with its bytes"
        with contextlib.suppress(FileExistsError):
            files.create(first, b"second")
            return "a file is created only if it does not exist: a second create of the same name succeeded"
        if files.read(first) != b"first":
            return "a create that fails leaves the file as it was"
        files.create(second, b"second")
        with contextlib.suppress(FileExistsError):
            files.move(first, second)
            return "a file is moved only to a name that does not exist: a move onto another file succeeded"
        if files.read(second) != b"second":
            return "a move that fails leaves the file at the target as it was"
        files.delete(first)
        if files.exists(first):
            return "a file that was deleted is gone"
    except NotFoundError as error:
        return f"a file that was created can be read: {error.message}"
    finally:
        for path in (first, second):
            with contextlib.suppress(CairnError):
                files.delete(path)
    return ""


def check_promises(files: FileSystem) -> None:
    """Raise `StorageError` if the directory is no place for a job."""
    broken = broken_promise(files)
    if broken:
        raise StorageError(
            f"{files.root} does not keep a promise that commits rest on: {broken}. Two runs could overwrite each "
            "other's epochs there. Choose another execution.checkpointing.dir (a local disk, or a mount with exclusive "
            "create and hard links); `cairn doctor --data-dir DIR` checks one. Nothing was changed.",
            path=files.root,
        )
