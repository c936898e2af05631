"""Going back to a snapshot: in place, or as the beginning of another job (docs/design/0002 and 0003).

A restore never changes what was there. It writes the state that it needs under new names, builds a new folder with
Spark's logs beside the old one, and adds an epoch that stands for the snapshot, above every epoch that ever was, and
names that folder. Adding it is the commit: whatever happens before leaves files that no manifest names.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from cairn.errors import CorruptFileError, InternalError
from cairn.logs import get_logger
from cairn.model.manifest import Manifest, OperatorState, StateHandle
from cairn.restore.log_agreement import spark_batches, spark_folders
from cairn.restore.restore_plan import RestorePlan
from cairn.restore.source_logs import (
    COMPACT_INTERVAL,
    RestoredLogs,
    StoredSources,
    build_spark_folder,
    copy_sources,
    lost_files,
    positions_of,
    rearranged,
)
from cairn.restore.source_matching import match_sources
from cairn.restore.spark_logs import commit_batch
from cairn.snapshots.snapshot import Snapshot
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import JobIdentity, ManifestStore
from cairn.storage.run_records import RunRecord, Runs
from cairn.storage.state_file import handed_over
from cairn.storage.state_owner import Writer

_log = get_logger("cairn.checkpoint")


@dataclass(frozen=True, slots=True)
class Restore:
    """A snapshot that is to become the newest epoch of a job."""

    snapshot: Snapshot
    files: LocalFileSystem
    """The job's directory."""
    identity: JobIdentity
    plan: RestorePlan | None = None
    """How the snapshot is brought into the job; without a plan everything is taken as it is."""
    compact_interval: int = COMPACT_INTERVAL

    @property
    def same_directory(self) -> bool:
        """Whether the snapshot is a checkpoint of this directory."""
        return self.snapshot.checkpoint is not None and self.snapshot.files.root == self.files.root

    @property
    def same_job(self) -> bool:
        """Whether this very job made the snapshot."""
        incarnation = self.snapshot.incarnation
        return self.same_directory or (bool(incarnation) and incarnation == self.identity.incarnation)

    def target(self, uid: str) -> str | None:
        """The uid in the job of an operator of the snapshot; None if the job does not take its state."""
        if self.plan is None:
            return uid
        return next((operator.uid for operator in self.plan.operators if operator.stored.uid == uid), None)

    def arranged(self, offsets: str) -> str:
        """An entry of the snapshot's offset log for the sources of the job."""
        if self.plan is None:
            return offsets
        return rearranged(offsets, self.plan.sources, self.snapshot.time_ms)


@dataclass(frozen=True, slots=True)
class BroughtState:
    """State files that a restore has written into the job's directory, by the uids of the job."""

    moved: Mapping[str, list[StateHandle]] = field(default_factory=dict)
    """Chains that were written anew: all state of a savepoint, changed state of a checkpoint."""
    carried: Mapping[str, list[StateHandle]] = field(default_factory=dict)
    """Chains of a checkpoint that are taken as they are."""


def last_origin(files: LocalFileSystem) -> str:
    """The snapshot that the job was last restored from, by its newest readable manifest; empty if there is none."""
    manifest = ManifestStore(files).newest()
    return manifest.origin if manifest is not None else ""


def check_sources(snapshot: Snapshot, plan: RestorePlan | None, interval: int) -> None:
    """Raise what copying the logs of the sources will raise, before a run that works is stopped."""
    with tempfile.TemporaryDirectory(prefix="cairn-restore-") as folder:
        sources = None if plan is None else plan.sources
        copy_sources(_stored_sources(snapshot), os.path.join(folder, layout.SOURCES), sources, interval)


def _stored_sources(snapshot: Snapshot) -> StoredSources:
    return StoredSources(snapshot.sources, snapshot.in_flight or snapshot.offsets, snapshot.source_names)


