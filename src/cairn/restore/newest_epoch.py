"""Whether a job can continue from its newest committed epoch, and what it restores instead if it cannot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cairn.config import Settings
from cairn.errors import CorruptFileError, IncompatibleStateError, NotFoundError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.manifest import Manifest
from cairn.restore.damage import damage, newest_intact
from cairn.restore.log_agreement import (
    compare_logs,
    output_is_published,
    remains,
    spark_batches,
    spark_folders,
    state_left,
)
from cairn.restore.start_request import StartRequest
from cairn.snapshots.snapshot import Snapshot, of_checkpoint
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import IncompleteManifestError, JobIdentity, ManifestStore, refuse_foreign

_log = get_logger("cairn.job")


def newest_epoch(files: LocalFileSystem, run: int | None = None) -> Manifest | None:
    """The newest committed epoch. A manifest that was never written whole is passed over: its epoch did not happen.

    With a run number such a manifest is also set aside, so that its epoch can happen.
    """
    store = ManifestStore(files)
    for epoch in reversed(store.epochs()):
        try:
            store.load(epoch)
            return store.newest()
        except IncompleteManifestError as error:
            if any(spark_batches(files.root, layout.COMMITS, name)[-1:] >= [epoch] for name in spark_folders(files)):
                raise
            if run is None:
                continue
            moved = store.set_aside(epoch, run)
            _log.warning("%s; epoch %d was not committed, the file is now %s", error.message, epoch, moved)
        except CorruptFileError as error:
            older = [e for e in store.epochs() if e < epoch]
            raise CorruptFileError(
                f"{error.message}. The manifest of epoch {epoch} is the newest one, so the job stops here rather than "
                f"lose it. Manifests of older epochs: {', '.join(map(str, older[-5:])) or 'none'}. Bring the file back "
                "from a copy, then start the job again.",
                **error.facts,
            ) from error
    return None


def replacement(start: StartRequest, identity: JobIdentity, thorough: bool) -> Snapshot | None:
    """What the job restores instead of its newest epoch; None if it can continue from that one."""
    return _fallback(start, identity, thorough) or _displaced(start.files)


def _fallback(start: StartRequest, identity: JobIdentity, thorough: bool) -> Snapshot | None:
    """None if the newest committed epoch can be used; else the newest intact checkpoint, or the error.

    A run that works may commit in the meantime and delete files of the epoch that is checked: then the new one counts.
    """
    files = start.files
    while True:
        newest = ManifestStore(files).epochs()[-1:]
        try:
            _check_newest(start, identity, thorough)
            return None
        except CorruptFileError as error:
            if ManifestStore(files).epochs()[-1:] != newest:
                continue
            checkpoint = newest_intact(files)
            if checkpoint is None:
                raise
            _log.error(
                "%s -- Falling back to checkpoint %d (epoch %d), the newest one that is intact: state and source "
                "positions go back to it, and what the sources hold since then is processed again.",
                error.message, checkpoint.id, checkpoint.manifest.epoch,
            )  # fmt: skip
            return of_checkpoint(files, checkpoint)


def _displaced(files: LocalFileSystem) -> Snapshot | None:
    """The newest epoch as a snapshot, if a run that had been overtaken has taken the name of a later one.

    The job then continues above that name, as after a restore of its own state. Such a manifest is not deleted: another
    run may create the name, and a late deletion would hit that one. The output of the newest epoch must be published
    first, which a plain start does.
    """
    store = ManifestStore(files)
    newest = store.newest()
    if newest is None or not output_is_published(files, newest):
        return None
    if not any(_is_whole(store, epoch) for epoch in store.epochs() if epoch > newest.epoch):
        return None
    _log.warning(
        "an overtaken run has used the number of epoch %d; the job continues with the next number", newest.epoch + 1
    )
    inlined = {epoch: store.load(epoch).inlined for epoch in newest.inline_epochs() - {newest.epoch}}
    info = CheckpointInfo(0, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, newest.time_ms, epoch=newest.epoch)
    held = Checkpoint(0, newest.job_id, newest.job_id, newest.run, newest, info, inlined=inlined)
    return replace(of_checkpoint(files, held), path=os.path.join(files.root, layout.epoch_path(newest.epoch)))


def _is_whole(store: ManifestStore, epoch: int) -> bool:
    """Whether a manifest was written whole; one that was not is set aside, and its name is free."""
    try:
        store.load(epoch)
    except IncompleteManifestError:
        return False
    return True


def _check_newest(start: StartRequest, identity: JobIdentity, thorough: bool) -> None:
    """Raise `CorruptFileError` unless the job can continue from its newest committed epoch."""
    files = start.files
    manifest = newest_epoch(files)
    if manifest is not None:
        problem = damage(files, manifest, thorough)
        if problem:
            raise CorruptFileError(
                f"the state of epoch {manifest.epoch} in {files.root} is damaged: {problem}. Bring the file back "
                "from a copy, then start the job again; nothing else was changed.",
                path=files.root,
            )
    check_epoch(start, identity, manifest)


def check_epoch(start: StartRequest, identity: JobIdentity, manifest: Manifest | None) -> None:
    """The logs of cairn and Spark agree on the newest epoch, which belongs to the job and has state of it only."""
    files = start.files
    compare_logs(files, manifest)
    if manifest is None:
        left = remains(files) or ("" if identity.restoring else state_left(files))
        if left:
            raise CorruptFileError(
                f"the job in {files.root} has no manifest, but {left}: it had state, which must not be lost silently. "
                f"Restore {files.root}/{layout.EPOCHS} from a backup, start from a checkpoint or savepoint with "
                "`cairn run JOB.py -s PATH`, or move the directory away to start with empty state.",
                path=files.root,
            )
        return
    stored = (manifest.incarnation, manifest.max_parallelism)
    if stored != (identity.incarnation, identity.max_parallelism):
        raise CorruptFileError(
            f"the manifest of epoch {manifest.epoch} in {files.root} does not belong to its {layout.JOB} (there: "
            f"{manifest.max_parallelism} key groups of job {manifest.incarnation}; here: {identity.max_parallelism} of "
            f"{identity.incarnation}); the directory has been mixed up or changed manually"
        )
    check_unclaimed(manifest, start.uids, start.settings)


def check_unclaimed(manifest: Manifest, uids: Sequence[str], settings: Settings) -> None:
    """Refuse to drop the state of operators that the job no longer has, unless the settings allow it."""
    unclaimed = [op.uid for op in manifest.operators if op.uid not in uids and (op.chain or op.states)]
    if not unclaimed:
        return
    names = ", ".join(f"'{uid}'" for uid in unclaimed)
    if not settings.ignore_unclaimed:
        raise IncompatibleStateError(
            f"epoch {manifest.epoch} holds state of {names}, which the job no longer has (it has "
            f"{', '.join(sorted(uids)) or 'no operators'}). Give the operator its uid back, or set "
            "execution.state-recovery.ignore-unclaimed-state=true to drop that state.",
            uids=unclaimed,
        )
    _log.warning("dropping the state of %s, as execution.state-recovery.ignore-unclaimed-state allows", names)


def refuse_foreign_epochs(files: LocalFileSystem, identity: JobIdentity) -> None:
    """The newest manifest, by run and by epoch, must be one of this job. Damaged ones are dealt with later."""
    store = ManifestStore(files)
    manifests = [store.newest()]
    with suppress(CorruptFileError, NotFoundError):
        manifests += [store.load(epoch) for epoch in store.epochs()[-1:]]
    for manifest in manifests:
        if manifest is not None:
            refuse_foreign(manifest, identity, files.root)
