"""A savepoint or a checkpoint: its operators, their states, and the rows of each state by key group.

Restores, the offline API, the command line and the web page work on the same `Snapshot`. `resolver.py` opens one from
what a user names, `lookup.py` reads single keys, `difference.py` compares two and `verification.py` checks one. None
of them needs Spark. The rows of a savepoint come from its Parquet files, those of a checkpoint from its chain.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from cairn.errors import CorruptFileError, InvalidInputError, NotFoundError
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.ddl import parse_keys, parse_type
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import BROADCAST, OperatorState, StateSpec
from cairn.model.savepoint_records import Columns, SavepointMetadata, SavepointOperator, StateTable
from cairn.model.state_names import Pair, choices, meant, spelled
from cairn.model.types import DataType
from cairn.snapshots.table_tasks import TableWork, checked_schema, table_rows
from cairn.state.typed_columns import is_pickled
from cairn.state.typed_tables import table_schema
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.savepoint_parquet import TablePart, open_parts

TIMERS = {shown: stored for stored, shown in layout.TIMER_TABLES.items()}
"""Timers by the names of their tables, and as state files call them."""


# The rows of a state.


@dataclass(frozen=True)
class FileRows:
    """The rows of a state that lie in the Parquet files of a savepoint."""

    root: str
    operator: SavepointOperator
    table: StateTable

    def parts(self, groups: KeyGroupRange) -> Iterator[TablePart]:
        schema = checked_schema(self.operator, self.table)
        return open_parts(self.root, self.table.files, schema, self.table.columns.key_group, groups)

    def rows(self, groups: KeyGroupRange) -> Iterator[pa.Table]:
        """The rows of some key groups, a row group at a time, in their order."""
        for part in self.parts(groups):
            for at in part.row_groups(groups):
                yield part.within(part.read(at), groups)

    def verify(self) -> None:
        """Read every byte, and compare the footers with the metadata of the savepoint."""
        schema = checked_schema(self.operator, self.table)
        for file in self.table.files:
            TablePart(self.root, file, schema, self.table.columns.key_group)


@dataclass(frozen=True)
class ChainRows:
    """The rows of a state in the chain of a checkpoint."""

    job_dir: str
    checkpoint: int
    operator: OperatorState
    spec: StateSpec
    time_ms: int

    def rows(self, groups: KeyGroupRange) -> Iterator[pa.Table]:
        encoded = msgspec.msgpack.encode(self.operator)
        work = TableWork(
            self.job_dir, encoded, groups.start, groups.end, self.time_ms, "", self.checkpoint, (self.spec.name,)
        )
        try:
            for _, table in table_rows(work):
                yield table
        except (CorruptFileError, NotFoundError, FileNotFoundError):
            if os.path.exists(os.path.join(self.job_dir, layout.metadata_path(self.checkpoint))):
                raise
            raise NotFoundError(
                f"checkpoint {self.checkpoint} in {self.job_dir} no longer exists: its job deletes checkpoints that it "
                "does not retain. Read it within `with Savepoint.load(spark, path) as savepoint:`, which protects it, "
                "raise execution.checkpointing.num-retained, or take a savepoint and read that.",
                path=self.job_dir,
            ) from None


# Operators and states.


@dataclass(frozen=True)
class SnapshotState:
    """One state of an operator. `origin` has the rows; the offline API adds an origin of its own for edits."""

    spec: StateSpec
    key_type: str
    """DDL of the operator's key columns."""
    origin: Any
    rows: int | None = None
    size: int | None = None

    @cached_property
    def _table(self) -> tuple[Columns, pa.Schema]:
        """Made on first use: a restore needs no tables, and also accepts types that cannot be written as one."""
        if isinstance(self.origin, FileRows):
            return self.origin.table.columns, checked_schema(self.origin.operator, self.origin.table)
        return table_schema(parse_keys(self.key_type), self.spec)

    @property
    def columns(self) -> Columns:
        return self._table[0]

    @property
    def schema(self) -> pa.Schema:
        return self._table[1]

    @property
    def name(self) -> str:
        """The name for users: timers have that of their table."""
        return shown_name(self.spec.name)

    @property
    def pickled(self) -> bool:
        return self.spec.kind != "timer" and is_pickled(parse_type(self.spec.value_type))

    @property
    def identity(self) -> list[str]:
        """The columns that identify a row. The elements of operator lists are also identified by their key group."""
        owner = self.columns.key_group if self.spec.of_subtask and self.columns.position else ""
        more = (owner, self.columns.map_key, self.columns.position, self.columns.timestamp)
        return [*self.columns.keys, *filter(None, more)]

    @property
    def reader(self) -> str:
        """The method of `Savepoint` that reads the state."""
        if not self.spec.of_subtask:
            return "read_keyed_state"
        return "read_broadcast_state" if self.spec.kind == BROADCAST else "read_operator_state"


