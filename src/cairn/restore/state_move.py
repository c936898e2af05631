"""Moving the state of a snapshot into a job: how the work is divided, and doing it in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from cairn.coordinator.compactor import PIECE_ROWS
from cairn.errors import InternalError
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import StateHandle
from cairn.restore.restore_plan import OperatorRestore, RestorePlan
from cairn.snapshots.rewrite_task import RewriteWork, rewrite_range
from cairn.snapshots.snapshot import Snapshot
from cairn.snapshots.table_tasks import LoadWork, load_tables

PIECES = 4
"""Most tasks for each subtask that the operator will have."""


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


def ranges(plan: RestorePlan, rows: int) -> Sequence[KeyGroupRange]:
    """The ranges that one task each brings over."""
    groups = plan.max_parallelism
    pieces = min(groups, PIECES * plan.parallelism, max(2, rows // PIECE_ROWS))
    return [key_group_range(index, pieces, groups) for index in range(pieces)]


def work_of(
    plan: RestorePlan, operator: OperatorRestore, target: Target, groups: KeyGroupRange
) -> LoadWork | RewriteWork:
    """What one task does for a range of key groups."""
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
        "time_reset_ms": snapshot.time_reset_ms,
    }
    if snapshot.savepoint is not None:
        return LoadWork(savepoint=snapshot.files.root, **carried)
    return RewriteWork(source_dir=snapshot.files.root, checkpoint=snapshot.metadata.id, **carried)


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
            work = work_of(plan, operator, target, groups)
            made += load_tables(work) if isinstance(work, LoadWork) else rewrite_range(work)
        return [msgspec.msgpack.decode(raw, type=StateHandle) for raw in made]
