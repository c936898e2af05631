"""What the code under simulation gets instead of the operating system: files, clock, identifiers, threads.

The code takes most of its storage through the `FileSystem` contract. What it does beside that, with `os` and `open` on
Spark's own logs for instance, reaches the simulated disk through stand-ins for the modules `os`, `shutil`, `time`,
`uuid`, `threading`, `tempfile` and `mmap`, which are put into the namespaces of the modules that use them. Each of
their calls is a call of the disk, with the same fates as any other.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import importlib
import io
import mmap
import os
import posixpath
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

from cairn.errors import InternalError
from cairn.storage.checkpoint_store import decode_checkpoint
from cairn.storage.filesystem import FileSystem
from cairn.storage.manifest_store import decode_manifest
from cairn.storage.retrying import Patience, RetryingFileSystem
from cairn.storage.state_file import end_of, table_of
from cairn.testing.simulation import scheduler
from cairn.testing.simulation.disk import Disk, SimulatedFileSystem, Stored, remove_tree
from cairn.testing.simulation.scheduler import Lock, Scheduler

Decode = Callable[[bytes, str], Any]
PLAIN = 0o100640
FOLDER = 0o040750

MODULES = {
    "cairn.restore.log_agreement": ("os",),
    "cairn.restore.claims": ("LocalFileSystem",),
    "cairn.job.epoch_gate": ("threading", "time"),
    "cairn.restore.snapshot_origin": ("os",),
    "cairn.restore.recovery": ("os",),
    "cairn.restore.newest_epoch": ("os",),
    "cairn.restore.restore_checks": ("os",),
    "cairn.restore.restored_epoch": ("os", "tempfile", "uuid"),
    "cairn.spark.savepoint_writer": ("os", "sync", "threading", "time", "uuid"),
    "cairn.connectors.file_sink": ("os", "shutil", "LocalFileSystem"),
    "cairn.snapshots.resolver": ("os", "LocalFileSystem"),
    "cairn.snapshots.snapshot": ("os", "LocalFileSystem"),
    "cairn.snapshots.verification": ("os", "open_filesystem"),
    "cairn.restore.source_logs": ("os", "shutil", "sync", "uuid"),
    "cairn.restore.spark_logs": ("os", "LocalFileSystem"),
    "cairn.job.stopping": ("threading", "time"),
    "cairn.connectors.staging": ("os", "shutil", "LocalFileSystem", "sync"),
    "cairn.coordinator.checkpoint_ledger": ("threading",),
    "cairn.coordinator.compactor": ("threading",),
    "cairn.coordinator.epoch_time": ("time",),
    "cairn.coordinator.epoch_loop": ("time", "uuid"),
    "cairn.coordinator.manifest_builder": ("uuid",),
    "cairn.coordinator.offset_log": ("os", "sync"),
    "cairn.coordinator.pending_checkpoint": ("threading",),
    "cairn.coordinator.retained_checkpoints": ("threading",),
    "cairn.coordinator.savepoint_requests": ("threading",),
    "cairn.snapshots.compact_task": ("open_filesystem", "uuid", "RetryingFileSystem"),
    "cairn.snapshots.rewrite_task": ("open_filesystem", "uuid"),
    "cairn.snapshots.table_tasks": ("open_filesystem", "uuid"),
    "cairn.runtime.task": ("time",),
    "cairn.state.working_store": ("own_folder", "time"),
    "cairn.storage.checkpoint_store": ("time", "uuid", "decode_checkpoint"),
    "cairn.storage.cleanup": ("time",),
    "cairn.storage.manifest_store": ("uuid", "decode_manifest"),
    "cairn.storage.regular_files": ("os",),
    "cairn.storage.run_records": ("uuid",),
    "cairn.storage.savepoint_folder": ("os", "time", "uuid", "mmap", "open_filesystem", "sync"),
    "cairn.storage.state_file": ("end_of", "table_of"),
    "cairn.storage.savepoint_parquet": ("uuid",),
}
"""The names of modules that are replaced, besides `open`. A name that a module does not have is an error."""


@dataclass
class Machine:
    """What the stand-ins work on: set anew for every history."""

    scheduler: Scheduler
    disk: Disk
    seed: int
    identifiers: int = 0
    records: dict[tuple[Decode, bytes], Any] = field(default_factory=dict)
    """What was decoded already: how, from which bytes."""

    def decoded(self, decode: Decode, data: bytes, name: str) -> Any:
        """Manifests and checkpoints are read dozens of times, and their bytes never change."""
        record = self.records.get((decode, data))
        if record is None:
            record = self.records[decode, data] = decode(data, name)
        return record

    def check_records(self) -> None:
        """They are decoded once for all drivers, so nobody may have changed one."""
        for (decode, data), record in self.records.items():
            if record != decode(data, "a record"):
                raise InternalError(f"a record was changed after it had been read: {record}")


_machine: Machine | None = None


def machine() -> Machine:
    if _machine is None:
        raise RuntimeError("no history is running")
    return _machine


class _Path:
    """`os.path` over the simulated disk."""

    def __getattr__(self, name: str) -> Any:
        self.__dict__[name] = value = getattr(posixpath, name)  # asked for once
        return value

    def join(self, path: str, *names: str) -> str:
        joined = "/".join((path, *names))
        return joined if path and "//" not in joined else posixpath.join(path, *names)

    def _known(self, path: str, operation: str) -> Disk:
        disk = machine().disk
        disk.enter(operation, path)
        return disk

    def exists(self, path: str) -> bool:
        disk = self._known(path, "stat")
        return path in disk.files or path in disk.children

    lexists = exists

    def isdir(self, path: str) -> bool:
        return path in self._known(path, "stat").children

    def isfile(self, path: str) -> bool:
        return path in self._known(path, "stat").files

    def islink(self, path: str) -> bool:
        return False

    def getsize(self, path: str) -> int:
        return len(_stored(self._known(path, "stat"), path).data)

    def getmtime(self, path: str) -> float:
        return _stored(self._known(path, "stat"), path).modified / 1000

    def realpath(self, path: str) -> str:
        return posixpath.normpath(path)

    def abspath(self, path: str) -> str:
        return posixpath.normpath(path)


def _stored(disk: Disk, path: str) -> Stored:
    found = disk.files.get(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    return found


class _Stat(NamedTuple):
    st_mode: int
    st_size: int
    st_mtime: float


class _Entry(NamedTuple):
    name: str
    path: str


class _Reader(io.BytesIO):
    """An opened file, which is no longer open once it is closed."""

    def __init__(self, data: bytes, opened: dict[int, str], descriptor: int) -> None:
        super().__init__(data)
        self._opened = opened
        self._descriptor = descriptor

    def close(self) -> None:
        self._opened.pop(self._descriptor, None)
        super().close()


class _Os:
    """`os` over the simulated disk."""

    path = _Path()

    def __init__(self) -> None:
        self._opened: dict[int, str] = {}
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        self.__dict__[name] = value = getattr(os, name)  # asked for once
        return value

    def listdir(self, path: str) -> list[str]:
        disk = machine().disk
        disk.enter("listdir", path)
        if path not in disk.children:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return sorted(disk.children[path])

    def scandir(self, path: str) -> list[_Entry]:
        return [_Entry(name, f"{path}/{name}") for name in self.listdir(path)]

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        disk = machine().disk
        disk.enter("mkdir", path)
        if path in disk.children and not exist_ok:
            raise FileExistsError(errno.EEXIST, "the folder exists already", path)
        disk.make(path)

    def walk(self, path: str, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
        disk = machine().disk
        disk.enter("walk", path)
        if path not in disk.children:
            return
        names = sorted(disk.children[path])
        inner = [name for name in names if f"{path}/{name}" in disk.children]
        here = path, inner, [name for name in names if name not in inner]
        if topdown:
            yield here
        for name in inner:
            yield from self.walk(f"{path}/{name}", topdown)
        if not topdown:
            yield here

    def lstat(self, path: str) -> _Stat:
        disk = machine().disk
        disk.enter("stat", path)
        if path in disk.children:
            return _Stat(FOLDER, 0, disk.made.get(path, 0) / 1000)
        stored = _stored(disk, path)
        return _Stat(PLAIN, len(stored.data), stored.modified / 1000)

    stat = lstat

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        disk = machine().disk
        disk.enter("read", path)
        _stored(disk, path)
        self._count += 1
        descriptor = 1_000_000 + self._count
        self._opened[descriptor] = path
        return descriptor

    def fstat(self, descriptor: int) -> _Stat:
        return self.lstat(self._opened[descriptor])

    def close(self, descriptor: int) -> None:
        self._opened.pop(descriptor)

    def reader(self, descriptor: int) -> io.BytesIO:
        """The file of a descriptor, which the one who reads closes."""
        return _Reader(self.mapped(descriptor), self._opened, descriptor)

    def mapped(self, descriptor: int) -> bytes:
        return _stored(machine().disk, self._opened[descriptor]).data


class _Mmap:
    ACCESS_READ = mmap.ACCESS_READ

    @staticmethod
    def mmap(descriptor: int, length: int, access: int = 0) -> bytes:
        return OS.mapped(descriptor)


class _Shutil:
    """`shutil` over the simulated disk."""

    @staticmethod
    def rmtree(path: str, ignore_errors: bool = False) -> None:
        disk = machine().disk
        for found in list(disk.under(path)):
            disk.enter("delete", found)
            if found in disk.files:
                disk.remove(found)
        remove_tree(disk, path)

    @staticmethod
    def ignore_patterns(*patterns: str) -> Callable[[str], bool]:
        return lambda name: any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    @staticmethod
    def copytree(source: str, target: str, ignore: Callable[[str], bool]) -> None:
        disk = machine().disk
        disk.make(target)
        for path in list(disk.under(source)):
            if not any(ignore(part) for part in path[len(source) + 1 :].split("/")):
                disk.enter("copy", path)
                if path in disk.files:
                    disk.put(target + path[len(source) :], disk.files[path].data)


class _WrittenFile(io.BytesIO):
    """A file that is being written: there from the start, whole once it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        disk = machine().disk
        disk.enter("write", self._path)
        if self._path in disk.files:
            disk.files[self._path].data = data


