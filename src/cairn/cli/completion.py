"""What the shell offers after a Tab: jobs, snapshots, operators and states. Must be quick and must never raise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import typer

from cairn.config.settings import DEFAULT_DIRECTORY

MOST = 200


def _never_raises(offer: Callable[..., Iterable[str]]) -> Callable[..., list[str]]:
    @wraps(offer)
    def guarded(*args: Any, **more: Any) -> list[str]:
        try:
            return list(offer(*args, **more))[:MOST]
        except Exception:  # noqa: BLE001 - completion must never disturb the shell
            return []

    return guarded


def _job_folders() -> list[str]:
    """Folders of the jobs in the default directory, and of those that run elsewhere."""
    from cairn.storage import layout
    from cairn.storage.running_jobs import running_directories

    found = []
    if os.path.isdir(DEFAULT_DIRECTORY):
        with os.scandir(DEFAULT_DIRECTORY) as entries:
            own = (os.path.normpath(entry.path) for entry in entries)
            found = [path for path in own if os.path.exists(os.path.join(path, layout.JOB))]
    known = {os.path.abspath(path) for path in found}
    return sorted(found) + [path for path in running_directories() if path not in known]


@_never_raises
def job_names(incomplete: str) -> Iterable[str]:
    """Ids of jobs: their folders are named after them."""
    return [name for name in dict.fromkeys(map(os.path.basename, _job_folders())) if name.startswith(incomplete)]


@_never_raises
def snapshot_paths(incomplete: str) -> Iterable[str]:
    """Jobs, their checkpoints and savepoints, and whatever folders the text may become."""
    offered = []
    for job in _job_folders():
        offered += [job, *sorted(_checkpoints(job))]
        if incomplete:  # with nothing typed yet, records are not read
            offered += _savepoints(job)
    above, start = os.path.split(incomplete)
    if os.path.isdir(above or "."):
        with os.scandir(above or ".") as entries:
            folders = sorted(e.name for e in entries if e.is_dir() and e.name.startswith(start))
        offered += [os.path.join(above, name) for name in folders if start.startswith(".") or name[0] != "."]
    return [path for path in dict.fromkeys(offered) if path.startswith(incomplete)]


def _checkpoints(job: str) -> list[str]:
    with os.scandir(job) as entries:
        return [os.path.join(job, entry.name) for entry in entries if entry.name.startswith("chk-")]


def _savepoints(job: str) -> list[str]:
    from cairn.model.checkpoint_records import CheckpointType
    from cairn.storage.checkpoint_store import CheckpointStore
    from cairn.storage.filesystem import LocalFileSystem
    from cairn.storage.savepoint_folder import savepoint_there

    history = CheckpointStore(LocalFileSystem(os.path.abspath(job))).history()
    return [i.path for i in history if i.type is CheckpointType.SAVEPOINT and i.path and savepoint_there(i)]


def _operators(ctx: typer.Context) -> dict[str, list[str]]:
    """The operators of the snapshot that stands before, and their states."""
    from cairn.snapshots.resolver import open_snapshot

    snapshot = open_snapshot(str(ctx.params["path"]))
    return {uid: [state.name for state in op.states.values()] for uid, op in snapshot.operators.items()}


@_never_raises
def uids(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    return [uid for uid in _operators(ctx) if uid.startswith(incomplete)]


@_never_raises
def state_names(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    known = _operators(ctx)
    uid = ctx.params.get("uid")
    names = known.get(str(uid), []) if uid else [name for states in known.values() for name in states]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
