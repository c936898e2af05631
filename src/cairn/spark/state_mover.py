"""Moves the state of a snapshot into a job by short Spark tasks, each for a range of key groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cairn.errors import StorageError, from_traceback
from cairn.events import PROCESS_EVENTS, StateMoved
from cairn.logs import get_logger
from cairn.model.manifest import StateHandle
from cairn.restore.restore_plan import OperatorRestore, RestorePlan
from cairn.restore.state_move import Target, ranges, work_of
from cairn.snapshots.rewrite_task import rewrite_range
from cairn.snapshots.table_tasks import load_tables
from cairn.spark.background_tasks import POOL, POOL_PROPERTY

_log = get_logger("cairn.checkpoint")
_WATCH_SECONDS = 0.4


class SparkMover:
    """`Mover` on Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def move(self, plan: RestorePlan, operator: OperatorRestore, target: Target) -> list[StateHandle]:
        began = time.perf_counter()
        work = [work_of(plan, operator, target, groups) for groups in ranges(plan, operator.stored.rows)]
        step: Callable[[Any], list[bytes]] = load_tables if plan.snapshot.savepoint is not None else rewrite_range
        context = self._spark.sparkContext
        context.setLocalProperty(POOL_PROPERTY, POOL)
        try:
            with _watched(context, operator.uid, len(work), step) as counted:
                written = context.parallelize(work, len(work)).map(counted).collect()
        except Exception as error:
            carried = from_traceback(str(error))
            if carried is None:
                carried = StorageError(f"the state of operator '{operator.uid}' could not be brought over: {error}")
            raise carried from error
        finally:
            context.setLocalProperty(POOL_PROPERTY, None)  # type: ignore[arg-type]
        handles = [msgspec.msgpack.decode(raw, type=StateHandle) for portion in written for raw in portion]
        _log.info(
            "operator %s: %d entries brought over from %s in %.1f s",
            operator.uid, sum(handle.rows for handle in handles), plan.snapshot.path, time.perf_counter() - began,
        )  # fmt: skip
        return handles


@contextmanager
def _watched(
    context: SparkContext, uid: str, total: int, step: Callable[[Any], list[bytes]]
) -> Iterator[Callable[[Any], list[bytes]]]:
    """The step. While somebody listens, its progress is published."""
    if not PROCESS_EVENTS.has_listeners(StateMoved):
        yield step
        return
    done = context.accumulator(0)
    over = threading.Event()

    def counted(work: Any) -> list[bytes]:
        handles = step(work)
        done.add(1)
        return handles

    def watch() -> None:
        while not over.wait(_WATCH_SECONDS):
            PROCESS_EVENTS.publish(StateMoved(uid, min(total - 1, done.value), total))

    thread = threading.Thread(target=watch, name="cairn-restore-progress", daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        over.set()
        thread.join(5)
        PROCESS_EVENTS.publish(StateMoved(uid, total, total))
