"""Going back to a snapshot: in place, or as the beginning of another job (docs/design/0002 and 0003).

A restore never changes what was there. It writes what state it needs under new names, builds a new folder with Spark's
logs beside the old one, and adds an epoch that stands for the snapshot, above every epoch that ever was, and names that
folder. Adding it is the commit: whatever happens before leaves files that nobody names.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from cairn.errors import CorruptFileError, InternalError, NotFoundError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.manifest import Manifest, OperatorState, StateHandle
from cairn.restore.restore_plan import RestorePlan
from cairn.restore.source_logs import (
    COMPACT_INTERVAL,
    build_spark_folder,
    copy_sources,
    lost_files,
    positions_of,
    rearranged,
)
from cairn.restore.source_matching import match_sources
from cairn.restore.spark_logs import commit_batch
from cairn.snapshots.restorable import Snapshot
from cairn.state.section_changes import StateFiles
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem, LocalFileSystem
from cairn.storage.manifest_store import ManifestStore, RunRecord, Runs
from cairn.storage.savepoint_folder import verify
from cairn.storage.state_file import handed_over
from cairn.storage.state_owner import Writer

_log = get_logger("cairn.checkpoint")
_MANY_FILES = 256
_READERS = 16
"""From so many files on, a start looks at so many of them at a time."""


def snapshot_damage(snapshot: Snapshot) -> str:
    """What is missing or damaged of a snapshot, every byte of it read; empty if nothing is.

    Raises `StorageError` if the storage fails: a savepoint that cannot be read right now is not damaged.
    """
    if snapshot.checkpoint is not None:
        return damage(snapshot.files, snapshot.checkpoint.manifest, thorough=True, checkpoint=snapshot.checkpoint)
    problems = verify(snapshot.path)
    wrong = [problem.why for problem in problems if problem.damage and problem.unread is None]
    unread = next((problem.unread for problem in problems if problem.unread is not None), None)
    if unread is not None and not wrong:
        raise unread
    return "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")


def damage(files: FileSystem, manifest: Manifest, thorough: bool = False, checkpoint: Checkpoint | None = None) -> str:
    """What is missing, damaged or in the wrong place of what a manifest needs; empty if nothing is.

    Names, sizes, footers and owners of all files are compared; `thorough` reads every byte. Storage that fails is no
    damage: its error is raised.
    """
    named = [(operator.uid, handle) for operator in manifest.operators for handle in operator.chain]
    state_files = StateFiles(files, manifest)

    def wrong(uid: str, handle: StateHandle) -> str:
        where = f"{files.root}/{handle.path or layout.epoch_path(handle.epoch)} of operator '{uid}'"
        try:
            if not handle.path:
                if checkpoint is None:
                    return ""  # looked at below, one manifest after the other
                data = checkpoint.inlined_bytes(uid, handle)
                if data is None:
                    return f"{where}: its bytes are not in the checkpoint"
                file = state_files.inlined(uid, handle, data, "in the checkpoint")
            elif not files.exists(handle.path):
                return f"{where} is missing"
            elif files.local_path(handle.path) is None and not thorough:
                return ""  # it could only be read whole
            else:
                file = state_files.open(uid, handle)
            if thorough:
                file.verify(handle.groups)
        except (CorruptFileError, NotFoundError) as error:
            return f"{where}: {error}"
        return ""

    if len(named) < _MANY_FILES:
        problems = (wrong(uid, handle) for uid, handle in named)
        first = next(filter(None, problems), "")
    else:  # each is a wait for the storage, and hardly any work
        with ThreadPoolExecutor(_READERS, "cairn-start") as pool:
            first = next(filter(None, pool.map(lambda pair: wrong(*pair), named)), "")
    return first or ("" if checkpoint is not None else _inlined_damage(files, manifest, named, thorough))


def _inlined_damage(
    files: FileSystem, manifest: Manifest, named: Sequence[tuple[str, StateHandle]], thorough: bool
) -> str:
    """The same for the bytes that manifests hold. Each manifest is read once, and one at a time: they may be large."""
    for epoch in sorted(manifest.inline_epochs()):
        where = f"{files.root}/{layout.epoch_path(epoch)}"
        try:
            holder = manifest if epoch == manifest.epoch else ManifestStore(files).load(epoch)
            if holder.incarnation != manifest.incarnation:
                return (
                    f"{where} is the manifest of another job, {holder.job_id!r} (incarnation {holder.incarnation}; "
                    f"this job: {manifest.incarnation}), and epoch {manifest.epoch} needs state of this job's"
                )
            state_files = StateFiles(files, holder)
            for uid, handle in named:
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
    """The newest checkpoint all of whose files are whole; every byte is read to know.

    One that was taken between a checkpoint and the restore that went back to it is passed over: it was given up.
    """
    for checkpoint in reversed(CheckpointStore(files).current()):
        wrong = damage(files, checkpoint.manifest, thorough=True, checkpoint=checkpoint)
        if not wrong:
            return checkpoint
        _log.error("checkpoint %d cannot be used either: %s", checkpoint.id, wrong)
    return None


def _restores(snapshot: Snapshot, files: LocalFileSystem, own: bool) -> list[tuple[int, int]]:
    """The restores in place so far. A checkpoint of this job knows those before it, should manifests be lost."""
    known = set(ManifestStore(files).restores())
    if own and snapshot.checkpoint is not None:
        known.update(snapshot.checkpoint.manifest.abandoned)
    return sorted(known, key=lambda pair: pair[1])


def last_origin(files: LocalFileSystem) -> str:
    """The snapshot that the job was last told to start from, as the newest readable manifest tells."""
    manifest = ManifestStore(files).newest()
    return manifest.origin if manifest is not None else ""


def check_sources(snapshot: Snapshot, plan: RestorePlan | None, interval: int) -> None:
    """Raise what copying the logs of the sources will raise, at a time when a run that works is not stopped by it."""
    with tempfile.TemporaryDirectory(prefix="cairn-restore-") as folder:
        offsets = snapshot.in_flight or snapshot.offsets
        sources = None if plan is None else plan.sources
        target = os.path.join(folder, "sources")
        copy_sources(snapshot.sources, target, offsets, sources, interval, snapshot.source_names)


def next_epoch(snapshot: Snapshot, files: LocalFileSystem) -> int:
    """The epoch of a restore: above every one of this directory, and above those that files and list segments carry."""
    used = [snapshot.epoch, *ManifestStore(files).epochs(), *_numbers(files, "offsets"), *_numbers(files, "commits")]
    if not ManifestStore(files).epochs():  # they may be lost, and Spark's logs with them
        used += [checkpoint.manifest.epoch for checkpoint in CheckpointStore(files).all()]
    return 1 + max(used)


def refuse_lost_files(snapshot: Snapshot, files: LocalFileSystem) -> None:
    """Going back in place reads again what was read since; refuse it if some of that is known to be gone."""
    if not snapshot.offsets:
        return
    manifest = ManifestStore(files).newest()
    if manifest is None:
        return
    stored, offsets = snapshot.source_names, snapshot.offsets
    if stored and manifest.source_names:  # the sources may have other numbers now
        plan = match_sources(stored, len(positions_of(offsets)), manifest.source_names, drop=True)
        offsets = rearranged(offsets, plan, snapshot.time_ms)
    lost = lost_files(os.path.join(files.root, manifest.spark, layout.SOURCES), offsets, manifest.source_names)
    if lost:
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        raise CorruptFileError(
            f"the job cannot go back to {snapshot.path}: its file source has read {len(lost)} file(s) since, which are "
            f"not there any more: {shown}. Their rows would be missing without a word. Bring them back, or start from "
            "a newer snapshot; nothing was changed.",
            files=lost,
        )


def restore(
    snapshot: Snapshot,
    files: LocalFileSystem,
    run: RunRecord,
    incarnation: str,
    job_id: str,
    compact_interval: int = COMPACT_INTERVAL,
    plan: RestorePlan | None = None,
    moved: Mapping[str, list[StateHandle]] | None = None,
    epoch: int | None = None,
    carried: Mapping[str, list[StateHandle]] | None = None,
) -> Manifest:
    """Make a snapshot, which was found intact, the newest epoch of a job's directory; returns its manifest.

    Without a plan everything is taken as it is. `moved` has what was written anew, and `carried` what `carry` gave.
    """
    if carried is None:
        carried = carry(snapshot, files, run.run, plan, moved or {}, job_id, incarnation)
    epoch = next_epoch(snapshot, files) if epoch is None else epoch
    checkpoint = snapshot.checkpoint
    same_job = checkpoint is not None and snapshot.files.root == files.root
    own = same_job or _own(snapshot, incarnation)
    in_place = same_job or bool(ManifestStore(files).epochs() or CheckpointStore(files).numbers())
    manifest = Manifest(
        job_id=job_id,
        incarnation=incarnation,
        epoch=epoch,
        commit_id=uuid.uuid4().hex[:16],
        run=run.run,
        parent=snapshot.epoch if same_job else -1,
        max_parallelism=snapshot.max_parallelism,
        offsets=snapshot.offsets if plan is None else rearranged(snapshot.offsets, plan.sources, snapshot.time_ms),
        watermark=snapshot.watermark,
        time_ms=snapshot.time_ms,
        time_reset_ms=snapshot.time_ms if checkpoint is None else checkpoint.manifest.time_reset_ms,
        operators=_operators(snapshot, plan, moved or {}, carried, epoch, same_job),
        sinks=[],
        lineage=_lineage(checkpoint) if same_job and checkpoint is not None else {},
        restored=max(1, snapshot.number),
        spark=layout.restored_spark(epoch, run.run),
        source_names=list(snapshot.source_names) if plan is None else [m.name for m in plan.sources.matches],
        abandoned=[*_restores(snapshot, files, own), (snapshot.epoch if own else -1, epoch)] if in_place else [],
        origin=snapshot.origin if plan is not None else checkpoint.manifest.origin if checkpoint is not None else "",
    )
    in_flight = snapshot.in_flight
    if in_flight and plan is not None:
        in_flight = rearranged(in_flight, plan.sources, snapshot.time_ms)
    build_spark_folder(
        os.path.join(files.root, manifest.spark), epoch, manifest.offsets, in_flight,
        snapshot.sources, snapshot.in_flight or snapshot.offsets, None if plan is None else plan.sources,
        compact_interval, snapshot.source_names, manifest.abandoned,
    )  # fmt: skip
    Runs(files).check(run.run)  # a newer run may go on from the epoch before, which must stay the newest then
    try:
        ManifestStore(files).publish(manifest)
    except FileExistsError:
        Runs(files).check(run.run)
        raise InternalError(f"epoch {epoch} of the job in {files.root} came to be while it was restored") from None
    Runs(files).check(run.run)  # a newer run may have read the history before this epoch was there
    finish(files, manifest)
    _log.warning(
        "Restoring job %s from %s %d located at %s, epoch %d, as epoch %d.",
        job_id, snapshot.what.capitalize(), snapshot.number, snapshot.path, snapshot.epoch, epoch,
    )  # fmt: skip
    return manifest


def finish(files: LocalFileSystem, manifest: Manifest) -> None:
    """Tell Spark that a restored epoch is done. That comes after its manifest: a commit in a log of Spark's says that
    there was a manifest, so it is noticed when one is lost."""
    if manifest.restored and layout.spark_epoch(manifest.spark) == manifest.epoch:
        commit_batch(os.path.join(files.root, manifest.spark), manifest.epoch, manifest.watermark)


def _own(snapshot: Snapshot, incarnation: str) -> bool:
    return bool(snapshot.incarnation) and snapshot.incarnation == incarnation


def _lineage(checkpoint: Checkpoint) -> dict[int, str]:
    return {**checkpoint.manifest.lineage, checkpoint.manifest.epoch: checkpoint.manifest.commit_id}


def carry(
    snapshot: Snapshot,
    files: LocalFileSystem,
    run: int,
    plan: RestorePlan | None,
    moved: Mapping[str, list[StateHandle]],
    job_id: str,
    incarnation: str,
) -> dict[str, list[StateHandle]]:
    """The chains of a checkpoint as the restored job names them, by the job's uids; files are copied where need be.

    Called before the job is taken over: storage that is full must not stop a run that works.
    """
    checkpoint = snapshot.checkpoint
    if checkpoint is None:
        return {}
    own = snapshot.files.root == files.root and checkpoint.manifest.incarnation == incarnation
    found = {}
    for operator in checkpoint.manifest.operators:
        target = _target(operator.uid, plan)
        if target is not None and target not in moved:
            kept = own and target == operator.uid
            writer = Writer(job_id, incarnation, target, run)
            found[target] = [_carried(snapshot, files, writer, operator.uid, handle, kept) for handle in operator.chain]
    return found


def _operators(
    snapshot: Snapshot,
    plan: RestorePlan | None,
    moved: Mapping[str, list[StateHandle]],
    carried: Mapping[str, list[StateHandle]],
    epoch: int,
    same_job: bool,
) -> list[OperatorState]:
    """The operators of the restored epoch: chains that serve as they are, and what was written anew."""
    made: list[OperatorState] = []
    if plan is not None:
        made += [
            OperatorState(
                uid=wanted.uid,
                name=wanted.stored.name,
                parallelism=wanted.stored.parallelism,  # what belongs to subtasks is dealt out anew by the first epoch
                key_type=wanted.stored.key_type,
                states=[state.becomes for state in wanted.states],
                chain=list(moved[wanted.uid]),
                base=epoch,  # what working stores hold from before is in the old form
            )
            for wanted in plan.operators
            if wanted.uid in moved
        ]
    if snapshot.checkpoint is None:
        return made
    for operator in snapshot.checkpoint.manifest.operators:
        target = _target(operator.uid, plan)
        if target is None or target in moved:
            continue
        kept = same_job and target == operator.uid
        states = operator.states
        if plan is not None and (planned := plan.operator(target)) is not None:
            states = [state.becomes for state in planned.states]  # the length of a TTL may have changed
        made.append(
            msgspec.structs.replace(
                operator,
                uid=target,
                states=states,
                chain=list(carried[target]),
                base=operator.base if kept else epoch,
            )
        )
    return made


def _target(uid: str, plan: RestorePlan | None) -> str | None:
    """What an operator is called in the job; None if the job does not take its state."""
    if plan is None:
        return uid
    return next((operator.uid for operator in plan.operators if operator.stored.uid == uid), None)


def _numbers(files: LocalFileSystem, log: str) -> list[int]:
    """Batch numbers in one of Spark's logs, in the present folder and in those from before restores."""
    found = []
    for name in files.folders(""):
        if layout.is_spark(name):
            folder = os.path.join(files.root, name, log)
            if os.path.isdir(folder):
                found += [int(entry) for entry in os.listdir(folder) if entry.isdigit()]
    return found


