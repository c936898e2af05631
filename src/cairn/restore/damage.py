"""What is missing or damaged of the files that an epoch, a checkpoint or a savepoint needs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cairn.errors import CorruptFileError, NotFoundError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.manifest import Manifest, StateHandle
from cairn.snapshots.snapshot import Snapshot
from cairn.snapshots.verification import verify_savepoint
from cairn.state.section_changes import ChainFiles
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem, LocalFileSystem
from cairn.storage.manifest_store import ManifestStore

_log = get_logger("cairn.checkpoint")
MANY_FILES = 256
"""Number of files from which on a start reads several at a time."""
_READERS = 16


def snapshot_damage(snapshot: Snapshot) -> str:
    """What is missing or damaged of a snapshot; empty if nothing is. Reads every byte.

    Raises `StorageError` if the storage fails: a savepoint that cannot be read right now is not damaged.
    """
    if snapshot.checkpoint is not None:
        return damage(snapshot.files, snapshot.checkpoint.manifest, thorough=True, checkpoint=snapshot.checkpoint)
    problems = verify_savepoint(snapshot.path)
    damaged = [problem.why for problem in problems if problem.damage and problem.unread is None]
    unread = next((problem.unread for problem in problems if problem.unread is not None), None)
    if unread is not None and not damaged:
        raise unread
    return "; ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")


def damage(files: FileSystem, manifest: Manifest, thorough: bool = False, checkpoint: Checkpoint | None = None) -> str:
    """What is missing, damaged or in the wrong place of what a manifest needs; empty if nothing is.

    Compares names, sizes, footers and owners of all files; `thorough` reads every byte. Raises `StorageError` if the
    storage fails, which is no damage.
    """
    chains = [(operator.uid, handle) for operator in manifest.operators for handle in operator.chain]
    check = _FileCheck(files, ChainFiles(files, manifest), thorough, checkpoint)
    if len(chains) < MANY_FILES:
        first = next(filter(None, (check.problem(uid, handle) for uid, handle in chains)), "")
    else:  # a check waits for the storage and takes hardly any CPU
        with ThreadPoolExecutor(_READERS, "cairn-start") as pool:
            first = next(filter(None, pool.map(lambda pair: check.problem(*pair), chains)), "")
    return first or ("" if checkpoint is not None else _inlined_damage(files, manifest, chains, thorough))


@dataclass(frozen=True, slots=True)
class _FileCheck:
    """Checks the state files of one manifest, or of one checkpoint, which holds the bytes of inlined state itself."""

    files: FileSystem
    state_files: ChainFiles
    thorough: bool
    checkpoint: Checkpoint | None

    def problem(self, uid: str, handle: StateHandle) -> str:
        """What is wrong with one state file. State that manifests hold is left to `_inlined_damage`."""
        where = f"{self.files.root}/{handle.path or layout.epoch_path(handle.epoch)} of operator '{uid}'"
        try:
            if not handle.path:
                if self.checkpoint is None:
                    return ""
                data = self.checkpoint.inlined_bytes(uid, handle)
                if data is None:
                    return f"{where}: its bytes are not in the checkpoint"
                file = self.state_files.inlined(uid, handle, data, "in the checkpoint")
            elif not self.files.exists(handle.path):
                return f"{where} is missing"
            elif self.files.local_path(handle.path) is None and not self.thorough:
                return ""  # this storage reads whole files only
            else:
                file = self.state_files.open(uid, handle)
            if self.thorough:
                file.verify(handle.groups)
        except (CorruptFileError, NotFoundError) as error:
            return f"{where}: {error}"
        return ""


def _inlined_damage(
    files: FileSystem, manifest: Manifest, chains: Sequence[tuple[str, StateHandle]], thorough: bool
) -> str:
    """What is wrong with state that manifests hold. Each manifest is read once, one at a time: they may be large."""
    for epoch in sorted(manifest.inline_epochs()):
        where = f"{files.root}/{layout.epoch_path(epoch)}"
        try:
            holder = manifest if epoch == manifest.epoch else ManifestStore(files).load(epoch)
            if holder.incarnation != manifest.incarnation:
                return (
                    f"{where} is the manifest of another job, {holder.job_id!r} (incarnation {holder.incarnation}; "
                    f"this job: {manifest.incarnation}), and epoch {manifest.epoch} needs state of this job's"
                )
            state_files = ChainFiles(files, holder)
            for uid, handle in chains:
                if not handle.path and handle.epoch == epoch:
                    file = state_files.open(uid, handle)
                    if thorough:
                        file.verify(handle.groups)
        except NotFoundError:
            return f"{where} is missing"
        except CorruptFileError as error:
            return f"{where}: {error}"
    return ""


def newest_intact(files: LocalFileSystem) -> Checkpoint | None:
    """The newest checkpoint whose files are all whole. Reads every byte of each checkpoint that it considers.

    Checkpoints that a restore in place went back behind are passed over.
    """
    for checkpoint in reversed(CheckpointStore(files).current()):
        problem = damage(files, checkpoint.manifest, thorough=True, checkpoint=checkpoint)
        if not problem:
            return checkpoint
        _log.error("checkpoint %d cannot be used either: %s", checkpoint.id, problem)
    return None
