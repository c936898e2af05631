"""Storage with retries: a call that failed with a transient error is repeated, with growing delays and a limit.

Passing reasons are those that a network mount or an object store gives when it is busy or its connection was cut
(`PASSING`), and nothing else: a full disk, a missing permission or a damaged file is told at once. A repeated create or
move must not take its own first try, which may have worked before it failed, for somebody else's: what is found is
compared with what was to be written.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from cairn.errors import NotFoundError, StorageError
from cairn.logs import get_logger
from cairn.storage.filesystem import FileInfo, FileSystem

_T = TypeVar("_T")
_Infos = list[FileInfo]
_Names = list[str]
_log = get_logger("cairn.storage")

PASSING = frozenset({
    errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED,
    errno.EPIPE, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ESTALE, errno.EREMOTEIO,
})  # fmt: skip


@dataclass
class Patience:
    """How often a call is retried and how long the pauses are. `retries` counts them, over all calls."""

    attempts: int = 6
    first_pause: float = 0.05
    longest_pause: float = 2.0
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    retries: int = field(default=0, init=False)

    def pause(self, failed: int) -> None:
        """Wait after the given failure of a call. Half of the pause is left to chance, so that many tasks that
        were turned away together do not come back together."""
        self.retries += 1
        longest = min(self.first_pause * 2 ** (failed - 1), self.longest_pause)
        self.sleep(longest * (0.5 + self.chance() / 2))


def passes(error: BaseException) -> bool:
    """Whether a retry may succeed after an error."""
    return isinstance(error, StorageError) and error.facts.get("errno") in PASSING


def retries_of(files: FileSystem) -> int:
    """The number of retries so far; 0 for a file system without retries."""
    return files.retries if isinstance(files, RetryingFileSystem) else 0


class RetryingFileSystem:
    """A `FileSystem` that wraps another one and retries calls after transient errors."""

    def __init__(self, inner: FileSystem, patience: Patience | None = None) -> None:
        self.inner = inner
        self.patience = patience or Patience()

    @property
    def root(self) -> str:
        return self.inner.root

    @property
    def retries(self) -> int:
        return self.patience.retries

    def _try(self, what: str, call: Callable[[int], _T]) -> _T:
        """`call` is told how often it has failed."""
        failed = 0
        while True:
            try:
                return call(failed)
            except StorageError as error:
                failed += 1
                if not passes(error) or failed >= self.patience.attempts:
                    raise
                _log.debug("%s: retrying after failure %d: %s", what, failed, error.message)
                self.patience.pause(failed)

    def create(self, path: str, data: bytes | memoryview) -> None:
        def attempt(failed: int) -> None:
            try:
                self.inner.create(path, data)
            except FileExistsError:
                if not failed or self.inner.read(path) != bytes(data):
                    raise

        self._try(f"create {path}", attempt)

    def read(self, path: str) -> bytes:
        return self._try(f"read {path}", lambda failed: self.inner.read(path))

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)

    def exists(self, path: str) -> bool:
        return self._try(f"look at {path}", lambda failed: self.inner.exists(path))

    def list(self, path: str) -> _Infos:
        return self._try(f"list {path}", lambda failed: self.inner.list(path))

    def walk(self, path: str) -> Iterator[FileInfo]:
        return iter(self._try(f"list {path}", lambda failed: [*self.inner.walk(path)]))

    def folders(self, path: str) -> _Names:
        return self._try(f"list {path}", lambda failed: self.inner.folders(path))

    def delete(self, path: str) -> None:
        self._try(f"delete {path}", lambda failed: self.inner.delete(path))

    def prune(self, path: str) -> None:
        self._try(f"delete {path}", lambda failed: self.inner.prune(path))

    def move(self, source: str, target: str) -> None:
        def attempt(failed: int) -> None:
            try:
                self.inner.move(source, target)
            except FileExistsError:
                if not failed or self.inner.read(source) != self.inner.read(target):
                    raise
                self.inner.delete(source)  # the first try was cut off between its two halves
            except (NotFoundError, StorageError) as error:
                gone = isinstance(error, NotFoundError) or error.facts.get("errno") == errno.ENOENT
                if not (failed and gone and self.inner.exists(target)):
                    raise

        self._try(f"move {source}", attempt)

    def rename(self, source: str, target: str) -> None:
        def attempt(failed: int) -> None:
            try:
                self.inner.rename(source, target)
            except StorageError as error:
                gone = error.facts.get("errno") == errno.ENOENT
                if not (failed and gone and target.rpartition("/")[2] in self.inner.folders(target.rpartition("/")[0])):
                    raise

        self._try(f"rename {source}", attempt)
