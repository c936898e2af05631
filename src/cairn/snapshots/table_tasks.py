"""The tasks that write and load savepoints: a range of key groups of one operator, from state files to tables and back.

`write_tables` merges the operator's chain and writes Parquet parts; memory follows the largest key group. `load_tables`
reads the rows of a savepoint and writes snapshots for a job; memory follows the largest key group, too. `table_rows`
gives the rows of a chain without writing anything, for readers of checkpoints.

Of a broadcast map every subtask stores a copy. A table has the copy of the first subtask, under key group 0, and
loading it makes the copies of the others again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from cairn.errors import CairnError, CorruptFileError, IncompatibleStateError, InternalError, InvalidInputError
from cairn.model.ddl import parse_keys
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import BROADCAST, OperatorState, StateHandle, StateSpec
from cairn.model.savepoint_records import SavepointOperator, StateTable, TableFile
from cairn.runtime.operator_state import without_waiting
from cairn.snapshots.moved_range import MovedRange
from cairn.state.codec import KeyCodec
from cairn.state.expiry import alive
from cairn.state.section_changes import ChainFiles
from cairn.state.typed_tables import table_schema, to_section, to_table
from cairn.storage import chain_merge, layout
from cairn.storage.chain_merge import compact, groups_of, write_snapshot
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import open_filesystem
from cairn.storage.manifest_store import load_identity, writer_of
from cairn.storage.savepoint_parquet import TablePart, TableWriter, open_parts
from cairn.storage.state_file import Section, SectionInfo, StateFile


class WrittenPart(msgspec.Struct, frozen=True):
    """A part of a state's table that a task has written."""

    state: str
    file: TableFile


@dataclass(frozen=True)
class TableWork:
    """One range of key groups of one operator to be written as tables into the savepoint folder `target`.

    With `checkpoint`, the chain is that of `chk-<checkpoint>` in the job's directory, whose inlined bytes lie there.
    """

    job_dir: str
    operator: bytes
    """The encoded `OperatorState`, with its chain: the manifest that named it may leave retention meanwhile."""
    first_group: int
    last_group: int
    time_ms: int
    target: str = ""
    checkpoint: int = 0
    states: tuple[str, ...] | None = None
    """Only these states; None for all."""


@dataclass(frozen=True, kw_only=True)
class LoadWork(MovedRange):
    """A range of a savepoint to be brought into a job; `operator` is a `SavepointOperator`."""

    savepoint: str


# From a chain to tables.


def write_tables(work: TableWork, uid: str = "") -> list[bytes]:
    """Write the tables of one range. Returns encoded `WrittenPart`s; a state without rows in the range has none.

    With `uid`, the tables are those of an operator that was renamed.
    """
    operator = msgspec.msgpack.decode(work.operator, type=OperatorState)
    target = open_filesystem(work.target)
    keys = parse_keys(operator.key_type)
    writers: dict[str, TableWriter] = {}
    for spec, table in table_rows(work):
        writer = writers.get(spec.name)
        if writer is None:
            columns, schema = table_schema(keys, spec)
            writer = TableWriter(target, uid or operator.uid, spec.name, schema, columns.key_group)
            writers[spec.name] = writer
        writer.add(table)
    return [
        msgspec.msgpack.encode(WrittenPart(state, file)) for state, writer in writers.items() for file in writer.close()
    ]


def table_rows(work: TableWork) -> Iterator[tuple[StateSpec, pa.Table]]:
    """The rows of all states of a range, in portions of whole key groups, which come in order for each state."""
    operator = msgspec.msgpack.decode(work.operator, type=OperatorState)
    keys = parse_keys(operator.key_type)
    specs = {spec.name: spec for spec in operator.states}
    groups = KeyGroupRange(work.first_group, work.last_group)
    handles = [handle for handle in operator.chain if handle.groups.intersects(groups)]

    def wanted(info: SectionInfo) -> bool:
        return work.states is None or info.table in work.states

    for _, sections in compact(opener(work, operator.uid), handles, groups, specs, work.time_ms, wanted):
        portions: dict[str, list[Section]] = {}
        for section in sections:
            portions.setdefault(section.table, []).append(section)
        for state, parts in portions.items():
            if state not in specs:
                raise CorruptFileError(f"operator '{operator.uid}' has rows of the undeclared state '{state}'")
            if specs[state].kind == BROADCAST:
                parts = [part for part in parts if part.group == 0]
                if not parts:
                    continue
            if len({part.group for part in parts}) != len(parts):
                raise InternalError(f"operator '{operator.uid}', state '{state}' is stored in two ways at once")
            data = pa.concat_tables([part.data for part in parts])
            first = parts[0]
            whole = without_waiting(Section(state, first.kind, first.storage, first.ttl, data), specs[state])
            try:
                yield specs[state], to_table(whole, keys, specs[state])
            except CairnError as error:
                raise type(error)(f"operator '{operator.uid}', {error.message}", **error.facts) from error


