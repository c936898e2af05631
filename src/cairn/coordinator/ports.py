"""What the coordinator needs from outside: a clock, and runners that write snapshots and savepoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cairn.coordinator.pending_checkpoint import SavepointOrder, Snapshots
from cairn.model.manifest import Manifest


class Clock(Protocol):
    """The wall clock for times that people see, and the monotonic clock for timeouts. Called from any thread."""

    def now_ms(self) -> int:
        """The wall clock. It may jump, forwards and back."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment: for deadlines, pauses and periods."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class SnapshotRunner(Protocol):
    """Writes a full snapshot of a manifest's state into the folder of a checkpoint, beside the stream.

    Threads: called by the thread that does the coordinator's work.
    """

    def start(self, number: int, manifest: Manifest, done: Callable[[Snapshots | Exception], None]) -> None:
        """Begin, and call `done` from any thread when all files are durable or it failed."""

    def cancel(self, number: int) -> None:
        """Stop writing; `done` may still be called."""


@dataclass(frozen=True)
class WrittenSavepoint:
    """A finished savepoint: where it lies, how large it is, and the epoch that it stands for."""

    path: str
    size: int
    epoch: int
    drained: bool = False
    sizes: Mapping[tuple[str, int], int] | None = None
    """Bytes of the tables, by operator and subtask; None if that is not known."""
    spent: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Milliseconds until all tables of a subtask were durable; empty if that was not measured."""


class SavepointRunner(Protocol):
    """Writes savepoints beside the stream.

    Threads: `find` and `progress` are called from any thread, the others by the one that does the coordinator's work.
    """

    def find(self, order: SavepointOrder) -> WrittenSavepoint | None:
        """The savepoint that the same request has made before, in this run or in an earlier one."""

    def start(
        self, number: int, manifest: Manifest, order: SavepointOrder, done: Callable[[Exception | None], None]
    ) -> None:
        """Begin, and call `done` from any thread when everything but the last step is durable, or it failed."""

    def progress(self, number: int) -> tuple[int, int]:
        """How many parts are written, and how many there are."""

    def complete(self, number: int) -> WrittenSavepoint:
        """The one step that makes the savepoint exist."""

    def cancel(self, number: int) -> None:
        """Stop writing and remove what was written; `done` may still be called."""


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """What the driver knows of an operator before anything runs."""

    uid: str
    name: str
    parallelism: int


@dataclass(frozen=True)
class JobFacts:
    job_id: str
    name: str
    run: int
