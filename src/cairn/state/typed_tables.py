"""Sections of state files as typed tables, and back: the only place that knows both.

A section has encoded keys, entries and values (`storage/state_file.py`); a table has the columns that people declared,
one row per value, list element, map entry or timer (`docs/design/0003-savepoints.md`). Savepoints, restores and the
offline API are built on these two directions:

* `to_table` keeps the order of the section. It needs nothing but the declaration that manifests keep.
* `to_section` takes rows in any order, computes their key groups anew, sorts, and refuses what cannot be state: null
  keys, null values, two rows for one place. Segments of a restored list come before all that later epochs will add.

States that belong to subtasks have no key columns: the key group of a row says whose it is, and is kept as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptFileError, InternalError, InvalidInputError
from cairn.model.ddl import parse_type
from cairn.model.manifest import StateSpec
from cairn.model.savepoint_records import Columns
from cairn.model.types import DataType, Storage
from cairn.state.codec import KeyCodec, group_order, with_groups
from cairn.state.key_hashing import key_groups
from cairn.state.typed_columns import (
    Numbers,
    arrow_type,
    ordered_column,
    parts,
    split_keys,
    stored_column,
    stored_list,
    typed_column,
    typed_list,
    unpack_column,
)
from cairn.storage.state_file import Section, ordered_table

KeyColumns = Sequence[tuple[str, DataType]]
_TIME = pa.timestamp("us", "UTC")
_pack = msgspec.msgpack.Encoder().encode
_UNREADABLE = (pa.ArrowException, msgspec.MsgspecError, ValueError, TypeError, IndexError, OverflowError)


def table_schema(key_columns: KeyColumns, spec: StateSpec) -> tuple[Columns, pa.Schema]:
    """The columns of a state's table by role, and their types. A reserved name that a key column has gets a `_`."""
    key_columns = _keys_of(key_columns, spec)
    taken = {name.lower() for name, _ in key_columns}

    def free(name: str) -> str:
        while name in taken:
            name = "_" + name
        taken.add(name)
        return name

    fields = [pa.field(name, arrow_type(dtype)) for name, dtype in key_columns]
    roles: dict[str, str] = {}

    def add(role: str, dtype: pa.DataType) -> None:
        roles[role] = free(role)
        fields.append(pa.field(roles[role], dtype))

    add("key_group", pa.int32())
    if spec.section_kind == "map":
        add("map_key", arrow_type(parse_type(spec.key_type)))
    if spec.section_kind == "list":
        add("position", pa.int64())
    if spec.kind == "timer":
        add("timestamp", pa.int64())
    else:
        add("value", arrow_type(parse_type(spec.value_type)))
    if spec.ttl_ms:
        add("last_access", _TIME)
    return Columns(keys=[name for name, _ in key_columns], **roles), pa.schema(fields)


def _keys_of(key_columns: KeyColumns, spec: StateSpec) -> KeyColumns:
    """The key columns of a state's table. What belongs to subtasks has none, also in an operator that has a key."""
    return () if spec.of_subtask else key_columns


# From sections to tables.


def to_table(section: Section, key_columns: KeyColumns, spec: StateSpec) -> pa.Table:
    """The rows of a snapshot's section, in their order. A section with removals is no snapshot and is refused."""
    _, schema = table_schema(key_columns, spec)
    data = section.data
    keys, values = _whole(data, "key"), _whole(data, "value")
    entries = _whole(data, "entry") if section.has_entries else None
    if values.null_count or (entries is not None and entries.null_count):
        raise InternalError(f"state '{spec.name}': removals have no place in a table; merge the chain first")
    if section.has_entries != spec.has_entries:
        raise CorruptFileError(f"state '{spec.name}' is declared as a {spec.signature} and stored as another kind")
    times = _whole(data, "time") if section.ttl and spec.ttl_ms else None
    try:
        groups, columns = split_keys(_keys_of(key_columns, spec), keys)
        columns.append(pa.array(groups))
        if spec.section_kind == "list":
            columns = _with_elements(columns, keys, values, spec)
        elif spec.section_kind == "map" and entries is not None:
            offsets, raw = parts(entries)
            columns.append(ordered_column(parse_type(spec.key_type), raw, offsets[:-1], offsets[1:]))
            columns.append(typed_column(parse_type(spec.value_type), values))
        elif spec.kind == "timer" and entries is not None:
            offsets, raw = parts(entries)
            columns.append(ordered_column(parse_type("bigint"), raw, offsets[:-1], offsets[1:]))
        else:
            columns.append(typed_column(parse_type(spec.value_type), values))
        if spec.ttl_ms:
            columns.append(_last_access(times, values, len(columns[0]), spec))
        return pa.table(columns, schema=schema)
    except _UNREADABLE as error:
        raise CorruptFileError(
            f"state '{spec.name}' cannot be read as a {spec.signature}: {error}", state=spec.name
        ) from error


