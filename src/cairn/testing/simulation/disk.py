"""A disk in memory that all simulated drivers share, and the storage contract over it.

Every call passes `Disk.enter`, where the history decides what becomes of it: it takes a tick or a long pause, the
process crashes before it, it fails before or after its effect. Whoever wants to know of changes is told of each, before
the next call of anybody.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from cairn.errors import InvalidInputError, NotFoundError, StorageError
from cairn.storage import layout
from cairn.storage.filesystem import FileInfo
from cairn.testing.simulation.choices import Choices
from cairn.testing.simulation.scheduler import Actor, ProcessEnded, Scheduler

_Infos = list[FileInfo]
_Names = list[str]
PASSING = errno.ETIMEDOUT
PAUSES = (0, 3, 20, 120, 700, 4000)
"""How long calls may pause, in ticks. The long ones outlast many epochs of another driver."""
HOUR = 3_600_000
BEGIN_MS = 1_700_000_000_000
"""The time of day at which every history begins."""
_WEIGHTS = {"create": 0.2, "delete": 0.3, "move": 0.3, "spark-write": 0.4, "exists": 2.0, "stat": 2.0, "sync": 3.0}
_COMMIT = 0.08
"""What a drawn number is multiplied by: calls that change something go wrong more often than those that only look, and
most of all a commit, which then mostly pauses for long."""


@dataclass(slots=True)
class Stored:
    data: bytes
    modified: int
    """True time, in milliseconds since 1970."""


@dataclass(frozen=True)
class FaultShares:
    """How often calls go wrong, as shares of all calls of drivers."""

    pauses: float = 0.0
    crashes: float = 0.0
    errors: float = 0.0
    lost_answers: float = 0.0
    lag: float = 0.0
    """Share of the listings that do not show what was created or deleted within the last few calls."""
    leaps: float = 0.0
    """Share of the pauses that take hours."""

    @functools.cached_property
    def all(self) -> float:
        """Share of the calls that do not go as usual."""
        return self.pauses + self.crashes + self.errors + self.lost_answers


@dataclass(slots=True)
class Counters:
    """What a history has exercised."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number


Watcher = Callable[[str, str, bytes], None]
"""Told of each change: what happened (`create`, `delete`), the path, and the bytes that are or were there."""


