"""Stopping a job with a savepoint: hold the stream between two epochs, take the savepoint, stop; continue if it fails.

While this is in progress, the job's directory contains a note, `stopping/<request>`. A later run that finds it knows
that the job crashed during the stop, and logs whether the savepoint exists.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.pending_checkpoint import CheckpointRequest, SavepointOrder
from cairn.errors import CairnError, CheckpointFailedError, NotFoundError
from cairn.job.epoch_gate import EpochGate
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem
from cairn.storage.savepoint_folder import read_savepoint
from cairn.storage.savepoint_target import savepoint_path

_log = get_logger("cairn.job")


class StopNote(msgspec.Struct, frozen=True):
    """`stopping/<request>`."""

    request: str
    directory: str
    drain: bool
    run: int


class Draining(Protocol):
    """The part of the epoch loop that a drain needs."""

    draining: bool


@dataclass(frozen=True)
class StopContext:
    """The run that is to be stopped."""

    files: FileSystem
    gate: EpochGate
    coordinator: CheckpointCoordinator
    loop: Draining
    run: int
    timers: bool
    """Whether a drain needs one more epoch, for timers to fire in."""
    end: Callable[[], CairnError | None]
    """Stops the query. The gate is shut when it is called. Returns why the job has failed if it did so before."""


class _Stop:
    """A stop in progress, for those who ask for it again meanwhile.

    Threads: the one that stops calls `end` once, any other may join; the event orders them.
    """

    def __init__(self, order: SavepointOrder) -> None:
        self.order = order
        self._ended = threading.Event()
        self._outcome: CheckpointInfo | BaseException | None = None

    def end(self, outcome: CheckpointInfo | BaseException) -> None:
        self._outcome = outcome
        self._ended.set()

    def join(self, order: SavepointOrder, timeout: float) -> CheckpointInfo:
        """Wait for its end, and return or raise the same; refused for an order that is another one."""
        if order.request != self.order.request:
            raise CheckpointFailedError(
                f"the job is already being stopped by request '{self.order.request}'; wait for it, or join it by using "
                "the same request id"
            )
        if order != self.order:
            how = f"with a savepoint in {self.order.directory}, {'with' if self.order.drained else 'without'} drain"
            raise CheckpointFailedError(
                f"request '{order.request}' is already stopping the job {how}; repeat it unchanged, or wait for its end"
            )
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the job has not been stopped within {timeout:.0f} s; it is still being stopped")
        if isinstance(self._outcome, CheckpointInfo):
            return self._outcome
        error = self._outcome
        reason = error.message if isinstance(error, CairnError) else str(error) or type(error).__name__
        raise CheckpointFailedError(reason) from error


def stop(context: StopContext, order: SavepointOrder, timeout: float) -> CheckpointInfo:
    """Stop with a savepoint, after which lies no epoch. Called on any thread but the stream's and the coordinator's.

    One stop is in progress at a time. Asked for again under its id, it is the same one; under another id it is refused.
    """
    mine = _Stop(order)
    running: _Stop | None = context.gate.hold(mine)
    if running is not None:
        return running.join(order, timeout)
    try:
        info = _stop(context, order, timeout)
    except BaseException as error:
        context.gate.release()
        mine.end(error)
        raise
    mine.end(info)  # the gate stays held: nothing can be stopped a second time
    return info


def finish_newest(gate: EpochGate, coordinator: CheckpointCoordinator, deadline: float) -> None:
    """Let the newest epoch through a shut gate once more if its output is not published yet, as after a crash.

    Spark asks for it before any other, and no checkpoint or savepoint is cut there before.
    """
    if not coordinator.published:
        gate.one_more(max(0.0, deadline - time.monotonic()))


def _stop(context: StopContext, order: SavepointOrder, timeout: float) -> CheckpointInfo:
    gate, coordinator = context.gate, context.coordinator
    deadline = time.monotonic() + timeout
    note = StopNote(order.request, order.directory, order.drained, context.run)
    if not gate.shut(timeout):
        if gate.ended:
            raise CheckpointFailedError("the job is ending already, so it is not stopped with a savepoint")
        raise CheckpointFailedError(
            f"the running epoch did not end within {timeout:.0f} s, so the job was not stopped; it continues"
        )
    try:
        _write_note(context.files, note)
        request = _known(coordinator, order)
        if request is None:
            finish_newest(gate, coordinator, deadline)
            if order.drained and context.timers:
                _drain(gate, context.loop, deadline)
            request = coordinator.savepoint(order)
        info = _wait(request, deadline, timeout)
        current = coordinator.current_epoch()
        if info.epoch != current:
            raise CheckpointFailedError(
                f"savepoint {info.path} was already taken by this request, at epoch {info.epoch}; the job is now at "
                f"epoch {current} and was not stopped. Use another request id.",
                path=info.path,
            )
    except BaseException:
        gate.open()
        _remove_note(context.files, note)
        raise
    failure = context.end()
    _remove_note(context.files, note)
    last = coordinator.current_epoch()
    if last != info.epoch:
        raise CheckpointFailedError(
            f"the job has stopped, but epoch {last} was committed after savepoint {info.path}, which contains epoch "
            f"{info.epoch}. Nothing is lost: start the job again without the savepoint to resume from epoch {last}; "
            "another job that starts from the savepoint would process the rows since then again.",
            path=info.path,
        )
    if failure is not None:
        raise CheckpointFailedError(
            f"savepoint {info.path} is complete and contains epoch {info.epoch}, the last one, but the job failed "
            f"before it could be stopped: {failure.message}. Nothing is lost: start a job from the savepoint, or this "
            "one again.",
            path=info.path,
        ) from failure
    return info


def _known(coordinator: CheckpointCoordinator, order: SavepointOrder) -> CheckpointRequest | None:
    """What the same request has made before, or is making: then nothing is drained for it once more."""
    known = coordinator.known_savepoint(order)
    if known is not None and known.order is not None and known.order.drained != order.drained:
        raise CheckpointFailedError(
            f"request '{order.request}' was already used for a savepoint "
            f"{'with' if known.order.drained else 'without'} drain, so the job was not stopped; it continues. "
            "Use another request id."
        )
    return known


def _wait(request: CheckpointRequest, deadline: float, timeout: float) -> CheckpointInfo:
    try:
        return request.wait(max(0.1, deadline - time.monotonic()))
    except TimeoutError:
        raise TimeoutError(
            f"the savepoint did not complete within {timeout:.0f} s, so the job was not stopped; it continues, and the "
            "savepoint is still being written. To stop the job, use another request id."
        ) from None


def _drain(gate: EpochGate, loop: Draining, deadline: float) -> None:
    loop.draining = True
    try:
        if not gate.one_more(max(0.1, deadline - time.monotonic())):
            raise CheckpointFailedError(
                "there was no last epoch to fire timers in, so the job was not stopped; it continues"
            )
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
    """Log the outcome of stops during which the job crashed, and delete their notes. Called by a new run, once."""
    messages = []
    for info in files.list(layout.STOPPING):
        try:
            note = msgspec.json.decode(files.read(info.path), type=StopNote)
            path = savepoint_path(note.directory, job_id, note.request)
            text = f"run {note.run} crashed while it was being stopped with a savepoint. "
            try:
                at = read_savepoint(path).epoch
                text += (
                    f"Savepoint {path} is complete and contains epoch {at}; the job resumes from its own "
                    f"epoch {epoch}. Start another job from the savepoint only if this one is stopped first: both "
                    "would process the same rows."
                )
            except NotFoundError:
                text += f"There is no savepoint; the job resumes from epoch {epoch}."
            _log.warning("%s", text)
            messages.append(text)
            files.delete(info.path)
        except (CairnError, OSError, msgspec.MsgspecError) as error:
            _log.warning("a note about an earlier stop cannot be read: %s", error)
    return messages
