"""What a new run starts from: the job's identity, the newest committed epoch, and whether both logs agree.

A job's directory holds two logs, cairn's manifests and Spark's own. A run starts only when they fit together; anything
else is an error that says what is missing and what is still intact. State is never started empty in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cairn.config import Settings
from cairn.errors import (
    CairnError,
    CorruptFileError,
    IncompatibleStateError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.manifest import Manifest, StateHandle
from cairn.restore.claims import check_claim, claim, drop_stale_claims
from cairn.restore.log_agreement import (
    check_order,
    compare_logs,
    output_is_published,
    remains,
    remedy,
    spark_batches,
    spark_folders,
    state_left,
)
from cairn.restore.restore_plan import JobShape, RestorePlan, make_plan
from cairn.restore.restored_epoch import (
    carry,
    check_sources,
    damage,
    finish,
    last_origin,
    newest_intact,
    next_epoch,
    refuse_lost_files,
    restore,
    snapshot_damage,
)
from cairn.restore.snapshot_origin import made_here
from cairn.restore.source_logs import COMPACT_INTERVAL
from cairn.restore.spark_logs import check_logs
from cairn.restore.state_move import Mover, Target
from cairn.snapshots.restorable import Snapshot, find, folder_of, of_checkpoint
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.history import open_history
from cairn.storage.manifest_store import (
    IncompleteManifestError,
    JobIdentity,
    ManifestStore,
    RunRecord,
    Runs,
    create_identity,
    load_identity,
    refuse_foreign,
)

_log = get_logger("cairn.job")


@dataclass(frozen=True, slots=True)
class Restorer:
    """What a restore needs of the job: what it looks like, which may mean to ask its functions, and who moves state."""

    shape: Callable[[], JobShape]
    mover: Mover


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
    restorer: Restorer | None = None,
    sources: Callable[[], Sequence[str]] | None = None,
) -> Recovered:
    """Take the job over and find what it goes on from. `prepare` is called when nothing else can go wrong.

    That is the snapshot that the settings name; else the newest committed epoch; else, if files of that are damaged,
    the newest intact checkpoint. `thorough` reads every byte of the state to know; the start after a damaged file was
    met does. `sources` tells what the job reads, in the order of the positions that Spark logs.
    """
    snapshot = _named_snapshot(files, settings)
    identity = load_identity(files)
    plan: RestorePlan | None = None
    if snapshot is not None:
        if restorer is None:
            raise InternalError("a restore needs to know the job")
        plan = make_plan(snapshot, restorer.shape(), settings, own=made_here(snapshot, files))
        plan.check()
        for error in _obstacles(files, identity, name, snapshot, plan, settings, compact_interval):
            raise error
        for note in plan.notes:
            _log.warning("restoring from %s: %s", snapshot.path, note)
    elif identity is not None and identity.restoring and not ManifestStore(files).epochs() and not remains(files):
        raise InvalidInputError(
            f"job '{name}' was to start from {identity.restoring} and never did. Start it again from there, or remove "
            f"{files.root} to begin with empty state.",
            path=files.root,
        )
    _check_directory(files, identity, name)
    if identity is None:
        identity = create_identity(files, job_id, name, max_parallelism, settings.restore_path)
    _check_groups(identity, max_parallelism)
    _refuse_foreign(files, identity)
    marked = files.exists(layout.DAMAGED)
    # Everything that can fail comes before the take-over: a start that is refused must not stop a run that works.
    named = snapshot is not None
    if snapshot is None:
        snapshot = _fallback(files, identity, uids, settings, thorough or marked) or _displaced(files)
        if snapshot is not None and snapshot.checkpoint is not None:
            _check_unclaimed(snapshot.checkpoint.manifest, uids, settings)
            check_order(files, snapshot.checkpoint.manifest, sources)
            check_sources(snapshot, None, compact_interval)
        else:
            current = _newest(files)
            check_order(files, current, sources)
            folder = os.path.join(files.root, current.spark if current is not None else layout.SPARK)
            check_logs(folder, current.epoch if current is not None else -1, lambda: remedy(files, current))
    prepare()
    expected = Runs(files).newest() + 1
    brought = _brought(snapshot, files, identity, plan, restorer, expected, now_ms)
    run = Runs(files).take(parallelism, now_ms, settings.remembered)
    open_history(files, run.run)
    drop_stale_claims(files, identity)
    judged = snapshot
    if snapshot is not None and not named:  # the run before may have committed since: judge what is there now
        snapshot = _fallback(files, identity, uids, settings, thorough or marked) or _displaced(files)
    if run.run != expected or (snapshot is not None and judged is not None and snapshot.path != judged.path):
        # Names of files carry the run: under the number of another one, that one's clean-up may have deleted them.
        brought = _brought(snapshot, files, identity, plan, restorer, run.run, now_ms)
    manifest: Manifest | None
    if snapshot is not None:
        epoch = next_epoch(snapshot, files)  # the run before may have committed another one meanwhile
        if plan is not None and settings.claim_mode == "CLAIM":
            claim(snapshot, identity, files, epoch, run.run)
        manifest = restore(
            snapshot, files, run, identity.incarnation, identity.job_id, compact_interval, plan,
            brought.moved, epoch, brought.carried,
        )  # fmt: skip
    else:
        manifest = _newest(files, run.run)
        if manifest is not None:
            finish(files, manifest)
    _check(files, identity, manifest, uids, settings)
    if manifest is not None:
        _log.info("job %s, run %d: going on from epoch %d", name, run.run, manifest.epoch)
    else:
        _log.info("job %s, run %d: starting with empty state", name, run.run)
    if marked:
        files.delete(layout.DAMAGED)
    return Recovered(identity, run, manifest)


def _is_own(snapshot: Snapshot, identity: JobIdentity | None) -> bool:
    return identity is not None and bool(snapshot.incarnation) and snapshot.incarnation == identity.incarnation


@dataclass(frozen=True, slots=True)
class _Brought:
    """State files that a restore has written into the job's directory, by the uids of the job."""

    moved: dict[str, list[StateHandle]]
    """Written anew: all state of a savepoint, changed state of a checkpoint."""
    carried: dict[str, list[StateHandle]] | None
    """The chains of a checkpoint that are taken as they are."""