class Disk:
    """Files by absolute path. Folders are there as long as something lies in them, or were made."""

    def __init__(self, scheduler: Scheduler, choices: Choices, counters: Counters) -> None:
        self.scheduler = scheduler
        self.choices = choices
        self.counters = counters
        self.faults = FaultShares()
        self.files: dict[str, Stored] = {}
        self.children: dict[str, dict[str, None]] = {"/": {}}
        self.made: dict[str, int] = {}
        """When each folder was made."""
        self.watchers: list[Watcher] = []
        self.trace: list[tuple[int, str, str, str]] | None = None
        self.calls = 0
        self.leap_ms = 0
        """Hours that have passed beside the ticks."""
        self.stopped = False
        """Nothing happens any more: a rule was broken."""
        self.prompt: set[str] = set()
        """Roots whose listings never lag: sinks write to local disks."""
        self.on_crash: Callable[[], None] = lambda: None
        self._changes: list[tuple[int, str, Stored | None]] = []

    # What becomes of a call.

    def enter(self, operation: str, path: str) -> bool:
        """Begin a call; True if it is to fail after its effect. Raises `ProcessEnded`, or `StorageError` before it."""
        scheduler = self.scheduler
        actor = scheduler.current
        if actor is None:
            return False
        if self.stopped:
            raise ProcessEnded(actor.name)
        self.calls += 1
        fate = self._fate(actor, operation, path) if self.faults.pauses else 0
        pause = 0
        if fate:
            if fate == 7:
                scheduler.take(1)
                self._note(actor.name, operation, f"{path} -- the process crashes before it")
                self.counters.add("crashes")
                self.on_crash()
                raise ProcessEnded(actor.name)
            if fate == 8:
                scheduler.take(1)
                self._note(actor.name, operation, f"{path} -- fails without effect")
                self.counters.add("failed calls")
                raise _failed(operation, path)
            if fate <= 6:
                pause = PAUSES[min(fate, 5)]
                self.counters.add("pauses")
                if fate >= 5:
                    self.counters.add("long pauses")
                self._note(actor.name, operation, f"{path} -- pauses for {pause} ms before it")
                if fate == 6:
                    self.leap_ms += 2 * HOUR
                    self.counters.add("leaps of time")
        scheduler.take(1 + pause)
        lost = fate > 8
        if self.trace is not None:
            self._note(actor.name, operation, f"{path} -- takes effect, its answer is lost" if lost else path)
        return lost

    def _fate(self, actor: Actor, operation: str, path: str) -> int:
        """What becomes of a call: 0 nothing unusual, 1 to 5 a pause, 6 one in which hours pass, 7 a crash, 8 an error
        without effect, 9 a lost answer."""
        choices = self.choices
        calls = actor.calls
        calls[operation] = number = calls.get(operation, 0) + 1
        name = f"{actor.name}/{operation} {number}"
        if choices.given is not None:
            fate = choices.given.get(name, 0)
        else:
            faults = self.faults
            commit = operation == "create" and "/epochs/" in path
            drawn = choices.draw(name) * (_COMMIT if commit else _WEIGHTS.get(operation, 1.0))
            if drawn >= faults.all:
                return 0
            if drawn < faults.pauses:
                fate = 1 + int(drawn / faults.pauses * 5)
                if commit and fate > 2:
                    fate = 5
                if drawn < faults.pauses * faults.leaps:
                    fate = 6
            else:
                drawn -= faults.pauses
                fate = 7 if drawn < faults.crashes else 8 if drawn < faults.crashes + faults.errors else 9
        if fate:
            choices.taken[name] = fate
        return fate

    def _note(self, actor: str, operation: str, text: str) -> None:
        if self.trace is not None:
            self.trace.append((self.scheduler.now, actor, operation, text))

    def lost_answer(self, operation: str, path: str) -> StorageError:
        """The error of a call that has had its effect."""
        self.counters.add("lost answers")
        return _failed(operation, path)

    def now(self) -> float:
        """The true time, in seconds."""
        return self.now_ms() / 1000

    def now_ms(self) -> int:
        """The true time, in milliseconds since 1970."""
        return BEGIN_MS + self.scheduler.now + self.leap_ms

    # Changes, without a decision.

    def put(self, path: str, data: bytes) -> None:
        folder, _, name = path.rpartition("/")
        self.make(folder)
        self.files[path] = Stored(data, self.now_ms())
        self.children[folder][name] = None
        self._changes.append((self.calls, path, None))
        for watcher in self.watchers:
            watcher("create", path, data)

    def remove(self, path: str) -> None:
        stored = self.files.pop(path)
        folder, _, name = path.rpartition("/")
        del self.children[folder][name]
        self._changes.append((self.calls, path, stored))
        for watcher in self.watchers:
            watcher("delete", path, stored.data)

    def make(self, folder: str) -> None:
        if folder in self.children or not folder:
            return
        above, _, name = folder.rpartition("/")
        self.make(above)
        self.children[folder] = {}
        self.made[folder] = self.now_ms()
        self.children[above or "/"][name] = None

    def prune(self, folder: str) -> None:
        if folder in self.children and not self.children[folder]:
            del self.children[folder]
            above, _, name = folder.rpartition("/")
            del self.children[above or "/"][name]

    def under(self, folder: str) -> Iterator[str]:
        """All files below a folder, in the order of their names."""
        for name in sorted(self.children.get(folder, ())):
            path = f"{folder}/{name}"
            if path in self.files:
                yield path
            else:
                yield from self.under(path)

    def lagging(self, actor: str, number: int, there: list[str], inside: Callable[[str], bool]) -> Collection[str]:
        """What a listing shows: perhaps what was there a few calls ago."""
        if not self.faults.lag or not self.choices.chance(f"{actor}/lag {number}", self.faults.lag):
            return there
        shown = set(there)
        self.counters.add("lagging listings")
        if self.scheduler.current is not None:
            self.scheduler.current.process.misled = True
        for call, path, before in reversed(self._changes):
            if call < self.calls - 12:
                break
            if inside(path):
                if before is None:
                    shown.discard(path)
                else:
                    shown.add(path)
        return shown


def _failed(operation: str, path: str) -> StorageError:
    return StorageError(f"cannot {operation} {path}: the connection was cut", path=path, errno=PASSING)


