"""Puts together what a completed checkpoint keeps and tells, from its cut, its snapshots and what tasks measured."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cairn.config import CheckpointSettings
from cairn.coordinator.checkpoint_statistics import Insight, check_sizes, operator_stats
from cairn.coordinator.pending_checkpoint import Pending
from cairn.coordinator.ports import JobFacts
from cairn.errors import InternalError
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus
from cairn.model.manifest import Manifest
from cairn.storage.manifest_store import ManifestStore


def completed_info(
    pending: Pending,
    manifest: Manifest,
    path: str,
    now_ms: int,
    before: int,
    alignment: Mapping[str, float],
    spent: Mapping[tuple[str, int], float],
    sizes: Mapping[tuple[str, int], int] | None = None,
) -> CheckpointInfo:
    """What is told of a checkpoint that is complete; `before` is the epoch of the checkpoint before it, `alignment` has
    the milliseconds that each operator waited for its rows, `spent` those that each subtask's snapshot took, `sizes`
    the bytes of each subtask in a savepoint.
    """
    return msgspec.structs.replace(
        pending.info(CheckpointStatus.COMPLETED),
        end_ms=now_ms,
        path=path,
        in_flight_bytes=len(pending.in_flight.encode()),
        operators=[
            operator_stats(
                operator,
                manifest.max_parallelism,
                pending.tasks,
                pending.trigger_ms,
                pending.request.full,
                pending.async_ms,
                before,
                alignment.get(operator.uid, 0.0),
                spent,
                sizes,
            )
            for operator in manifest.operators
        ],
    )


def assembled(
    pending: Pending,
    settings: CheckpointSettings,
    facts: JobFacts,
    manifests: ManifestStore,
    now_ms: int,
    before: int,
    insight: Insight,
) -> Checkpoint:
    """The checkpoint as its `_metadata` holds it."""
    manifest = pending.manifest
    if manifest is None:
        raise InternalError(f"checkpoint {pending.number} has no cut")
    if pending.snapshots is not None:
        operators = [
            msgspec.structs.replace(operator, chain=list(pending.snapshots[operator.uid]))
            for operator in manifest.operators
        ]
        manifest = msgspec.structs.replace(manifest, operators=operators, inlined={})
    inlined = {}
    for epoch in manifest.inline_epochs() - {manifest.epoch}:
        inlined[epoch] = manifests.load(epoch).inlined
    if settings.storage == "jobmanager":
        check_sizes(manifest, settings.max_state_size)
    path = f"{manifests.files.root}/chk-{pending.number}"
    alignment, spent = insight.alignment(pending.tasks), insight.spent(pending.number)
    return Checkpoint(
        id=pending.number,
        job_id=facts.job_id,
        name=facts.name,
        run=facts.run,
        manifest=manifest,
        info=completed_info(pending, manifest, path, now_ms, before, alignment, spent),
        in_flight=pending.in_flight,
        inlined=inlined,
    )