def _with_elements(columns: list[pa.Array], keys: pa.Array, values: pa.Array, spec: StateSpec) -> list[pa.Array]:
    """One row per element: the key columns repeated, positions counted through all segments of a key."""
    segments = unpack_column(values) if len(values) else []
    lengths = _lengths(segments)
    rows = pa.array(np.repeat(np.arange(len(segments)), lengths))
    before = np.cumsum(lengths) - lengths
    first = before[_first_of_key(keys)] if len(keys) else before
    positions = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
    elements = typed_list(parse_type(spec.value_type), list(chain.from_iterable(segments)))
    return [*(column.take(rows) for column in columns), pa.array(positions), elements]


def _lengths(segments: list[Any]) -> Numbers:
    return np.fromiter(map(len, segments), np.int64, len(segments))


def _first_of_key(keys: pa.Array) -> Numbers:
    """For each row of a sorted column, the place of the first row with the same key."""
    places = np.arange(len(keys))
    return np.maximum.accumulate(np.where(_begins(keys), places, 0))


def _begins(keys: pa.Array) -> Numbers:
    """Where another key begins in a sorted column."""
    begins = np.ones(len(keys), bool)
    if len(keys) > 1:
        begins[1:] = np.asarray(pc.not_equal(keys[1:], keys[:-1]))
    return begins


def _last_access(times: pa.Array | None, values: pa.Array, rows: int, spec: StateSpec) -> pa.Array:
    if times is None:
        return pa.nulls(rows, _TIME)
    if spec.section_kind == "list":
        times = times.take(pa.array(np.repeat(np.arange(len(values)), _lengths(unpack_column(values)))))
    return pc.multiply(times, 1000).cast(_TIME)


# From tables to sections.


def to_section(
    table: pa.Table,
    columns: Columns,
    key_columns: KeyColumns,
    spec: StateSpec,
    max_parallelism: int,
    now_ms: int = 0,
) -> Section:
    """The rows of a table, in any order, as a snapshot's section for a state that is declared as `spec`.

    `columns` names the columns of the table by role; the column with the key group is read of states that belong to
    subtasks only. Rows without a time get `now_ms` when the state has TTL. Raises `InvalidInputError` with the number
    of rows that cannot be state.
    """
    if spec.of_subtask:
        keys = _owners(table, columns, spec, max_parallelism)
    else:
        keys = _keys(table, columns, key_columns, spec, max_parallelism)
    times = _times(table, columns, spec, now_ms)
    made: dict[str, pa.Array] = {"key": keys}
    if spec.section_kind == "map":
        key_type = parse_type(spec.key_type)
        map_keys = _present(table, columns.map_key, key_type, spec)
        made["entry"] = _entries(key_type, map_keys)
    elif spec.section_kind == "list":
        positions = _cast(table, columns.position, pa.int64(), spec)
        _refuse_nulls(positions, f"null in column '{columns.position}'", spec)
        made["entry"] = group_order(np.asarray(positions))
    elif spec.kind == "timer":
        stamps = _cast(table, columns.timestamp, pa.int64(), spec)
        _refuse_nulls(stamps, f"null in column '{columns.timestamp}'", spec)
        made["entry"] = group_order(np.asarray(stamps))
    order = _order(made, spec)
    dtype = parse_type(spec.value_type)
    if spec.kind == "timer":
        return _section(spec, Storage.BYTES, _taken(made, order) | {"value": _blank(len(keys))})
    values = _present(table, columns.value, dtype, spec)
    if spec.section_kind == "list":
        return _section(spec, Storage.BYTES, _segments(_taken(made, order), values, times, order, dtype))
    made["value"] = stored_column(dtype, values)
    if times is not None:
        made["time"] = times
    return _section(spec, dtype.storage, _taken(made, order))


def _keys(
    table: pa.Table, columns: Columns, key_columns: KeyColumns, spec: StateSpec, max_parallelism: int
) -> pa.Array:
    """The stored keys of rows that belong to keys."""
    arrays = [
        _cast(table, name, arrow_type(dtype), spec) for name, (_, dtype) in zip(columns.keys, key_columns, strict=True)
    ]
    for name, array in zip(columns.keys, arrays, strict=True):
        _refuse_nulls(array, f"null in key column '{name}'; a key cannot be null", spec)
    return with_groups(key_groups(key_columns, arrays, max_parallelism), KeyCodec(key_columns).encode(arrays))


def _owners(table: pa.Table, columns: Columns, spec: StateSpec, max_parallelism: int) -> pa.Array:
    """The stored keys of rows that belong to subtasks: the key group that stands for the subtask, and nothing else."""
    groups = _cast(table, columns.key_group, pa.int32(), spec)
    _refuse_nulls(groups, f"null in column '{columns.key_group}', which says whose they are", spec)
    numbers = np.asarray(groups)
    outside = int(((numbers < 0) | (numbers >= max_parallelism)).sum())
    if outside:
        raise InvalidInputError(
            f"state '{spec.name}': {outside} rows have a '{columns.key_group}' that is none of the {max_parallelism} "
            "key groups, 0 and above",
            state=spec.name,
            rows=outside,
        )
    return with_groups(numbers, _blank(len(numbers)))


def _section(spec: StateSpec, storage: Storage, columns: dict[str, pa.Array]) -> Section:
    return Section(spec.name, spec.section_kind, storage, bool(spec.ttl_ms), ordered_table(columns))


