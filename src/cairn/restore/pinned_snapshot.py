"""Decides which snapshot a start means, once, and holds it while the start reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cairn.errors import NotFoundError
from cairn.restore.restored_epoch import last_origin
from cairn.restore.start_request import StartRequest
from cairn.snapshots.resolver import job_directory, open_snapshot
from cairn.snapshots.snapshot import reading


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
    try:
        snapshot = open_snapshot(settings.restore_path)
        job = job_directory(settings.restore_path)
    except NotFoundError:  # whether that is an error depends on what the job started from before
        yield start
        return
    earlier = last_origin(start.files).rpartition("#")[0]
    if not settings.restore_again and job is not None and os.path.dirname(earlier) == job:
        yield replace(start, settings=replace(settings, restore_path=earlier))
        return
    with reading(snapshot):
        yield replace(start, settings=replace(settings, restore_path=snapshot.path))
