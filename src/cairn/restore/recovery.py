"""What a new run starts from: the job's identity, the newest committed epoch, and whether both logs agree.

A job's directory holds two logs, cairn's manifests and Spark's own. A run starts only when they fit together; anything
else is an error that says what is missing and what is still intact. State is never started empty in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from cairn.config import Settings
from cairn.errors import InternalError, InvalidInputError, NotFoundError
from cairn.logs import get_logger
from cairn.model.manifest import Manifest
from cairn.restore.claims import claim, drop_stale_claims
from cairn.restore.log_agreement import check_order, remains, remedy
from cairn.restore.newest_epoch import (
    check_epoch,
    check_unclaimed,
    newest_epoch,
    refuse_foreign_epochs,
    replacement,
)
from cairn.restore.pinned_snapshot import pinned
from cairn.restore.restore_checks import PlannedRestore, check_directory, check_groups, obstacles
from cairn.restore.restore_plan import RestorePlan, make_plan
from cairn.restore.restored_epoch import (
    BroughtState,
    Restore,
    carry,
    check_sources,
    finish,
    last_origin,
    next_epoch,
    publish_restored,
)
from cairn.restore.snapshot_origin import made_here
from cairn.restore.spark_logs import check_logs
from cairn.restore.start_request import StartRequest
from cairn.restore.state_move import Target
from cairn.snapshots.resolver import named_folder, open_snapshot
from cairn.snapshots.snapshot import Snapshot
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.history import open_history
from cairn.storage.manifest_store import JobIdentity, ManifestStore, create_identity, load_identity
from cairn.storage.run_records import RunRecord, Runs

_log = get_logger("cairn.job")


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything a run knows before its first epoch."""

    identity: JobIdentity
    run: RunRecord
    manifest: Manifest | None
    restored_kind: str = ""
    """`checkpoint` or `savepoint` if this run restored one."""
    restored_path: str = ""


def recover(
    start: StartRequest, now_ms: int, prepare: Callable[[], None] = lambda: None, thorough: bool = False
) -> Recovered:
    """Take the job over and find the epoch that it continues from.

    That is the snapshot that the settings name; else the newest committed epoch; else, if files of that are damaged,
    the newest intact checkpoint. `prepare` is called when nothing else can fail. `thorough` reads every byte of the
    state to find damage, as the start after a damaged file does.

    Everything that can fail comes before step 5: a start that is refused must not stop a run that works.
    """
    files = start.files
    # 1. Can the job start from the snapshot that the settings name, if they name one?
    named = _named_snapshot(files, start.settings)
    identity = load_identity(files)
    plan = _checked_plan(start, identity, named) if named is not None else None
    if named is None:
        _refuse_unfinished_restore(start, identity)
    # 2. Does the directory belong to this job? An empty one gets the identity of a new job.
    identity = _checked_identity(start, identity)
    # 3. Without a named snapshot: can the job continue from its newest epoch, or what does it restore instead?
    marked = files.exists(layout.DAMAGED)
    thorough = thorough or marked
    snapshot = named if named is not None else _checked_replacement(start, identity, thorough)
    prepare()
    # 4. Bring state into the directory, in files that carry the number that this run should get.
    expected = Runs(files).newest() + 1
    restore = _restore(start, identity, snapshot, plan)
    state = _bring(start, restore, expected, now_ms)
    # 5. Take the job over.
    run = Runs(files).take(start.parallelism, now_ms, start.settings.remembered)
    open_history(files, run.run)
    drop_stale_claims(files, identity)
    # 6. Did the run before commit in the meantime, or did another start get the number?
    if snapshot is not None and named is None:
        restore = _restore(start, identity, replacement(start, identity, thorough), None)
    if run.run != expected or _other_snapshot(restore, snapshot):
        # Files carry the number of their run: the run that got the expected number may have deleted these.
        state = _bring(start, restore, run.run, now_ms)
    # 7. Publish the restored epoch, or finish the newest one.
    manifest = _publish(start, restore, run, state) if restore is not None else _continued(files, run)
    # 8. Do both logs agree now?
    check_epoch(start, identity, manifest)
    if manifest is not None:
        _log.info("job %s, run %d: resuming from epoch %d", start.name, run.run, manifest.epoch)
    else:
        _log.info("job %s, run %d: starting with empty state", start.name, run.run)
    if marked:
        files.delete(layout.DAMAGED)
    if restore is None:
        return Recovered(identity, run, manifest)
    return Recovered(identity, run, manifest, restore.snapshot.kind, restore.snapshot.path)


def plan_restore(start: StartRequest) -> RestorePlan:
    """What a start from the snapshot that the settings name would do, with everything that would refuse it."""
    if not start.settings.restore_path:
        raise InvalidInputError("a plan needs a snapshot to start from: name it with -s PATH")
    with pinned(start) as pinned_start:
        return _plan(pinned_start)


def _plan(start: StartRequest) -> RestorePlan:
    files, settings = start.files, start.settings
    if start.restorer is None:
        raise InternalError("a restore needs to know the job")
    continues = (
        "the job was already started from this snapshot and would continue from its newest epoch, because "
        "cairn.restore.again is false"
    )
    try:
        snapshot = open_snapshot(settings.restore_path, exact=True)
    except NotFoundError as error:  # only a snapshot that the job does not need any more can be missing here
        raise NotFoundError(f"there is no restore to plan: {continues}. {error.message}", **error.facts) from None
    plan = make_plan(snapshot, start.restorer.shape(), settings, own=made_here(snapshot, files))
    planned = PlannedRestore(files, load_identity(files), start.name, settings, plan, start.compact_interval)
    problems = [error.message for error in obstacles(planned)]
    again = snapshot.origin == last_origin(files) and not settings.restore_again
    notes = (continues, *plan.notes) if again else plan.notes
    return replace(plan, problems=(*plan.problems, *problems), notes=tuple(notes))