def _taken(columns: dict[str, pa.Array], order: pa.Array | None) -> dict[str, pa.Array]:
    return columns if order is None else {name: column.take(order) for name, column in columns.items()}


def _order(columns: dict[str, pa.Array], spec: StateSpec) -> pa.Array | None:
    """The order of state files, or None for rows that have it; two rows for one place are refused."""
    keys = columns["key"]
    entries = columns.get("entry")
    if _distance(keys, entries)[0]:
        return None
    table = pa.table(columns)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])
    ordered = _taken(columns, order)
    repeated = _distance(ordered["key"], ordered.get("entry"))[1]
    if repeated:
        more = {"map": "map key", "list": "position", "timer": "time"}.get(spec.section_kind, "")
        what = ("key group" if spec.of_subtask else "key") + (f" and {more}" if more else "")
        raise InvalidInputError(
            f"state '{spec.name}': {repeated} rows have the {what} of another row; keep one row for each, for "
            "instance with dropDuplicates or an aggregate",
            state=spec.name,
            duplicates=repeated,
        )
    return order


def _distance(keys: pa.Array, entries: pa.Array | None) -> tuple[bool, int]:
    """Whether rows ascend strictly, and how many are equal to the row before."""
    if len(keys) < 2:
        return True, 0
    ascends = np.asarray(pc.less(keys[:-1], keys[1:]))
    if entries is None:
        return bool(ascends.all()), int(np.asarray(pc.equal(keys[:-1], keys[1:])).sum())
    same = np.asarray(pc.equal(keys[:-1], keys[1:]))
    further = np.asarray(pc.less(entries[:-1], entries[1:]))
    equal = same & np.asarray(pc.equal(entries[:-1], entries[1:]))
    return bool((ascends | (same & further)).all()), int(equal.sum())


def _segments(
    columns: dict[str, pa.Array], values: pa.Array, times: pa.Array | None, order: pa.Array | None, dtype: DataType
) -> dict[str, pa.Array]:
    """Elements with one key (and one time) in a row as one segment. Segments are numbered below zero: before every
    epoch, so that what later epochs add comes after them."""
    keys = columns["key"]
    if order is not None:
        values = values.take(order)
        times = times.take(order) if times is not None else None
    of_key = _begins(keys)
    begins = of_key if times is None else of_key | _begins(times)
    starts = np.flatnonzero(begins)
    stored = stored_list(dtype, values)
    ends = [*starts.tolist(), len(stored)][1:]
    packed = [_pack(stored[at:end]) for at, end in zip(starts.tolist(), ends, strict=True)]
    picks = pa.array(starts)
    number = np.cumsum(of_key)[starts]  # which key a segment belongs to, counted from 1
    last = np.searchsorted(number, number, side="right")
    made = {
        "key": keys.take(picks),
        "entry": group_order(np.arange(len(starts)) - last),
        "value": pa.array(packed, pa.binary()),
    }
    return made if times is None else made | {"time": times.take(picks)}


def _entries(dtype: DataType, map_keys: pa.Array) -> pa.Array:
    """Map keys as the bytes that `codec.entry_key` gives."""
    if dtype.fields:
        return stored_column(dtype, map_keys)
    return KeyCodec([("map_key", dtype)]).encode([map_keys])


def _times(table: pa.Table, columns: Columns, spec: StateSpec, now_ms: int) -> pa.Array | None:
    if not spec.ttl_ms:
        return None
    if not columns.last_access or columns.last_access not in table.column_names:
        return pa.array(np.full(table.num_rows, now_ms, np.int64))
    micros = _cast(table, columns.last_access, _TIME, spec).cast(pa.int64())
    millis = pa.array(np.asarray(micros.fill_null(0)) // 1000)
    return pc.if_else(micros.is_valid(), millis, now_ms) if micros.null_count else millis


def _blank(rows: int) -> pa.Array:
    buffers = [None, pa.py_buffer(np.zeros(rows + 1, np.int32)), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _present(table: pa.Table, name: str, dtype: DataType, spec: StateSpec) -> pa.Array:
    column = _cast(table, name, arrow_type(dtype), spec)
    _refuse_nulls(column, f"null in column '{name}'; leave such rows out", spec)
    return column


def _refuse_nulls(column: pa.Array, what: str, spec: StateSpec) -> None:
    if column.null_count:
        raise InvalidInputError(
            f"state '{spec.name}': {column.null_count} rows have a {what}", state=spec.name, nulls=column.null_count
        )


def _cast(table: pa.Table, name: str, wanted: pa.DataType, spec: StateSpec) -> pa.Array:
    if name not in table.column_names:
        raise InvalidInputError(
            f"state '{spec.name}': the rows have no column '{name}'; there are {', '.join(table.column_names)}",
            state=spec.name,
        )
    column = _whole(table, name)
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"state '{spec.name}': column '{name}' has type {column.type} and does not fit {wanted}: {error}",
            state=spec.name,
        ) from error


def _whole(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return pa.concat_arrays(column.chunks)
