"""A disk on which unsynced means lost: what would be there after the power failed right now.

::

    with UnsyncedDisk() as disk:
        ...                                  # anything that writes files and syncs them, or forgets to
        disk.lose_power(folder, after)       # `after` gets what was certain to survive

A file's bytes survive as they were when the file was last synced, a name survives if the folder that holds it was
synced after the name was given, and a name that was taken away comes back unless the folder was synced since. That is
the least that a file system promises; real ones keep more, on most days.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Self


class UnsyncedDisk:
    """Watches `os.fsync` while it is entered. Nothing is forced to the real disk meanwhile."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, tuple[int, bool]]] = {}
        self._open: list[int] = []
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = os.fsync
        os.fsync = self._note  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        os.fsync = self._before
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def _note(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        info = os.fstat(number)
        if stat.S_ISDIR(info.st_mode):
            with os.scandir(number) as entries:
                self._folders[info.st_ino] = {
                    entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries
                }
            return
        if info.st_ino not in self._contents:
            self._open.append(os.dup(number))  # so that the number is not given to another file
        with open(f"/proc/self/fd/{number}", "rb") as file:
            self._contents[info.st_ino] = file.read()

    def lose_power(self, folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Write what survives of a folder to `target`, which must not exist. The folder itself goes on as it is."""
        os.makedirs(target)
        self._rebuild(os.stat(folder).st_ino, os.fspath(target))

    def _rebuild(self, number: int, target: str) -> None:
        for name, (inode, is_folder) in self._folders.get(number, {}).items():
            path = os.path.join(target, name)
            if is_folder:
                os.mkdir(path)
                self._rebuild(inode, path)
            else:
                with open(path, "wb") as file:
                    file.write(self._contents.get(inode, b""))
