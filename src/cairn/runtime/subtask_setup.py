"""What the operator of one subtask is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from cairn.model.manifest import EpochContext
from cairn.runtime.operator_spec import OperatorSpec
from cairn.runtime.state_registry import StateRegistry
from cairn.runtime.subtask_shares import History
from cairn.state.codec import KeyCodec


@dataclass(slots=True)
class Timings:
    """Milliseconds by step, for `--profile`."""

    spent: dict[str, float] = field(default_factory=dict)

    def add(self, step: str, since: float) -> float:
        now = time.perf_counter()
        self.spent[step] = self.spent.get(step, 0.0) + (now - since) * 1000
        return now

    def move(self, source: str, target: str, millis: float) -> None:
        """Count for another step what a step did on its behalf."""
        self.spent[source] = max(0.0, self.spent.get(source, 0.0) - millis)
        self.spent[target] = self.spent.get(target, 0.0) + millis


@dataclass(frozen=True, slots=True)
class SubtaskSetup:
    """One attempt of one subtask in one epoch."""

    spec: OperatorSpec
    codec: KeyCodec
    registry: StateRegistry
    context: EpochContext
    subtask: int
    attempt: int
    timings: Timings
    history: History | None = None
    """What its operator state starts from."""
