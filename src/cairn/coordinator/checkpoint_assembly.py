"""Puts a completed checkpoint together from its cut, its snapshots and what the tasks measured."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from cairn.config import CheckpointSettings
from cairn.coordinator.checkpoint_statistics import Insight, Measurements, check_sizes, operator_stats
from cairn.coordinator.pending_checkpoint import PendingCheckpoint
from cairn.coordinator.ports import JobFacts, WrittenSavepoint
from cairn.errors import InternalError
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus
from cairn.model.manifest import Manifest
from cairn.storage.manifest_store import ManifestStore


@dataclass(frozen=True)
class CheckpointAssembly:
    """What every checkpoint of a run is put together with.

    Threads: used by the thread that does the coordinator's work, without the lock: it reads manifests.
    """

    settings: CheckpointSettings
    facts: JobFacts
    manifests: ManifestStore
    insight: Insight

    def assembled(self, pending: PendingCheckpoint, now_ms: int, previous_epoch: int) -> Checkpoint:
        """The checkpoint as its `_metadata` holds it; `previous_epoch` is that of the checkpoint before it."""
        manifest = with_snapshots(pending)
        inlined = {epoch: self.manifests.load(epoch).inlined for epoch in manifest.inline_epochs() - {manifest.epoch}}
        if self.settings.storage == "jobmanager":
            check_sizes(manifest, self.settings.max_state_size)
        measured = Measurements(
            pending.tasks,
            pending.trigger_ms,
            pending.request.full,
            pending.async_ms,
            previous_epoch,
            self.insight.alignment(pending.tasks),
            self.insight.spent(pending.number),
        )
        path = f"{self.manifests.files.root}/chk-{pending.number}"
        return Checkpoint(
            id=pending.number,
            job_id=self.facts.job_id,
            name=self.facts.name,
            run=self.facts.run,
            manifest=manifest,
            info=_completed_info(pending, manifest, path, now_ms, measured),
            in_flight=pending.in_flight,
            inlined=inlined,
        )


def with_snapshots(pending: PendingCheckpoint) -> Manifest:
    """The manifest of the cut, with the snapshots of a full checkpoint in place of the chains."""
    manifest = pending.manifest
    if manifest is None:
        raise InternalError(f"checkpoint {pending.number} has no cut")
    if pending.snapshots is None:
        return manifest
    operators = [
        msgspec.structs.replace(operator, chain=list(pending.snapshots[operator.uid]))
        for operator in manifest.operators
    ]
    return msgspec.structs.replace(manifest, operators=operators, inlined={})


def savepoint_info(
    pending: PendingCheckpoint, manifest: Manifest, written: WrittenSavepoint, now_ms: int
) -> CheckpointInfo:
    """The statistics of a completed savepoint."""
    measured = Measurements(
        pending.tasks,
        pending.trigger_ms,
        pending.request.full,
        pending.async_ms,
        previous_epoch=-1,
        spent=written.spent,
        sizes=written.sizes,
    )
    info = _completed_info(pending, manifest, written.path, now_ms, measured)
    return msgspec.structs.replace(info, savepoint_bytes=written.size)


def _completed_info(
    pending: PendingCheckpoint, manifest: Manifest, path: str, now_ms: int, measured: Measurements
) -> CheckpointInfo:
    return msgspec.structs.replace(
        pending.info(CheckpointStatus.COMPLETED),
        end_ms=now_ms,
        path=path,
        in_flight_bytes=len(pending.in_flight.encode()),
        operators=[operator_stats(operator, manifest.max_parallelism, measured) for operator in manifest.operators],
    )
