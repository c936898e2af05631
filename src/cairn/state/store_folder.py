"""A working store's folder on this host: private to the user, locked by one task, valid for one boot of the host."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time

from cairn.errors import StorageError
from cairn.storage.liveness import boot_id

_LOCK_WAIT = 60.0


class StoreFolder:
    """The folder of one backend copy, with the marks that say whether its contents can be trusted."""

    def __init__(self, path: str, incarnation: str) -> None:
        self.path = path
        self._identity = {"incarnation": incarnation, "boot": boot_id(), "format": 2}
        self._marker = path + ".damaged"
        self.fresh = False
        """True once `prepare` has made the folder anew."""

    def prepare(self) -> str | None:
        """Make the folder ready to be opened; returns why earlier contents were thrown away, if that is worth telling.

        A folder of another job, from before the host's last start, or one that was found damaged, starts anew.
        """
        mark = os.path.join(self.path, "identity.json")
        why = None
        if os.path.islink(self.path):
            raise StorageError(f"{self.path} is a symbolic link; remove it, working stores are plain folders")
        if os.path.isdir(self.path):
            try:
                with open(mark) as file:
                    found = json.load(file)
            except (OSError, ValueError):
                found = None
            if found == self._identity and not os.path.exists(self._marker):
                return None
            why = "it was found damaged" if os.path.exists(self._marker) else None
            self.wipe()
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        with open(mark, "w") as file:
            json.dump(self._identity, file)
        self.fresh = True
        return why

    def condemn(self) -> None:
        """Make sure that whoever opens the folder next starts anew."""
        with contextlib.suppress(OSError), open(self._marker, "w"):
            pass

    def wipe(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if os.path.lexists(self.path):
            raise StorageError(f"cannot remove the working store {self.path}; remove it by hand", path=self.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._marker)


class FolderLock:
    """Exclusive use of a store's folder on this host, given back by the operating system if the process dies."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._file = open(path, "w")  # noqa: SIM115 - held until release
        deadline = time.monotonic() + _LOCK_WAIT
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self._file.close()
                    raise StorageError(
                        f"another task has held the working store {os.path.dirname(path)} for {_LOCK_WAIT:.0f} s; "
                        "it may hang: look for a Python worker of an earlier attempt on this host",
                        path=path,
                    ) from None
                time.sleep(0.01)

    def release(self) -> None:
        self._file.close()


def own_folder(path: str) -> None:
    """The root of the working stores: ours alone, so that nobody can plant or read state there."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StorageError(
            f"{path} is not a folder of this user; remove it, or set execution.checkpointing.local-backup.dirs",
            path=path,
        )
