"""Point lookups: the state of one key in a snapshot, as rows of its table or as user code sees it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InvalidInputError
from cairn.model.ddl import parse_type
from cairn.model.keygroups import KeyGroupRange, key_group
from cairn.model.types import DataType
from cairn.snapshots.key_text import parse_key
from cairn.snapshots.snapshot import FileRows, Snapshot, SnapshotOperator, SnapshotState
from cairn.state.expiry import alive
from cairn.state.typed_columns import arrow_type, is_pickled, stored_list, typed_list
from cairn.storage.savepoint_parquet import TablePart


def refuse_key(operator: SnapshotOperator, state: SnapshotState) -> None:
    """Raise for a state that belongs to subtasks: there is no key to look up."""
    if state.spec.of_subtask:
        raise InvalidInputError(
            f"operator '{operator.uid}', state '{state.name}' is a {state.spec.signature}: it belongs to subtasks, not "
            f"to keys. Read all of it with Savepoint.{state.reader}, or `cairn state show PATH "
            f"{shlex.quote(operator.uid)} {shlex.quote(state.name)}`.",
            state=state.name,
        )


def find_rows(snapshot: Snapshot, operator: SnapshotOperator, state: SnapshotState, key: Any) -> pa.Table:
    """The rows of one key, without expired ones. Of a savepoint, usually one row group of one file is read.

    `key` is whatever `key_text.parse_key` accepts.
    """
    refuse_key(operator, state)
    values = parse_key(operator, key)
    fitted = [
        dtype.from_storage(dtype.to_storage(value)) for (_, dtype), value in zip(operator.keys, values, strict=True)
    ]
    group = key_group(fitted, [dtype.ddl for _, dtype in operator.keys], snapshot.metadata.max_parallelism)
    groups = KeyGroupRange(group, group)
    scalars = [
        typed_list(dtype, [dtype.to_storage(value)])[0] for (_, dtype), value in zip(operator.keys, values, strict=True)
    ]
    origin = state.origin
    tables = []
    if isinstance(origin, FileRows):
        for part in origin.parts(groups):
            hits = [at for at in part.row_groups(groups) if _may_hold(part, at, state.columns.keys, scalars)]
            tables += [_matching(part.read(at), state.columns.keys, scalars) for at in hits]
    else:
        tables = [_matching(table, state.columns.keys, scalars) for table in origin.rows(groups)]
    rows = pa.concat_tables(tables) if tables else state.schema.empty_table()
    return not_expired(snapshot, state, rows)


def not_expired(snapshot: Snapshot, state: SnapshotState, rows: pa.Table) -> pa.Table:
    """The rows that user code would see at the time of the snapshot: not those whose time to live has run out."""
    return alive(rows, state.columns.last_access, state.spec.ttl_ms, snapshot.time_ms, snapshot.time_reset_ms)


def _may_hold(part: TablePart, row_group: int, keys: Sequence[str], scalars: Sequence[pa.Scalar]) -> bool:
    """Whether the statistics of the key columns leave room for a key; rows are ordered by the first of them."""
    for name, scalar in zip(keys, scalars, strict=True):
        statistics = part.statistics(row_group, name)
        value = scalar.as_py()
        if statistics is None or not statistics.has_min_max or value != value:
            continue
        try:
            if not statistics.min <= value <= statistics.max:
                return False
        except TypeError:  # of another class, for instance without a time zone: they prove nothing
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
    none. Pickled values stay bytes unless `unpickle`."""
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