@contextlib.contextmanager
def _text(inner: _WrittenFile) -> Iterator[Any]:
    class Text:
        def write(self, text: str) -> None:
            inner.write(text.encode())

    with inner:
        yield Text()


def _open(path: str | int, mode: str = "r", encoding: str | None = None, buffering: int = -1) -> Any:
    disk = machine().disk
    if isinstance(path, int):
        return OS.reader(path)
    if "x" in mode or "w" in mode:
        disk.enter("create", path)
        if path in disk.files and "x" in mode:
            raise FileExistsError(errno.EEXIST, "the file exists already", path)
        if path.rpartition("/")[0] not in disk.children:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        disk.put(path, b"")
        return _WrittenFile(path) if "b" in mode else _text(_WrittenFile(path))
    disk.enter("read", path)
    data = _stored(disk, path).data
    return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())


class _TimeModule:
    """The clock of the current process, which may be wrong."""

    strftime = staticmethod(time.strftime)
    gmtime = staticmethod(time.gmtime)

    @staticmethod
    def time() -> float:
        return _now_ms() / 1000

    @staticmethod
    def time_ns() -> int:
        return _now_ms() * 1_000_000

    @staticmethod
    def perf_counter() -> float:
        return machine().scheduler.now / 1000

    monotonic = perf_counter
    CLOCK_BOOTTIME = 7

    @staticmethod
    def clock_gettime(clock: int) -> float:
        """The clock that goes on while the host sleeps."""
        return machine().disk.now()

    @staticmethod
    def sleep(seconds: float) -> None:
        machine().scheduler.take(max(1, int(seconds * 1000)))


