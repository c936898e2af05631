"""Requests for savepoints: the same request id stands for one savepoint, in this run and in later ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import msgspec

from cairn.coordinator.checkpoint_assembly import savepoint_info
from cairn.coordinator.pending_checkpoint import CheckpointRequest, PendingCheckpoint, SavepointOrder
from cairn.coordinator.ports import Clock, SavepointRunner, WrittenSavepoint
from cairn.errors import CairnError, InternalError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType, FailureReason
from cairn.model.manifest import Manifest
from cairn.storage.checkpoint_store import CheckpointStore


class SavepointRequests:
    """Takes orders for savepoints, has them written, and knows what came of each.

    Threads: called from any thread. The orders are guarded by a lock of their own, which is not held while the runner
    is called; it may be taken with the ledger's lock held, never the other way round.
    """

    def __init__(self, runner: SavepointRunner, store: CheckpointStore, clock: Clock) -> None:
        self._runner = runner
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._orders: dict[str, CheckpointRequest] = {}
        """The requests of this run by their id."""

    def take(self, order: SavepointOrder) -> tuple[CheckpointRequest, bool]:
        """The request for an order, and whether it is new: not if it is in progress, or was completed before."""
        request = CheckpointRequest(full=True, order=order)
        with self._lock:
            known = self._orders.get(order.request)
            if known is not None and not known.failed:
                return known, False
            self._orders[order.request] = request
        try:
            written = self._runner.find(order)
        except (CairnError, OSError) as error:
            now = self._clock.now_ms()
            failed = CheckpointInfo(0, CheckpointStatus.FAILED, CheckpointType.SAVEPOINT, now, end_ms=now)
            request.end(msgspec.structs.replace(failed, failure=str(error), reason=FailureReason.FINALIZE))
            return request, False
        if written is not None:
            request.end(self._written_before(order, written))
        return request, written is None

    def known(self, order: SavepointOrder) -> CheckpointRequest | None:
        """The request that is in progress or completed under the id of an order; None if there is none."""
        with self._lock:
            known = self._orders.get(order.request)
        if known is not None and not known.failed:
            return known
        written = self._runner.find(order)
        if written is None:
            return None
        request = CheckpointRequest(full=True, order=replace(order, drained=written.drained))
        request.end(self._written_before(order, written))
        return request

    def _written_before(self, order: SavepointOrder, written: WrittenSavepoint) -> CheckpointInfo:
        """The statistics of a savepoint that an earlier request with the same id made."""
        for info in self._store.history():
            if info.request == order.request and info.path == written.path:
                return info
        now = self._clock.now_ms()
        return CheckpointInfo(
            0, CheckpointStatus.COMPLETED, CheckpointType.SAVEPOINT, now, full=True, epoch=written.epoch, end_ms=now,
            path=written.path, request=order.request, savepoint_bytes=written.size,
        )  # fmt: skip

    def in_progress(self, pending: PendingCheckpoint) -> CheckpointInfo:
        """A savepoint in progress, with how many of its parts are written."""
        info = pending.info(CheckpointStatus.IN_PROGRESS)
        if not pending.is_savepoint or not pending.writing:
            return info
        done, parts = self._runner.progress(pending.number)
        return msgspec.structs.replace(info, parts_done=done, parts=parts)

    def start(self, pending: PendingCheckpoint, manifest: Manifest, done: Callable[[Exception | None], None]) -> None:
        if pending.request.order is None:
            raise InternalError(f"checkpoint {pending.number} is not a savepoint")
        self._runner.start(pending.number, manifest, pending.request.order, done)

    def complete(self, pending: PendingCheckpoint) -> CheckpointInfo:
        """Make the savepoint exist. From here on it belongs to its owner: nothing here ever deletes it."""
        if pending.manifest is None:
            raise InternalError(f"savepoint {pending.number} has no cut")
        return savepoint_info(pending, pending.manifest, self._runner.complete(pending.number), self._clock.now_ms())

    def cancel(self, pending: PendingCheckpoint) -> None:
        self._runner.cancel(pending.number)
