"""State files that Spark tasks write beside the stream: merged chains, and the snapshots of full checkpoints."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from cairn.coordinator.checkpoint_statistics import by_subtask
from cairn.coordinator.compactor import ranges_of
from cairn.errors import CheckpointFailedError
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import Manifest, OperatorState, StateHandle
from cairn.snapshots.compact_task import compact_range
from cairn.spark.background_tasks import Background

_CompactWork = tuple[str, int, int, bytes, int, int, int, int]
"""The argument of `compact_range`."""


def compaction_job(background: Background, job_dir: str, run: int) -> Any:
    """The function by which a `Compactor` merges chains: Spark tasks in the background, a range of key groups each."""

    def job(manifest: Manifest, operator: OperatorState, ranges: Sequence[KeyGroupRange]) -> list[StateHandle]:
        work = _compact_work(job_dir, manifest, operator, ranges, run, 0)
        group, description = f"cairn-compaction-{run}", f"cairn compaction of {operator.uid}"
        return _handles(background.run(compact_range, work, group, description))

    return job


def _compact_work(
    job_dir: str, manifest: Manifest, operator: OperatorState, ranges: Sequence[KeyGroupRange], run: int, number: int
) -> list[_CompactWork]:
    """The arguments of `compact_range`, by range. `number`: the checkpoint of the snapshots, or 0."""
    chain = msgspec.msgpack.encode(operator)
    return [(job_dir, manifest.epoch, manifest.time_ms, chain, r.start, r.end, run, number) for r in ranges]


def _handles(portions: Sequence[Sequence[bytes]]) -> list[StateHandle]:
    return [msgspec.msgpack.decode(raw, type=StateHandle) for portion in portions for raw in portion]


class SparkSnapshots:
    """Writes the snapshots of full checkpoints in the background, on a thread and in a job group of its own.

    The coordinator's thread calls all methods. Each checkpoint has a thread that writes its snapshots, and the threads
    of `Background` report finished pieces; what they share with the coordinator is guarded by one lock.
    """

    def __init__(self, spark: SparkSession, background: Background, job_dir: str, run: int) -> None:
        self._spark = spark
        self._background = background
        self._job_dir = job_dir
        self._run = run
        self._token = f"{run}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        self._in_progress: dict[int, _CheckpointSnapshots] = {}
        self._spent: dict[int, dict[tuple[str, int], float]] = {}

    def start(
        self, number: int, manifest: Manifest, done: Callable[[dict[str, list[StateHandle]] | Exception], None]
    ) -> None:
        """Write the snapshots of a checkpoint. `done` is called on another thread, with the handles or the error."""
        snapshots = _CheckpointSnapshots(number, manifest)
        with self._lock:
            self._in_progress[number] = snapshots

        def work() -> None:
            try:
                handles = {operator.uid: self._write(snapshots, operator) for operator in manifest.operators}
                with self._lock:
                    if snapshots.canceled:
                        raise CheckpointFailedError(f"checkpoint {number} was given up", checkpoint=number)
                    self._spent[number] = snapshots.spent()
            except Exception as error:  # noqa: BLE001 - the coordinator decides what a failed checkpoint means
                done(error)
            else:
                done(handles)
            finally:
                with self._lock:
                    self._in_progress.pop(number, None)

        threading.Thread(target=work, name=f"cairn-snapshot-{number}", daemon=True).start()

    def _write(self, snapshots: _CheckpointSnapshots, operator: OperatorState) -> list[StateHandle]:
        if not operator.chain:
            return []
        number, manifest = snapshots.number, snapshots.manifest
        ranges = ranges_of(operator, manifest.max_parallelism)

        def finished(piece: int) -> None:
            with self._lock:
                snapshots.cover(operator.uid, ranges[piece])

        work = _compact_work(self._job_dir, manifest, operator, ranges, self._run, number)
        group, description = self._group(number), f"cairn checkpoint {number}"
        pieces = self._background.run(compact_range, work, group, description, finished, lambda: snapshots.canceled)
        return _handles(pieces)

    def written(self, number: int) -> list[tuple[str, int]]:
        """The operators and subtasks whose key groups the snapshots cover completely so far."""
        with self._lock:
            snapshots = self._in_progress.get(number)
            return snapshots.covered_subtasks() if snapshots is not None else []

    def spent(self, number: int) -> dict[tuple[str, int], float]:
        """By operator and subtask, the milliseconds until its part of a checkpoint was durable. Can be read once."""
        with self._lock:
            return self._spent.pop(number, {})

    def cancel(self, number: int) -> None:
        with self._lock:
            snapshots = self._in_progress.get(number)
            if snapshots is not None:
                snapshots.canceled = True
            self._spent.pop(number, None)
        self._spark.sparkContext.cancelJobGroup(self._group(number))

    def _group(self, number: int) -> str:
        return f"cairn-checkpoint-{self._token}-{number}"


@dataclass
class _CheckpointSnapshots:
    """The snapshots of a full checkpoint while they are written. Guarded by the lock of `SparkSnapshots`."""

    number: int
    manifest: Manifest
    canceled: bool = False
    covered: dict[str, dict[int, float]] = field(default_factory=dict)
    """The key groups of each operator that are written, and after how many milliseconds they were."""
    since: float = field(default_factory=time.monotonic)

    def cover(self, uid: str, groups: KeyGroupRange) -> None:
        elapsed = (time.monotonic() - self.since) * 1000
        self.covered.setdefault(uid, {}).update(dict.fromkeys(range(groups.start, groups.end + 1), elapsed))

    def covered_subtasks(self) -> list[tuple[str, int]]:
        return [
            (operator.uid, index)
            for operator in self.manifest.operators
            for index in range(operator.parallelism)
            if not operator.chain or self._groups(operator, index) <= self.covered.get(operator.uid, {}).keys()
        ]

    def _groups(self, operator: OperatorState, index: int) -> set[int]:
        owned = key_group_range(index, operator.parallelism, self.manifest.max_parallelism)
        return set(range(owned.start, owned.end + 1))

    def spent(self) -> dict[tuple[str, int], float]:
        groups = self.manifest.max_parallelism
        spent: dict[tuple[str, int], float] = {}
        for operator in self.manifest.operators:
            spent |= by_subtask(self.covered.get(operator.uid, {}), operator.uid, operator.parallelism, groups)
        return spent
