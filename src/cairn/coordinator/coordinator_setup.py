"""What the checkpoint coordinator of a run is made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cairn.config import CheckpointSettings
from cairn.coordinator.checkpoint_statistics import Insight
from cairn.coordinator.ports import Clock, JobFacts, SavepointRunner, SnapshotRunner, SystemClock
from cairn.events import EventBus
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.model.manifest import Manifest
from cairn.storage.checkpoint_store import CheckpointStore


@dataclass(frozen=True)
class CoordinatorSetup:
    """The settings of a run, where it starts, and whom its coordinator works with.

    Threads: read by all, changed by none.
    """

    settings: CheckpointSettings
    store: CheckpointStore
    facts: JobFacts
    runner: SnapshotRunner
    current: Manifest | None
    """The newest committed epoch when the run starts."""
    intolerable: Callable[[CheckpointInfo], None]
    """Called on the coordinator's thread when more checkpoints in a row have failed than the settings tolerate."""
    published: bool = True
    """Whether the output of `current` is visible."""
    failover: bool = False
    """The run follows a failure, so its first checkpoint comes soon."""
    savepoints: SavepointRunner | None = None
    insight: Insight = field(default_factory=Insight)
    clock: Clock = field(default_factory=SystemClock)
    chance: random.Random | None = None
    """Spreads the first checkpoints of jobs that start together."""
    events: EventBus = field(default_factory=EventBus)
    """Hears of every end, on the coordinator's thread."""
