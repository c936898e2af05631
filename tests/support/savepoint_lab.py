"""A checkpoint coordinator whose savepoints are written when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import coordinator_lab as coordinating

from cairn.coordinator.pending_checkpoint import SavepointOrder
from cairn.coordinator.ports import WrittenSavepoint
from cairn.model.manifest import Manifest


@dataclass
class Writer:
    """Savepoints that are written when the test says so; what is complete outlives the run."""

    complete_ones: dict[str, WrittenSavepoint] = field(default_factory=dict)
    started: dict[int, Callable[[Exception | None], None]] = field(default_factory=dict)
    orders: dict[int, tuple[SavepointOrder, Manifest]] = field(default_factory=dict)
    canceled: list[int] = field(default_factory=list)
    fail: Exception | None = None

    def find(self, order: SavepointOrder) -> WrittenSavepoint | None:
        return self.complete_ones.get(order.request)

    def start(self, number: int, cut: Manifest, order: SavepointOrder, done: Callable[[Any], None]) -> None:
        self.started[number] = done
        self.orders[number] = (order, cut)

    def progress(self, number: int) -> tuple[int, int]:
        return 3, 8

    def complete(self, number: int) -> WrittenSavepoint:
        if self.fail is not None:
            raise self.fail
        order, cut = self.orders[number]
        sizes = {("op", 0): 500, ("op", 1): 200}
        made = WrittenSavepoint(
            f"{order.directory}/savepoint-{number}", 777, cut.epoch, order.drained, sizes, {("op", 1): 9.0}
        )
        self.complete_ones[order.request] = made
        return made

    def cancel(self, number: int) -> None:
        self.canceled.append(number)


class World(coordinating.World):
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.savepoints = self.writer = Writer()
        super().__init__(folder, **settings)

    def ask(self, request: str = "r1", directory: str = "/sp") -> Any:
        return self.coordinator.savepoint(SavepointOrder(directory, request))