def opener(work: TableWork, uid: str) -> Callable[[StateHandle], StateFile]:
    """A function that opens the files of an operator's chain, also inlined ones."""
    files = open_filesystem(work.job_dir)
    if not work.checkpoint:
        identity = load_identity(files)
        own_files = ChainFiles(files, None, identity.incarnation if identity is not None else "")
        return lambda handle: own_files.open(uid, handle)
    checkpoint = CheckpointStore(files).load(work.checkpoint)
    state_files = ChainFiles(files, None, checkpoint.manifest.incarnation)

    def opened(handle: StateHandle) -> StateFile:
        if handle.path:
            return state_files.open(uid, handle)
        data = checkpoint.inlined_bytes(uid, handle)
        if data is None:
            raise CorruptFileError(
                f"{files.root}/{layout.metadata_path(work.checkpoint)} lacks the state of operator '{uid}' from epoch "
                f"{handle.epoch}"
            )
        return state_files.inlined(uid, handle, data, f"inlined in checkpoint {work.checkpoint}")

    return opened


def assembled(operator: OperatorState, written: Sequence[bytes]) -> SavepointOperator:
    """The operator in the metadata of a savepoint, from what its tasks returned. States without rows have no files."""
    keys = parse_keys(operator.key_type)
    parts = [msgspec.msgpack.decode(raw, type=WrittenPart) for raw in written]
    tables = []
    for spec in operator.states:
        columns, _ = table_schema(keys, spec)
        files = sorted((part.file for part in parts if part.state == spec.name), key=file_order)
        tables.append(StateTable(spec, columns, files))
    return SavepointOperator(operator.uid, operator.name, operator.parallelism, operator.key_type, tables)


def file_order(file: TableFile) -> tuple[int, int]:
    return file.first_group, file.last_group


# From tables to a job.


def checked_schema(operator: SavepointOperator, table: StateTable) -> pa.Schema:
    """The columns that a table of a savepoint must have. Raises if it names other columns or unknown types."""
    try:
        keys = parse_keys(operator.key_type)
        KeyCodec(keys)
        if not keys and not table.spec.of_subtask:
            raise InvalidInputError(f"a {table.spec.signature} belongs to keys, and the operator has none")
        if table.spec.ttl_ms and table.spec.of_subtask:
            raise InvalidInputError(f"a {table.spec.signature} cannot be: state of subtasks has no time to live")
        columns, schema = table_schema(keys, table.spec)
    except (CairnError, RecursionError) as error:
        raise IncompatibleStateError(
            f"operator '{operator.uid}', state '{table.spec.name}': the savepoint names a type that this cairn does "
            f"not know there: {error}"
        ) from error
    if columns != table.columns:
        raise CorruptFileError(
            f"operator '{operator.uid}', state '{table.spec.name}': the savepoint names other columns than such a "
            "state has"
        )
    return schema


def load_tables(work: LoadWork) -> list[bytes]:
    """Bring the rows of one range into the job. Returns encoded `StateHandle`s of snapshots that cover the range."""
    operator = msgspec.msgpack.decode(work.operator, type=SavepointOperator)
    groups = KeyGroupRange(work.first_group, work.last_group)
    files = open_filesystem(work.job_dir)
    tables = [table for table in operator.tables if table.spec.name in work.states]
    opened = [_OpenTable(work, operator, table, groups) for table in tables]
    writer = writer_of(files, work.uid, work.run)
    made = []
    for covered in _pieces(groups, opened):
        sections = [section for table in opened if (section := table.section(covered)) is not None]
        path = layout.snapshot_path(work.uid, work.epoch, work.run, covered.start, uuid.uuid4().hex[:8])
        made.append(msgspec.msgpack.encode(write_snapshot(files, path, work.epoch, covered, sections, writer)))
    return made


