"""What refuses a restore besides what the plan compares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cairn.config import Settings
from cairn.errors import CairnError, CorruptFileError, IncompatibleStateError, InvalidInputError, StorageError
from cairn.restore.claims import check_claim
from cairn.restore.damage import snapshot_damage
from cairn.restore.log_agreement import remains
from cairn.restore.restore_plan import RestorePlan
from cairn.restore.restored_epoch import check_sources, refuse_lost_files
from cairn.snapshots.snapshot import Snapshot
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import JobIdentity, ManifestStore


@dataclass(frozen=True, slots=True)
class PlannedRestore:
    """A restore before anything is changed: the plan, and the job that it is for."""

    files: LocalFileSystem
    identity: JobIdentity | None
    """None if the directory holds no job yet."""
    name: str
    settings: Settings
    plan: RestorePlan
    compact_interval: int

    @property
    def snapshot(self) -> Snapshot:
        return self.plan.snapshot


def obstacles(planned: PlannedRestore) -> Iterator[CairnError]:
    """Everything that refuses the restore. Nothing is created. Storage that fails raises its error."""
    files, identity, snapshot = planned.files, planned.identity, planned.snapshot
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_directory(files, identity, planned.name),
        lambda: check_groups(identity, planned.plan.max_parallelism),
        lambda: check_claim(snapshot, planned.settings.claim_mode, identity, files),
        lambda: _check_use(planned),
        lambda: _check_damage(snapshot),
        lambda: check_sources(snapshot, planned.plan, planned.compact_interval),
    )
    for check in checks:
        try:
            check()
        except StorageError:
            raise
        except CairnError as error:
            yield error


def check_directory(files: LocalFileSystem, identity: JobIdentity | None, name: str) -> None:
    """The directory is that of the job, or empty."""
    if identity is not None and identity.name != name:
        raise InvalidInputError(
            f"{files.root} belongs to the job '{identity.name}', not to '{name}'; choose another name, or set "
            "pipeline.job-id",
            path=files.root,
        )
    entries = os.listdir(files.root) if identity is None and os.path.isdir(files.root) else []
    if any(not entry.endswith(".tmp") for entry in entries):
        raise InvalidInputError(
            f"{files.root} is not empty and holds no cairn job; choose another job name or directory, or move what is "
            "there away",
            path=files.root,
        )


def check_groups(identity: JobIdentity | None, max_parallelism: int) -> None:
    """The number of key groups is that of the job."""
    if identity is not None and identity.max_parallelism != max_parallelism:
        raise IncompatibleStateError(
            f"Max parallelism mismatch: job '{identity.name}' was started with {identity.max_parallelism} key groups, "
            f"which is fixed for its life; this run asks for {max_parallelism}. Call "
            f"set_max_parallelism({identity.max_parallelism}).",
            stored=identity.max_parallelism,
        )


def _check_use(planned: PlannedRestore) -> None:
    """A directory that was used takes its own snapshots only, and only if the input since then is still there."""
    files, identity, snapshot = planned.files, planned.identity, planned.snapshot
    if identity is None or not (ManifestStore(files).epochs() or remains(files)):
        return
    in_place = snapshot.checkpoint is not None and snapshot.files.root == files.root
    same_job = snapshot.savepoint is not None and snapshot.metadata.job_id == identity.job_id
    if not in_place and not same_job:
        raise InvalidInputError(
            f"{files.root} holds a job already, and {planned.settings.restore_path} belongs to another one: restore it "
            "under a job name (or pipeline.job-id) that was not used before",
            path=files.root,
        )
    if in_place or (snapshot.incarnation and snapshot.incarnation == identity.incarnation):
        refuse_lost_files(snapshot, files)


def _check_damage(snapshot: Snapshot) -> None:
    damage = snapshot_damage(snapshot)
    if damage:
        raise CorruptFileError(
            f"{snapshot.kind} {snapshot.path} cannot be restored: {damage}. Nothing was changed; choose another one.",
            path=snapshot.path,
        )
