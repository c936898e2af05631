"""What a running job leaves for those who look at it: events, statistics of epochs, and where its server listens.

All of it is statistics: a job that cannot write it continues, and logs this once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any, TypeVar

import msgspec

from cairn.coordinator.epoch_loop import EpochReport
from cairn.errors import CairnError, CorruptFileError, NotFoundError
from cairn.logs import get_logger
from cairn.model.manifest import TaskMetrics
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem

_log = get_logger("cairn.view")
EVENTS_KEPT = 500
CHUNKS_KEPT = 60
LIVE_EPOCHS = 2000
_CHUNK_SECONDS = 60.0
_FIRST_SECONDS = 2.0
"""How often epochs are written at the beginning of a run, so that a run that is killed early leaves some, too."""
_CHUNK_SHARE = 0.25
"""Later on, after so much of the run's time so far, until it is once a minute: there are few chunks in a long run."""
_CHUNK_EPOCHS = 500
_WAITING = ("fetch", "emit")

T = TypeVar("T")


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """`events/<n>`: something that happened to the job as a whole."""

    time_ms: int
    run: int
    kind: str
    text: str = ""
    facts: dict[str, Any] = {}


class SubtaskLoad(msgspec.Struct, frozen=True, array_like=True):
    """What one subtask did in one epoch, or in all epochs of a run. Times are milliseconds."""

    rows_in: int = 0
    rows_out: int = 0
    keys: int = 0
    timers: int = 0
    busy_ms: float = 0.0
    backpressured_ms: float = 0.0

    def plus(self, other: SubtaskLoad) -> SubtaskLoad:
        return SubtaskLoad(
            self.rows_in + other.rows_in, self.rows_out + other.rows_out, self.keys + other.keys,
            self.timers + other.timers, self.busy_ms + other.busy_ms, self.backpressured_ms + other.backpressured_ms,
        )  # fmt: skip


class EpochStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """One committed epoch."""

    epoch: int
    run: int
    end_ms: int
    """Wall clock of the driver when it was over."""
    duration_ms: float
    rows_in: int = 0
    rows_out: int = 0
    keys: int = 0
    bytes_written: int = 0
    watermark: int = -(1 << 63)
    time_ms: int = 0
    operators: dict[str, list[SubtaskLoad]] = {}
    ends: dict[str, int] = {}
    """Rows of sources and sinks, by their ids in the job graph; those that do not tell are left out."""


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """`stats/<n>`: epochs since the chunk before, and the sums of their run so far."""

    run: int
    epochs: list[EpochStats]
    totals: dict[str, list[SubtaskLoad]]
    ends: dict[str, int] = {}
    """Rows of sources and sinks in the run so far."""


class Address(msgspec.Struct, frozen=True):
    """`web/<run>`: where the server of a run listens. The token is not in it."""

    run: int
    url: str
    host: str
    pid: int


def load_of(metrics: TaskMetrics) -> SubtaskLoad:
    spent = float(max(0, metrics.ended_ms - metrics.began_ms))
    waiting = sum(metrics.times.get(step, 0.0) for step in _WAITING)
    return SubtaskLoad(
        metrics.rows_in, metrics.rows_out, metrics.keys, metrics.timers_fired,
        round(max(0.0, spent - waiting), 3), round(metrics.times.get("emit", 0.0), 3),
    )  # fmt: skip


def stats_of(report: EpochReport, run: int, end_ms: int) -> EpochStats:
    operators: dict[str, dict[int, SubtaskLoad]] = {}
    for uid, subtask, metrics in report.tasks:
        operators.setdefault(uid, {})[subtask] = load_of(metrics)
    return EpochStats(
        report.epoch, run, end_ms, round(report.duration_ms, 3), report.rows_in, report.rows_out, report.keys,
        report.bytes_written, report.watermark, report.time_ms,
        {uid: [loads[index] for index in sorted(loads)] for uid, loads in operators.items()}, dict(report.sinks),
    )  # fmt: skip


