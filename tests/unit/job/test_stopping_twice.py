"""Stops that meet each other, and stops that are asked for again: one at a time, and no epoch after the savepoint."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import PATIENCE
from tests.support.savepoint_lab import World
from tests.support.stopping_lab import Loop, served, stopped

from cairn.coordinator.pending_checkpoint import SavepointOrder
from cairn.errors import CheckpointFailedError, EpochFailedError
from cairn.job import stopping
from cairn.job.epoch_gate import EpochGate
from cairn.job.stopping import StopContext, stop


class Stopping:
    """A stop in a thread of its own."""

    def __init__(
        self, world: World, gate: EpochGate, order: SavepointOrder, timeout: float = PATIENCE, loop: Any = None
    ) -> None:
        self.outcome: Any = None
        self._context = StopContext(
            world.files, gate, world.coordinator, loop or Loop(), 1, order.drained, lambda: self._end(gate)
        )
        self._order, self._timeout = order, timeout
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = stop(self._context, self._order, self._timeout)
        except Exception as error:
            self.outcome = error

    def _end(self, gate: EpochGate) -> None:
        gate.end(PATIENCE)

    def ended(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.outcome


def until_written(world: World, count: int = 1) -> None:
    """Wait until so many savepoints are being written."""
    deadline = time.monotonic() + PATIENCE
    while len(world.writer.started) < count and time.monotonic() < deadline:
        world.step()
        time.sleep(0.01)
    assert len(world.writer.started) == count


def complete(world: World) -> None:
    for number in list(world.writer.started):
        world.writer.started.pop(number)(None)
    world.step()


def test_a_second_stop_is_refused_while_one_goes_on_and_leaves_it_alone(tmp_path: Path) -> None:
    world, gate = World(tmp_path), EpochGate()
    world.commit(3)
    first = Stopping(world, gate, SavepointOrder("/sp", "first"))
    until_written(world)
    error = Stopping(world, gate, SavepointOrder("/sp", "second"), 0.2).ended()
    assert isinstance(error, CheckpointFailedError)
    assert "already being stopped by request 'first'" in error.message
    entered = threading.Thread(target=gate.enter, daemon=True)
    entered.start()
    entered.join(0.1)
    assert entered.is_alive(), "the gate is as shut as before"
    assert gate.idle > 0
    complete(world)
    assert first.ended().epoch == 3
    assert gate.ended
    assert world.files.list("stopping") == []


def test_a_stop_that_gives_up_makes_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, gate = World(tmp_path), EpochGate()
    world.commit(3)
    written, wait = threading.Event(), stopping._wait

    def give_up(request: Any, deadline: float, timeout: float) -> Any:
        assert written.wait(PATIENCE)
        return wait(request, 0.0, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(stopping, "_wait", give_up)
        first = Stopping(world, gate, SavepointOrder("/sp", "first"))
        until_written(world)
        written.set()
        error = first.ended()
    assert isinstance(error, TimeoutError)
    assert "was not stopped; it continues" in str(error)
    complete(world)
    assert gate.enter(), "the stream goes on"
    world.commit(4)
    gate.leave()
    again = served(world, Stopping(world, gate, SavepointOrder("/sp", "first")).ended)
    assert "the job is now at epoch 4" in str(again), (
        "the savepoint that was finished later is not taken for this stop's"
    )
    assert served(world, Stopping(world, gate, SavepointOrder("/sp", "second")).ended).epoch == 4


def test_the_same_stop_asked_for_twice_is_one_stop_with_one_last_epoch(tmp_path: Path) -> None:
    world, gate, loop = World(tmp_path), EpochGate(), Loop()
    world.commit(0)
    seen: list[bool] = []

    def stream() -> None:
        while gate.enter():
            seen.append(loop.draining)
            world.commit(len(seen))
            gate.leave()
            time.sleep(0.01)

    threading.Thread(target=stream, daemon=True).start()
    order = SavepointOrder("/sp", "r", drained=True)
    first = Stopping(world, gate, order, loop=loop)
    until_written(world)
    second = Stopping(world, gate, order, loop=loop)
    late = Stopping(world, gate, order, 0.1, loop).ended()
    assert isinstance(late, TimeoutError)
    other = Stopping(world, gate, SavepointOrder("/sp", "r"), loop=loop).ended()
    assert "with a savepoint in /sp, with drain" in str(other)
    complete(world)
    assert first.ended() is second.ended()
    assert first.outcome.epoch == len(seen)
    assert seen.count(True) == 1
    assert Stopping(world, gate, order).ended() is first.outcome, "it has been stopped"


def test_who_joins_a_stop_hears_of_its_failure(tmp_path: Path) -> None:
    world, gate = World(tmp_path), EpochGate()
    world.commit(3)
    world.writer.fail = OSError("no room")
    both = [Stopping(world, gate, SavepointOrder("/sp", "r")) for _ in range(2)]
    until_written(world)
    complete(world)
    assert ["no room" in str(one.ended()) for one in both] == [True, True]
    assert gate.enter(), "the stream goes on"


def test_nothing_is_drained_for_a_savepoint_that_exists(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(3)
    served(world, lambda: world.coordinator.savepoint(SavepointOrder("/sp", "same", drained=True)).wait(PATIENCE))
    gate, loop = EpochGate(), Loop()
    drained: list[bool] = []

    def stream() -> None:
        while gate.enter():
            drained.append(loop.draining)
            world.commit(4 + len(drained))
            gate.leave()
            time.sleep(0.01)

    order = SavepointOrder("/sp", "same", drained=True)
    info, ended = stopped(world, EpochGate(), order, loop)
    assert (info.epoch, ended) == (3, [True]), "no epoch came since: the job is at the savepoint"
    world.commit(4)
    world.start(world.coordinator._cuts.current)  # a later run finds it, too
    threading.Thread(target=stream, daemon=True).start()
    error, ended = stopped(world, gate, order, loop)
    gate.end(5)
    assert "was already taken by this request, at epoch 3" in str(error)
    assert (ended, any(drained)) == ([], False)
    error, ended = stopped(world, EpochGate(), SavepointOrder("/sp", "same"), loop)
    assert "for a savepoint with drain, so the job was not stopped" in str(error)
    assert ended == []


def test_an_epoch_after_the_savepoint_is_told(tmp_path: Path) -> None:
    world, gate = World(tmp_path), EpochGate()
    world.commit(3)

    def end() -> None:
        world.commit(4)

    def call() -> Any:
        context = StopContext(world.files, gate, world.coordinator, Loop(), 1, False, end)
        return stop(context, SavepointOrder("/sp", "r"), 5.0)

    error = served(world, call)
    assert isinstance(error, CheckpointFailedError)
    assert "epoch 4 was committed after savepoint /sp/savepoint-1, which contains epoch 3" in error.message


def test_a_stop_of_a_job_that_has_failed_names_the_savepoint(tmp_path: Path) -> None:
    world, gate = World(tmp_path), EpochGate()
    world.commit(3)
    context = StopContext(world.files, gate, world.coordinator, Loop(), 1, False, lambda: EpochFailedError("it broke"))
    error = served(world, lambda: stop(context, SavepointOrder("/sp", "r"), PATIENCE))
    assert isinstance(error, CheckpointFailedError)
    assert "savepoint /sp/savepoint-1 is complete and contains epoch 3" in error.message
    assert "it broke" in error.message
    assert world.files.list("stopping") == []


def test_a_job_that_is_ending_is_not_stopped_once_more(tmp_path: Path) -> None:
    world, gate = World(tmp_path), EpochGate()
    world.commit(3)
    gate.end(1)
    context = StopContext(world.files, gate, world.coordinator, Loop(), 1, False, lambda: None)
    with pytest.raises(CheckpointFailedError, match="ending already"):
        stop(context, SavepointOrder("/sp", "r"), 1.0)


def test_a_job_that_has_read_nothing_is_not_stopped_and_told_how_to_end_it(tmp_path: Path) -> None:
    world, gate = World(tmp_path), EpochGate()
    error, ended = stopped(world, gate, SavepointOrder("/sp", "r"))
    assert isinstance(error, CheckpointFailedError)
    assert "no position to save, and it continues" in error.message
    assert "job.cancel()" in error.message
    assert ended == []
    assert world.files.list("stopping") == []
    assert gate.enter(), "the first epoch may begin"
    world.commit(0)
    gate.leave()
    info, ended = stopped(world, gate, SavepointOrder("/sp", "r"))
    assert (info.epoch, ended) == (0, [True]), "asked for again after it, under the same id"
