"""What Spark knows of epochs: which tasks have acknowledged, how long they aligned, how many rows the sources read.

Threads: used by the coordinator's thread and by those that show the job, never by the stream's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from cairn.coordinator.checkpoint_statistics import Tasks
from cairn.logs import get_logger
from cairn.model.manifest import TaskAck
from cairn.restore.source_matching import is_again

_log = get_logger("cairn.checkpoint")
_PATIENCE = 0.1
"""Seconds: Spark's own bookkeeping is a little behind its scheduler."""
_MOST_TASKS = 1000


class EpochProgress:
    """Reads the accumulator that tasks acknowledge to, and Spark's status store."""

    def __init__(self, spark: SparkSession, acks: Accumulator[list[bytes]], run: int) -> None:
        self._spark = spark
        self._acks = acks
        self._run = run

    def acknowledged(self, epoch: int) -> Tasks:
        """The tasks of the running epoch that have finished. Spark hands an acknowledgement on when its task ends."""
        metrics_of = {}
        for raw in list(self._acks.value):
            ack = msgspec.msgpack.decode(raw, type=TaskAck)
            if (ack.epoch, ack.run) == (epoch, self._run):
                metrics_of[ack.uid, ack.subtask] = ack.metrics
        return [(uid, subtask, metrics) for (uid, subtask), metrics in metrics_of.items()]

    def alignment(self, tasks: Tasks) -> dict[str, float]:
        """Milliseconds between the ends of the first and the last upstream task, by operator.

        A subtask begins when every task of the stages that it reads from has ended: Spark hands a shuffle on as a
        whole. So the wait is the same for all subtasks of a stage, and Spark knows it to the millisecond. The stages
        read from are those numbered right before the operator's own; that they are is checked by the rows that were
        written and read. An operator for which it is not known is left out.
        """
        by_stage: dict[int, set[str]] = {}
        for uid, _, metrics in tasks:
            by_stage.setdefault(metrics.stage, set()).add(uid)
        waits: dict[str, float] = {}
        try:
            store = self._spark.sparkContext._jsc.sc().statusStore()
            for stage, uids in by_stage.items():
                waited = between_ends(store, stage, len(uids)) if stage > 0 else None
                if waited is not None:
                    waits.update(dict.fromkeys(uids, waited))
        except Exception as error:  # noqa: BLE001 - a statistic is not worth a checkpoint
            _log.debug("alignment times are not known: %s", error)
        return waits


def between_ends(
    store: Any, stage: int, parents: int, clock: Callable[[], float] = time.monotonic, pause: float = 0.01
) -> float | None:
    """From the end of the first to the end of the last task of the stages that this one reads from; None if unknown.

    The last task of such a stage brings the rows that every subtask gets in every epoch, and has nothing to wait for:
    it is left out.
    """
    deadline = clock() + _PATIENCE
    own = store.lastStageAttempt(stage)
    while own.status().toString() != "COMPLETE" and clock() < deadline:
        time.sleep(pause)
        own = store.lastStageAttempt(stage)
    upstream = [store.lastStageAttempt(number) for number in range(stage - parents, stage) if number >= 0]
    if sum(data.shuffleWriteRecords() for data in upstream) != own.shuffleReadRecords():
        return None
    if sum(data.numTasks() for data in upstream) > _MOST_TASKS:
        return None
    ends: list[int] = []
    for data in upstream:
        tasks = store.taskList(data.stageId(), data.attemptId(), data.numTasks() * 2)
        finished = [task for task in map(tasks.apply, range(tasks.size())) if task.duration().isDefined()]
        ends += [
            task.launchTime().getTime() + task.duration().get()
            for task in finished
            if task.status() == "SUCCESS" and task.index() < data.numTasks() - 1
        ]
    return float(max(ends) - min(ends)) if ends else 0.0


class SourceRows:
    """Rows that the sources of a run bring, from the reports that Spark keeps of its newest batches."""

    def __init__(
        self, query: Any, names: Sequence[str], vertices: Sequence[tuple[str, str]], pause: float = 1.0
    ) -> None:
        """`names` are the sources in the order of Spark's positions, `vertices` ids and names in the job graph."""
        self._query = query
        self._places = places_of(names, vertices)
        self._pause = pause
        self._looked = -pause
        self._last: tuple[int, str] | None = None
        """Batch and time of the newest report that was read: one without rows may have the number of the next one."""

    def news(self, now: bool = False) -> Iterator[tuple[int, dict[str, int]]]:
        """Epochs that were reported since the last call, and the rows of their sources by vertex. At most once a second
        unless it must be `now`."""
        if not self._places or (not now and time.monotonic() - self._looked < self._pause):
            return
        self._looked = time.monotonic()
        try:
            fresh = self._read()
        except Exception as error:  # noqa: BLE001 - the JVM may be gone, and a number is not worth a job
            _log.debug("the rows of the sources are not known: %s", error)
            return
        yield from fresh

    def _read(self) -> list[tuple[int, dict[str, int]]]:
        newest = self._query._jsq.lastProgress()
        if newest is None or (int(newest.batchId()), str(newest.timestamp())) == self._last:
            return []
        fresh = []
        reports = self._query._jsq.recentProgress()
        for place in range(len(reports) - 1, -1, -1):
            report = reports[place]
            if (int(report.batchId()), str(report.timestamp())) == self._last:
                break
            sources = report.sources()
            rows = [int(sources[number].numInputRows()) for number in range(len(sources))]
            fresh.append((int(report.batchId()), {v: rows[at] for v, at in self._places.items() if at < len(rows)}))
        self._last = int(newest.batchId()), str(newest.timestamp())
        return [(epoch, rows) for epoch, rows in reversed(fresh) if any(rows.values())]


def places_of(names: Sequence[str], vertices: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Which of Spark's sources each vertex reads. Spark reports a source that is used twice only once; vertices of one
    name read those of that name in turn, or all the same if there are fewer."""
    reported = [name for name in names if not is_again(name)]
    places: dict[str, int] = {}
    for number, (vertex, name) in enumerate(vertices):
        same_name = [place for place, known in enumerate(reported) if known == name]
        turn = sum(1 for _, other in vertices[:number] if other == name)
        if same_name:
            places[vertex] = same_name[min(turn, len(same_name) - 1)]
    return places
