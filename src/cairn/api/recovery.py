"""What a new run starts from: the job's identity, the newest committed epoch, and whether both logs agree.

A job's directory holds two logs, cairn's manifests and Spark's own. A run starts only when they fit together; anything
else is an error that says what is missing and what is still intact. State is never started empty in silence.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cairn.api.restore import COMPACT_INTERVAL, Source, damage, find, newest_intact, restore
from cairn.config import Settings
from cairn.errors import CorruptFileError, IncompatibleStateError, InvalidInputError
from cairn.model.manifest import Manifest
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifests import (
    IncompleteManifestError,
    JobIdentity,
    ManifestStore,
    RunRecord,
    Runs,
    create_identity,
    load_identity,
)

_log = logging.getLogger("cairn.job")


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything a run knows before its first epoch."""

    identity: JobIdentity
    run: RunRecord
    manifest: Manifest | None


def recover(
    files: LocalFileSystem,
    job_id: str,
    name: str,
    settings: Settings,
    parallelism: int,
    max_parallelism: int,
    uids: Sequence[str],
    now_ms: int,
    prepare: Callable[[], None] = lambda: None,
    thorough: bool = False,
    compact_interval: int = COMPACT_INTERVAL,
) -> Recovered:
    """Take the job over and find what it goes on from. `prepare` is called when nothing else can go wrong.

    That is the checkpoint that the settings name; else the newest committed epoch; else, if files of that are damaged,
    the newest intact checkpoint. `thorough` reads every byte of the state to know; a restart after a failure does.
    """
    source = find(settings.restore_path) if settings.restore_path else None
    identity = load_identity(files)
    if source is not None:
        _check_source(files, identity, source, settings, max_parallelism, uids)
    elif identity is not None and identity.restoring and not ManifestStore(files).epochs():
        raise InvalidInputError(
            f"job '{name}' was to start from {identity.restoring} and never did. Start it again from there, or remove "
            f"{files.root} to begin with empty state.",
            path=files.root,
        )
    if identity is None:
        if os.path.isdir(files.root) and any(not entry.endswith(".tmp") for entry in os.listdir(files.root)):
            raise InvalidInputError(
                f"{files.root} is not empty and holds no cairn job; choose another job name or directory, or move what "
                "is there away",
                path=files.root,
            )
        identity = create_identity(files, job_id, name, max_parallelism, settings.restore_path)
    if identity.name != name:
        raise InvalidInputError(
            f"{files.root} belongs to the job '{identity.name}', not to '{name}'; choose another name, or set "
            "pipeline.job-id",
            path=files.root,
        )
    if identity.max_parallelism != max_parallelism:
        raise IncompatibleStateError(
            f"Max parallelism mismatch: job '{name}' was started with {identity.max_parallelism} key groups, which is "
            f"fixed for its life; this run asks for {max_parallelism}. Call "
            f"set_max_parallelism({identity.max_parallelism}).",
            stored=identity.max_parallelism,
        )
    # Everything that can fail comes before the take-over: a start that is refused must not stop a run that works.
    if source is None:
        source = _fallback(files, identity, uids, settings, thorough)
        if source is not None:
            _check_unclaimed(source.checkpoint.manifest, uids, settings)
    prepare()
    run = Runs(files).take(parallelism, now_ms)
    manifest: Manifest | None
    if source is not None:
        manifest = restore(source, files, run, identity.incarnation, identity.job_id, compact_interval)
    else:
        manifest = _newest(files, run.run)
    _check(files, identity, manifest, uids, settings)
    if manifest is not None:
        _log.info("job %s, run %d: going on from epoch %d", name, run.run, manifest.epoch)
    else:
        _log.info("job %s, run %d: starting with empty state", name, run.run)
    return Recovered(identity, run, manifest)


def _check_source(
    files: LocalFileSystem,
    identity: JobIdentity | None,
    source: Source,
    settings: Settings,
    max_parallelism: int,
    uids: Sequence[str],
) -> None:
    """Refuse a restore that cannot work before anything is created."""
    manifest = source.checkpoint.manifest
    if manifest.max_parallelism != max_parallelism:
        raise IncompatibleStateError(
            f"Max parallelism mismatch: the checkpoint has {manifest.max_parallelism} key groups, this job asks for "
            f"{max_parallelism}. Call set_max_parallelism({manifest.max_parallelism}).",
            stored=manifest.max_parallelism,
        )
    _check_unclaimed(manifest, uids, settings)
    wrong = damage(source.files, manifest, thorough=True, checkpoint=source.checkpoint)
    if wrong:
        raise CorruptFileError(
            f"checkpoint {source.checkpoint.info.path} cannot be restored: {wrong}. Nothing was changed; choose "
            "another one.",
            path=source.checkpoint.info.path,
        )
    if source.files.root == files.root:
        return
    if identity is not None and (ManifestStore(files).epochs() or spark_batches(files.root, "commits")):
        raise InvalidInputError(
            f"{files.root} holds a job already, and {settings.restore_path} belongs to another one: restore it under a "
            "job name (or pipeline.job-id) that was not used before",
            path=files.root,
        )
    if settings.claim_mode == "CLAIM":
        raise InvalidInputError(
            f"{settings.restore_path} cannot be claimed: its files belong to the job in {source.files.root}, too. "
            "Leave execution.state-recovery.claim-mode at NO_CLAIM: the new job takes copies and never touches the "
            "original.",
            path=settings.restore_path,
        )


