"""Savepoints and checkpoints as one thing to read: operators, their states, and the rows of each state by key group.

Nothing here needs Spark: the command line looks into snapshots with this module alone, and Spark tasks of the offline
API call it for their range. A savepoint's rows come from its Parquet files, those of a checkpoint from its chain.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptFileError, InvalidInputError, NotFoundError, StateTypeError
from cairn.model.checkpoint_records import Checkpoint, CheckpointType
from cairn.model.ddl import parse_keys, parse_type
from cairn.model.keygroups import KeyGroupRange, key_group, key_group_range
from cairn.model.manifest import BROADCAST, OperatorState, StateSpec, gave_up
from cairn.model.savepoint_records import Columns, SavepointMetadata, SavepointOperator, StateTable
from cairn.model.state_names import Pair, choices, meant, spelled
from cairn.model.types import DataType
from cairn.snapshots.table_tasks import TableWork, checked_schema, table_rows
from cairn.state.expiry import alive
from cairn.state.typed_columns import arrow_type, is_pickled, stored_list, typed_list
from cairn.state.typed_tables import table_schema
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.manifest_store import ManifestStore, load_identity
from cairn.storage.savepoint_folder import newest_savepoint, read_savepoint
from cairn.storage.savepoint_parquet import TablePart, open_parts

TIMERS = {shown: stored for stored, shown in layout.TIMER_TABLES.items()}
"""Timers by the names of their tables, and as state files call them."""


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
        """Read every byte, and compare the footers with the savepoint's word."""
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
        told = msgspec.msgpack.encode(self.operator)
        work = TableWork(
            self.job_dir, told, groups.start, groups.end, self.time_ms, "", self.checkpoint, (self.spec.name,)
        )
        try:
            for _, table in table_rows(work):
                yield table
        except (CorruptFileError, NotFoundError, FileNotFoundError):
            if os.path.exists(os.path.join(self.job_dir, layout.metadata_path(self.checkpoint))):
                raise
            raise NotFoundError(
                f"checkpoint {self.checkpoint} in {self.job_dir} is gone: its job deletes checkpoints that it does not "
                "retain any more. Read it within `with Savepoint.load(spark, path) as savepoint:`, which holds it, "
                "raise execution.checkpointing.num-retained, or take a savepoint and read that.",
                path=self.job_dir,
            ) from None


@dataclass(frozen=True)
class SnapshotState:
    """One state of an operator. `origin` has the rows; the offline API adds an origin of its own for edits."""

    spec: StateSpec
    columns: Columns
    schema: pa.Schema
    origin: Any
    rows: int | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """As people call it: timers by the name of their table."""
        return shown_name(self.spec.name)

    @property
    def pickled(self) -> bool:
        return self.spec.kind != "timer" and is_pickled(parse_type(self.spec.value_type))

    @property
    def identity(self) -> list[str]:
        """The columns that tell one row from another. A list of a subtask is told by its key group."""
        owner = self.columns.key_group if self.spec.of_subtask and self.columns.position else ""
        more = (owner, self.columns.map_key, self.columns.position, self.columns.timestamp)
        return [*self.columns.keys, *filter(None, more)]


@dataclass(frozen=True)
class SnapshotOperator:
    uid: str
    name: str
    parallelism: int
    key_type: str
    states: Mapping[str, SnapshotState] = field(default_factory=dict)
    """By the name of the declaration."""

    @property
    def keys(self) -> Sequence[tuple[str, DataType]]:
        return parse_keys(self.key_type)

    def state(self, name: str | None) -> SnapshotState:
        """The state of a name; without a name, the only one."""
        if name is None:
            only: SnapshotState = _only(self.states, f"operator '{self.uid}'", "state")
            return only
        found = self.states.get(TIMERS.get(name, name))
        if found is None:
            raise _missing(name, [state.name for state in self.states.values()], f"operator '{self.uid}'", "state")
        return found


@dataclass(frozen=True)
class Snapshot:
    """A savepoint or a checkpoint; `metadata` has everything but the operators."""

    path: str
    metadata: SavepointMetadata
    operators: Mapping[str, SnapshotOperator]
    checkpoint: int = 0
    """The number of the checkpoint, or 0 for a savepoint."""
    sources: str = ""
    """Of a checkpoint: the folder with the logs of Spark's sources."""
    note: str = ""
    """What whoever named a job should know of the choice, or nothing."""

    @property
    def kind(self) -> str:
        return "checkpoint" if self.checkpoint else "savepoint"

    def operator(self, uid: str | None) -> SnapshotOperator:
        if uid is None:
            only: SnapshotOperator = _only(self.operators, self.path, "operator")
            return only
        found = self.operators.get(uid)
        if found is None:
            raise _missing(uid, list(self.operators), self.path, "operator")
        return found


