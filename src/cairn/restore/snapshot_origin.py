"""Whether a snapshot was made by the very job that is to start from it, which decides if its pickles may be opened.

What a snapshot says of itself proves nothing: anybody can copy it into another one. So a job keeps a note of its own in
its directory for each savepoint that it takes, `taken/<SHA-256 of the savepoint's metadata>`. The metadata names the
checksum of every file, so a savepoint that was edited or written by anybody else has no note. A checkpoint is the job's
own if it lies in the job's directory and names the life of the job that `job.json` there does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

from cairn.model.savepoint_records import SavepointMetadata
from cairn.snapshots.snapshot import Snapshot
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem, LocalFileSystem
from cairn.storage.manifest_store import load_identity
from cairn.storage.savepoint_folder import encode_savepoint


def note_taken(files: FileSystem, metadata: SavepointMetadata) -> None:
    """Note in the job's directory that it takes this savepoint, before the savepoint exists."""
    with contextlib.suppress(FileExistsError):
        files.create(_note(metadata), b"")


def made_here(snapshot: Snapshot, files: LocalFileSystem) -> bool:
    """Whether the job in this directory made the snapshot."""
    if snapshot.savepoint is None:
        mine = load_identity(files)
        here = os.path.realpath(snapshot.files.root) == os.path.realpath(files.root)
        return here and mine is not None and mine.made(snapshot.incarnation, snapshot.metadata.job_id)
    return files.exists(_note(snapshot.savepoint))


def _note(metadata: SavepointMetadata) -> str:
    return layout.taken_path(hashlib.sha256(encode_savepoint(metadata)).hexdigest())
