"""A checkpoint coordinator with a clock that the test moves and snapshots that end when it says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cairn.config import CheckpointSettings
from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.ports import JobFacts, SavepointRunner
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.model.manifest import Manifest, OperatorState, StateHandle, TaskMetrics
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.testing.faults import FaultPlan, FaultyFileSystem


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000
        self.set_by = 0
        """How far somebody has set the time of day, which then differs from the time that has passed."""

    def now_ms(self) -> int:
        return self.now + self.set_by

    def monotonic_ms(self) -> int:
        return self.now


@dataclass
class Runner:
    """Snapshots that end when the test says so."""

    started: dict[int, Callable[[Any], None]] = field(default_factory=dict)
    canceled: list[int] = field(default_factory=list)

    def start(self, number: int, manifest: Manifest, done: Callable[[Any], None]) -> None:
        self.started[number] = done

    def cancel(self, number: int) -> None:
        self.canceled.append(number)


def manifest(epoch: int, inlined: bool = False) -> Manifest:
    chain = [
        StateHandle(e, g, g + 63, 100 + e, f"c{e}", "" if inlined else f"shared/op/{e:012d}-1-{g}.state")
        for e in range(epoch + 1)
        for g in (0, 64)
    ]
    return Manifest(
        "job", "inc", epoch, f"commit-{epoch}", 1, epoch - 1, 128, f"offsets of {epoch}", 0, 0,
        [OperatorState("op", "Op", 2, "key string", [], chain)], [], {},
        inlined={f"op/{g}": b"bytes" for g in (0, 64)} if inlined else {},
    )  # fmt: skip


class World:
    def __init__(self, folder: Path, plan: FaultPlan | None = None, **settings: Any) -> None:
        self.clock = Clock()
        self.runner = Runner()
        self.files = FaultyFileSystem(LocalFileSystem(str(folder)), plan)
        self.store = CheckpointStore(self.files)
        self.settings = CheckpointSettings(**{"incremental": True, **settings})
        self.failed: list[CheckpointInfo] = []
        self.coordinator = self.start()

    savepoints: SavepointRunner | None = None
    """Who writes savepoints, if they are part of the test."""

    def start(self, current: Manifest | None = None, run: int = 1, **more: Any) -> CheckpointCoordinator:
        """Begin a run; `more` are further fields of its `CoordinatorSetup`."""
        setup = CoordinatorSetup(
            self.settings, self.store, JobFacts("job", "Job", run), self.runner, current, self.failed.append,
            clock=self.clock, savepoints=self.savepoints, **more,
        )  # fmt: skip
        self.coordinator = CheckpointCoordinator(setup)
        return self.coordinator

    def step(self, later: int = 0) -> None:
        self.clock.now += later
        self.coordinator.step()

    def commit(self, epoch: int) -> None:
        self.coordinator.epoch_began(epoch, f"offsets of {epoch}")
        self.coordinator.epoch_committed(manifest(epoch), [("op", 0, TaskMetrics(rows_in=3)), ("op", 1, TaskMetrics())])

    def history(self) -> list[tuple[int, str, str]]:
        return [(i.id, i.status.value, i.reason.value if i.reason else "") for i in reversed(self.store.history())]