def pickles_allowed(snapshot: Snapshot, names: Iterable[str]) -> frozenset[Pair]:
    """The states whose pickles may be opened, as `uid.state` or `uid/state` name them; an error for another name."""
    known = [(op.uid, state.name) for op in snapshot.operators.values() for state in op.states.values()]
    allowed = []
    for name in names:
        found = meant(name, known)
        if not found:
            there = ", ".join(spelled(pair, known) for pair in known)
            raise NotFoundError(f"allow_pickled names '{name}'; {snapshot.path} has {there or 'no state'}")
        if len(found) > 1:
            raise InvalidInputError(f"allow_pickled: {choices(name, found)}")
        allowed += found
    return frozenset(allowed)


def shown_name(state: str) -> str:
    return next((shown for shown, stored in TIMERS.items() if stored == state), state)


def _missing(name: str, there: Sequence[str], where: str, what: str) -> NotFoundError:
    near = difflib.get_close_matches(name, there, 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return NotFoundError(
        f"{where} has no {what} '{name}'; it has {', '.join(sorted(there)) or 'none'}{hint}", name=name
    )


def _only(found: Mapping[str, Any], where: str, what: str) -> Any:
    if len(found) != 1:
        names = ", ".join(map(shown_name, sorted(found))) or "none"
        raise InvalidInputError(f"name the {what}: {where} has {names}")
    return next(iter(found.values()))


# Opening.


def open_snapshot(path: str) -> Snapshot:
    """The savepoint or checkpoint that a path names: its folder or the `_metadata` in it. Of a job's directory, the
    newest completed checkpoint that no restore gave up, or, if it retains none, its newest savepoint; `note` says so
    then."""
    folder = local_root(path)
    if os.path.basename(folder) == layout.METADATA:
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise NotFoundError(f"there is no folder {folder}", path=folder)
    files = LocalFileSystem(folder)
    if load_identity(files) is not None:
        return _of_job(files)
    number = layout.checkpoint_number(os.path.basename(folder))
    above = LocalFileSystem(os.path.dirname(folder))
    if number is not None and load_identity(above) is not None:
        if number not in CheckpointStore(above).numbers():
            there = ", ".join(f"chk-{known}" for known in CheckpointStore(above).numbers()) or "none"
            raise NotFoundError(f"there is no completed checkpoint {folder}; completed there: {there}", path=folder)
        return _of_checkpoint(above, CheckpointStore(above).load(number))
    return _of_savepoint(folder, read_savepoint(folder))


def _of_job(files: LocalFileSystem) -> Snapshot:
    store = CheckpointStore(files)
    if not store.numbers():
        saved = newest_savepoint(store.history())
        if saved is not None:
            found = _of_savepoint(saved.path, read_savepoint(saved.path))
            note = f"the job in {files.root} retains no checkpoint; this is its newest savepoint, {saved.path}"
            return replace(found, note=note)
    return _of_checkpoint(files, _newest(files))


def _newest(files: LocalFileSystem) -> Checkpoint:
    """The newest checkpoint of a job that no restore gave up."""
    store = CheckpointStore(files)
    restores = ManifestStore(files).restores()
    numbers = store.numbers()
    for number in reversed(numbers):
        checkpoint = store.load(number)
        if not gave_up(restores, checkpoint.manifest.epoch):
            return checkpoint
    history = store.history() if not numbers else []
    discarded = sum(info.discarded and info.type is not CheckpointType.SAVEPOINT for info in history)
    if discarded:
        raise NotFoundError(
            f"the job in {files.root} has no completed checkpoint any more: "
            f"{f'all {discarded} were' if discarded > 1 else 'the only one was'} discarded, the newest when the job "
            "failed, was canceled or ended",
            path=files.root,
            remedy="Start the job again: it goes on from its last epoch, and its next checkpoint can be read. To keep "
            "checkpoints after the end, set execution.checkpointing.externalized-checkpoint-retention to "
            "RETAIN_ON_CANCELLATION.",
        )
    if not numbers:
        raise NotFoundError(f"the job in {files.root} has no completed checkpoint", path=files.root)
    given_up = ", ".join(f"chk-{number}" for number in numbers)
    raise NotFoundError(
        f"the job in {files.root} has no completed checkpoint since it went back to an older one; {given_up} is what "
        "it gave up then: name its folder to read it all the same",
        path=files.root,
    )


def retained(job_dir: str) -> list[Snapshot]:
    """All completed checkpoints of a job, oldest first, without those that it gave up by going back."""
    files = LocalFileSystem(local_root(job_dir))
    if load_identity(files) is None:
        raise InvalidInputError(
            f"{files.root} is no job's directory; only those have several checkpoints", path=job_dir
        )
    return [_of_checkpoint(files, checkpoint) for checkpoint in CheckpointStore(files).current()]


def _of_savepoint(root: str, metadata: SavepointMetadata) -> Snapshot:
    operators = {}
    for operator in metadata.operators:
        states = {}
        for table in operator.tables:
            schema = checked_schema(operator, table)
            origin = FileRows(root, operator, table)
            states[table.spec.name] = SnapshotState(table.spec, table.columns, schema, origin, table.rows, table.size)
        operators[operator.uid] = SnapshotOperator(
            operator.uid, operator.name, operator.parallelism, operator.key_type, states
        )
    return Snapshot(root, msgspec.structs.replace(metadata, operators=[]), operators)


def _of_checkpoint(files: LocalFileSystem, checkpoint: Checkpoint) -> Snapshot:
    manifest = checkpoint.manifest
    operators = {}
    for operator in manifest.operators:
        keys = parse_keys(operator.key_type)
        states = {}
        for spec in operator.states:
            columns, schema = table_schema(keys, spec)
            origin = ChainRows(files.root, checkpoint.id, operator, spec, manifest.time_ms)
            states[spec.name] = SnapshotState(spec, columns, schema, origin)
        operators[operator.uid] = SnapshotOperator(
            operator.uid, operator.name, operator.parallelism, operator.key_type, states
        )
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
    return Snapshot(path, metadata, operators, checkpoint.id, os.path.join(files.root, manifest.spark, "sources"))


# Reading.


@contextmanager
def reading(*snapshots: Snapshot) -> Iterator[None]:
    """Hold checkpoints while they are read, so that no job deletes them meanwhile. A savepoint needs no holding."""
    with ExitStack() as holds:
        for snapshot in snapshots:
            if snapshot.checkpoint:
                store = CheckpointStore(LocalFileSystem(os.path.dirname(snapshot.path)))
                holds.enter_context(store.hold(snapshot.checkpoint))
        yield


def ranges(snapshot: Snapshot, count: int) -> list[KeyGroupRange]:
    """All key groups of a snapshot in at most so many ranges."""
    groups = snapshot.metadata.max_parallelism
    count = max(1, min(count, groups))
    return [key_group_range(i, count, groups) for i in range(count)]


def first_rows(snapshot: Snapshot, state: SnapshotState, limit: int) -> pa.Table:
    """Some rows of a state, the first in its order. Ranges grow from one key group, so that little is read."""
    found: list[pa.Table] = []
    left = limit
    groups = snapshot.metadata.max_parallelism
    start, width = 0, 1
    while start < groups:
        end = min(start + width, groups)
        for table in state.origin.rows(KeyGroupRange(start, end - 1)):
            found.append(table.slice(0, left))
            left -= found[-1].num_rows
            if left <= 0:
                return pa.concat_tables(found)
        start, width = end, width * 2
    return pa.concat_tables(found) if found else state.schema.empty_table()


def checked_key(operator: SnapshotOperator, key: Any) -> list[Any]:
    """A key as people give it (one value, a tuple, or a mapping by column) as a value for each key column."""
    names = [name for name, _ in operator.keys]
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise InvalidInputError(
                f"operator '{operator.uid}': a key has the columns {', '.join(names)}, not {sorted(key)}"
            )
        values = [key[name] for name in names]
    elif len(names) == 1 and not (isinstance(key, (tuple, list)) and len(key) == 1):
        values = [key]
    elif isinstance(key, (tuple, list)) and len(key) == len(names):
        values = list(key)
    else:
        raise InvalidInputError(
            f"operator '{operator.uid}': a key has {len(names)} columns ({operator.key_type}); give a tuple of as many "
            f"values, or a dict, not {key!r}"
        )
    for (name, dtype), value in zip(operator.keys, values, strict=True):
        if value is None:
            raise InvalidInputError(f"operator '{operator.uid}': key column '{name}' is None, and a null is no key")
        try:
            dtype.to_storage(value)
        except StateTypeError as error:
            raise StateTypeError(f"operator '{operator.uid}', key column '{name}': {error.message}") from None
    return values


def refuse_key(operator: SnapshotOperator, state: SnapshotState) -> None:
    """An error for a state that has no keys, which nobody can look up."""
    if state.spec.of_subtask:
        raise InvalidInputError(
            f"operator '{operator.uid}', state '{state.name}' is a {state.spec.signature}: it belongs to subtasks, not "
            f"to keys. Read all of it with Savepoint.{reader_of(state)}, or `cairn state show PATH "
            f"{shlex.quote(operator.uid)} {shlex.quote(state.name)}`.",
            state=state.name,
        )


def reader_of(state: SnapshotState) -> str:
    """The method of `Savepoint` that reads a state."""
    if not state.spec.of_subtask:
        return "read_keyed_state"
    return "read_broadcast_state" if state.spec.kind == BROADCAST else "read_operator_state"


def find_rows(snapshot: Snapshot, operator: SnapshotOperator, state: SnapshotState, key: Any) -> pa.Table:
    """The rows of one key, without expired ones. Of a savepoint, one row group of one file is read, as a rule."""
    refuse_key(operator, state)
    values = checked_key(operator, key)
    fitted = [
        dtype.from_storage(dtype.to_storage(value)) for (_, dtype), value in zip(operator.keys, values, strict=True)
    ]
    group = key_group(fitted, [dtype.ddl for _, dtype in operator.keys], snapshot.metadata.max_parallelism)
    groups = KeyGroupRange(group, group)
    scalars = [
        typed_list(dtype, [dtype.to_storage(value)])[0] for (_, dtype), value in zip(operator.keys, values, strict=True)
    ]
    origin = state.origin
    found = []
    if isinstance(origin, FileRows):
        for part in origin.parts(groups):
            hits = [at for at in part.row_groups(groups) if _may_hold(part, at, state.columns.keys, scalars)]
            found += [_matching(part.read(at), state.columns.keys, scalars) for at in hits]
    else:
        found = [_matching(table, state.columns.keys, scalars) for table in origin.rows(groups)]
    rows = pa.concat_tables(found) if found else state.schema.empty_table()
    return not_expired(snapshot, state, rows)


def not_expired(snapshot: Snapshot, state: SnapshotState, rows: pa.Table) -> pa.Table:
    """The rows that user code would see at the time of the snapshot: not those whose time to live has run out."""
    return alive(rows, state.columns.last_access, state.spec.ttl_ms, snapshot.metadata.time_ms)


def _may_hold(part: TablePart, row_group: int, keys: Sequence[str], scalars: Sequence[pa.Scalar]) -> bool:
    """Whether the statistics of the key columns leave room for a key; rows are ordered by the first of them."""
    for name, scalar in zip(keys, scalars, strict=True):
        told = part.statistics(row_group, name)
        value = scalar.as_py()
        if told is None or not told.has_min_max or value != value:
            continue
        try:
            if not told.min <= value <= told.max:
                return False
        except TypeError:  # statistics come in another class, for instance without a time zone: they prove nothing
            continue
    return True


def _matching(table: pa.Table, keys: Sequence[str], scalars: Sequence[pa.Scalar]) -> pa.Table:
    mask = np.ones(table.num_rows, bool)
    for name, scalar in zip(keys, scalars, strict=True):
        column = table.column(name)
        nan = pa.types.is_floating(scalar.type) and scalar.as_py() != scalar.as_py()
        mask &= np.asarray(pc.is_nan(column) if nan else pc.equal(column, scalar))
    return table.filter(pa.array(mask))


def as_python(state: SnapshotState, rows: pa.Table, unpickle: bool = False) -> Any:
    """The state of one key as user code sees it: a value, a list, a dict, or the times of timers; None if there is
    none. Pickled values are given as bytes unless `unpickle`."""
    if state.spec.kind == "timer":
        return sorted(rows.column(state.columns.timestamp).to_pylist())
    dtype = parse_type(state.spec.value_type)
    values = _user_values(dtype, rows.column(state.columns.value), unpickle)
    if state.spec.kind == "list":
        order = np.argsort(np.asarray(rows.column(state.columns.position)))
        return [values[at] for at in order.tolist()]
    if state.spec.kind == "map":
        names = _user_values(parse_type(state.spec.key_type), rows.column(state.columns.map_key), unpickle)
        return dict(zip(names, values, strict=True))
    return values[0] if values else None


def _user_values(dtype: DataType, column: pa.ChunkedArray, unpickle: bool) -> list[Any]:
    if is_pickled(dtype) and not unpickle:
        return list(column.to_pylist())
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], arrow_type(dtype))
    return [dtype.from_storage(stored) for stored in stored_list(dtype, array)]
