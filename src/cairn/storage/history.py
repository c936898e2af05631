"""Taking a job's history over: the first thing that a run does once it has a number."""

from __future__ import annotations

from cairn.model.manifest import Manifest
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_bases import Base, record_base
from cairn.storage.run_records import Runs


def open_history(files: FileSystem, run: int) -> Manifest | None:
    """Write down what a run continues from, and return the newest manifest of that.

    What overtaken runs add to the history after this does not count. Raises `FencedError` if a newer run has the job.
    """
    newest = ManifestStore(files).newest()
    epoch, commit_id = (newest.epoch, newest.commit_id) if newest is not None else (-1, "")
    record_base(files, Base(run, epoch, commit_id, CheckpointStore(files).numbers()))
    Runs(files).check(run)
    return newest
