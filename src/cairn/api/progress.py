"""What the checkpoint coordinator learns of a running epoch from Spark: who has acknowledged, and how long it aligned.

Nothing here is done by the stream's thread, and nothing in an epoch that no checkpoint asks about.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from cairn.coordinator.statistics import Tasks
from cairn.model.manifest import TaskAck

_log = logging.getLogger("cairn.checkpoint")
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
        found = {}
        for raw in list(self._acks.value):
            ack = msgspec.msgpack.decode(raw, type=TaskAck)
            if (ack.epoch, ack.run) == (epoch, self._run):
                found[ack.uid, ack.subtask] = ack.metrics
        return [(uid, subtask, metrics) for (uid, subtask), metrics in found.items()]

    def alignment(self, tasks: Tasks) -> dict[str, float]:
        """Milliseconds between the ends of the first and the last upstream task, by operator.

        A subtask begins when every task of the stages that it reads from has ended: Spark hands a shuffle on as a
        whole. So the wait is the same for all subtasks of a stage, and Spark knows it to the millisecond. The stages
        read from are those numbered right before the operator's own; that they are is checked by the rows that were
        written and read. Where it cannot be told, the operator is left out.
        """
        by_stage: dict[int, set[str]] = {}
        for uid, _, metrics in tasks:
            by_stage.setdefault(metrics.stage, set()).add(uid)
        found = {}
        try:
            store = self._spark.sparkContext._jsc.sc().statusStore()
            for stage, uids in by_stage.items():
                waited = between_ends(store, stage, len(uids)) if stage > 0 else None
                if waited is not None:
                    found.update(dict.fromkeys(uids, waited))
        except Exception as error:  # noqa: BLE001 - a statistic is not worth a checkpoint
            _log.debug("alignment times cannot be told: %s", error)
        return found


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
