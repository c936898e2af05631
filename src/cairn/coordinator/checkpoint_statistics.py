"""What a checkpoint tells of its subtasks, worked out from the chain of its files and what the tasks measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from cairn.errors import CheckpointFailedError
from cairn.model.checkpoint_records import OperatorStats, SubtaskStats
from cairn.model.keygroups import key_group_range
from cairn.model.manifest import Manifest, OperatorState, StateHandle, TaskMetrics

Tasks = Sequence[tuple[str, int, TaskMetrics]]
"""Operator, subtask and metrics of the tasks of an epoch."""


@dataclass(frozen=True)
class Insight:
    """What the coordinator can ask of the running job. The defaults know nothing."""

    operators: Sequence[tuple[str, str, int]] = ()
    """Uid, name and parallelism of each operator."""
    acknowledged: Callable[[int], Tasks] = lambda epoch: ()
    """The tasks of a running epoch that have acknowledged so far."""
    written: Callable[[int], Sequence[tuple[str, int]]] = lambda number: ()
    """Of a full checkpoint that is being written: the operators and subtasks all of whose state is durable."""
    alignment: Callable[[Tasks], Mapping[str, float]] = lambda tasks: {}
    """For tasks of an epoch: by operator, the milliseconds between the ends of its first and last upstream task."""
    spent: Callable[[int], Mapping[tuple[str, int], float]] = lambda number: {}
    """Of a full checkpoint that is written: by operator and subtask, the milliseconds until all its state was durable.
    Empty if that was not measured."""

    def progress(self, running: int, cut: Tasks | None, writing: int, trigger_ms: int) -> list[OperatorStats]:
        """Who has done his part: in the epoch that is waited for, in a cut that is made, in a snapshot (its number)."""
        if writing:
            told = {(uid, subtask): metrics for uid, subtask, metrics in cut or ()}
            tasks: Tasks = [(uid, i, told.get((uid, i), TaskMetrics())) for uid, i in self.written(writing)]
        elif cut is not None:
            tasks = cut
        else:
            tasks = self.acknowledged(running) if running >= 0 else ()
        return in_progress(self.operators, tasks, trigger_ms)


def at_rest(tasks: Tasks, trigger_ms: int) -> Tasks:
    """The tasks of an epoch that was durable before a checkpoint was triggered. For that they did nothing more: they
    have acknowledged it at once."""
    return [
        (uid, subtask, msgspec.structs.replace(told, began_ms=0, ended_ms=trigger_ms, times={}, stage=-1))
        for uid, subtask, told in tasks
    ]


def in_progress(operators: Sequence[tuple[str, str, int]], tasks: Tasks, trigger_ms: int) -> list[OperatorStats]:
    """What is known while a checkpoint runs: for each operator (uid, name, parallelism) the subtasks that are done."""
    found = []
    for uid, name, parallelism in operators:
        told = {subtask: metrics for owner, subtask, metrics in tasks if owner == uid}
        done = [_subtask(index, told[index], trigger_ms, 0.0) for index in sorted(told) if index < parallelism]
        found.append(OperatorStats(uid, name, done, parallelism))
    return found


def _subtask(index: int, told: TaskMetrics, trigger_ms: int, alignment_ms: float) -> SubtaskStats:
    """What a task told of itself; sizes are not known to it."""
    return SubtaskStats(
        index=index,
        ack_ms=max(told.ended_ms, trigger_ms) if told.ended_ms else 0,
        start_delay_ms=max(0, told.began_ms - trigger_ms) if told.began_ms else 0,
        alignment_ms=alignment_ms,
        sync_ms=told.times.get("drain", 0.0) + told.times.get("delta", 0.0),
        records=told.rows_in,
    )


def operator_stats(
    operator: OperatorState,
    groups: int,
    tasks: Tasks,
    trigger_ms: int,
    full: bool,
    async_ms: float,
    before: int,
    alignment_ms: float = 0.0,
    spent: Mapping[tuple[str, int], float] | None = None,
    sizes: Mapping[tuple[str, int], int] | None = None,
) -> OperatorStats:
    """One operator's part in a checkpoint; `before` is the epoch of the checkpoint before it.

    `spent` has the milliseconds of each subtask's snapshot if they were measured, else `async_ms` holds for all.
    `sizes` are those of a savepoint's own files, where these are not the files of the job's state.
    """
    metrics = {subtask: told for uid, subtask, told in tasks if uid == operator.uid}
    subtasks = []
    for index in range(operator.parallelism):
        mine = handles_of(operator, index, groups)
        fresh = mine if full else [handle for handle in mine if handle.epoch > before and not handle.snapshot]
        told = metrics.get(index, TaskMetrics())
        stats = _subtask(index, told, trigger_ms, alignment_ms)
        writing = spent.get((operator.uid, index), 0.0) if spent else async_ms
        written, held = sum(handle.size for handle in fresh), sum(handle.size for handle in mine)
        if sizes is not None:
            written = held = sizes.get((operator.uid, index), 0)
        subtasks.append(
            msgspec.structs.replace(
                stats,
                ack_ms=stats.ack_ms + round(writing) if stats.ack_ms else 0,
                async_ms=writing,
                written_bytes=written,
                full_bytes=held,
            )
        )
    return OperatorStats(operator.uid, operator.name, subtasks, operator.parallelism)


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


def by_subtask(ended: Mapping[int, float], uid: str, parallelism: int, groups: int) -> dict[tuple[str, int], float]:
    """After how many milliseconds all key groups of each subtask were written, from when each of them was."""
    found = {}
    for index in range(parallelism):
        owned = key_group_range(index, parallelism, groups)
        last = max((ended.get(group, 0.0) for group in range(owned.start, owned.end + 1)), default=0.0)
        found[uid, index] = float(round(last))
    return found


def handles_of(operator: OperatorState, index: int, groups: int) -> list[StateHandle]:
    """The files that begin in a subtask's key groups, so that each is counted once."""
    owned = key_group_range(index, operator.parallelism, groups)
    return [handle for handle in operator.chain if owned.start <= handle.first_group <= owned.end]