@dataclass(frozen=True)
class SnapshotOperator:
    """One operator of a snapshot."""

    uid: str
    name: str
    parallelism: int
    key_type: str
    """DDL of its key columns."""
    states: Mapping[str, SnapshotState] = field(default_factory=dict)
    """By the name of the declaration."""
    rows: int = 0
    """Rows of a savepoint's tables, or entries in the files of a checkpoint (removals count there)."""
    empty: bool = False
    """Whether it holds nothing that could be lost."""

    @property
    def keys(self) -> Sequence[tuple[str, DataType]]:
        return parse_keys(self.key_type)

    @property
    def specs(self) -> tuple[StateSpec, ...]:
        """The declarations of its states."""
        return tuple(state.spec for state in self.states.values())

    def state(self, name: str | None) -> SnapshotState:
        """The state of a name; without a name, the only one."""
        if name is None:
            only: SnapshotState = _only(self.states, f"operator '{self.uid}'", "state")
            return only
        state = self.states.get(TIMERS.get(name, name))
        if state is None:
            raise _missing(name, [state.name for state in self.states.values()], f"operator '{self.uid}'", "state")
        return state


# The snapshot.


@dataclass(frozen=True)
class Snapshot:
    """A savepoint or a checkpoint."""

    path: str
    files: LocalFileSystem
    """The job's directory that a checkpoint lies in, or the folder of a savepoint."""
    metadata: SavepointMetadata
    """Job, epoch, positions of the sources. That of a checkpoint names no operators and no files."""
    operators: Mapping[str, SnapshotOperator]
    checkpoint: Checkpoint | None = None
    """None for a savepoint."""
    note: str = ""
    """What a user who named a job should know about the choice of the snapshot, if anything."""

    @property
    def kind(self) -> str:
        return "checkpoint" if self.checkpoint is not None else "savepoint"

    @property
    def savepoint(self) -> SavepointMetadata | None:
        """The metadata of a savepoint; None for a checkpoint."""
        return self.metadata if self.checkpoint is None else None

    @property
    def checkpoint_number(self) -> int:
        """The number of a checkpoint, or 0 for a savepoint."""
        return self.checkpoint.id if self.checkpoint is not None else 0

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    @property
    def time_ms(self) -> int:
        return self.metadata.time_ms

    @property
    def time_reset_ms(self) -> int:
        """What a stored time that lies in the future counts as; 0: as the present.

        A checkpoint knows when its job last set processing time back. A savepoint does not: such state counts as last
        accessed when the savepoint was taken, in a lookup and after a restore, also if it had expired in the job.
        """
        return self.checkpoint.manifest.time_reset_ms if self.checkpoint is not None else self.time_ms

    @property
    def max_parallelism(self) -> int:
        return self.metadata.max_parallelism

    @property
    def incarnation(self) -> str:
        return self.metadata.incarnation

    @property
    def offsets(self) -> str:
        return self.metadata.offsets

    @property
    def source_names(self) -> list[str]:
        return self.metadata.source_names

    @property
    def in_flight(self) -> str:
        """The positions of the batch that an unaligned checkpoint was taken in."""
        return self.checkpoint.in_flight if self.checkpoint is not None else ""

    @property
    def sources(self) -> str:
        """The folder with the logs of Spark's sources."""
        spark = self.checkpoint.manifest.spark if self.checkpoint is not None else ""
        return os.path.join(self.files.root, spark, layout.SOURCES)

    @property
    def origin(self) -> str:
        """`<path>#<checksum>`: differs from that of any other snapshot, also of one that lies at this path later."""
        metadata = layout.metadata_path(self.checkpoint.id) if self.checkpoint is not None else layout.METADATA
        return f"{self.path}#{xxhash.xxh3_64_hexdigest(self.files.read(metadata))}"

    def owner(self) -> dict[str, str] | None:
        """The job that claimed a savepoint, if one did."""
        if self.checkpoint is not None or not self.files.exists(layout.CLAIMED):
            return None
        try:
            claimed = json.loads(self.files.read(layout.CLAIMED))
            return {str(key): str(value) for key, value in claimed.items()}
        except (ValueError, AttributeError):
            return {}

    def operator(self, uid: str | None) -> SnapshotOperator:
        """The operator of a uid; without one, the only operator."""
        if uid is None:
            only: SnapshotOperator = _only(self.operators, self.path, "operator")
            return only
        operator = self.operators.get(uid)
        if operator is None:
            raise _missing(uid, list(self.operators), self.path, "operator")
        return operator


def shown_name(state: str) -> str:
    return next((shown for shown, stored in TIMERS.items() if stored == state), state)


