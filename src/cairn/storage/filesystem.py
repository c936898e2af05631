"""The small contract that durable storage must keep, and its implementation for local paths.

Storage needs few operations: create a file that must not exist, read, list, delete, move, and test for
existence. Nothing is ever overwritten. `testing/faults.py` wraps this contract to fail on cue.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from cairn.errors import InvalidInputError, NotFoundError, StorageError
from cairn.storage import regular_files


class FileInfo(msgspec.Struct, frozen=True):
    path: str
    size: int
    modified: float


Names = list[str]


class FileSystem(Protocol):
    """All paths are relative to the root that the file system was opened at, with `/` between the parts."""

    @property
    def root(self) -> str: ...

    def create(self, path: str, data: bytes | memoryview) -> None:
        """Create `path` with exactly these bytes, durable on return; `FileExistsError` if it is there already.

        Atomic: whoever sees the file sees all of it. A failed call leaves nothing under that name.
        """

    def read(self, path: str) -> bytes:
        """All bytes of a file; `NotFoundError` if it is missing, `CorruptFileError` if it is no regular file, or larger
        than a file of its kind can be (`regular.limit_of`)."""

    def local_path(self, path: str) -> str | None:
        """Where the file lies on this host's disk, so that it can be memory-mapped; None if it does not."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[FileInfo]:
        """The files directly below a folder, sorted by name; empty if there is no such folder."""

    def walk(self, path: str) -> Iterator[FileInfo]:
        """All files below a folder, however deep."""

    def folders(self, path: str) -> Names:
        """Names of the folders directly below a folder, sorted; empty if there is no such folder."""

    def delete(self, path: str) -> None:
        """Delete a file; fine if it is gone already."""

    def prune(self, path: str) -> None:
        """Remove a folder if it is there and empty. Stores that know no folders have nothing to do."""

    def move(self, source: str, target: str) -> None:
        """Move a file to a name that must not exist, durable on return."""

    def rename(self, source: str, target: str) -> None:
        """Give a folder a name that must not exist, atomically and durable on return; `FileExistsError` if it does."""


def _storage_error(what: str, path: str, error: OSError) -> StorageError:
    hint = {
        errno.ENOSPC: "the disk is full: free some room, then start the job again; the last committed epoch is intact",
        errno.EACCES: "permission denied: make the directory writable for the user that runs the job",
        errno.EROFS: "the file system is read-only",
        errno.EDQUOT: "the disk quota is used up",
    }.get(error.errno or 0, "the last committed epoch is intact; start the job again once the storage works")
    return StorageError(f"cannot {what} {path}: {error.strerror or error}; {hint}", path=path, errno=error.errno)


class LocalFileSystem:
    """Files below one directory of this host (or of a mount that all hosts share)."""

    def __init__(self, root: str, write_portion: int = 0) -> None:
        self._root = os.path.abspath(root)
        self._write_portion = write_portion or 1 << 62

    @property
    def root(self) -> str:
        return self._root

    def _full(self, path: str) -> str:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path:
            raise InvalidInputError(f"{path!r} is not a path below {self._root}", path=path)
        return os.path.join(self._root, *parts)

    def create(self, path: str, data: bytes | memoryview) -> None:
        full = self._full(path)
        folder = os.path.dirname(full)
        temporary = os.path.join(folder, f".{os.path.basename(full)}.{uuid.uuid4().hex}.tmp")
        try:
            self._make_folder(folder)
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
                with open(descriptor, "wb", buffering=0) as file:
                    view = memoryview(data)
                    while view:
                        view = view[file.write(view[: self._write_portion]) :]
                    os.fsync(descriptor)
                os.link(temporary, full)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            sync(folder)
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, "the file exists already", full) from None
        except OSError as error:
            raise _storage_error("write", full, error) from error

    def _make_folder(self, folder: str) -> None:
        if os.path.isdir(folder):
            return
        missing = []
        at = folder
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        os.makedirs(folder, mode=0o750, exist_ok=True)
        for made in missing:
            sync(os.path.dirname(made))

    def read(self, path: str) -> bytes:
        full = self._full(path)
        try:
            return regular_files.read(full, regular_files.limit_of(path))
        except FileNotFoundError:
            raise NotFoundError(f"{full} is missing", path=full) from None
        except OSError as error:
            raise _storage_error("read", full, error) from error

    def local_path(self, path: str) -> str | None:
        return self._full(path)

    def exists(self, path: str) -> bool:
        try:
            os.lstat(self._full(path))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _storage_error("look at", self._full(path), error) from error
        return True

    def list(self, path: str) -> list[FileInfo]:
        full = self._full(path) if path else self._root
        found = []
        try:
            with os.scandir(full) as entries:
                for entry in entries:
                    if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                        continue
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        name = f"{path}/{entry.name}" if path else entry.name
                        found.append(FileInfo(name, info.st_size, info.st_mtime))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _storage_error("list", full, error) from error
        return sorted(found, key=lambda info: info.path)

    def walk(self, path: str) -> Iterator[FileInfo]:
        top = self._full(path) if path else self._root
        for folder, _, names in os.walk(top):
            for name in names:
                full = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    info = os.lstat(full)
                    yield FileInfo(os.path.relpath(full, self._root).replace(os.sep, "/"), info.st_size, info.st_mtime)

    def folders(self, path: str) -> Names:
        full = self._full(path) if path else self._root
        try:
            with os.scandir(full) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _storage_error("list", full, error) from error

    def prune(self, path: str) -> None:
        with contextlib.suppress(OSError):  # not empty, or not there: then it stays, or it is gone
            os.rmdir(self._full(path))

    def delete(self, path: str) -> None:
        full = self._full(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _storage_error("delete", full, error) from error

    def move(self, source: str, target: str) -> None:
        full_source, full_target = self._full(source), self._full(target)
        try:
            self._make_folder(os.path.dirname(full_target))
            os.link(full_source, full_target)
            sync(os.path.dirname(full_target))
            os.unlink(full_source)
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, "the file exists already", full_target) from None
        except OSError as error:
            raise _storage_error("move", full_source, error) from error

    def rename(self, source: str, target: str) -> None:
        full_source, full_target = self._full(source), self._full(target)
        try:
            if os.path.lexists(full_target):
                os.rmdir(full_target)  # an empty folder may be there; anything else stays and is refused
            os.rename(full_source, full_target)
            sync(os.path.dirname(full_target))
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, "the folder exists already", full_target) from None
            raise _storage_error("rename", full_source, error) from error


def sync(path: str) -> None:
    """Force a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place is an error; do not block on it
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def local_root(url: str) -> str:
    """The local path that a directory setting names. Raises `InvalidInputError` for what cannot be used."""
    if "://" not in url and not url.startswith("file:"):
        return os.path.abspath(os.path.expanduser(url))
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise InvalidInputError(
            f"cannot use {url!r}: directories are local paths or file: URLs (on a cluster, a mount shared by all hosts)"
        )
    return os.path.abspath(unquote(parts.path))


def open_filesystem(url: str, write_portion: int = 0) -> FileSystem:
    """The file system for a directory setting: a path, or a `file:` URL."""
    return LocalFileSystem(local_root(url), write_portion)


def as_url(path: str) -> str:
    """A local path as Spark wants it: with a scheme, and otherwise to the letter (Hadoop decodes no `%20`)."""
    return f"file://{os.path.abspath(path)}"