def next_epoch(snapshot: Snapshot, files: LocalFileSystem) -> int:
    """The epoch of a restore: above every one of this directory, and above those that files and list segments carry."""
    used = [snapshot.epoch, *ManifestStore(files).epochs()]
    for name in spark_folders(files):
        used += [*spark_batches(files.root, layout.OFFSETS, name), *spark_batches(files.root, layout.COMMITS, name)]
    if not ManifestStore(files).epochs():  # they may be lost, and Spark's logs with them
        used += [checkpoint.manifest.epoch for checkpoint in CheckpointStore(files).all()]
    return 1 + max(used)


def refuse_lost_files(snapshot: Snapshot, files: LocalFileSystem) -> None:
    """Refuse to go back in place if files that would be read again are known to be gone."""
    if not snapshot.offsets:
        return
    manifest = ManifestStore(files).newest()
    if manifest is None:
        return
    stored, offsets = snapshot.source_names, snapshot.offsets
    if stored and manifest.source_names:  # the sources may have other numbers now
        plan = match_sources(stored, len(positions_of(offsets)), manifest.source_names, drop=True)
        offsets = rearranged(offsets, plan, snapshot.time_ms)
    folder = os.path.join(files.root, manifest.spark, layout.SOURCES)
    lost = lost_files(StoredSources(folder, offsets, manifest.source_names))
    if lost:
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        raise CorruptFileError(
            f"the job cannot be restored from {snapshot.path}: its file source has since read {len(lost)} file(s) that "
            f"no longer exist: {shown}. Their rows would be lost silently. Restore the files, or start from "
            "a newer snapshot; nothing was changed.",
            files=lost,
        )


def publish_restored(restore: Restore, run: RunRecord, epoch: int, state: BroughtState) -> Manifest:
    """Make a snapshot that was found intact the newest epoch of a job's directory; returns its manifest."""
    files, snapshot = restore.files, restore.snapshot
    manifest = _manifest(restore, run, epoch, state)
    in_flight = restore.arranged(snapshot.in_flight) if snapshot.in_flight else ""
    build_spark_folder(
        os.path.join(files.root, manifest.spark),
        RestoredLogs(epoch, manifest.offsets, in_flight, manifest.abandoned),
        _stored_sources(snapshot),
        None if restore.plan is None else restore.plan.sources,
        restore.compact_interval,
    )
    Runs(files).check(run.run)  # a newer run may continue from the epoch before, which must stay the newest then
    try:
        ManifestStore(files).publish(manifest)
    except FileExistsError:
        Runs(files).check(run.run)
        raise InternalError(f"epoch {epoch} of the job in {files.root} came to be while it was restored") from None
    Runs(files).check(run.run)  # a newer run may have read the history before this epoch was there
    finish(files, manifest)
    _log.warning(
        "Restoring job %s from %s %d located at %s, epoch %d, as epoch %d.",
        restore.identity.job_id, snapshot.kind.capitalize(), snapshot.metadata.id, snapshot.path, snapshot.epoch, epoch,
    )  # fmt: skip
    return manifest


def _manifest(restore: Restore, run: RunRecord, epoch: int, state: BroughtState) -> Manifest:
    snapshot, plan, checkpoint = restore.snapshot, restore.plan, restore.snapshot.checkpoint
    files = restore.files
    in_place = restore.same_directory or bool(ManifestStore(files).epochs() or CheckpointStore(files).numbers())
    lineage = {}
    if restore.same_directory and checkpoint is not None:
        lineage = {**checkpoint.manifest.lineage, checkpoint.manifest.epoch: checkpoint.manifest.commit_id}
    return Manifest(
        job_id=restore.identity.job_id,
        incarnation=restore.identity.incarnation,
        epoch=epoch,
        commit_id=uuid.uuid4().hex[:16],
        run=run.run,
        parent=snapshot.epoch if restore.same_directory else -1,
        max_parallelism=snapshot.max_parallelism,
        offsets=restore.arranged(snapshot.offsets),
        watermark=snapshot.metadata.watermark,
        time_ms=snapshot.time_ms,
        time_reset_ms=snapshot.time_reset_ms,
        operators=[*_moved_operators(restore, epoch, state), *_carried_operators(restore, epoch, state)],
        sinks=[],
        lineage=lineage,
        restored=max(1, snapshot.metadata.id),
        spark=layout.restored_spark(epoch, run.run),
        source_names=list(snapshot.source_names) if plan is None else [m.name for m in plan.sources.matches],
        abandoned=[*_restores(restore), (snapshot.epoch if restore.same_job else -1, epoch)] if in_place else [],
        origin=snapshot.origin if plan is not None else checkpoint.manifest.origin if checkpoint is not None else "",
    )