def _now_ms() -> int:
    at = machine()
    actor = at.scheduler.current
    return at.disk.now_ms() + (actor.process.skew_ms if actor is not None else 0)


class _Uuid:
    """Identifiers that are the same at every repetition."""

    @staticmethod
    def uuid4() -> uuid.UUID:
        at = machine()
        at.identifiers += 1
        low = xxhash.xxh3_64_intdigest(f"{at.seed}/{at.identifiers}".encode())
        return uuid.UUID(int=low << 64 | xxhash.xxh3_64_intdigest(low.to_bytes(8, "big")), version=4)


class _Tempfile:
    @staticmethod
    @contextlib.contextmanager
    def TemporaryDirectory(prefix: str = "") -> Iterator[str]:
        name = f"/sim/tmp/{prefix}{_Uuid.uuid4().hex[:8]}"
        machine().disk.make(name)
        try:
            yield name
        finally:
            remove_tree(machine().disk, name)


class _Threading:
    Lock = scheduler.Lock
    RLock = scheduler.Lock
    Condition = scheduler.Condition
    Event = scheduler.Flag
    Thread = scheduler.Thread


class SimulatedClock:
    """The two clocks of a checkpoint coordinator, of the process that asks."""

    def now_ms(self) -> int:
        return _now_ms()

    def monotonic_ms(self) -> int:
        return machine().scheduler.now


