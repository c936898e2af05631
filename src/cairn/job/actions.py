"""What may be asked of a running job through files in its directory: savepoint, stop, cancel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cairn.api.job_handle import JobHandle
from cairn.coordinator.control import Action
from cairn.model.checkpoint_records import CheckpointInfo


def actions_of(job: JobHandle) -> Mapping[str, Action]:
    def savepoint(asked: Mapping[str, Any]) -> Callable[[], CheckpointInfo]:
        order = job._order(_directory(asked), asked["id"])
        return job._running("savepoint").savepoint(order).wait

    def stop(asked: Mapping[str, Any]) -> Callable[[], CheckpointInfo]:
        drain, named, request = asked.get("drain", False), _directory(asked), asked["id"]
        if drain not in (True, False):
            raise ValueError(f"drain is true or false, not {drain!r}")
        job._order(named, request)  # an error about the directory is told at once
        return lambda: job.stop_with_savepoint(named, drain, request_id=request)

    def cancel(asked: Mapping[str, Any]) -> Callable[[], None]:
        job._running("cancel")
        return job.cancel

    return {"savepoint": savepoint, "stop": stop, "cancel": cancel}


def _directory(asked: Mapping[str, Any]) -> str | None:
    named = asked.get("dir")
    if named is not None and not isinstance(named, str):
        raise ValueError(f"dir is a path, not {named!r}")
    return named