def _brought(
    snapshot: Snapshot | None,
    files: LocalFileSystem,
    identity: JobIdentity,
    plan: RestorePlan | None,
    restorer: Restorer | None,
    run: int,
    now_ms: int,
) -> _Brought:
    """Bring the state of a snapshot into the directory, in files that carry the number of a run.

    It happens before the job is taken over: a run that still works goes on meanwhile, and nobody names the new files.
    """
    if snapshot is None:
        return _Brought({}, None)
    moved: dict[str, list[StateHandle]] = {}
    if plan is not None and restorer is not None:
        target = Target(files.root, next_epoch(snapshot, files), run, max(now_ms, plan.snapshot.time_ms))
        wanted = [op for op in plan.operators if plan.snapshot.savepoint is not None or op.rewrite]
        moved = {operator.uid: restorer.mover.move(plan, operator, target) for operator in wanted}
    return _Brought(moved, carry(snapshot, files, run, plan, moved, identity.job_id, identity.incarnation))


def _named_snapshot(files: LocalFileSystem, settings: Settings) -> Snapshot | None:
    """The snapshot that the settings name. None if they name none, or if the job was restored from that one already and
    is not to go back each time: a supervisor of processes that repeats a command means that the job should run, not
    that it should show its output once more. A claimed savepoint may be gone by then.
    """
    if not settings.restore_path:
        return None
    before = last_origin(files)
    try:
        snapshot = find(settings.restore_path)
    except NotFoundError:
        if settings.restore_again or before.rpartition("#")[0] != folder_of(settings.restore_path):
            raise
    else:
        if settings.restore_again or snapshot.origin != before:
            return snapshot
    _log.warning(
        "the job was started from %s before: it goes on from its newest epoch. Leave cairn.restore.again=false out "
        "to go back to it once more.", settings.restore_path,
    )  # fmt: skip
    return None


def plan_restore(
    files: LocalFileSystem,
    name: str,
    settings: Settings,
    shape: Callable[[], JobShape],
    compact_interval: int = COMPACT_INTERVAL,
) -> RestorePlan:
    """What a start from the snapshot that the settings name would do, with all that would refuse it."""
    if not settings.restore_path:
        raise InvalidInputError("a plan needs a snapshot to start from: name it with -s PATH")
    snapshot = find(settings.restore_path)
    identity = load_identity(files)
    plan = make_plan(snapshot, shape(), settings, own=made_here(snapshot, files))
    found = [error.message for error in _obstacles(files, identity, name, snapshot, plan, settings, compact_interval)]
    notes = list(plan.notes)
    if snapshot.origin == last_origin(files) and not settings.restore_again:
        notes.insert(
            0,
            "the job was started from this snapshot before: it would go on from its newest epoch, as "
            "cairn.restore.again=false says",
        )
    return replace(plan, problems=(*plan.problems, *found), notes=tuple(notes))