def _no_sync(path: str) -> None:
    machine().disk.enter("sync", path)


def steady(inner: FileSystem) -> RetryingFileSystem:
    """Storage that is asked again after simulated pauses."""
    return RetryingFileSystem(inner, Patience(sleep=_TimeModule.sleep, chance=lambda: 0.5))


OS = _Os()
_STAND_INS: dict[str, Any] = {
    "os": OS,
    "shutil": _Shutil(),
    "open": _open,
    "sync": _no_sync,
    "time": _TimeModule(),
    "uuid": _Uuid(),
    "threading": _Threading(),
    "tempfile": _Tempfile(),
    "mmap": _Mmap(),
    "LocalFileSystem": SimulatedFileSystem,
    "open_filesystem": SimulatedFileSystem,
    "own_folder": lambda path: None,
    "end_of": functools.lru_cache(1024)(end_of),  # a state file is read many times, by tasks and by the model
    "table_of": functools.lru_cache(1024)(table_of),
    "decode_manifest": lambda data, name: machine().decoded(decode_manifest, data, name),
    "decode_checkpoint": lambda data, name: machine().decoded(decode_checkpoint, data, name),
    "RetryingFileSystem": lambda inner: steady(inner),
}


def installed(extra: Iterable[tuple[str, str, Any]] = ()) -> contextlib.AbstractContextManager[None]:
    """Put the stand-ins in place while the context lasts; `extra` are more of them: module, name, value."""
    put = [(name, place, _STAND_INS[place]) for name, places in MODULES.items() for place in (*places, "open")]
    return replaced([*put, *extra])


@contextlib.contextmanager
def replaced(put: Iterable[tuple[str, str, Any]]) -> Iterator[None]:
    """Other values for names of modules, while the context lasts: module, name, value."""
    before: list[tuple[Any, str, Any]] = []
    missing = object()
    try:
        for name, place, value in put:
            module = importlib.import_module(name)
            had = getattr(module, place, missing)
            if had is missing and place != "open":
                raise InternalError(f"the simulation replaces {name}.{place}, which does not exist")
            before.append((module, place, had))
            setattr(module, place, value)
        yield
    finally:
        for module, place, had in reversed(before):
            if had is missing:
                delattr(module, place)
            else:
                setattr(module, place, had)


@contextlib.contextmanager
def running(scheduler: Scheduler, disk: Disk, seed: int) -> Iterator[Machine]:
    """Let the stand-ins work on this disk and clock."""
    global _machine
    before, _machine = _machine, Machine(scheduler, disk, seed)
    Lock.scheduler = scheduler
    SimulatedFileSystem.disk = disk
    try:
        yield _machine
    finally:
        _machine = before
