"""Stops a job whose coordinator the test drives step by step."""

from __future__ import annotations

import threading
from typing import Any

from tests.support.patience import PATIENCE
from tests.support.savepoint_lab import World

from cairn.coordinator.pending_checkpoint import SavepointOrder
from cairn.job.epoch_gate import EpochGate
from cairn.job.stopping import StopContext, stop


class Loop:
    draining = False


def served(world: World, stopping: Any) -> Any:
    """Run the coordinator's steps, and finish what it starts, until the stop has ended."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(stopping())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        world.step()
        for number in list(world.writer.started):
            world.writer.started.pop(number)(None)
        thread.join(0.01)
    return result[0]


def stopped(world: World, gate: EpochGate, order: SavepointOrder, loop: Any = None) -> Any:
    ended: list[bool] = []

    def call() -> Any:
        context = StopContext(
            world.files, gate, world.coordinator, loop or Loop(), 1, order.drained, lambda: ended.append(True)
        )
        return stop(context, order, PATIENCE)

    info = served(world, call)
    return info, ended
