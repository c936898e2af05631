"""What a checkpoint tells of its subtasks, worked out from the chain of its files and what the tasks measured."""

from __future__ import annotations

from collections.abc import Sequence

from cairn.errors import CheckpointFailedError
from cairn.model.checkpoint import OperatorStats, SubtaskStats
from cairn.model.keygroups import key_group_range
from cairn.model.manifest import Manifest, OperatorState, StateHandle, TaskMetrics

Tasks = Sequence[tuple[str, int, TaskMetrics]]
"""Operator, subtask and metrics of the tasks of an epoch."""


def operator_stats(
    operator: OperatorState, groups: int, tasks: Tasks, trigger_ms: int, full: bool, async_ms: float, before: int
) -> OperatorStats:
    """One operator's part in a checkpoint; `before` is the epoch of the checkpoint before it."""
    metrics = {subtask: told for uid, subtask, told in tasks if uid == operator.uid}
    subtasks = []
    for index in range(operator.parallelism):
        mine = handles_of(operator, index, groups)
        fresh = mine if full else [handle for handle in mine if handle.epoch > before and not handle.snapshot]
        told = metrics.get(index, TaskMetrics())
        subtasks.append(
            SubtaskStats(
                index=index,
                ack_ms=told.ended_ms,
                start_delay_ms=max(0, told.began_ms - trigger_ms) if told.began_ms else 0,
                alignment_ms=told.times.get("fetch", 0.0),
                sync_ms=told.times.get("drain", 0.0) + told.times.get("delta", 0.0),
                async_ms=async_ms,
                written_bytes=sum(handle.size for handle in fresh),
                full_bytes=sum(handle.size for handle in mine),
                records=told.rows_in,
            )
        )
    return OperatorStats(operator.uid, operator.name, subtasks)


def check_sizes(manifest: Manifest, limit: int) -> None:
    """Refuse what the driver is not meant to hold."""
    for operator in manifest.operators:
        for index in range(operator.parallelism):
            held = sum(handle.size for handle in handles_of(operator, index, manifest.max_parallelism))
            if held > limit:
                raise CheckpointFailedError(
                    f"the state of operator '{operator.uid}', subtask {index}, takes {held} bytes, and "
                    f"JobManagerCheckpointStorage holds at most {limit} a state. Use FileSystemCheckpointStorage (set "
                    "execution.checkpointing.dir), or raise max_state_size.",
                    uid=operator.uid,
                    size=held,
                )


def handles_of(operator: OperatorState, index: int, groups: int) -> list[StateHandle]:
    """The files that begin in a subtask's key groups, so that each is counted once."""
    owned = key_group_range(index, operator.parallelism, groups)
    return [handle for handle in operator.chain if owned.start <= handle.first_group <= owned.end]
