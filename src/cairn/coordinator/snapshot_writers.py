"""Who writes beside the stream: full snapshots of checkpoints, and savepoints."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.pending_checkpoint import PendingCheckpoint, Snapshots
from cairn.coordinator.savepoint_requests import SavepointRequests
from cairn.errors import CheckpointFailedError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus
from cairn.model.manifest import Manifest


class SnapshotWriters:
    """The runner of full snapshots, and the requests for savepoints if the job can write them.

    Threads: holds no state of its own. Called from any thread, without the lock: the runners call Spark.
    """

    def __init__(self, setup: CoordinatorSetup) -> None:
        self._runner = setup.runner
        self._insight = setup.insight
        runner = setup.savepoints
        self._savepoint_requests = SavepointRequests(runner, setup.store, setup.clock) if runner is not None else None

    @property
    def savepoint_requests(self) -> SavepointRequests:
        if self._savepoint_requests is None:
            raise CheckpointFailedError("this job cannot write savepoints")
        return self._savepoint_requests

    @property
    def writes_savepoints(self) -> bool:
        return self._savepoint_requests is not None

    def start(
        self, pending: PendingCheckpoint, manifest: Manifest, done: Callable[[Snapshots | Exception], None]
    ) -> None:
        """Begin to write; `done` is called from any thread with the snapshots, which a savepoint has none of."""
        if pending.is_savepoint:
            self.savepoint_requests.start(pending, manifest, lambda error: done({} if error is None else error))
        else:
            self._runner.start(pending.number, manifest, done)

    def cancel(self, pending: PendingCheckpoint) -> None:
        """Stop writing for a checkpoint that was given up."""
        if pending.is_savepoint:
            self.savepoint_requests.cancel(pending)
        else:
            self._runner.cancel(pending.number)

    def info(self, pending: PendingCheckpoint, running_epoch: int) -> CheckpointInfo:
        """A checkpoint in progress as pages and commands show it, with the subtasks that have acknowledged it."""
        if pending.is_savepoint:
            info, writing = self.savepoint_requests.in_progress(pending), 0
        else:
            info, writing = pending.info(CheckpointStatus.IN_PROGRESS), pending.number if pending.writing else 0
        cut = pending.tasks if pending.manifest is not None else None
        awaited = running_epoch if pending.waits_for == running_epoch else -1
        operators = self._insight.progress(awaited, cut, writing, pending.trigger_ms)
        return msgspec.structs.replace(info, operators=operators)
