"""How a checkpoint whose cut is made completes: its snapshot is written beside the stream, then its metadata."""

from __future__ import annotations

import msgspec

from cairn.coordinator.checkpoint_assembly import CheckpointAssembly
from cairn.coordinator.checkpoint_failures import CheckpointFailures
from cairn.coordinator.checkpoint_fence import CheckpointFence
from cairn.coordinator.checkpoint_ledger import CheckpointLedger
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.pending_checkpoint import PendingCheckpoint, Snapshots
from cairn.coordinator.retained_checkpoints import RetainedCheckpoints
from cairn.coordinator.snapshot_writers import SnapshotWriters
from cairn.errors import CairnError
from cairn.events import CheckpointCompleted
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint, FailureReason
from cairn.model.manifest import Manifest
from cairn.storage.manifest_store import ManifestStore

_log = get_logger("cairn.checkpoint")


class CheckpointCompletion:
    """Completes the checkpoints of one run.

    Threads: `advance` is called by the thread that holds the ledger's `work`, without its `lock`, since it calls the
    storage; it takes the lock for what it decides. Snapshots report their end from any thread.
    """

    def __init__(
        self,
        setup: CoordinatorSetup,
        ledger: CheckpointLedger,
        writers: SnapshotWriters,
        retained: RetainedCheckpoints,
        failures: CheckpointFailures,
        fence: CheckpointFence,
    ) -> None:
        self._setup = setup
        self._ledger = ledger
        self._writers = writers
        self._retained = retained
        self._failures = failures
        self._fence = fence
        manifests = ManifestStore(setup.store.files)
        self._assembly = CheckpointAssembly(setup.settings, setup.facts, manifests, setup.insight)

    def advance(self, pending: PendingCheckpoint) -> None:
        """Take a checkpoint one step further: start its snapshot, or complete it, or give it up."""
        if pending.request.full and not pending.writing and pending.manifest is not None:
            pending.writing = True
            pending.async_since = self._setup.clock.monotonic_ms()
            self._start_writing(pending, pending.manifest)
        if pending.error is not None:
            with self._ledger.lock:
                if pending in self._ledger:
                    self._ledger.abort(pending, FailureReason.ASYNC, f"the snapshot failed: {pending.error}")
        elif pending.ready and self._fence.is_owner():
            if pending.is_savepoint:
                self._complete_savepoint(pending)
            else:
                self._complete(pending)

    def _start_writing(self, pending: PendingCheckpoint, manifest: Manifest) -> None:
        self._writers.start(pending, manifest, lambda result: self._snapshot_done(pending, result))

    def _snapshot_done(self, pending: PendingCheckpoint, result: Snapshots | Exception) -> None:
        ledger = self._ledger
        with ledger.lock:
            given_up, closed = pending not in ledger, ledger.closed
            pending.async_ms = self._setup.clock.monotonic_ms() - pending.async_since
            if isinstance(result, Exception):
                pending.error = result
            else:
                pending.snapshots = result
            if given_up and not pending.is_savepoint:
                self._retained.give_up(pending.number)
            ledger.lock.notify_all()
        if given_up and pending.is_savepoint:
            self._writers.cancel(pending)
        elif given_up and closed:  # no step follows
            self._failures.settle_outside_step()

    def _complete(self, pending: PendingCheckpoint) -> None:
        ledger = self._ledger
        with ledger.lock:
            if pending not in ledger:  # the job ended meanwhile
                return
            pending.finalizing = True
        failure: Exception | None = None
        try:
            checkpoint = self._write_metadata(pending)
        except (CairnError, OSError) as error:
            failure = error
        with ledger.lock:
            if failure is not None:
                # A number that is taken belongs to a checkpoint of another run, which must not be touched.
                why = f"its _metadata could not be written: {failure}"
                ledger.abort(pending, FailureReason.FINALIZE, why, discard=not isinstance(failure, FileExistsError))
                return
            self._failures.reset()
            self._retained.add(checkpoint)
            ledger.complete(pending)
        info = checkpoint.info
        _log.info(
            "Completed checkpoint %d for job %s (%d bytes, checkpointDuration=%d ms, fullSize=%d bytes, epoch %d).",
            info.id, self._setup.facts.job_id, info.written_bytes, info.duration_ms, info.full_bytes, info.epoch,
        )  # fmt: skip
        self._setup.store.remember(info)
        self._setup.events.publish(CheckpointCompleted(self._setup.facts.job_id, info.id))
        pending.request.end(info)

    def _write_metadata(self, pending: PendingCheckpoint) -> Checkpoint:
        """From here on the checkpoint exists."""
        before = self._retained.newest_epoch
        checkpoint = self._assembly.assembled(pending, self._setup.clock.now_ms(), before)
        checkpoint = msgspec.structs.replace(checkpoint, retained=self._retained.with_added(pending.number))
        self._setup.store.complete(checkpoint)
        return checkpoint

    def _complete_savepoint(self, pending: PendingCheckpoint) -> None:
        """The last step of a savepoint. From here on it belongs to its owner: nothing here ever deletes it."""
        ledger = self._ledger
        try:
            info = self._writers.savepoint_requests.complete(pending)
        except (CairnError, OSError) as error:
            with ledger.lock:
                if pending in ledger:
                    why = f"the savepoint could not be completed: {error}"
                    ledger.abort(pending, FailureReason.FINALIZE, why)
            return
        with ledger.lock:
            ledger.complete_savepoint(pending)
        _log.info(
            "Completed savepoint %d for job %s at %s (%d bytes, duration=%d ms, epoch %d).",
            info.id, self._setup.facts.job_id, info.path, info.savepoint_bytes, info.duration_ms, info.epoch,
        )  # fmt: skip
        self._setup.store.remember(info)
        pending.request.end(info)