def _restores(restore: Restore) -> list[tuple[int, int]]:
    """The restores in place so far. A checkpoint of this job knows those before it, in case manifests are lost."""
    restores = set(ManifestStore(restore.files).restores())
    if restore.same_job and restore.snapshot.checkpoint is not None:
        restores.update(restore.snapshot.checkpoint.manifest.abandoned)
    return sorted(restores, key=lambda pair: pair[1])


def _moved_operators(restore: Restore, epoch: int, state: BroughtState) -> list[OperatorState]:
    """Operators whose state was written anew."""
    return [
        OperatorState(
            uid=wanted.uid,
            name=wanted.stored.name,
            parallelism=wanted.stored.parallelism,  # the first epoch redistributes the state of subtasks
            key_type=wanted.stored.key_type,
            states=[planned.becomes for planned in wanted.states],
            chain=list(state.moved[wanted.uid]),
            base=epoch,  # working stores hold the old form
        )
        for wanted in (restore.plan.operators if restore.plan is not None else ())
        if wanted.uid in state.moved
    ]


def _carried_operators(restore: Restore, epoch: int, state: BroughtState) -> list[OperatorState]:
    """Operators of a checkpoint whose chains are taken as they are."""
    operators: list[OperatorState] = []
    checkpoint = restore.snapshot.checkpoint
    for operator in checkpoint.manifest.operators if checkpoint is not None else ():
        target = restore.target(operator.uid)
        if target is None or target in state.moved:
            continue
        states = operator.states
        if restore.plan is not None and (planned := restore.plan.operator(target)) is not None:
            states = [changed.becomes for changed in planned.states]  # the length of a TTL may have changed
        kept = restore.same_directory and target == operator.uid
        operators.append(
            msgspec.structs.replace(
                operator,
                uid=target,
                states=states,
                chain=list(state.carried[target]),
                base=operator.base if kept else epoch,
            )
        )
    return operators


def finish(files: LocalFileSystem, manifest: Manifest) -> None:
    """Commit the batch of a restored epoch in Spark's log.

    This comes after the manifest: a commit in Spark's log proves that there was one, so a lost manifest is noticed.
    """
    if manifest.restored and layout.spark_epoch(manifest.spark) == manifest.epoch:
        commit_batch(os.path.join(files.root, manifest.spark), manifest.epoch, manifest.watermark)


def carry(restore: Restore, run: int, moved: Mapping[str, list[StateHandle]]) -> dict[str, list[StateHandle]]:
    """The chains of a checkpoint as the restored job names them, by the job's uids; copies files where needed.

    Called before the job is taken over: storage that is full must not stop a run that works.
    """
    checkpoint, identity = restore.snapshot.checkpoint, restore.identity
    if checkpoint is None:
        return {}
    own = restore.same_directory and checkpoint.manifest.incarnation == identity.incarnation
    chains = {}
    for operator in checkpoint.manifest.operators:
        target = restore.target(operator.uid)
        if target is not None and target not in moved:
            kept = own and target == operator.uid
            writer = Writer(identity.job_id, identity.incarnation, target, run)
            chains[target] = [
                handle if kept and _is_shared(handle) else _copied(restore, writer, operator.uid, handle)
                for handle in operator.chain
            ]
    return chains


def _is_shared(handle: StateHandle) -> bool:
    return handle.path.startswith(f"{layout.SHARED}/")


def _copied(restore: Restore, writer: Writer, uid: str, handle: StateHandle) -> StateHandle:
    """Copy a state file. The copy names the restored job as its owner."""
    snapshot = restore.snapshot
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
    restore.files.create(path, data)
    return msgspec.structs.replace(handle, path=path, size=len(data))
