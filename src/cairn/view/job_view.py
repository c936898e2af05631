"""The records that everything shows. Times are in milliseconds, shares go from 0 to 1."""

from __future__ import annotations

from typing import Any

import msgspec

from cairn.model.checkpoint_records import CheckpointInfo
from cairn.view.job_graph import Vertex
from cairn.view.journal import EpochStats, Event

ENDED = ("FINISHED", "CANCELED", "FAILED", "CRASHED")
LEVELS = ((0.1, "ok"), (0.5, "low"), (1.0, "high"))
"""Flink's levels of backpressure by the share up to which they hold."""


class SubtaskView(msgspec.Struct, frozen=True):
    index: int
    rows_in: int
    rows_out: int
    timers: int
    busy: float
    backpressured: float
    idle: float
    in_rate: float = 0.0
    """Rows per second, as the two that follow, and over the newest epochs."""
    out_rate: float = 0.0
    timer_rate: float = 0.0
    busy_ms: float = 0.0
    backpressured_ms: float = 0.0
    """Since the run began, as the rows."""


class EndView(msgspec.Struct, frozen=True):
    """A source or a sink: rows since the run began, and per second over the newest epochs; None if nobody counts."""

    id: str
    kind: str
    rows: int | None = None
    rate: float | None = None


class StateView(msgspec.Struct, frozen=True):
    name: str
    kind: str
    value_type: str
    key_type: str
    ttl_ms: int


class OperatorView(msgspec.Struct, frozen=True):
    """An operator: rows since its run began, load over the newest epochs, the highest subtask counting as in Flink."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    key_type: str
    states: list[StateView]
    state_bytes: int
    subtasks: list[SubtaskView]
    skew: float
    recorded: bool = True
    """Whether anything was written down of what it did: without that, rows and shares are not known."""

    @property
    def rows_in(self) -> int:
        return sum(subtask.rows_in for subtask in self.subtasks)

    @property
    def rows_out(self) -> int:
        return sum(subtask.rows_out for subtask in self.subtasks)

    @property
    def in_rate(self) -> float:
        return sum(subtask.in_rate for subtask in self.subtasks)

    @property
    def out_rate(self) -> float:
        return sum(subtask.out_rate for subtask in self.subtasks)

    @property
    def timers(self) -> int:
        return sum(subtask.timers for subtask in self.subtasks)

    @property
    def busy(self) -> float:
        return max((subtask.busy for subtask in self.subtasks), default=0.0)

    @property
    def backpressured(self) -> float:
        return max((subtask.backpressured for subtask in self.subtasks), default=0.0)

    @property
    def idle(self) -> float:
        return min((subtask.idle for subtask in self.subtasks), default=1.0)

    @property
    def level(self) -> str:
        return next(word for most, word in LEVELS if self.backpressured <= most or word == "high")


class Spread(msgspec.Struct, frozen=True):
    """Flink's eight numbers of a series; all 0 for an empty one."""

    min: float = 0
    max: float = 0
    avg: float = 0
    p50: float = 0
    p90: float = 0
    p95: float = 0
    p99: float = 0
    p999: float = 0


class CheckpointsView(msgspec.Struct, frozen=True):
    """All that is known of a job's checkpoints; `history` is newest first, savepoints among it."""

    history: list[CheckpointInfo]
    completed: int
    failed: int
    """These two count over the job's whole life, `history` holds the newest."""
    restored: int
    duration: Spread
    written: Spread
    full: Spread
    in_flight: Spread

    @property
    def in_progress(self) -> int:
        return sum(1 for info in self.history if info.status.value == "IN_PROGRESS")

    @property
    def triggered(self) -> int:
        return self.completed + self.failed + self.in_progress

    def latest(self, status: str, savepoint: bool = False) -> CheckpointInfo | None:
        """The newest of this status; completed savepoints are told apart from checkpoints."""
        for info in self.history:
            if info.status.value == status and (status != "COMPLETED" or is_savepoint(info) == savepoint):
                return info
        return None

    def find(self, number: int) -> CheckpointInfo | None:
        return next((info for info in self.history if info.id == number), None)


def is_savepoint(info: CheckpointInfo) -> bool:
    return info.type.value == "SAVEPOINT"


class RestoreView(msgspec.Struct, frozen=True):
    """A start of the job: from nothing, its newest epoch, or a snapshot; perhaps at another parallelism."""

    time_ms: int
    run: int
    kind: str
    """`start`, `resume`, `checkpoint` or `savepoint`."""
    path: str
    checkpoint: int
    epoch: int
    parallelism: int
    before: int
    """The parallelism of the run before, or 0."""
    duration_ms: float = 0.0
    after_failure: bool | None = None
    """Whether the run before failed or crashed; None if that was not told."""

    @property
    def rescaled(self) -> bool:
        return self.before not in (0, self.parallelism)


class JobEnd(msgspec.Struct, frozen=True):
    """How a job ended. `kind` is finished, stopped (with a savepoint), canceled, failed or crashed."""

    status: str
    kind: str
    time_ms: int
    cause: str
    epoch: int
    """The newest committed one, or -1."""


class Health(msgspec.Struct, frozen=True):
    """Is it fine? `level` is ok, warn, bad or ended; `reasons` say why, in sentences."""

    level: str
    verdict: str
    reasons: list[str]


class JobView(msgspec.Struct, frozen=True):
    """A job at one moment."""

    job_id: str
    name: str
    status: str
    directory: str
    run: int
    host: str
    pid: int
    started_ms: int
    ended_ms: int
    """0 while it runs."""
    starts: int
    """Runs that somebody began."""
    restarts: int
    """Runs after one that failed or crashed."""
    begun_ms: int
    """When somebody last started it."""
    epoch: int
    watermark: int
    watermark_lag_ms: int | None
    parallelism: int
    max_parallelism: int
    state_bytes: int
    url: str
    config: dict[str, Any]
    sources: list[str]
    sinks: list[dict[str, str]]
    operators: list[OperatorView]
    graph: list[Vertex]
    """Every vertex after those that it reads."""
    ends: dict[str, EndView]
    """The sources and sinks of the graph."""
    epochs: list[EpochStats]
    """Oldest first, at most some thousand."""
    checkpoints: CheckpointsView
    restores: list[RestoreView]
    """Newest first."""
    events: list[Event]
    now_ms: int
    damage: list[str]
    """What could not be read."""

    @property
    def running(self) -> bool:
        return self.status in ("RUNNING", "RESTARTING", "CREATED")

    @property
    def duration_ms(self) -> int:
        return max(0, (self.ended_ms or self.now_ms) - self.started_ms) if self.started_ms else 0

    @property
    def exceptions(self) -> list[Event]:
        """Newest first."""
        return [event for event in reversed(self.events) if event.kind in ("failed", "restarting")]

    def vertex(self, name: str) -> Vertex | None:
        return next((vertex for vertex in self.graph if vertex.id == name), None)

    def operator(self, uid: str) -> OperatorView | None:
        return next((operator for operator in self.operators if operator.uid == uid), None)
