"""What may be asked of a running job, by users of its handle and through files in its directory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.control import Action
from cairn.coordinator.pending_checkpoint import CheckpointRequest, SavepointOrder
from cairn.errors import CheckpointFailedError
from cairn.job.job_run import RunParts
from cairn.job.stopping import StopContext, stop
from cairn.job.supervisor import Supervisor
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.storage import layout
from cairn.storage.savepoint_target import target_directory

CANCEL_GRACE = 30.0
"""Seconds that the running epoch of a canceled job may take."""
SAVEPOINT_TIMEOUT = 3600.0
"""Seconds that a savepoint, or a stop with one, may take."""


class JobActions:
    """Checkpoints, savepoints and the end of one job.

    Threads: any thread may call; nothing is kept here.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def checkpoint(self, full: bool | None) -> CheckpointRequest:
        return self.coordinator("checkpoint").request(full)

    def savepoint(self, directory: str | None, request_id: str | None) -> CheckpointRequest:
        coordinator = self.coordinator("savepoint")
        return coordinator.savepoint(self.order(directory, request_id))

    def stop(self, directory: str | None, drain: bool, timeout: float, request_id: str | None) -> CheckpointInfo:
        """Stop the job with a savepoint, and wait for its end."""
        parts, supervisor = self._parts("stop"), self._supervisor
        context = StopContext(
            supervisor.context.files,
            supervisor.gate,
            parts.coordinator,
            parts.loop,
            supervisor.current.number if supervisor.current is not None else 0,
            supervisor.context.timers,
            supervisor.finish,
        )
        return stop(context, self.order(directory, request_id, drain), timeout)

    def order(self, directory: str | None, request_id: str | None, drain: bool = False) -> SavepointOrder:
        """The parameters of a savepoint request, checked."""
        request = layout.checked_request(request_id) if request_id is not None else uuid.uuid4().hex
        configured = self._supervisor.context.settings.checkpoints.savepoint_dir
        return SavepointOrder(target_directory(directory, configured), request, drained=drain)

    def coordinator(self, action: str) -> CheckpointCoordinator:
        """The coordinator of a running job; the error for one that does not run says what is not done."""
        return self._parts(action).coordinator

    def _parts(self, action: str) -> RunParts:
        supervisor = self._supervisor
        parts = supervisor.current.parts if supervisor.current is not None else None
        if parts is None or supervisor.life.over:
            name = supervisor.context.name
            raise CheckpointFailedError(f"job '{name}' is not running, so there is nothing to {action}")
        return parts

    def of_requests(self) -> Mapping[str, Action]:
        """What `Control` does for a request file, by the name of the action."""
        return {"savepoint": self._begin_savepoint, "stop": self._begin_stop, "cancel": self._begin_cancel}

    def _begin_savepoint(self, request: Mapping[str, Any]) -> Callable[[], CheckpointInfo]:
        order = self.order(_directory(request), request["id"])
        return self.coordinator("savepoint").savepoint(order).wait

    def _begin_stop(self, request: Mapping[str, Any]) -> Callable[[], CheckpointInfo]:
        drain, directory, request_id = request.get("drain", False), _directory(request), request["id"]
        if drain not in (True, False):
            raise ValueError(f"drain is true or false, not {drain!r}")
        self.order(directory, request_id)  # an error about the directory is answered at once
        return lambda: self.stop(directory, drain, SAVEPOINT_TIMEOUT, request_id)

    def _begin_cancel(self, request: Mapping[str, Any]) -> Callable[[], None]:
        self.coordinator("cancel")
        return lambda: self._supervisor.cancel(CANCEL_GRACE)


def _directory(request: Mapping[str, Any]) -> str | None:
    directory = request.get("dir")
    if directory is not None and not isinstance(directory, str):
        raise ValueError(f"dir is a path, not {directory!r}")
    return directory
