"""Stopping a job with a savepoint: hold the stream between two epochs, take the savepoint, stop; or go on if it fails.

While this goes on a note lies in the job's directory, `stopping/<request>`. A run that finds one from before knows that
the job died on the way, and says whether the savepoint exists.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from cairn.api.gate import EpochGate
from cairn.api.savepoints import savepoint_path
from cairn.coordinator.checkpoints import CheckpointCoordinator
from cairn.coordinator.pending import SavepointOrder
from cairn.errors import CairnError, CheckpointFailedError, NotFoundError
from cairn.model.checkpoint import CheckpointInfo
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem
from cairn.storage.savepoints import read_savepoint

_log = logging.getLogger("cairn.job")


class StopNote(msgspec.Struct, frozen=True):
    """`stopping/<request>`."""

    request: str
    directory: str
    drain: bool
    run: int


class Draining(Protocol):
    """The part of the epoch loop that a drain needs."""

    draining: bool


def stop(
    files: FileSystem,
    gate: EpochGate,
    coordinator: CheckpointCoordinator,
    loop: Draining,
    order: SavepointOrder,
    run: int,
    timers: bool,
    end: Callable[[], None],
    timeout: float,
) -> CheckpointInfo:
    """Stop with a savepoint. `end` stops the query; the gate is shut then, and no epoch lies after the savepoint."""
    deadline = time.monotonic() + timeout
    note = StopNote(order.request, order.directory, order.drained, run)
    if not gate.shut(timeout):
        raise CheckpointFailedError(
            f"the running epoch did not end within {timeout:.0f} s, so the job was not stopped; it goes on"
        )
    try:
        _write_note(files, note)
        if order.drained and timers:
            _drain(gate, loop, deadline)
        info = coordinator.savepoint(order).wait(max(0.1, deadline - time.monotonic()))
        current = coordinator.current_epoch()
        if info.epoch != current:
            raise CheckpointFailedError(
                f"savepoint {info.path} was made by this request before, at epoch {info.epoch}; the job has gone on to "
                f"epoch {current} since and was not stopped. Ask again with another request id.",
                path=info.path,
            )
    except BaseException:
        gate.open()
        _remove_note(files, note)
        raise
    end()
    _remove_note(files, note)
    return info


def _drain(gate: EpochGate, loop: Draining, deadline: float) -> None:
    loop.draining = True
    try:
        if not gate.one_more(max(0.1, deadline - time.monotonic())):
            raise CheckpointFailedError("no last epoch came to fire timers in, so the job was not stopped; it goes on")
    finally:
        loop.draining = False


def _write_note(files: FileSystem, note: StopNote) -> None:
    path = layout.stopping_path(note.request)
    files.delete(path)
    files.create(path, msgspec.json.encode(note))


def _remove_note(files: FileSystem, note: StopNote) -> None:
    try:
        files.delete(layout.stopping_path(note.request))
    except (CairnError, OSError) as error:
        _log.warning("a note about the stop could not be removed: %s", error)


def tell_of_unfinished_stops(files: FileSystem, job_id: str, epoch: int) -> list[str]:
    """Say what became of stops that the job did not survive, and forget them. Called by a new run, once."""
    told = []
    for info in files.list(layout.STOPPING):
        try:
            note = msgspec.json.decode(files.read(info.path), type=StopNote)
            path = savepoint_path(note.directory, job_id, note.request)
            text = f"run {note.run} was being stopped with a savepoint and died on the way. "
            try:
                at = read_savepoint(path).epoch
                text += (
                    f"Savepoint {path} is complete and holds epoch {at}; the job goes on from epoch {epoch}, in its "
                    "own history. Start another job from the savepoint only if this one is stopped first: both would "
                    "process the same rows."
                )
            except NotFoundError:
                text += f"There is no savepoint; the job goes on from epoch {epoch}."
            _log.warning("%s", text)
            told.append(text)
            files.delete(info.path)
        except (CairnError, OSError, msgspec.MsgspecError) as error:
            _log.warning("a note about an earlier stop cannot be read: %s", error)
    return told