def _missing(name: str, there: Sequence[str], where: str, what: str) -> NotFoundError:
    near = difflib.get_close_matches(name, there, 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return NotFoundError(
        f"{where} has no {what} '{name}'; it has {', '.join(sorted(there)) or 'none'}{hint}", name=name
    )


def _only(known: Mapping[str, Any], where: str, what: str) -> Any:
    if len(known) != 1:
        names = ", ".join(map(shown_name, sorted(known))) or "none"
        raise InvalidInputError(f"name the {what}: {where} has {names}")
    return next(iter(known.values()))


def of_savepoint(folder: str, metadata: SavepointMetadata) -> Snapshot:
    """The snapshot of a savepoint's folder and metadata. Raises for tables that no state can have."""
    operators = {}
    for stored in metadata.operators:
        states = {}
        for table in stored.tables:
            checked_schema(stored, table)
            origin = FileRows(folder, stored, table)
            states[table.spec.name] = SnapshotState(table.spec, stored.key_type, origin, table.rows, table.size)
        rows = sum(table.rows for table in stored.tables)
        operators[stored.uid] = SnapshotOperator(
            stored.uid, stored.name, stored.parallelism, stored.key_type, states, rows, empty=rows == 0
        )
    return Snapshot(folder, LocalFileSystem(folder), metadata, operators)


def of_checkpoint(files: LocalFileSystem, checkpoint: Checkpoint) -> Snapshot:
    """The snapshot of a checkpoint of the job in `files`."""
    manifest = checkpoint.manifest
    operators = {}
    for stored in manifest.operators:
        states = {
            spec.name: SnapshotState(
                spec, stored.key_type, ChainRows(files.root, checkpoint.id, stored, spec, manifest.time_ms)
            )
            for spec in stored.states
        }
        operators[stored.uid] = SnapshotOperator(
            stored.uid, stored.name, stored.parallelism, stored.key_type, states,
            sum(handle.rows for handle in stored.chain), empty=not stored.chain and not stored.states,
        )  # fmt: skip
    metadata = SavepointMetadata(
        id=checkpoint.id,
        job_id=checkpoint.job_id,
        name=checkpoint.name,
        created_ms=checkpoint.info.end_ms or checkpoint.info.trigger_ms,
        max_parallelism=manifest.max_parallelism,
        operators=[],
        epoch=manifest.epoch,
        offsets=manifest.offsets,
        watermark=manifest.watermark,
        time_ms=manifest.time_ms,
        source_names=manifest.source_names,
        incarnation=manifest.incarnation,
    )
    path = os.path.join(files.root, layout.checkpoint_folder(checkpoint.id))
    return Snapshot(path, files, metadata, operators, checkpoint)


def pickles_allowed(snapshot: Snapshot, names: Iterable[str]) -> frozenset[Pair]:
    """The states that `uid.state` or `uid/state` name, whose pickles may be opened; an error for an unknown name."""
    known = [(op.uid, state.name) for op in snapshot.operators.values() for state in op.states.values()]
    allowed = []
    for name in names:
        matches = meant(name, known)
        if not matches:
            there = ", ".join(spelled(pair, known) for pair in known)
            raise NotFoundError(f"allow_pickled names '{name}'; {snapshot.path} has {there or 'no state'}")
        if len(matches) > 1:
            raise InvalidInputError(f"allow_pickled: {choices(name, matches)}")
        allowed += matches
    return frozenset(allowed)


# Reading.


@contextmanager
def reading(*snapshots: Snapshot) -> Iterator[None]:
    """Hold checkpoints while they are read, so that no job deletes them meanwhile. A savepoint needs no holding."""
    with ExitStack() as holds:
        for snapshot in snapshots:
            if snapshot.checkpoint is not None:
                holds.enter_context(CheckpointStore(snapshot.files).hold(snapshot.checkpoint.id))
        yield


def ranges(snapshot: Snapshot, count: int) -> list[KeyGroupRange]:
    """All key groups of a snapshot in at most `count` ranges."""
    groups = snapshot.metadata.max_parallelism
    count = max(1, min(count, groups))
    return [key_group_range(i, count, groups) for i in range(count)]


def first_rows(snapshot: Snapshot, state: SnapshotState, limit: int) -> pa.Table:
    """The first rows of a state in the order of its table. Ranges grow from one key group, so that little is read."""
    tables: list[pa.Table] = []
    left = limit
    groups = snapshot.metadata.max_parallelism
    start, width = 0, 1
    while start < groups:
        end = min(start + width, groups)
        for table in state.origin.rows(KeyGroupRange(start, end - 1)):
            tables.append(table.slice(0, left))
            left -= tables[-1].num_rows
            if left <= 0:
                return pa.concat_tables(tables)
        start, width = end, width * 2
    return pa.concat_tables(tables) if tables else state.schema.empty_table()
