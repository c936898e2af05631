"""A checkpoint in progress: its request, how far it is, and what is left to do when it fails."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from cairn.coordinator.checkpoint_statistics import Tasks
from cairn.errors import CheckpointFailedError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.manifest import Manifest, StateHandle

Snapshots = Mapping[str, list[StateHandle]]
"""The snapshots that replace the chain of each operator."""


@dataclass(frozen=True, slots=True)
class SavepointOrder:
    """Parameters of a savepoint request."""

    directory: str
    """The folder in which the savepoint gets a folder of its own."""
    request: str
    """The id of the request. The same id never makes a second savepoint."""
    drained: bool = False
    """All event-time timers have fired: the job has come to its end."""


class CheckpointRequest:
    """A request for a checkpoint or savepoint.

    Threads: made by the one that requests, ended once by the coordinator's, waited for by any. The event is the
    hand-over: the result is written before it is set, and read after it.
    """

    def __init__(self, full: bool, periodic: bool = False, order: SavepointOrder | None = None) -> None:
        self.full = full
        self.periodic = periodic
        self.order = order
        self._ended = threading.Event()
        self._info: CheckpointInfo | None = None

    def end(self, info: CheckpointInfo) -> None:
        self._info = info
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def failed(self) -> bool:
        return self._info is not None and self._info.status is CheckpointStatus.FAILED

    def nothing_yet(self) -> str:
        """Why the request is refused before the job has an epoch, and what to do instead.

        There is no position to put into a savepoint: a source that begins at its newest row, say, would begin at
        another one in the job that is started from it.
        """
        if self.order is None:
            return "the job has not begun its first epoch yet; ask again when it has read its first rows"
        return (
            "the job has not begun its first epoch yet: it has read no row, so there is no state and no position to "
            "save, and it continues. To end it, cancel it (job.cancel(), or cairn cancel): nothing is lost, and it is "
            "started again without a savepoint. For a savepoint, ask again after its first epoch."
        )

    def wait(self, timeout: float | None = None) -> CheckpointInfo:
        """The completed checkpoint. Raises `CheckpointFailedError` if it failed, `TimeoutError` if it takes longer."""
        if not self._ended.wait(timeout) or self._info is None:
            what = "checkpoint" if self.order is None else "savepoint"
            raise TimeoutError(f"the {what} has not ended within {timeout} s; it continues")
        if self._info.status is CheckpointStatus.FAILED:
            raise CheckpointFailedError(self._info.failure, checkpoint=self._info.id)
        return self._info


@dataclass
class PendingCheckpoint:
    """A checkpoint between its trigger and its end.

    Threads: guarded by the ledger's `lock`, but for `writing` and `async_since`, which only the thread that holds
    `work` writes.
    """

    number: int
    request: CheckpointRequest
    trigger_ms: int
    """By the wall clock."""
    since_ms: int
    deadline_ms: int
    """By the monotonic clock, as are `since_ms` and `async_since`."""
    type: CheckpointType = CheckpointType.CHECKPOINT
    waits_for: int | None = None
    """The running epoch whose end is the cut."""
    manifest: Manifest | None = None
    tasks: Tasks = ()
    in_flight: str = ""
    writing: bool = False
    async_since: int = 0
    async_ms: float = 0.0
    snapshots: Snapshots | None = None
    error: Exception | None = None
    finalizing: bool = False
    """Its metadata is being written: from here on it completes or fails, and cannot be aborted."""

    @property
    def is_savepoint(self) -> bool:
        return self.request.order is not None

    @property
    def ready(self) -> bool:
        """The cut is made, and whatever had to be written is."""
        return self.manifest is not None and (not self.request.full or self.snapshots is not None)

    def info(self, status: CheckpointStatus) -> CheckpointInfo:
        """Its statistics as far as they are known."""
        return CheckpointInfo(
            id=self.number,
            status=status,
            type=self.type,
            trigger_ms=self.trigger_ms,
            full=self.request.full,
            epoch=self.manifest.epoch if self.manifest is not None else -1,
            request=self.request.order.request if self.request.order is not None else "",
        )


@dataclass(frozen=True)
class End:
    """A checkpoint that was aborted, and what is still to be done about it without the lock."""

    pending: PendingCheckpoint
    info: CheckpointInfo
    discard: bool
    counts: bool
