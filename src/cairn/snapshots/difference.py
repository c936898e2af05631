"""Two snapshots compared without Spark, and every byte of one verified: a range of key groups at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CairnError, CorruptFileError, NotFoundError
from cairn.model.ddl import parse_type
from cairn.snapshots.snapshot import ChainRows, FileRows, Snapshot, SnapshotOperator, SnapshotState, ranges
from cairn.snapshots.table_tasks import TableWork, opener
from cairn.state.codec import KeyCodec
from cairn.state.typed_columns import arrow_type, stored_column
from cairn.storage import layout, savepoint_folder
from cairn.storage.savepoint_folder import Problem, Progress

_RANGES = 32


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of one state: those that only the second snapshot has, those that only the first has, and those of which
    both have another value (as the first has them, and as the second has them, in the same order)."""

    added: pa.Table
    removed: pa.Table
    before: pa.Table
    after: pa.Table


Found = tuple[SnapshotOperator, SnapshotState]


def compared(
    first: Snapshot, one: Found | None, second: Snapshot, other: Found | None, progress: Progress | None = None
) -> Iterator[Difference]:
    """What differs in one state, range by range; both are declared alike, or one of them does not have it."""
    either = one or other
    if either is None:
        raise NotFoundError("neither of the snapshots has the state")
    operator, state = either
    count = _RANGES if first.metadata.max_parallelism == second.metadata.max_parallelism else 1
    for mine, theirs in zip(ranges(first, count), ranges(second, count), strict=True):
        old = _rows(one, mine, state)
        new = _rows(other, theirs, state)
        yield _difference(operator, state, old, new)
        if progress is not None:
            progress(1)


def steps(first: Snapshot, second: Snapshot) -> int:
    """How often `compared` tells of progress."""
    same = first.metadata.max_parallelism == second.metadata.max_parallelism
    return len(ranges(first, _RANGES)) if same else 1


def _rows(found: Found | None, groups: object, state: SnapshotState) -> pa.Table:
    tables = list(found[1].origin.rows(groups)) if found is not None else []
    left_out = {state.columns.key_group, state.columns.last_access} - set(state.identity)
    columns = [name for name in state.schema.names if name not in left_out]
    whole = pa.concat_tables(tables) if tables else state.schema.empty_table()
    return whole.select(columns).combine_chunks()


def _difference(operator: SnapshotOperator, state: SnapshotState, old: pa.Table, new: pa.Table) -> Difference:
    names = pa.concat_arrays([_identity(operator, state, old), _identity(operator, state, new)]).dictionary_encode()
    codes = np.asarray(names.indices)
    mine, theirs = codes[: old.num_rows], codes[old.num_rows :]
    place = np.full(len(names.dictionary), -1)
    place[mine] = np.arange(old.num_rows)
    match = place[theirs]
    both = match >= 0
    here = np.zeros(len(names.dictionary), bool)
    here[theirs] = True
    pairs = np.flatnonzero(both)
    if state.columns.value and len(pairs):
        pairs = pairs[_differ(state, old.take(pa.array(match[pairs])), new.take(pa.array(pairs)))]
    else:
        pairs = pairs[:0]
    return Difference(
        new.filter(pa.array(~both)),
        old.filter(pa.array(~here[mine])),
        old.take(pa.array(match[pairs])),
        new.take(pa.array(pairs)),
    )


def _identity(operator: SnapshotOperator, state: SnapshotState, rows: pa.Table) -> pa.Array:
    """What tells a row from the others, as bytes."""
    columns = [] if state.spec.of_subtask else [*operator.keys]
    arrays = [_whole(rows, name) for name, _ in columns]
    for name in state.identity[len(columns) :]:
        dtype = parse_type(state.spec.key_type if name == state.columns.map_key else "bigint")
        array = _whole(rows, name)
        if name == state.columns.key_group:
            array = array.cast(pa.int64())
        if dtype.fields:
            array, dtype = stored_column(dtype, array), parse_type("binary")
        columns.append((name, dtype))
        arrays.append(array)
    return KeyCodec(columns).encode(arrays)


def _whole(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _differ(state: SnapshotState, old: pa.Table, new: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    dtype = parse_type(state.spec.value_type)
    wanted = arrow_type(dtype)
    sides = [stored_column(dtype, _whole(table, state.columns.value).cast(wanted)) for table in (old, new)]
    same = np.asarray(pc.equal(*sides))
    if pa.types.is_floating(sides[0].type):
        same = same | (np.asarray(pc.is_nan(sides[0])) & np.asarray(pc.is_nan(sides[1])))
    return ~same.astype(bool)


# Verifying.


def verified(snapshot: Snapshot, progress: Progress | None = None) -> list[Problem]:
    """Everything that is wrong with a snapshot, every byte read, and what lies in it without being part of it."""
    if progress is not None:
        progress(_metadata_bytes(snapshot))  # read and compared when the snapshot was opened
    if not snapshot.checkpoint:
        problems = savepoint_folder.verify(snapshot.path, progress)
        damaged = any(problem.damage for problem in problems)
        return problems if damaged else problems + _wrong_tables(snapshot)
    problems = []
    for operator in snapshot.operators.values():
        origin = next((state.origin for state in operator.states.values()), None)
        if not isinstance(origin, ChainRows):
            continue
        opened = opener(TableWork(origin.job_dir, b"", 0, 0, 0, "", origin.checkpoint), operator.uid)
        for handle in origin.operator.chain:
            try:
                opened(handle).verify(handle.groups)
            except (CorruptFileError, NotFoundError) as error:
                problems.append(Problem(handle.path or f"inlined, epoch {handle.epoch}", error.message))
            if progress is not None:
                progress(handle.size)
    return problems


def verified_bytes(snapshot: Snapshot) -> int:
    """How many bytes `verified` tells of."""
    own = _metadata_bytes(snapshot)
    if not snapshot.checkpoint:
        return own + sum(
            file.size for file in savepoint_folder.named_files(savepoint_folder.read_savepoint(snapshot.path))
        )
    chains = {
        operator.uid: state.origin.operator.chain
        for operator in snapshot.operators.values()
        for state in operator.states.values()
    }
    held: int = sum(handle.size for chain in chains.values() for handle in chain)
    return own + held


def _metadata_bytes(snapshot: Snapshot) -> int:
    return os.path.getsize(os.path.join(snapshot.path, layout.METADATA))


def _wrong_tables(snapshot: Snapshot) -> list[Problem]:
    """Tables whose bytes are whole, but which are not what the metadata says."""
    problems = []
    for operator in snapshot.operators.values():
        for state in operator.states.values():
            try:
                if isinstance(state.origin, FileRows):
                    state.origin.verify()
            except CairnError as error:
                problems.append(Problem(os.path.join(operator.uid, state.name), error.message))
    return problems
