"""Whether a job's two logs agree, cairn's manifests and Spark's own, and what proves that a manifest is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from cairn.coordinator.offset_log import MAX_ENTRY
from cairn.errors import CorruptFileError, IncompatibleStateError
from cairn.model.checkpoint_records import CheckpointStatus
from cairn.model.manifest import Manifest
from cairn.quantities import shell_word
from cairn.restore.source_logs import positions_of
from cairn.restore.source_matching import moved_sources
from cairn.restore.spark_logs import batches
from cairn.storage import layout, regular_files
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem


def spark_batches(job_dir: str, log: str, folder: str = layout.SPARK) -> list[int]:
    """The batch numbers in one of Spark's logs, ascending."""
    return batches(os.path.join(job_dir, folder, log))


def spark_folders(files: LocalFileSystem) -> list[str]:
    return [name for name in files.folders("") if layout.is_spark(name)]


def remains(files: LocalFileSystem) -> str:
    """What proves that a job has had epochs, besides their manifests; empty if nothing does."""
    committed = [name for name in spark_folders(files) if spark_batches(files.root, layout.COMMITS, name)]
    if committed:
        return f"Spark's log in {files.root}/{committed[-1]} has committed batches"
    store = CheckpointStore(files)
    numbers = store.numbers()
    if numbers:
        return f"checkpoint {layout.checkpoint_folder(numbers[-1])} is there"
    ended = any(info.status is CheckpointStatus.COMPLETED and info.epoch >= 0 for info in store.history())
    return f"{files.root}/{layout.HISTORY} lists completed checkpoints" if ended else ""


def state_left(files: LocalFileSystem) -> str:
    """A state file of a later epoch than the first, which proves that there was one before; empty if there is none."""
    for info in files.walk(layout.SHARED):
        maker = layout.made_by(info.path)
        if maker is not None and (maker[0] > 0 or maker[2]):
            return f"the state file {info.path} is there"
    return ""


def remedy(files: LocalFileSystem, manifest: Manifest | None) -> str:
    """What to do when Spark's logs cannot be used."""
    if manifest is None:
        return (
            f"no epoch is committed yet, so {files.root}/{layout.SPARK} can also be moved away to start from scratch."
        )
    newest = next(iter(reversed(CheckpointStore(files).current())), None)
    path = f"{files.root}/{layout.checkpoint_folder(newest.id)}" if newest is not None else "SAVEPOINT"
    return (
        f"the state of epoch {manifest.epoch} is intact. Restore a checkpoint or savepoint with "
        f"`cairn run JOB.py -s {shell_word(path)}`."
    )


def output_is_published(files: LocalFileSystem, manifest: Manifest | None) -> bool:
    """Whether Spark has committed the batch of an epoch, which happens after the sinks have published their output."""
    return manifest is None or manifest.epoch in spark_batches(files.root, layout.COMMITS, manifest.spark)


def check_order(files: LocalFileSystem, manifest: Manifest | None, sources: Callable[[], Sequence[str]] | None) -> None:
    """Positions are kept by number: refuse sources that changed places or were replaced."""
    if manifest is None or sources is None or not manifest.source_names:
        return
    reason = moved_sources(manifest.source_names, len(positions_of(manifest.offsets)), sources())
    if reason:
        raise IncompatibleStateError(
            f"the job in {files.root} cannot resume from epoch {manifest.epoch}: {reason} Positions are stored by "
            "number, so a source would resume from the position of another. Read the same sources in the same order; "
            "or stop the job with its old code (`cairn stop JOB --savepoint-dir DIR`) and start the new code with "
            "`cairn run JOB.py -s SAVEPOINT`, which matches sources by what they read (a checkpoint works, too). "
            "The stored state is intact.",
            stored=list(manifest.source_names),
        )


def compare_logs(files: LocalFileSystem, manifest: Manifest | None) -> None:
    """Raise unless Spark's log has the batch of the newest epoch, with its positions, and none committed after it."""
    folder = manifest.spark if manifest is not None else layout.SPARK
    planned = spark_batches(files.root, layout.OFFSETS, folder)
    newest = manifest.epoch if manifest is not None else -1
    for name in spark_folders(files):  # Spark commits after cairn, so a commit proves that there was a manifest
        committed = spark_batches(files.root, layout.COMMITS, name)
        if committed and committed[-1] > newest:
            raise CorruptFileError(
                f"Spark's log in {files.root}/{name} has committed batch {committed[-1]}, but the newest manifest is "
                f"{'of epoch ' + str(newest) if newest >= 0 else 'missing'}: the state of that batch is lost. Restore "
                f"{files.root}/{layout.EPOCHS} from a backup, start from a checkpoint or savepoint with `cairn run "
                "JOB.py -s PATH`, or use another job name to start from scratch.",
                path=files.root,
            )
    if manifest is not None and newest not in planned:
        raise CorruptFileError(
            f"epoch {newest} is committed, but Spark's log in {files.root}/{folder} does not have batch {newest}: its "
            "source positions are lost, and continuing would read input twice. Restore that folder from a backup, or "
            "use another job name to start from scratch.",
            path=files.root,
        )
    if manifest is not None:
        entry = os.path.join(files.root, folder, layout.OFFSETS, str(newest))
        positions = regular_files.read(entry, MAX_ENTRY).decode(errors="replace")
        if positions != manifest.offsets:
            raise CorruptFileError(
                f"epoch {newest} is committed for other source positions than Spark's log in {files.root}/{folder} "
                "holds for it; that folder comes from another copy or has been changed manually. Bring both back "
                "together.",
                path=files.root,
            )