def _named_snapshot(files: LocalFileSystem, settings: Settings) -> Snapshot | None:
    """The snapshot that the settings name; None if they name none.

    Also None with cairn.restore.again=false if the job was restored from that snapshot already: a process supervisor
    that repeats a command wants the job to run, not to go back each time. A claimed savepoint may be gone by then.
    """
    if not settings.restore_path:
        return None
    before = last_origin(files)
    try:
        snapshot = open_snapshot(settings.restore_path, exact=True)
    except NotFoundError:
        if settings.restore_again or before.rpartition("#")[0] != named_folder(settings.restore_path):
            raise
    else:
        if settings.restore_again or snapshot.origin != before:
            return snapshot
    _log.warning(
        "the job was already started from %s and continues from its newest epoch. To restore it again, leave out "
        "cairn.restore.again=false.", settings.restore_path,
    )  # fmt: skip
    return None


def _checked_plan(start: StartRequest, identity: JobIdentity | None, snapshot: Snapshot) -> RestorePlan:
    """How the snapshot is brought into the job. Raises the first thing that refuses it."""
    if start.restorer is None:
        raise InternalError("a restore needs to know the job")
    plan = make_plan(snapshot, start.restorer.shape(), start.settings, own=made_here(snapshot, start.files))
    plan.check()
    planned = PlannedRestore(start.files, identity, start.name, start.settings, plan, start.compact_interval)
    for error in obstacles(planned):
        raise error
    for note in plan.notes:
        _log.warning("restoring from %s: %s", snapshot.path, note)
    return plan


def _refuse_unfinished_restore(start: StartRequest, identity: JobIdentity | None) -> None:
    """A job whose first start was to restore a snapshot, and failed, must not start with empty state."""
    files = start.files
    if identity is not None and identity.restoring and not ManifestStore(files).epochs() and not remains(files):
        raise InvalidInputError(
            f"job '{start.name}' was to be restored from {identity.restoring}, but never was. Start it from there "
            f"again, or remove {files.root} to begin with empty state.",
            path=files.root,
        )


def _checked_identity(start: StartRequest, identity: JobIdentity | None) -> JobIdentity:
    check_directory(start.files, identity, start.name)
    if identity is None:
        path = start.settings.restore_path
        identity = create_identity(start.files, start.job_id, start.name, start.max_parallelism, path)
    check_groups(identity, start.max_parallelism)
    refuse_foreign_epochs(start.files, identity)
    return identity


def _checked_replacement(start: StartRequest, identity: JobIdentity, thorough: bool) -> Snapshot | None:
    """What the job restores instead of its newest epoch; None if it can continue from that. Raises if neither works."""
    files = start.files
    snapshot = replacement(start, identity, thorough)
    if snapshot is not None and snapshot.checkpoint is not None:
        check_unclaimed(snapshot.checkpoint.manifest, start.uids, start.settings)
        check_order(files, snapshot.checkpoint.manifest, start.sources)
        check_sources(snapshot, None, start.compact_interval)
        return snapshot
    newest = newest_epoch(files)
    check_order(files, newest, start.sources)
    folder = os.path.join(files.root, newest.spark if newest is not None else layout.SPARK)
    check_logs(folder, newest.epoch if newest is not None else -1, lambda: remedy(files, newest))
    return None


def _restore(
    start: StartRequest, identity: JobIdentity, snapshot: Snapshot | None, plan: RestorePlan | None
) -> Restore | None:
    return Restore(snapshot, start.files, identity, plan, start.compact_interval) if snapshot is not None else None


def _other_snapshot(restore: Restore | None, snapshot: Snapshot | None) -> bool:
    return restore is not None and snapshot is not None and restore.snapshot.path != snapshot.path


def _bring(start: StartRequest, restore: Restore | None, run: int, now_ms: int) -> BroughtState:
    """Bring the state of a snapshot into the directory, in files that carry the number of a run.

    This happens before the job is taken over: a run that works continues meanwhile, and no manifest names the files.
    """
    if restore is None:
        return BroughtState()
    moved = {}
    plan = restore.plan
    if plan is not None and start.restorer is not None:
        target = Target(
            start.files.root, next_epoch(restore.snapshot, start.files), run, max(now_ms, plan.snapshot.time_ms)
        )
        operators = [op for op in plan.operators if plan.snapshot.savepoint is not None or op.rewrite]
        moved = {operator.uid: start.restorer.mover.move(plan, operator, target) for operator in operators}
    return BroughtState(moved, carry(restore, run, moved))


def _publish(start: StartRequest, restore: Restore, run: RunRecord, state: BroughtState) -> Manifest:
    epoch = next_epoch(restore.snapshot, start.files)  # the run before may have committed another one meanwhile
    if restore.plan is not None and start.settings.claim_mode == "CLAIM":
        claim(restore.snapshot, restore.identity, start.files, epoch, run.run)
    return publish_restored(restore, run, epoch, state)


def _continued(files: LocalFileSystem, run: RunRecord) -> Manifest | None:
    manifest = newest_epoch(files, run.run)
    if manifest is not None:
        finish(files, manifest)
    return manifest