def _fallback(
    files: LocalFileSystem, identity: JobIdentity, uids: Sequence[str], settings: Settings, thorough: bool
) -> Source | None:
    """None if the newest committed epoch can be used; else the newest intact checkpoint, or the error."""
    try:
        manifest = _newest(files)
        if manifest is not None:
            wrong = damage(files, manifest, thorough)
            if wrong:
                raise CorruptFileError(
                    f"the state of epoch {manifest.epoch} in {files.root} is damaged: {wrong}. Bring the file back "
                    "from a copy, then start the job again; nothing else was changed.",
                    path=files.root,
                )
        _check(files, identity, manifest, uids, settings)
        return None
    except CorruptFileError as error:
        checkpoint = newest_intact(files)
        if checkpoint is None:
            raise
        _log.error(
            "%s -- Falling back to checkpoint %d (epoch %d), the newest one that is intact: state and source positions "
            "go back to it, and what the sources hold since then is processed again.",
            error.message, checkpoint.id, checkpoint.manifest.epoch,
        )  # fmt: skip
        return Source(files, checkpoint)


def _check(
    files: LocalFileSystem, identity: JobIdentity, manifest: Manifest | None, uids: Sequence[str], settings: Settings
) -> None:
    _compare_logs(files, manifest)
    if manifest is None:
        return
    stored = (manifest.incarnation, manifest.max_parallelism)
    if stored != (identity.incarnation, identity.max_parallelism):
        raise CorruptFileError(
            f"the manifest of epoch {manifest.epoch} in {files.root} does not belong to its {layout.JOB} (there: "
            f"{manifest.max_parallelism} key groups of job {manifest.incarnation}; here: {identity.max_parallelism} of "
            f"{identity.incarnation}); the directory has been mixed up or changed by hand"
        )
    _check_unclaimed(manifest, uids, settings)


def _newest(files: LocalFileSystem, run: int | None = None) -> Manifest | None:
    """The newest committed epoch. A manifest that was never written whole is passed over: its epoch did not happen.

    With a run number it is also set aside, so that its epoch can happen.
    """
    store = ManifestStore(files)
    for epoch in reversed(store.epochs()):
        try:
            return store.load(epoch)
        except IncompleteManifestError as error:
            if any(spark_batches(files.root, "commits", name)[-1:] >= [epoch] for name in _spark_folders(files)):
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


def spark_batches(job_dir: str, log: str, folder: str = layout.SPARK) -> list[int]:
    """The batch numbers in one of Spark's logs, ascending."""
    try:
        names = os.listdir(os.path.join(job_dir, folder, log))
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def _spark_folders(files: LocalFileSystem) -> list[str]:
    return [name for name in files.folders("") if layout.is_spark(name)]


def _compare_logs(files: LocalFileSystem, manifest: Manifest | None) -> None:
    folder = manifest.spark if manifest is not None else layout.SPARK
    committed = spark_batches(files.root, "commits", folder)
    planned = spark_batches(files.root, "offsets", folder)
    newest = manifest.epoch if manifest is not None else -1
    if committed and committed[-1] > newest:
        raise CorruptFileError(
            f"Spark's log in {files.root}/{folder} has committed batch {committed[-1]}, but the newest manifest is "
            f"{'of epoch ' + str(newest) if newest >= 0 else 'missing'}: the state of that batch is gone. Bring "
            f"{files.root}/{layout.EPOCHS} back from a copy, or start under another job name to begin anew.",
            path=files.root,
        )
    if manifest is not None and newest not in planned:
        raise CorruptFileError(
            f"epoch {newest} is committed, but Spark's log in {files.root}/{folder} does not know batch {newest}: its "
            "source positions are gone, and going on would read the input again. Bring that folder back from a copy or "
            "start under another job name to begin anew.",
            path=files.root,
        )
    if manifest is not None:
        with open(os.path.join(files.root, folder, "offsets", str(newest)), "rb") as file:
            positions = file.read().decode()
        if positions != manifest.offsets:
            raise CorruptFileError(
                f"epoch {newest} is committed for other source positions than Spark's log in {files.root}/{folder} "
                "holds for it; that folder comes from another copy or has been changed by hand. Bring both back "
                "together.",
                path=files.root,
            )


def _check_unclaimed(manifest: Manifest, uids: Sequence[str], settings: Settings) -> None:
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
