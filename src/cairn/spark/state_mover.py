"""Brings the state of a snapshot into a job by Spark tasks: many short ones, a range of key groups each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cairn.spark.background_tasks import POOL
from cairn.restore.restore_plan import OperatorRestore, RestorePlan
from cairn.snapshots.restorable import Snapshot
from cairn.errors import InternalError, StorageError, from_traceback
from cairn.logs import get_logger
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import StateHandle
from cairn.snapshots.rewrite_task import RewriteWork, rewrite_range
from cairn.snapshots.table_tasks import LoadWork, load_tables

_log = get_logger("cairn.checkpoint")
PIECES = 4
"""Most tasks for each subtask that the operator will have."""
PIECE_ROWS = 200_000
"""Rows that are worth a task of their own."""
watchers: list[Callable[[str, int, int], None]] = []
"""Of `cairn run`: told now and then of an operator's uid, how many of its pieces are brought over, and of how many."""
_WATCH_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Target:
    """The job that state is brought into."""

    job_dir: str
    epoch: int
    run: int
    now_ms: int


class Mover(Protocol):
    """Writes snapshots of one operator's stored state into a job."""

    def move(self, plan: RestorePlan, operator: OperatorRestore, target: Target) -> list[StateHandle]: ...


class SparkMover:
    """`Mover` on Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def move(self, plan: RestorePlan, operator: OperatorRestore, target: Target) -> list[StateHandle]:
        began = time.perf_counter()
        work = [_work(plan, operator, target, groups) for groups in ranges(plan, operator.stored.rows)]
        step: Callable[[Any], list[bytes]] = load_tables if plan.snapshot.savepoint is not None else rewrite_range
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        try:
            with _watched(context, operator.uid, len(work), step) as counted:
                found = context.parallelize(work, len(work)).map(counted).collect()
        except Exception as error:
            carried = from_traceback(str(error))
            if carried is None:
                carried = StorageError(f"the state of operator '{operator.uid}' could not be brought over: {error}")
            raise carried from error
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
        handles = [msgspec.msgpack.decode(raw, type=StateHandle) for portion in found for raw in portion]
        _log.info(
            "operator %s: %d entries brought over from %s in %.1f s",
            operator.uid, sum(handle.rows for handle in handles), plan.snapshot.path, time.perf_counter() - began,
        )  # fmt: skip
        return handles


@contextmanager
def _watched(
    context: SparkContext, uid: str, total: int, step: Callable[[Any], list[bytes]]
) -> Iterator[Callable[[Any], list[bytes]]]:
    """The step, counted while somebody watches."""
    if not watchers:
        yield step
        return
    done = context.accumulator(0)
    over = threading.Event()

    def counted(work: Any) -> list[bytes]:
        made = step(work)
        done.add(1)
        return made

    def tell(pieces: int) -> None:
        with suppress(Exception):  # a restore does not fail because nobody can be told of it
            for watcher in watchers:
                watcher(uid, pieces, total)

    def watch() -> None:
        while not over.wait(_WATCH_SECONDS):
            tell(min(total - 1, done.value))

    thread = threading.Thread(target=watch, name="cairn-restore-progress", daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        over.set()
        thread.join(5)
        tell(total)


def ranges(plan: RestorePlan, rows: int) -> Sequence[KeyGroupRange]:
    """The ranges that one task each brings over."""
    groups = plan.max_parallelism
    pieces = min(groups, PIECES * plan.parallelism, max(2, rows // PIECE_ROWS))
    return [key_group_range(index, pieces, groups) for index in range(pieces)]


def _work(
    plan: RestorePlan, operator: OperatorRestore, target: Target, groups: KeyGroupRange
) -> LoadWork | RewriteWork:
    states = {state.stored.name: state.becomes for state in operator.states}
    converters = {s.stored.name: s.conversion for s in operator.states if s.conversion is not None}
    snapshot = plan.snapshot
    carried: dict[str, Any] = {
        "operator": _encoded(snapshot, operator),
        "max_parallelism": plan.max_parallelism,
        "first_group": groups.start,
        "last_group": groups.end,
        "job_dir": target.job_dir,
        "uid": operator.uid,
        "epoch": target.epoch,
        "run": target.run,
        "now_ms": target.now_ms,
        "states": states,
        "converters": converters,
    }
    if snapshot.savepoint is not None:
        return LoadWork(savepoint=snapshot.files.root, **carried)
    return RewriteWork(source_dir=snapshot.files.root, checkpoint=snapshot.number, **carried)


def _encoded(snapshot: Snapshot, operator: OperatorRestore) -> bytes:
    facts = snapshot.savepoint or (snapshot.checkpoint.manifest if snapshot.checkpoint is not None else None)
    stored = facts.operator(operator.stored.uid) if facts is not None else None
    if stored is None:
        raise InternalError(f"{snapshot.path} has lost operator '{operator.stored.uid}'")
    return msgspec.msgpack.encode(stored)


class LocalMover:
    """`Mover` in this process, for tests and tools that have no Spark."""

    def move(self, plan: RestorePlan, operator: OperatorRestore, target: Target) -> list[StateHandle]:
        made: list[bytes] = []
        for groups in ranges(plan, operator.stored.rows):
            work = _work(plan, operator, target, groups)
            made += load_tables(work) if isinstance(work, LoadWork) else rewrite_range(work)
        return [msgspec.msgpack.decode(raw, type=StateHandle) for raw in made]