class SimulatedFileSystem:
    """The storage contract over the disk, below one folder."""

    disk: Disk

    def __init__(self, root: str, write_portion: int = 0) -> None:
        self._root = root.rstrip("/")

    @property
    def root(self) -> str:
        return self._root

    def _full(self, path: str) -> str:
        if not path or path[0] == "/" or "\0" in path or (".." in path and ".." in path.split("/")):
            raise InvalidInputError(f"{path!r} is not a path below {self._root}", path=path)
        return f"{self._root}/{path}"

    def create(self, path: str, data: bytes | memoryview) -> None:
        full = self._full(path)
        disk = self.disk
        lost = disk.enter("create", full)
        if full in disk.files or full in disk.children:
            raise FileExistsError(errno.EEXIST, "the file exists already", full)
        disk.put(full, bytes(data))
        if lost:
            raise disk.lost_answer("create", full)

    def read(self, path: str) -> bytes:
        full = self._full(path)
        lost = self.disk.enter("read", full)
        stored = self.disk.files.get(full)
        if stored is None:
            raise NotFoundError(f"{full} is missing", path=full)
        if lost:
            raise self.disk.lost_answer("read", full)
        return stored.data

    def local_path(self, path: str) -> str | None:
        return None

    def exists(self, path: str) -> bool:
        full = self._full(path)
        lost = self.disk.enter("exists", full)
        if lost:
            raise self.disk.lost_answer("look at", full)
        return full in self.disk.files or full in self.disk.children

    def list(self, path: str) -> _Infos:
        full = f"{self._root}/{path}" if path else self._root
        disk = self.disk
        lost = disk.enter("list", full)
        there = [found for name in disk.children.get(full, ()) if (found := f"{full}/{name}") in disk.files]
        shown = self._lagging(there, lambda changed: changed.rpartition("/")[0] == full)
        if lost:
            raise disk.lost_answer("list", full)
        return self._infos(shown)

    def walk(self, path: str) -> Iterator[FileInfo]:
        full = f"{self._root}/{path}" if path else self._root
        lost = self.disk.enter("walk", full)
        shown = self._lagging(list(self.disk.under(full)), lambda changed: changed.startswith(f"{full}/"))
        if lost:
            raise self.disk.lost_answer("list", full)
        return iter(self._infos(shown))

    def _lagging(self, there: _Names, inside: Callable[[str], bool]) -> Collection[str]:
        actor = self.disk.scheduler.current
        if actor is None or not self.disk.faults.lag or self._root in self.disk.prompt:
            return there
        return self.disk.lagging(actor.name, actor.count("lag"), there, inside)

    def _infos(self, shown: Collection[str]) -> _Infos:
        files = self.disk.files
        below = len(self._root) + 1
        return [
            FileInfo(path[below:], len(stored.data), stored.modified / 1000)
            if (stored := files.get(path)) is not None
            else FileInfo(path[below:], 0, 0.0)  # a listing that lags shows it still
            for path in sorted(shown)
        ]

    def folders(self, path: str) -> _Names:
        full = f"{self._root}/{path}" if path else self._root
        disk = self.disk
        lost = disk.enter("folders", full)
        if lost:
            raise disk.lost_answer("list", full)
        return sorted(name for name in disk.children.get(full, ()) if f"{full}/{name}" in disk.children)

    def delete(self, path: str) -> None:
        full = self._full(path)
        lost = self.disk.enter("delete", full)
        if full in self.disk.files:
            self.disk.remove(full)
        if lost:
            raise self.disk.lost_answer("delete", full)

    def prune(self, path: str) -> None:
        full = self._full(path)
        lost = self.disk.enter("prune", full)
        self.disk.prune(full)
        if lost:
            raise self.disk.lost_answer("delete", full)

    def move(self, source: str, target: str) -> None:
        full_source, full_target = self._full(source), self._full(target)
        disk = self.disk
        lost = disk.enter("move", full_target)
        if full_source not in disk.files:
            raise StorageError(f"cannot move {full_source}: it is missing", path=full_source, errno=errno.ENOENT)
        if full_target in disk.files:
            raise FileExistsError(errno.EEXIST, "the file exists already", full_target)
        data = disk.files[full_source].data
        disk.put(full_target, data)
        disk.scheduler.take(1)  # a local store links the new name first and removes the old one then
        if full_source in disk.files:
            disk.remove(full_source)
        if lost:
            raise disk.lost_answer("move", full_target)

    def rename(self, source: str, target: str) -> None:
        full_source, full_target = self._full(source), self._full(target)
        disk = self.disk
        lost = disk.enter("rename", full_target)
        if full_source not in disk.children:
            raise StorageError(f"cannot rename {full_source}: it is missing", path=full_source, errno=errno.ENOENT)
        if full_target in disk.files or disk.children.get(full_target):
            raise FileExistsError(errno.EEXIST, "the folder exists already", full_target)
        moved = list(disk.under(full_source))
        for path in sorted(moved, key=lambda path: path.endswith(f"/{layout.METADATA}")):  # whole at once, to watchers
            disk.put(full_target + path[len(full_source) :], disk.files[path].data)
        for path in moved:
            disk.remove(path)
        remove_tree(disk, full_source)
        if lost:
            raise disk.lost_answer("rename", full_target)


def remove_tree(disk: Disk, folder: str) -> None:
    """Remove a folder with everything in it, at once."""
    for path in list(disk.under(folder)):
        disk.remove(path)
    for name in list(disk.children.get(folder, ())):
        remove_tree(disk, f"{folder}/{name}")
    disk.prune(folder)