def _obstacles(
    files: LocalFileSystem,
    identity: JobIdentity | None,
    name: str,
    snapshot: Snapshot,
    plan: RestorePlan,
    settings: Settings,
    compact_interval: int,
) -> Iterator[CairnError]:
    """What refuses a restore besides what the plan compares, before anything is created. Storage that fails raises."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: _check_directory(files, identity, name),
        lambda: _check_groups(identity, plan.max_parallelism),
        lambda: check_claim(snapshot, settings.claim_mode, identity, files),
        lambda: _check_use(files, identity, snapshot, settings),
        lambda: _check_damage(snapshot),
        lambda: check_sources(snapshot, plan, compact_interval),
    )
    for check in checks:
        try:
            check()
        except StorageError:
            raise
        except CairnError as error:
            yield error


def _check_directory(files: LocalFileSystem, identity: JobIdentity | None, name: str) -> None:
    """The directory is that of the job, or empty."""
    if identity is not None and identity.name != name:
        raise InvalidInputError(
            f"{files.root} belongs to the job '{identity.name}', not to '{name}'; choose another name, or set "
            "pipeline.job-id",
            path=files.root,
        )
    there = os.listdir(files.root) if identity is None and os.path.isdir(files.root) else []
    if any(not entry.endswith(".tmp") for entry in there):
        raise InvalidInputError(
            f"{files.root} is not empty and holds no cairn job; choose another job name or directory, or move what is "
            "there away",
            path=files.root,
        )


def _refuse_foreign(files: LocalFileSystem, identity: JobIdentity) -> None:
    """The newest manifest, by run and by epoch, must be one of this job. Damaged ones are dealt with later."""
    store = ManifestStore(files)
    manifests = [store.newest()]
    with suppress(CorruptFileError, NotFoundError):
        manifests += [store.load(epoch) for epoch in store.epochs()[-1:]]
    for manifest in manifests:
        if manifest is not None:
            refuse_foreign(manifest, identity, files.root)


def _check_groups(identity: JobIdentity | None, max_parallelism: int) -> None:
    if identity is not None and identity.max_parallelism != max_parallelism:
        raise IncompatibleStateError(
            f"Max parallelism mismatch: job '{identity.name}' was started with {identity.max_parallelism} key groups, "
            f"which is fixed for its life; this run asks for {max_parallelism}. Call "
            f"set_max_parallelism({identity.max_parallelism}).",
            stored=identity.max_parallelism,
        )


def _check_use(files: LocalFileSystem, identity: JobIdentity | None, snapshot: Snapshot, settings: Settings) -> None:
    """A job's directory takes its own snapshots only, and only if what it has to read again is still there."""
    in_place = snapshot.checkpoint is not None and snapshot.files.root == files.root
    used = identity is not None and bool(ManifestStore(files).epochs() or remains(files))
    same = identity is not None and snapshot.savepoint is not None and snapshot.job_id == identity.job_id
    if used and not in_place and not same:
        raise InvalidInputError(
            f"{files.root} holds a job already, and {settings.restore_path} belongs to another one: restore it under a "
            "job name (or pipeline.job-id) that was not used before",
            path=files.root,
        )
    if used and (in_place or _is_own(snapshot, identity)):
        refuse_lost_files(snapshot, files)


def _check_damage(snapshot: Snapshot) -> None:
    wrong = snapshot_damage(snapshot)
    if wrong:
        raise CorruptFileError(
            f"{snapshot.what} {snapshot.path} cannot be restored: {wrong}. Nothing was changed; choose another one.",
            path=snapshot.path,
        )


def _fallback(
    files: LocalFileSystem, identity: JobIdentity, uids: Sequence[str], settings: Settings, thorough: bool
) -> Snapshot | None:
    """None if the newest committed epoch can be used; else the newest intact checkpoint, or the error.

    A run that works may commit meanwhile, and delete files of the epoch that is looked at: then the new one counts.
    """
    while True:
        judged = ManifestStore(files).epochs()[-1:]
        try:
            _check_newest(files, identity, uids, settings, thorough)
            return None
        except CorruptFileError as error:
            if ManifestStore(files).epochs()[-1:] != judged:
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

    The job then goes on above that name, as after a restore of what it has. Such a manifest is not deleted: another run
    may create the name, and a deletion that came late would hit that. First the output of the newest epoch must be
    published, which a plain start sees to.
    """
    store = ManifestStore(files)
    newest = store.newest()
    if newest is None or not output_is_published(files, newest):
        return None
    if not any(_is_whole(store, epoch) for epoch in store.epochs() if epoch > newest.epoch):
        return None
    _log.warning(
        "the name of epoch %d is taken by a run that had been overtaken; the job goes on above it", newest.epoch + 1
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


def _check_newest(
    files: LocalFileSystem, identity: JobIdentity, uids: Sequence[str], settings: Settings, thorough: bool
) -> None:
    """Raise `CorruptFileError` unless the job can go on from its newest committed epoch."""
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


def _check(
    files: LocalFileSystem, identity: JobIdentity, manifest: Manifest | None, uids: Sequence[str], settings: Settings
) -> None:
    compare_logs(files, manifest)
    if manifest is None:
        left = remains(files) or ("" if identity.restoring else state_left(files))
        if left:
            raise CorruptFileError(
                f"the job in {files.root} has no manifest, but {left}: it had state, which must not begin anew without "
                f"a word. Bring {files.root}/{layout.EPOCHS} back from a copy, start from a checkpoint or savepoint by "
                "`cairn run JOB.py -s PATH`, or move the directory away to begin with empty state.",
                path=files.root,
            )
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
            store.load(epoch)
            return store.newest()
        except IncompleteManifestError as error:
            if any(spark_batches(files.root, "commits", name)[-1:] >= [epoch] for name in spark_folders(files)):
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