class Journal:
    """Writes and reads the three folders of one job."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._complained = False
        self._known: dict[str, dict[str, Any]] = {}
        """Files that were read already, by folder; they never change."""
        self._refused: dict[str, list[str]] = {}
        """What is wrong with files that no job has written, by folder."""

    def add(self, run: int, kind: str, text: str = "", **facts: Any) -> None:
        event = Event(time.time_ns() // 1_000_000, run, kind, text, facts)
        self._write(layout.EVENTS, event, EVENTS_KEPT)

    def add_chunk(self, chunk: Chunk) -> None:
        self._write(layout.STATS, chunk, CHUNKS_KEPT)

    def add_address(self, address: Address) -> None:
        self._guarded(lambda: self._files.create(layout.web_path(address.run), msgspec.json.encode(address)))

    def events(self) -> list[Event]:
        """Oldest first; what cannot be read is left out."""
        return self._read(layout.EVENTS, Event, EVENTS_KEPT)

    def chunks(self) -> list[Chunk]:
        return self._read(layout.STATS, Chunk, CHUNKS_KEPT)

    def refused(self) -> list[str]:
        """Why files were left out when events and chunks were last read."""
        return [why for folder in self._refused.values() for why in folder]

    def address(self, run: int) -> Address | None:
        try:
            return msgspec.json.decode(self._files.read(layout.web_path(run)), type=Address)
        except (CairnError, msgspec.MsgspecError):
            return None

    def _write(self, folder: str, what: Any, kept: int) -> None:
        def write() -> None:
            there = [info.path for info in self._files.list(folder)]
            number = max((n for n in map(layout.number_of, there) if n is not None), default=0)
            while True:
                number += 1
                try:
                    self._files.create(layout.numbered(folder, number), msgspec.json.encode(what))
                    break
                except FileExistsError:  # another run of the job writes too
                    continue
            for old in there[: max(0, len(there) + 1 - kept)]:
                self._files.delete(old)

        self._guarded(write)

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (CairnError, OSError) as error:
            if not self._complained:
                _log.warning("what is shown of the job will be incomplete: %s", error)
            self._complained = True

    def _read(self, folder: str, kind: type[T], kept: int) -> list[T]:
        known, fresh = self._known.get(folder, {}), {}
        self._refused[folder] = []
        numbered = [info for info in self._files.list(folder) if layout.number_of(info.path) is not None]
        for info in numbered[-2 * kept :]:  # with room for broken ones, and for runs that write at the same time
            try:
                fresh[info.path] = known.get(info.path) or msgspec.json.decode(self._files.read(info.path), type=kind)
            except (NotFoundError, msgspec.MsgspecError):
                continue  # removed meanwhile, or cut off by a crash
            except CorruptFileError as error:
                self._refused[folder].append(error.message)
        self._known[folder] = fresh
        return list(fresh.values())


class EpochRecorder:
    """Keeps the newest epochs in memory, and writes them down: the first at once, later ones ever more rarely, down to
    once a minute. Called by the stream: it only appends."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._epochs: deque[EpochStats] = deque(maxlen=LIVE_EPOCHS)
        self._fresh: list[EpochStats] = []
        self._totals: dict[str, list[SubtaskLoad]] = {}
        self._ends: dict[str, int] = {}
        self._run = 0
        self._began = self._written = time.monotonic()
        self._nothing_yet = True
        """Of the run, nothing was written down."""

    def begin(self, run: int) -> None:
        """Another run of the job: its sums begin at nothing."""
        self.flush()
        with self._lock:
            self._run = run
            self._began = time.monotonic()
            self._nothing_yet = True
            self._totals = {}
            self._ends = {}

    def record(self, report: EpochReport) -> None:
        stats = stats_of(report, self._run, time.time_ns() // 1_000_000)
        with self._lock:
            self._epochs.append(stats)
            self._fresh.append(stats)
            for uid, loads in stats.operators.items():
                before = self._totals.get(uid, [])
                before = before if len(before) == len(loads) else [SubtaskLoad()] * len(loads)
                self._totals[uid] = [old.plus(new) for old, new in zip(before, loads, strict=True)]
            self._count(stats.ends)

    def note(self, epoch: int, ends: Mapping[str, int]) -> None:
        """Rows of an epoch's sources, which Spark tells when the epoch is over."""
        with self._lock:
            self._count(ends)
            stores: tuple[MutableSequence[EpochStats], ...] = (self._epochs, self._fresh)
            for kept in stores:
                for at in range(len(kept) - 1, -1, -1):
                    stats = kept[at]
                    if stats.epoch == epoch and stats.run == self._run:
                        kept[at] = msgspec.structs.replace(stats, ends={**stats.ends, **ends})
                        break

    def _count(self, ends: Mapping[str, int]) -> None:
        for name, rows in ends.items():
            self._ends[name] = self._ends.get(name, 0) + rows

    def due(self) -> None:
        """Write down what is new if it is time. Called by a thread that may wait for the disk."""
        now = time.monotonic()
        patience = min(_CHUNK_SECONDS, max(_FIRST_SECONDS, _CHUNK_SHARE * (now - self._began)))
        aged = now - self._written > patience
        if self._fresh and (self._nothing_yet or aged or len(self._fresh) >= _CHUNK_EPOCHS):
            self.flush()

    def flush(self) -> None:
        with self._lock:
            fresh, self._fresh = self._fresh, []
            chunk = Chunk(self._run, fresh, dict(self._totals), dict(self._ends))
            self._written = time.monotonic()
            self._nothing_yet = self._nothing_yet and not fresh
        if fresh:
            self._journal.add_chunk(chunk)

    def epochs(self) -> Sequence[EpochStats]:
        with self._lock:
            return list(self._epochs)

    def totals(self) -> dict[str, list[SubtaskLoad]]:
        with self._lock:
            return dict(self._totals)

    def ends(self) -> dict[str, int]:
        """Rows of the run's sources and sinks so far."""
        with self._lock:
            return dict(self._ends)
