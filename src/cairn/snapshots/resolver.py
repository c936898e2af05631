"""Opens the snapshot that a user names. The command line, the web page, restores and the offline API all use this.

A snapshot is named by

- the folder of a savepoint, or the `_metadata` in it,
- the folder `chk-<n>` of a checkpoint, or the `_metadata` in it,
- `<job>/chk-<n>`, where `<n>` may also be the number of a savepoint that the job took,
- a job: its newest completed checkpoint that no restore gave up or, if it retains none, its newest savepoint.

A job is its directory, its name, or its id, of which readers, but not restores, also accept a unique prefix. Names are
looked up in the default directory and among the running jobs. Paths may be relative, begin with `~` or be `file:` URLs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from cairn.config import DEFAULT_DIRECTORY
from cairn.errors import InvalidInputError, NotFoundError
from cairn.model.checkpoint_records import Checkpoint, CheckpointType
from cairn.model.manifest import gave_up
from cairn.snapshots.snapshot import Snapshot, of_checkpoint, of_savepoint
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.job_lookup import open_job
from cairn.storage.manifest_store import ManifestStore, load_identity
from cairn.storage.savepoint_folder import holds_savepoint, newest_savepoint, read_savepoint


def open_snapshot(reference: str, exact: bool = False) -> Snapshot:
    """The snapshot that a user names; only its metadata is read. With `exact`, a prefix of an id names no job."""
    folder = folder_of(reference, exact)
    files = LocalFileSystem(folder)
    if load_identity(files) is not None:
        return _newest_of_job(files)
    number = layout.checkpoint_number(os.path.basename(folder))
    above = LocalFileSystem(os.path.dirname(folder))
    if number is None or (load_identity(above) is None and holds_savepoint(folder)):
        return _savepoint(folder)
    return numbered_snapshot(above, number)


def named_folder(reference: str) -> str:
    """The folder that a path names, whether it exists or not."""
    folder = local_root(reference)
    return os.path.dirname(folder) if os.path.basename(folder) == layout.METADATA else folder


def folder_of(reference: str, exact: bool = False) -> str:
    """The folder that a user names: of a savepoint, a checkpoint or a job. A `chk-<n>` need not exist."""
    folder = named_folder(reference)
    if os.path.isdir(folder):
        return folder
    above, name = os.path.split(folder)
    if layout.checkpoint_number(name) is None:
        return _job_folder(reference, folder, exact)
    if os.path.isdir(above):
        return folder
    job = os.path.dirname(reference.rpartition(name)[0])
    return os.path.join(_job_folder(job, above, exact), name)


def possible_folders(reference: str) -> list[str]:
    """The folders that a restore may mean, whether they exist or not. The folder of a job is named by its id."""
    try:
        return [folder_of(reference, exact=True)]
    except NotFoundError:
        folders = [named_folder(reference)]
    job, _, rest = reference.partition(os.sep)
    if job and (not rest or layout.checkpoint_number(rest) is not None):
        root = local_root(DEFAULT_DIRECTORY)
        folders.append(os.path.normpath(os.path.join(root, job, rest)))
        with suppress(InvalidInputError):  # no job has such a name
            folders.append(os.path.normpath(os.path.join(root, layout.slug(job), rest)))
    return folders


def _job_folder(job: str, folder: str, exact: bool) -> str:
    """The directory of the job of a name, where there is no such folder."""
    if not job or os.sep in job or job.startswith(("file:", "~")):
        raise NotFoundError(f"there is no folder {folder}", path=folder)
    try:
        return open_job(job, None, exact)[0].root
    except NotFoundError as error:
        if "candidates" in error.facts:
            raise
        raise NotFoundError(
            f"there is no folder {folder}, and no job '{job}' in {local_root(DEFAULT_DIRECTORY)}",
            path=folder,
            remedy="Give the path of a savepoint, of a checkpoint or of a job's directory; `cairn list --dir DIR` "
            "shows the jobs of a directory.",
        ) from None


def job_directory(reference: str, exact: bool = False) -> str | None:
    """The directory of the job that a user names; None if it is a savepoint or a checkpoint."""
    folder = folder_of(reference, exact)
    return folder if load_identity(LocalFileSystem(folder)) is not None else None


def retained(reference: str) -> list[Snapshot]:
    """All completed checkpoints of the job that a user names, oldest first, without those that a restore gave up."""
    directory = job_directory(reference)
    if directory is None:
        folder = folder_of(reference)
        raise InvalidInputError(f"{folder} is not a job directory; only a job has several checkpoints", path=folder)
    files = LocalFileSystem(directory)
    return [of_checkpoint(files, checkpoint) for checkpoint in CheckpointStore(files).current()]


def numbered_snapshot(files: LocalFileSystem, number: int) -> Snapshot:
    """The checkpoint or savepoint of a job that has a number."""
    store = CheckpointStore(files)
    numbers = store.numbers()
    if number in numbers:
        return of_checkpoint(files, store.load(number))
    known = next((info for info in store.history() if info.id == number), None)
    if known is not None and known.type is CheckpointType.SAVEPOINT and known.path:
        return _savepoint(known.path)
    folder = os.path.join(files.root, layout.checkpoint_folder(number))
    there = ", ".join(f"chk-{completed}" for completed in numbers) or "none"
    why = "; it is not retained, and only its statistics are left" if known is not None and known.discarded else ""
    raise NotFoundError(f"there is no completed checkpoint {folder}{why}; completed there: {there}", path=folder)


def _savepoint(folder: str) -> Snapshot:
    unfinished = layout.is_savepoint_progress(os.path.basename(folder))
    if not unfinished and not os.path.lexists(os.path.join(folder, layout.METADATA)):
        raise NotFoundError(
            f"{folder} is not a savepoint, a checkpoint or a job: it has no {layout.METADATA} and no {layout.JOB}",
            path=folder,
            remedy="Name the folder of a savepoint, the folder chk-<n> of a checkpoint, or the directory of a job.",
        )
    return of_savepoint(folder, read_savepoint(folder))


def _newest_of_job(files: LocalFileSystem) -> Snapshot:
    store = CheckpointStore(files)
    if not store.numbers():
        saved = newest_savepoint(store.history())
        if saved is not None:
            note = f"the job in {files.root} retains no checkpoint; this is its newest savepoint, {saved.path}"
            return replace(_savepoint(saved.path), note=note)
    return of_checkpoint(files, _newest_checkpoint(files))


def _newest_checkpoint(files: LocalFileSystem) -> Checkpoint:
    """The newest checkpoint of a job that no restore gave up."""
    store = CheckpointStore(files)
    restores = ManifestStore(files).restores()
    numbers = store.numbers()
    for number in reversed(numbers):
        checkpoint = store.load(number)
        if not gave_up(restores, checkpoint.manifest.epoch):
            return checkpoint
    if numbers:
        given_up = ", ".join(f"chk-{number}" for number in numbers)
        raise NotFoundError(
            f"the job in {files.root} has no completed checkpoint since it was rolled back to an older one. The "
            f"rollback abandoned {given_up}: pass the folder of a checkpoint to read it anyway",
            path=files.root,
        )
    discarded = sum(info.discarded and info.type is not CheckpointType.SAVEPOINT for info in store.history())
    if not discarded:
        raise NotFoundError(f"the job in {files.root} has no completed checkpoint", path=files.root)
    raise NotFoundError(
        f"the job in {files.root} has no completed checkpoint any more: "
        f"{f'all {discarded} were' if discarded > 1 else 'the only one was'} discarded, the newest when the job "
        "failed, was canceled or ended",
        path=files.root,
        remedy="Start the job again: it resumes from its last epoch, and its next checkpoint can be read. To keep "
        "checkpoints after the job ends, set execution.checkpointing.externalized-checkpoint-retention to "
        "RETAIN_ON_CANCELLATION.",
    )
