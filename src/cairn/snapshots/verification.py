"""Verifies savepoints and checkpoints: every byte is read and compared with its checksum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cairn.errors import CairnError, CorruptFileError, NotFoundError, StorageError
from cairn.model.manifest import StateHandle
from cairn.snapshots.snapshot import FileRows, Snapshot
from cairn.snapshots.table_tasks import TableWork, opener
from cairn.storage import layout
from cairn.storage.filesystem import local_root, open_filesystem
from cairn.storage.savepoint_folder import mapped, named_files, read_savepoint

Progress = Callable[[int], None]
"""Called with the number of bytes that were verified since the last call."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong with a snapshot, or that lies in its folder without being part of it."""

    path: str
    why: str
    damage: bool = True
    """False for what no reader looks at."""
    unread: StorageError | None = None
    """Set if the storage failed to read the file, which says nothing about its bytes."""


def verify_snapshot(snapshot: Snapshot, progress: Progress | None = None) -> list[Defect]:
    """All defects of a snapshot. Strange files in the folder of a savepoint are listed, too."""
    if progress is not None:
        progress(_metadata_bytes(snapshot))  # read and compared when the snapshot was opened
    if snapshot.checkpoint is not None:
        return _verify_checkpoint(snapshot, progress)
    defects = verify_savepoint(snapshot.path, progress)
    damaged = any(defect.damage for defect in defects)
    return defects if damaged else defects + _wrong_tables(snapshot)


def verified_bytes(snapshot: Snapshot) -> int:
    """How many bytes `verify_snapshot` reports to `progress`."""
    own = _metadata_bytes(snapshot)
    if snapshot.checkpoint is None:
        return own + sum(file.size for file in named_files(snapshot.metadata))
    return own + sum(handle.size for _, handle in _chains(snapshot))


def verify_savepoint(path: str, progress: Progress | None = None) -> list[Defect]:
    """Compare every byte of a savepoint with its metadata. Raises for metadata that is refused.

    Files that the metadata does not name are no damage, since nothing reads them, unless they lie among the logs of the
    sources, where Spark would take them for its own.
    """
    root = local_root(path)
    metadata = read_savepoint(root)
    defects = []
    for file in named_files(metadata):
        try:
            mapped(root, file)
        except CorruptFileError as error:
            defects.append(Defect(file.path, error.message))
        except StorageError as error:
            defects.append(Defect(file.path, error.message, unread=error))
        if progress is not None:
            progress(file.size)
    known = {file.path for file in named_files(metadata)} | {layout.METADATA, layout.CLAIMED}
    strange = [info.path for info in open_filesystem(root).walk("") if info.path not in known]
    for name in strange:
        why = f"{os.path.join(root, name)} is not part of the savepoint"
        log = name.startswith(f"{layout.SOURCES}/") and not any(part.startswith(".") for part in name.split("/"))
        why += ", and would be taken for a source's log: move it away" if log else ""
        defects.append(Defect(name, why, log))
    return defects


def _verify_checkpoint(snapshot: Snapshot, progress: Progress | None) -> list[Defect]:
    defects = []
    work = TableWork(snapshot.files.root, b"", 0, 0, 0, "", snapshot.checkpoint_number)
    openers = {uid: opener(work, uid) for uid in snapshot.operators}
    for uid, handle in _chains(snapshot):
        try:
            openers[uid](handle).verify(handle.groups)
        except (CorruptFileError, NotFoundError) as error:
            defects.append(Defect(handle.path or f"inlined, epoch {handle.epoch}", error.message))
        if progress is not None:
            progress(handle.size)
    return defects


def _chains(snapshot: Snapshot) -> Iterator[tuple[str, StateHandle]]:
    """The state files of a checkpoint with the uid of their operator."""
    for operator in snapshot.checkpoint.manifest.operators if snapshot.checkpoint is not None else ():
        for handle in operator.chain:
            yield operator.uid, handle


def _metadata_bytes(snapshot: Snapshot) -> int:
    return os.path.getsize(os.path.join(snapshot.path, layout.METADATA))


def _wrong_tables(snapshot: Snapshot) -> list[Defect]:
    """Tables whose bytes are whole, but which are not what the metadata says."""
    defects = []
    for operator in snapshot.operators.values():
        for state in operator.states.values():
            try:
                if isinstance(state.origin, FileRows):
                    state.origin.verify()
            except CairnError as error:
                defects.append(Defect(os.path.join(operator.uid, state.name), error.message))
    return defects
