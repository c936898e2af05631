"""Statistics of a checkpoint by operator and subtask, from the chain of its files and what the tasks measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cairn.errors import CheckpointFailedError
from cairn.model.checkpoint_records import OperatorStats, SubtaskStats
from cairn.model.keygroups import key_group_range
from cairn.model.manifest import Manifest, OperatorState, StateHandle, TaskMetrics

Tasks = Sequence[tuple[str, int, TaskMetrics]]
"""Operator, subtask and metrics of the tasks of an epoch."""


@dataclass(frozen=True)
class Insight:
    """What the coordinator can learn about the running job. The defaults know nothing.

    Threads: the functions are called from any thread, by whoever looks at a checkpoint in progress.
    """

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
        """The subtasks that are done: in the epoch that is waited for, in a cut, or in a snapshot (its number)."""
        if writing:
            metrics = {(uid, subtask): of_task for uid, subtask, of_task in cut or ()}
            tasks: Tasks = [(uid, i, metrics.get((uid, i), TaskMetrics())) for uid, i in self.written(writing)]
        elif cut is not None:
            tasks = cut
        else:
            tasks = self.acknowledged(running) if running >= 0 else ()
        return in_progress(self.operators, tasks, trigger_ms)


def at_rest(tasks: Tasks, trigger_ms: int) -> Tasks:
    """The tasks of an epoch that was durable before a checkpoint was triggered: they had nothing more to do for it,
    and count as having acknowledged it at once."""
    return [
        (uid, subtask, msgspec.structs.replace(metrics, began_ms=0, ended_ms=trigger_ms, times={}, stage=-1))
        for uid, subtask, metrics in tasks
    ]


def in_progress(operators: Sequence[tuple[str, str, int]], tasks: Tasks, trigger_ms: int) -> list[OperatorStats]:
    """What is known while a checkpoint runs: for each operator (uid, name, parallelism) the subtasks that are done."""
    stats = []
    for uid, name, parallelism in operators:
        metrics = {subtask: of_task for owner, subtask, of_task in tasks if owner == uid}
        done = [_subtask(index, metrics[index], trigger_ms, 0.0) for index in sorted(metrics) if index < parallelism]
        stats.append(OperatorStats(uid, name, done, parallelism))
    return stats


def _subtask(index: int, metrics: TaskMetrics, trigger_ms: int, alignment_ms: float) -> SubtaskStats:
    """What a task measured itself. It does not know sizes."""
    return SubtaskStats(
        index=index,
        ack_ms=max(metrics.ended_ms, trigger_ms) if metrics.ended_ms else 0,
        start_delay_ms=max(0, metrics.began_ms - trigger_ms) if metrics.began_ms else 0,
        alignment_ms=alignment_ms,
        sync_ms=metrics.times.get("drain", 0.0) + metrics.times.get("delta", 0.0),
        records=metrics.rows_in,
    )


@dataclass(frozen=True)
class Measurements:
    """What is known about the work of a completed checkpoint."""

    tasks: Tasks
    """The tasks of the epoch at which it was cut."""
    trigger_ms: int
    full: bool
    async_ms: float
    """How long its snapshot took as a whole."""
    previous_epoch: int
    """The epoch of the checkpoint before it, -1 if there is none."""
    alignment: Mapping[str, float] = field(default_factory=dict)
    """By operator, the milliseconds that it waited for the last of its rows."""
    spent: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """By operator and subtask, the milliseconds that its snapshot took; empty if that was not measured."""
    sizes: Mapping[tuple[str, int], int] | None = None
    """By operator and subtask, the bytes in a savepoint; None where the files are those of the job's state."""


def operator_stats(operator: OperatorState, groups: int, measured: Measurements) -> OperatorStats:
    """One operator's part in a checkpoint of a job with so many key groups."""
    metrics = {subtask: of_task for uid, subtask, of_task in measured.tasks if uid == operator.uid}
    alignment_ms = measured.alignment.get(operator.uid, 0.0)
    subtasks = []
    for index in range(operator.parallelism):
        handles = handles_of(operator, index, groups)
        fresh = handles
        if not measured.full:
            fresh = [handle for handle in handles if handle.epoch > measured.previous_epoch and not handle.snapshot]
        stats = _subtask(index, metrics.get(index, TaskMetrics()), measured.trigger_ms, alignment_ms)
        writing = measured.spent.get((operator.uid, index), 0.0) if measured.spent else measured.async_ms
        written, held = sum(handle.size for handle in fresh), sum(handle.size for handle in handles)
        if measured.sizes is not None:
            written = held = measured.sizes.get((operator.uid, index), 0)
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
    """Refuse state that is too large for the driver to hold."""
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
    """After how many milliseconds all key groups of each subtask were written, given that of each key group."""
    latest = {}
    for index in range(parallelism):
        owned = key_group_range(index, parallelism, groups)
        last = max((ended.get(group, 0.0) for group in range(owned.start, owned.end + 1)), default=0.0)
        latest[uid, index] = float(round(last))
    return latest


def handles_of(operator: OperatorState, index: int, groups: int) -> list[StateHandle]:
    """The files that begin in a subtask's key groups, so that each is counted once."""
    owned = key_group_range(index, operator.parallelism, groups)
    return [handle for handle in operator.chain if owned.start <= handle.first_group <= owned.end]
