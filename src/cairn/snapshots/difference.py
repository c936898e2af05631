"""Compares two snapshots. This is the one place that says when rows are the same and when values are equal.

A row is identified by its key and, as the kind of the state has them, by its map key, position or timestamp; the
elements of operator lists also by their key group. Values are equal as for Spark's `<=>`, at every depth of a type:

- NaN equals NaN, 0.0 equals -0.0, and null equals null,
- structs and arrays are compared part by part, maps without regard to order,
- pickled values are compared as bytes: they are never opened.

Key groups and the times of TTL are not compared, so that a value that was only read is unchanged. Expired rows count
until they are removed. A state whose key or types differ in the two snapshots is removed and added.

`compared` applies the rule to Arrow tables, a range of key groups at a time. `spark/snapshot_diff.py` expresses it in
Spark for `Savepoint.diff`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.model.ddl import key_ddl, parse_type
from cairn.model.keygroups import KeyGroupRange
from cairn.model.types import DataType, Storage
from cairn.snapshots.snapshot import Snapshot, SnapshotOperator, SnapshotState, ranges
from cairn.snapshots.verification import Progress
from cairn.state.codec import KeyCodec
from cairn.state.typed_columns import arrow_type, stored_column

_RANGES = 32
_unpack = msgspec.msgpack.Decoder().decode

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


# What is compared with what.


@dataclass(frozen=True, slots=True)
class Side:
    """One state in one of the two snapshots."""

    snapshot: Snapshot
    operator: SnapshotOperator
    state: SnapshotState

    @property
    def shape(self) -> tuple[str, str, str, str]:
        """Key, kind and types. States are compared row by row only if these are the same."""
        spec = self.state.spec
        keys = key_ddl((name, dtype.ddl) for name, dtype in self.operator.keys)
        return keys, spec.kind if spec.has_entries else "value", spec.key_type, spec.value_type


@dataclass(frozen=True, slots=True)
class StatePair:
    """A state that at least one of two snapshots has."""

    uid: str
    name: str
    before: Side | None
    after: Side | None

    @property
    def alike(self) -> bool:
        """Whether the rows of both can be compared. True if only one of the snapshots has the state."""
        return self.before is None or self.after is None or self.before.shape == self.after.shape

    def parts(self) -> list[StatePair]:
        """Itself; a state whose shape differs, as one that was removed and one that was added."""
        if self.alike:
            return [self]
        return [StatePair(self.uid, self.name, self.before, None), StatePair(self.uid, self.name, None, self.after)]


def state_pairs(before: Snapshot, after: Snapshot) -> list[StatePair]:
    """Every state of two snapshots, in the order of the first one."""
    sides: dict[tuple[str, str], list[Side | None]] = {}
    for place, snapshot in enumerate((before, after)):
        for operator in snapshot.operators.values():
            for state in operator.states.values():
                pair = sides.setdefault((operator.uid, state.name), [None, None])
                pair[place] = Side(snapshot, operator, state)
    return [StatePair(uid, name, first, second) for (uid, name), (first, second) in sides.items()]


# Comparing rows.


class TooManyRows(Exception):
    """A comparison has read more rows than it was allowed to."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs in a range of key groups of one state."""

    added: pa.Table
    """Rows that only the second snapshot has."""
    removed: pa.Table
    """Rows that only the first one has."""
    before: pa.Table
    """Changed rows as the first one has them."""
    after: pa.Table
    """The same rows, in the same order, as the second one has them."""
    rows_before: int
    rows_after: int


def compared(pair: StatePair, progress: Progress | None = None, most_rows: int | None = None) -> Iterator[Difference]:
    """What differs in one state, range by range.

    Raises `TooManyRows` as soon as more than `most_rows` rows were read of one of the snapshots.
    """
    for part in pair.parts():
        sides = (part.before, part.after)
        left = [most_rows, most_rows]
        for groups in zip(*_ranges(part), strict=True):
            tables = []
            for place, side in enumerate(sides):
                table = _rows(side, _either(part).state, groups[place], left[place])
                left[place] = None if most_rows is None else (left[place] or 0) - table.num_rows
                tables.append(table)
            yield _difference(_either(part), *tables)
            if progress is not None:
                progress(1)


def steps(pair: StatePair) -> int:
    """How often `compared` calls `progress`."""
    return sum(len(_ranges(part)[0]) for part in pair.parts())


def _either(pair: StatePair) -> Side:
    side = pair.before or pair.after
    assert side is not None
    return side