class _OpenTable:
    """The parts of one state's table that hold rows of a range."""

    def __init__(self, work: LoadWork, operator: SavepointOperator, table: StateTable, groups: KeyGroupRange) -> None:
        self._work = work
        self._operator = operator
        self._table = table
        self._keys = parse_keys(operator.key_type)
        self._spec = work.states[table.spec.name]
        self._convert = work.converters.get(table.spec.name)
        self._copied = table.spec.kind == BROADCAST
        self._owners = _first_groups(operator, work.max_parallelism) if table.spec.of_subtask else []
        schema = checked_schema(operator, table)
        within = KeyGroupRange(0, 0) if self._copied else groups
        self._parts = list(open_parts(work.savepoint, table.files, schema, table.columns.key_group, within))
        self._kept: tuple[TablePart, int, pa.Table] | None = None

    def size_of(self, group: int) -> float:
        """About how many bytes the rows of a key group have: row groups are spread evenly over their key groups."""
        if self._copied:
            return float(sum(sum(part.sizes) for part in self._parts)) if group in self._owners else 0.0
        return sum(
            size / (last - first + 1)
            for part in self._parts
            for (first, last), size in zip(part.ranges, part.sizes, strict=True)
            if first <= group <= last
        )

    def section(self, groups: KeyGroupRange) -> Section | None:
        owners = [group for group in self._owners if groups.contains(group)]
        within = KeyGroupRange(0, 0) if self._copied else groups
        tables = []
        for part in self._parts if owners or not self._copied else ():
            tables += [self._rows(part, at, within) for at in part.row_groups(within)]
        rows = [table for table in tables if table.num_rows]
        if not rows:
            return None
        table = pa.concat_tables(rows)
        spec, columns = self._spec, self._table.columns
        if not spec.ttl_ms:  # with the time to live goes the time: what has expired must not come back
            times = (self._work.now_ms, self._work.time_reset_ms)
            table = alive(table, columns.last_access, self._table.spec.ttl_ms, *times)
        if self._copied:
            table = pa.concat_tables([_of_owner(table, columns.key_group, owner) for owner in owners])
        if self._convert is not None:
            at = table.column_names.index(columns.value)
            values = pa.concat_arrays(table.column(at).chunks)
            table = table.set_column(at, columns.value, self._convert(values))
        try:
            section = to_section(table, columns, self._keys, spec, self._work.max_parallelism, self._work.now_ms)
        except CairnError as error:
            raise CorruptFileError(
                f"{self._work.savepoint}: operator '{self._operator.uid}', {error.message}", **error.facts
            ) from error
        self._check(section, groups)
        return section

    def _rows(self, part: TablePart, row_group: int, groups: KeyGroupRange) -> pa.Table:
        """The rows of a row group in the range. The last row group is kept, because the next range may share it."""
        if self._kept is None or self._kept[0] is not part or self._kept[1] != row_group:
            self._kept = (part, row_group, part.read(row_group))
        return part.within(self._kept[2], groups)

    def _check(self, section: Section, groups: KeyGroupRange) -> None:
        """Compare the key groups of rows with those of their keys. They differ if somebody edited the table wrongly."""
        computed = groups_of(section.data)
        if self._table.spec.of_subtask:
            lost = int(np.isin(computed, self._owners, invert=True).sum())
            if lost:
                raise CorruptFileError(
                    f"{self._work.savepoint}: operator '{self._operator.uid}', state '{self._table.spec.name}': {lost} "
                    f"entries have key groups that are not the first key group of any of the "
                    f"{self._operator.parallelism} subtasks, so they belong to no subtask",
                    rows=lost,
                )
        outside = int(((computed < groups.start) | (computed > groups.end)).sum())
        if outside:
            raise CorruptFileError(
                f"{self._work.savepoint}: operator '{self._operator.uid}', state '{self._table.spec.name}': {outside} "
                f"rows are stored under key groups {groups.start} to {groups.end} but belong to others; rewrite the "
                "savepoint with Savepoint.with_keyed_state",
                rows=outside,
            )


def _first_groups(operator: SavepointOperator, max_parallelism: int) -> list[int]:
    """The key groups that stand for the subtasks that the operator had."""
    return [
        key_group_range(index, operator.parallelism, max_parallelism).start for index in range(operator.parallelism)
    ]


def _of_owner(table: pa.Table, group_column: str, owner: int) -> pa.Table:
    """The rows with the key group of another owner."""
    at = table.column_names.index(group_column)
    groups = pa.array(np.full(table.num_rows, owner, np.int32))
    return table.set_column(at, table.schema.field(at), groups)


def _pieces(groups: KeyGroupRange, tables: Sequence[_OpenTable]) -> Iterator[KeyGroupRange]:
    """The range in pieces of about the size of a snapshot file, at least one key group each."""
    start, size = groups.start, 0.0
    for group in range(groups.start, groups.end + 1):
        size += sum(table.size_of(group) for table in tables)
        if size >= chain_merge.FILE_BYTES or group == groups.end:
            yield KeyGroupRange(start, group)
            start, size = group + 1, 0.0
