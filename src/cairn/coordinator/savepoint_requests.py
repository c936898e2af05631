"""The coordinator's savepoints: one for each request, whoever asks and however often, in this run and in later ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import msgspec

from cairn.coordinator.checkpoint_assembly import completed_info
from cairn.coordinator.pending_checkpoint import CheckpointRequest, Pending, SavepointOrder
from cairn.coordinator.ports import Clock, SavepointRunner, WrittenSavepoint
from cairn.errors import CairnError, InternalError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType, FailureReason
from cairn.model.manifest import Manifest
from cairn.storage.checkpoint_store import CheckpointStore


class SavepointDesk:
    """Takes orders, hands them to the one who writes, and knows what came of them."""

    def __init__(self, runner: SavepointRunner, store: CheckpointStore, clock: Clock) -> None:
        self._runner = runner
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._orders: dict[str, CheckpointRequest] = {}
        """What was asked for in this run, by the id of the request."""

    def take(self, order: SavepointOrder) -> tuple[CheckpointRequest, bool]:
        """The request for an order, and whether somebody has to see to it: not if it is known, or was met before."""
        request = CheckpointRequest(full=True, order=order)
        with self._lock:
            known = self._orders.get(order.request)
            if known is not None and not known.failed:
                return known, False
            self._orders[order.request] = request
        try:
            found = self._runner.find(order)
        except (CairnError, OSError) as error:
            now = self._clock.now_ms()
            failed = CheckpointInfo(0, CheckpointStatus.FAILED, CheckpointType.SAVEPOINT, now, end_ms=now)
            request.end(msgspec.structs.replace(failed, failure=str(error), reason=FailureReason.FINALIZE))
            return request, False
        if found is not None:
            request.end(self._written_before(order, found))
        return request, found is None

    def known(self, order: SavepointOrder) -> CheckpointRequest | None:
        """What was made or is being made under the id of an order; None if nothing was, or it failed."""
        with self._lock:
            known = self._orders.get(order.request)
        if known is not None and not known.failed:
            return known
        found = self._runner.find(order)
        if found is None:
            return None
        request = CheckpointRequest(full=True, order=replace(order, drained=found.drained))
        request.end(self._written_before(order, found))
        return request

    def _written_before(self, order: SavepointOrder, found: WrittenSavepoint) -> CheckpointInfo:
        """What is told of a savepoint that an earlier request with the same id made."""
        for info in self._store.history():
            if info.request == order.request and info.path == found.path:
                return info
        now = self._clock.now_ms()
        return CheckpointInfo(
            0, CheckpointStatus.COMPLETED, CheckpointType.SAVEPOINT, now, full=True, epoch=found.epoch, end_ms=now,
            path=found.path, request=order.request, savepoint_bytes=found.size,
        )  # fmt: skip

    def in_progress(self, pending: Pending) -> CheckpointInfo:
        """What is told of a checkpoint on its way, with the progress of a savepoint."""
        info = pending.info(CheckpointStatus.IN_PROGRESS)
        if not pending.is_savepoint or not pending.writing:
            return info
        done, parts = self._runner.progress(pending.number)
        return msgspec.structs.replace(info, parts_done=done, parts=parts)

    def start(self, pending: Pending, manifest: Manifest, done: Callable[[Exception | None], None]) -> None:
        if pending.request.order is None:
            raise InternalError(f"checkpoint {pending.number} is no savepoint")
        self._runner.start(pending.number, manifest, pending.request.order, done)

    def complete(self, pending: Pending) -> CheckpointInfo:
        """Make the savepoint exist. It is its owner's from here on: nothing here ever deletes it."""
        if pending.manifest is None:
            raise InternalError(f"savepoint {pending.number} has no cut")
        written = self._runner.complete(pending.number)
        info = completed_info(
            pending, pending.manifest, written.path, self._clock.now_ms(), -1, {}, written.spent, written.sizes
        )
        return msgspec.structs.replace(info, savepoint_bytes=written.size)

    def cancel(self, pending: Pending) -> None:
        self._runner.cancel(pending.number)
