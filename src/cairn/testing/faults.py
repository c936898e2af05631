"""Storage that fails on cue: the n-th call, a name pattern, a share of all calls, a crash before or after the effect, a
torn write, a slow one, a store that turns callers away, copies instead of moving, or overwrites what it must not.

::

    plan = FaultPlan([Fault("crash", call=7, after=True), Fault("full", operation="create", pattern="shared/*")])
    files = FaultyFileSystem(LocalFileSystem(root), plan)
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cairn.errors import InvalidInputError, StorageError
from cairn.storage.filesystem import FileInfo, FileSystem

_Infos = list[FileInfo]
_Names = list[str]
KINDS = ("error", "full", "busy", "slow", "crash", "torn", "copied", "overwrite")
_ONLY_FOR = {"torn": "create", "copied": "move", "overwrite": "create"}
OPERATIONS = ("create", "read", "exists", "list", "walk", "folders", "delete", "prune", "move", "rename")


class Crash(BaseException):
    """The process ended here. Not an `Exception`, so that no handler mistakes it for an error."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to fail. It hits the calls that match all of `call`, `operation` and `pattern`, at most `times` of them.

    * `error`: a `StorageError` for any reason. `full`: one with ENOSPC, as a full disk gives it. `busy`: one with
      EAGAIN, as a store gives it that wants to be asked again later.
    * `slow`: the call takes `seconds` longer (the plan's `sleep` does the waiting).
    * `crash`: `Crash` is raised, and every later call raises it too.
    * `torn`: a create leaves the first `keep` bytes under the final name, then crashes.
    * `copied`: a move leaves the file under both names, then crashes, as a store does that copies and deletes.
    * `overwrite`: a create silently replaces what is there.

    With `after` the call takes effect before it fails. `call` counts all calls from 1. With `share` it hits only that
    part of the calls, by chance, with the plan's seed.
    """

    kind: str = "error"
    call: int = 0
    operation: str = ""
    pattern: str = "*"
    after: bool = False
    keep: int = 0
    times: int = 1
    seconds: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInputError(f"a fault is one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.operation and self.operation not in OPERATIONS:
            raise InvalidInputError(f"an operation is one of {', '.join(OPERATIONS)}, not {self.operation!r}")

    def hits(self, number: int, operation: str, path: str) -> bool:
        return (
            self.call in (0, number)
            and self.operation in ("", operation)
            and _ONLY_FOR.get(self.kind, operation) == operation
            and fnmatchcase(path, self.pattern)
        )


@dataclass(slots=True)
class FaultPlan:
    """The faults to inject. With `list_lag` a listing shows the files as they were that many calls ago."""

    faults: Sequence[Fault] = ()
    list_lag: int = 0
    used: dict[int, int] = field(default_factory=dict)
    """How often each fault, by its place, has struck."""
    seed: int = 0
    sleep: Callable[[float], None] = time.sleep
    _chance: random.Random | None = None

    def strike(self, number: int, operation: str, path: str) -> Fault | None:
        for place, fault in enumerate(self.faults):
            if self.used.get(place, 0) >= fault.times or not fault.hits(number, operation, path):
                continue
            self._chance = self._chance or random.Random(self.seed)
            if fault.share >= 1 or self._chance.random() < fault.share:
                self.used[place] = self.used.get(place, 0) + 1
                return fault
        return None


class FaultyFileSystem:
    """A `FileSystem` around another one. `calls` counts the calls, `log` holds (number, operation, path) of each.

    Files are never memory-mapped through it (`local_path` is None), so every read can be seen and made to fail.
    """

    def __init__(self, inner: FileSystem, plan: FaultPlan | None = None) -> None:
        self.inner = inner
        self.plan = plan or FaultPlan()
        self.calls = 0
        self.log: list[tuple[int, str, str]] = []
        self.crashed = False
        self._changes: list[tuple[int, str, FileInfo | None]] = []

    @property
    def root(self) -> str:
        return self.inner.root

    def _enter(self, operation: str, path: str) -> Fault | None:
        """Count the call and fail if a fault without effect is due; returns one that strikes after the effect."""
        if self.crashed:
            raise Crash(f"{operation} {path}: the process is gone")
        self.calls += 1
        self.log.append((self.calls, operation, path))
        fault = self.plan.strike(self.calls, operation, path)
        if fault is not None and fault.kind == "slow":
            self.plan.sleep(fault.seconds)
            return None
        if fault is None or fault.after or fault.kind in _ONLY_FOR:
            return fault
        raise self._failure(fault, operation, path)

    def _leave(self, fault: Fault | None, operation: str, path: str) -> None:
        if fault is not None:
            raise self._failure(fault, operation, path)

    def _failure(self, fault: Fault, operation: str, path: str) -> BaseException:
        if fault.kind == "full":
            return StorageError(
                f"cannot {operation} {path}: the disk is full (injected)", path=path, errno=errno.ENOSPC
            )
        if fault.kind == "busy":
            return StorageError(f"cannot {operation} {path}: slow down (injected)", path=path, errno=errno.EAGAIN)
        if fault.kind == "error":
            return StorageError(f"cannot {operation} {path}: the storage failed (injected)", path=path)
        self.crashed = True
        return Crash(f"{operation} {path}: crashed at call {self.calls}")

    def create(self, path: str, data: bytes | memoryview) -> None:
        fault = self._enter("create", path)
        if fault is not None and fault.kind == "overwrite":
            self.inner.delete(path)
            self.inner.create(path, data)
            return
        if fault is not None and fault.kind == "torn":
            self.inner.create(path, bytes(data)[: fault.keep])
        else:
            self.inner.create(path, data)
            self._changes.append((self.calls, path, None))
        self._leave(fault, "create", path)

    def read(self, path: str) -> bytes:
        fault = self._enter("read", path)
        data = self.inner.read(path)
        self._leave(fault, "read", path)
        return data

    def local_path(self, path: str) -> str | None:
        return None

    def exists(self, path: str) -> bool:
        fault = self._enter("exists", path)
        found = self.inner.exists(path)
        self._leave(fault, "exists", path)
        return found

    def list(self, path: str) -> _Infos:
        fault = self._enter("list", path)
        found = self.inner.list(path)
        self._leave(fault, "list", path)
        return self._lagging(path, found, deep=False)

    def walk(self, path: str) -> Iterator[FileInfo]:
        fault = self._enter("walk", path)
        found = [*self.inner.walk(path)]
        self._leave(fault, "walk", path)
        return iter(self._lagging(path, found, deep=True))

    def folders(self, path: str) -> _Names:
        fault = self._enter("folders", path)
        found = self.inner.folders(path)
        self._leave(fault, "folders", path)
        return self._lagging_folders(path, found)

    def prune(self, path: str) -> None:
        fault = self._enter("prune", path)
        self.inner.prune(path)
        self._leave(fault, "prune", path)

    def delete(self, path: str) -> None:
        fault = self._enter("delete", path)
        before = self._info(path)
        self.inner.delete(path)
        if before is not None:
            self._changes.append((self.calls, path, before))
        self._leave(fault, "delete", path)

    def move(self, source: str, target: str) -> None:
        fault = self._enter("move", source)
        before = self._info(source)
        if fault is not None and fault.kind == "copied":
            self.inner.create(target, self.inner.read(source))
        else:
            self.inner.move(source, target)
        self._changes += [(self.calls, source, before), (self.calls, target, None)]
        self._leave(fault, "move", source)

    def rename(self, source: str, target: str) -> None:
        fault = self._enter("rename", target)
        self.inner.rename(source, target)
        self._leave(fault, "rename", target)

    def _info(self, path: str) -> FileInfo | None:
        folder = path.rpartition("/")[0]
        return next((info for info in self.inner.list(folder) if info.path == path), None)

    def _lagging_folders(self, folder: str, found: Sequence[str]) -> _Names:
        """A folder is seen once a file in it is; it is seen as long as one in it was."""
        if not self.plan.list_lag:
            return [*found]
        shown = set(found)
        prefix = f"{folder}/" if folder else ""
        for number, path, before in self._changes:
            inside, _, rest = path.removeprefix(prefix).partition("/")
            if number > self.calls - self.plan.list_lag and path.startswith(prefix) and rest:
                if before is not None:
                    shown.add(inside)
                elif inside in shown and not self._lagging(prefix + inside, [*self.inner.walk(prefix + inside)], True):
                    shown.discard(inside)
        return sorted(shown)

    def _lagging(self, folder: str, found: Sequence[FileInfo], deep: bool) -> _Infos:
        """Undo, newest first, the changes of the last `list_lag` calls."""
        if not self.plan.list_lag:
            return [*found]
        shown = {info.path: info for info in found}
        for number, path, before in reversed(self._changes):
            if number <= self.calls - self.plan.list_lag:
                break
            parent = path.rpartition("/")[0]
            if parent != folder and not (deep and (not folder or f"{parent}/".startswith(f"{folder}/"))):
                continue
            if before is None:
                shown.pop(path, None)
            else:
                shown[path] = before
        return sorted(shown.values(), key=lambda info: info.path)


def flip_bit(path: str | os.PathLike[str], offset: int, bit: int = 0) -> None:
    """Change one bit of a file in place. A negative offset counts from the end."""
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        at = file.tell()
        byte = file.read(1)
        if not byte:
            raise InvalidInputError(f"{os.fspath(path)} has no byte at {offset}")
        file.seek(at)
        file.write(bytes([byte[0] ^ (1 << bit)]))


def truncate(path: str | os.PathLike[str], size: int) -> None:
    """Cut a file off after `size` bytes; a negative size counts from the end."""
    if size < 0:
        size += os.path.getsize(path)
    os.truncate(path, max(size, 0))
