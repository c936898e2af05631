"""Builds the manifest of an epoch from the one before it and the acknowledgements of the tasks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cairn.coordinator.acks import merged_states
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.epoch_time import watermark_of
from cairn.coordinator.offset_log import OffsetEntry
from cairn.coordinator.ports import OperatorPlan
from cairn.model.manifest import (
    EpochContext,
    Manifest,
    OperatorState,
    SinkCommittable,
    StateHandle,
    TaskAck,
    inline_key,
)
from cairn.storage import layout
from cairn.storage.manifest_store import JobIdentity

_LINEAGE = 256


@dataclass(frozen=True)
class ManifestBuilder:
    """What all manifests of a run have in common.

    Threads: used by the epoch loop's thread only.
    """

    identity: JobIdentity
    run: int
    operators: Sequence[OperatorPlan]
    source_names: Sequence[str]
    compactor: Compactor | None

    def build(
        self,
        parent: Manifest | None,
        context: EpochContext,
        entry: OffsetEntry,
        accepted: Mapping[str, Sequence[TaskAck]],
        committables: list[SinkCommittable],
    ) -> Manifest:
        operators = [self._operator_state(plan, parent, context, accepted[plan.uid]) for plan in self.operators]
        return Manifest(
            job_id=self.identity.job_id,
            incarnation=self.identity.incarnation,
            epoch=context.epoch,
            commit_id=uuid.uuid4().hex[:16],
            run=self.run,
            parent=context.parent,
            max_parallelism=self.identity.max_parallelism,
            offsets=entry.text,
            watermark=watermark_of(parent, entry),  # that of the sources, also when the job is drained
            time_ms=context.time_ms,
            time_reset_ms=context.time_reset_ms,
            operators=operators,
            sinks=committables,
            lineage=_lineage(parent, operators),
            inlined={
                inline_key(plan.uid, ack.handle.first_group): ack.inlined
                for plan in self.operators
                for ack in accepted[plan.uid]
                if ack.handle is not None and not ack.handle.path
            },
            source_names=list(self.source_names),
            spark=parent.spark if parent is not None else layout.SPARK,
            abandoned=parent.abandoned if parent is not None else [],
            origin=parent.origin if parent is not None else "",
        )

    def _operator_state(
        self, plan: OperatorPlan, parent: Manifest | None, context: EpochContext, acks: Sequence[TaskAck]
    ) -> OperatorState:
        before = parent.operator(plan.uid) if parent is not None else None
        chain = list(before.chain) if before is not None else []
        if self.compactor is not None:
            chain = self.compactor.shortened(plan.uid, chain, context.epoch)
        chain += [ack.handle for ack in acks if ack.handle is not None]
        return OperatorState(
            uid=plan.uid,
            name=plan.name,
            parallelism=plan.parallelism,
            key_type=acks[0].key_type,
            states=merged_states(acks),
            chain=chain,
            base=before.base if before is not None else context.parent,
        )


def _lineage(parent: Manifest | None, operators: Sequence[OperatorState]) -> dict[int, str]:
    """The commits from which a working store can still catch up: those since the oldest snapshot's cut."""
    if parent is None:
        return {}
    cut = min((_cut(op.chain) for op in operators), default=-1)
    known = {**parent.lineage, parent.epoch: parent.commit_id}
    return {epoch: known[epoch] for epoch in sorted(known)[-_LINEAGE:] if epoch >= cut}


def _cut(chain: Sequence[StateHandle]) -> int:
    return max((handle.epoch for handle in chain if handle.snapshot), default=-1)