def _carried(
    snapshot: Snapshot, files: LocalFileSystem, writer: Writer, uid: str, handle: StateHandle, kept: bool
) -> StateHandle:
    """A handle as the restored job names it. Only shared files of the same job and operator are taken as they are; a
    copy of any other says that it belongs to the restored job."""
    if kept and handle.path.startswith(f"{layout.SHARED}/"):
        return handle
    if snapshot.checkpoint is None:
        raise InternalError(f"{snapshot.path} has no state files")
    token = uuid.uuid4().hex[:8]
    path = layout.snapshot_path(writer.uid, handle.epoch, writer.run, handle.first_group, token)
    if not handle.snapshot:
        path = layout.restored_delta_path(writer.uid, handle.epoch, writer.run, handle.first_group, token)
    data = snapshot.files.read(handle.path) if handle.path else snapshot.checkpoint.inlined_bytes(uid, handle)
    if data is None:
        raise CorruptFileError(f"{snapshot.path} lacks the state of operator '{uid}'", uid=uid)
    owner = writer.owner(path, handle.epoch, handle.groups, handle.snapshot)
    data = handed_over(data, f"{snapshot.path}, {handle.path or 'inlined state'}", handle, owner)
    files.create(path, data)
    return msgspec.structs.replace(handle, path=path, size=len(data))