def _ranges(pair: StatePair) -> tuple[list[KeyGroupRange], list[KeyGroupRange]]:
    """The key groups of both snapshots in ranges that hold the same keys."""
    before = (pair.before or _either(pair)).snapshot
    after = (pair.after or _either(pair)).snapshot
    count = _RANGES if before.metadata.max_parallelism == after.metadata.max_parallelism else 1
    return ranges(before, count), ranges(after, count)


def _rows(side: Side | None, state: SnapshotState, groups: KeyGroupRange, most: int | None) -> pa.Table:
    """The rows of a range without what is not compared."""
    tables: list[pa.Table] = []
    count = 0
    for table in side.state.origin.rows(groups) if side is not None else ():
        count += table.num_rows
        if most is not None and count > most:
            raise TooManyRows
        tables.append(table)
    left_out = {state.columns.key_group, state.columns.last_access} - set(state.identity)
    columns = [name for name in state.schema.names if name not in left_out]
    whole = pa.concat_tables(tables) if tables else state.schema.empty_table()
    return whole.select(columns).combine_chunks()


def _difference(side: Side, old: pa.Table, new: pa.Table) -> Difference:
    state = side.state
    identities = [_identity(side.operator, state, table) for table in (old, new)]
    names = pa.concat_arrays(identities).dictionary_encode()
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
        dtype = parse_type(state.spec.value_type)
        values = _whole(old, state.columns.value).take(pa.array(match[pairs]))
        pairs = pairs[~equal_values(dtype, values, _whole(new, state.columns.value).take(pa.array(pairs)))]
    else:
        pairs = pairs[:0]
    return Difference(
        new.filter(pa.array(~both)),
        old.filter(pa.array(~here[mine])),
        old.take(pa.array(match[pairs])),
        new.take(pa.array(pairs)),
        old.num_rows,
        new.num_rows,
    )


def _identity(operator: SnapshotOperator, state: SnapshotState, rows: pa.Table) -> pa.Array:
    """The identity of each row as bytes."""
    columns = [] if state.spec.of_subtask else [*operator.keys]
    arrays = [_whole(rows, name) for name, _ in columns]
    for name in state.identity[len(columns) :]:
        dtype = parse_type(state.spec.key_type if name == state.columns.map_key else "bigint")
        array = _whole(rows, name)
        if name == state.columns.key_group:
            array = array.cast(pa.int64())
        if _nested(dtype):
            stored = stored_column(dtype, array.cast(arrow_type(dtype))).to_pylist()
            array = pa.array([repr(canonical(dtype, value)).encode() for value in stored], pa.binary())
            dtype = parse_type("binary")
        columns.append((name, dtype))
        arrays.append(array)
    return KeyCodec(columns).joined(arrays)


def _whole(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


# When values are equal.


def equal_values(dtype: DataType, old: pa.Array, new: pa.Array) -> Mask:
    """Which values of two columns of a type are equal, row by row."""
    first, second = (stored_column(dtype, column.cast(arrow_type(dtype))) for column in (old, new))
    same = pc.fill_null(pc.equal(first, second), False)
    same = pc.or_(same, pc.and_(pc.is_null(first), pc.is_null(second)))
    if pa.types.is_floating(first.type):
        nans = (pc.fill_null(pc.is_nan(column), False) for column in (first, second))
        same = pc.or_(same, pc.and_(*nans))
    mask: Mask = np.array(same, dtype=bool)
    if _nested(dtype):  # equal bytes are equal values; other bytes may be
        others = np.flatnonzero(~mask)
        sides = (column.take(pa.array(others)).to_pylist() for column in (first, second))
        mask[others] = [canonical(dtype, one) == canonical(dtype, other) for one, other in zip(*sides, strict=True)]
    return mask


def canonical(dtype: DataType, stored: Any) -> Any:
    """A stored value in a form that is the same for equal values, and different for others."""
    if stored is None:
        return None
    if dtype.storage is Storage.FLOAT:
        return stored + 0.0 if stored == stored else "NaN"
    if not _nested(dtype):
        return stored
    values = _unpack(stored)
    if dtype.fields:
        return tuple(canonical(inner, value) for (_, inner), value in zip(dtype.fields, values, strict=True))
    if len(dtype.items) == 1:
        return tuple(canonical(dtype.items[0], value) for value in values)
    entries = [(canonical(dtype.items[0], key), canonical(dtype.items[1], value)) for key, value in values]
    return tuple(sorted(entries, key=repr))


def _nested(dtype: DataType) -> bool:
    return bool(dtype.fields or dtype.items)
