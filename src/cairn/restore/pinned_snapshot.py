"""Decides which snapshot a start means, once, and holds it while the start reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cairn.errors import NotFoundError
from cairn.restore.restored_epoch import last_origin
from cairn.restore.start_request import StartRequest
from cairn.snapshots.resolver import job_directory, open_snapshot, possible_folders
from cairn.snapshots.snapshot import Snapshot, reading
from cairn.storage import layout

_ATTEMPTS = 5
"""How often the newest checkpoint of a job is opened before a start fails because the job discards it each time."""


@contextmanager
def pinned(start: StartRequest) -> Iterator[StartRequest]:
    """The start from the one snapshot that its settings name. The snapshot's job does not delete it meanwhile.

    A job stands for its newest checkpoint, which may be another one in a moment. With `cairn.restore.again=false`, a
    job that was started from a checkpoint of the named job before means that checkpoint, and goes on.
    """
    settings = start.settings
    if not settings.restore_path:
        yield start
        return
    earlier = _earlier_snapshot(start)
    if earlier:
        yield replace(start, settings=replace(settings, restore_path=earlier))
        return
    with ExitStack() as holds:
        snapshot = _held_snapshot(settings.restore_path, holds)
        yield replace(start, settings=replace(settings, restore_path=snapshot.path))


def _held_snapshot(reference: str, holds: ExitStack) -> Snapshot:
    """Open and hold a snapshot. If a job discards its newest checkpoint in between, the next one is taken."""
    attempts = _ATTEMPTS if job_directory(reference, exact=True) is not None else 1
    while True:
        attempts -= 1
        try:
            snapshot = open_snapshot(reference, exact=True)
            holds.enter_context(reading(snapshot))
        except NotFoundError:
            if not attempts:
                raise
        else:
            return snapshot


def _earlier_snapshot(start: StartRequest) -> str:
    """The path of the snapshot that the job goes on from if the settings mean it once more; empty if it restores.

    Decided before the named snapshot is opened: the snapshot, and all of the named job, may be gone by now. Another
    snapshot that lies at the path now does not count.
    """
    if start.settings.restore_again:
        return ""
    origin = last_origin(start.files)
    path = origin.rpartition("#")[0]
    meant = [path]
    if layout.checkpoint_number(os.path.basename(path)) is not None:
        meant.append(os.path.dirname(path))
    if not set(meant) & set(possible_folders(start.settings.restore_path)):
        return ""
    try:
        return path if open_snapshot(path).origin == origin else ""
    except NotFoundError:
        return path
