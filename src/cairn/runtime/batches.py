"""Arrow batches in and out: rows to chunks with keys, output rows back to Arrow with errors that name the row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InternalError, InvalidInputError, UserFunctionError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.output_tags import OutputTag
from cairn.runtime.exact_values import exact_fit
from cairn.runtime.lossless_casts import CastError, cast_exactly
from cairn.runtime.row_values import arrow_column, python_values
from cairn.state.codec import KeyCodec, not_utf8, with_groups
from cairn.state.key_slots import KeySlots

GROUP_COLUMN = "__cairn_group"
INPUT_COLUMN = "__cairn_input"
ORDER_COLUMN = "__cairn_order"
CHUNK_ROWS = 512 * 1024
CHUNK_BYTES = 48 << 20
SLICE_ROWS = 16 * 1024
"""Rows that are turned into Python objects at a time."""
FEW_ROWS = 64
"""Up to this many rows are handled one by one: vectorised calls take longer for so few."""
_MISFIT = (ValueError, TypeError, OverflowError, pa.ArrowException, UnicodeEncodeError)


def subtask_of_batch(batch: pa.RecordBatch, parallelism: int, max_parallelism: int) -> int:
    """Which subtask the rows belong to. A negative group marks the row that every subtask gets in every epoch."""
    groups = batch.column(batch.num_columns - 1)
    low, high = _bounds(groups)
    subtasks = {-g - 1 if g < 0 else g * parallelism // max_parallelism for g in (low, high)}
    if len(subtasks) != 1:
        raise InternalError(f"rows of subtasks {sorted(subtasks)} arrived in one task; the shuffle is broken")
    return int(subtasks.pop())


def _bounds(groups: pa.Array) -> tuple[int, int]:
    """The lowest and the highest key group of some rows."""
    if groups.null_count:
        raise InternalError(f"{groups.null_count} rows have no key group; the shuffle is broken")
    if len(groups) <= FEW_ROWS:
        few = groups.to_pylist()
        return min(few), max(few)
    numbers = np.asarray(groups)
    return int(numbers.min()), int(numbers.max())


def check_groups(batch: pa.RecordBatch, owned: KeyGroupRange) -> None:
    """Rows of key groups that the task does not own must never reach its state."""
    low, high = _bounds(batch.column(batch.num_columns - 1))
    if low < owned.start or high > owned.end:
        raise InternalError(
            f"rows of key groups {low} to {high} came to the task that owns {owned.start} to {owned.end}; "
            "the shuffle is broken"
        )


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, so that state is read for many keys at once; memory stays bounded."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        groups = batch.column(batch.num_columns - 1)
        low, high = _bounds(groups)
        if high < 0:
            continue
        if low < 0:
            batch = batch.filter(pc.greater_equal(groups, 0))
        if held:
            size += held[-1].nbytes
            if rows + batch.num_rows > CHUNK_ROWS or size + batch.nbytes > CHUNK_BYTES:
                yield joined(held)
                held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
    if held:
        yield joined(held)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class KeyedChunk:
    """A chunk with the slot of every row's key."""

    __slots__ = ("key_index", "key_slots", "rows", "slots")

    def __init__(self, batch: pa.RecordBatch, key_columns: Sequence[int], codec: KeyCodec, slots: KeySlots) -> None:
        groups = batch.column(batch.num_columns - 1)
        keys = codec.encode([batch.column(i) for i in key_columns])
        distinct = self._index_few(groups, keys) if len(keys) <= FEW_ROWS else self._index(groups, keys)
        self.key_slots = slots.add(distinct)
        self.slots = self.key_slots[self.key_index]
        slots.rows += len(keys)
        self.rows = batch

    def _index(self, groups: pa.Array, keys: pa.Array) -> pa.Array:
        """The distinct keys with their groups; `key_index` says which of them each row has."""
        encoded = keys.dictionary_encode()
        self.key_index: np.ndarray[Any, Any] = np.asarray(encoded.indices)
        first = np.zeros(len(encoded.dictionary), dtype=np.int64)
        first[self.key_index[::-1]] = np.arange(len(keys) - 1, -1, -1)
        return with_groups(np.asarray(groups)[first], encoded.dictionary)

    def _index_few(self, groups: pa.Array, keys: pa.Array) -> pa.Array:
        rows = zip(groups.to_pylist(), keys.to_pylist(), strict=True)
        stored = [group.to_bytes(2, "big") + key for group, key in rows]
        places = {key: place for place, key in enumerate(dict.fromkeys(stored))}
        self.key_index = np.array([places[key] for key in stored], dtype=np.int64)
        return pa.array(list(places), pa.binary())


class OutputBuilder:
    """Rows that user code emitted, turned into Arrow batches of the declared type."""

    def __init__(self, operator: str, schema: pa.Schema, side: str = "") -> None:
        self._operator = operator
        self._where = f"operator '{operator}'" + (f", side output '{side}'," if side else "")
        self._schema = schema
        self._width = len(schema)
        self._struct = pa.struct(list(schema))
        self._getters = [itemgetter(i) for i in range(self._width)]
        self._checks = [exact_fit(field.type) for field in schema]
        self._inexact = [
            (place, self._getters[place], check) for place, check in enumerate(self._checks) if check is not None
        ]
        self.names: list[str] = list(schema.names)

    def build(self, rows: list[Any]) -> pa.RecordBatch:
        if isinstance(rows[0], tuple):  # then Arrow takes nothing but tuples of the right length and types
            with suppress(*_MISFIT, LookupError):
                whole = pa.array(rows, self._struct)
                columns = whole.flatten()
                if whole.null_count == 0 and self._is_exact(rows, columns):
                    return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return self._build_checked(rows)

    def _is_exact(self, rows: list[Any], columns: list[pa.Array]) -> bool:
        """Whether Arrow took every value as it is (`runtime/exact_values.py`)."""
        return all(check.all(partial(map, get, rows), columns[place]) for place, get, check in self._inexact)

    def _build_checked(self, rows: list[Any]) -> pa.RecordBatch:
        """Rows of all the forms that are taken, and the error for those that are not."""
        try:
            if not all(issubclass(kind, (tuple, list)) for kind in set(map(type, rows))):
                rows = [self._row(row) for row in rows]
            if set(map(len, rows)) - {self._width}:
                raise ValueError
            columns = [
                arrow_column(list(map(get, rows)), field.type)
                for get, field in zip(self._getters, self._schema, strict=True)
            ]
            if not self._is_exact(rows, columns):
                raise ValueError
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        except _MISFIT as error:
            raise self._explain(rows, error) from None

    def _row(self, row: Any) -> Any:
        """Rows may also be mappings by column name, or the bare value of a single column."""
        if isinstance(row, (tuple, list)):
            return row
        if isinstance(row, dict):
            missing = [name for name in self._schema.names if name not in row]
            extra = [name for name in row if name not in self._schema.names]
            if missing or extra:
                what = f"column '{missing[0]}' is missing" if missing else f"there is no column '{extra[0]}'"
                raise self._wrong(row, what)
            return tuple(row[name] for name in self._schema.names)
        if self._width == 1:
            return (row,)
        raise self._wrong(row, f"it is a {type(row).__name__}, not a tuple")

    def _explain(self, rows: list[Any], error: Exception) -> UserFunctionError:
        if isinstance(error, UserFunctionError):
            return error
        for row in rows:
            if is_aside(row):
                return unknown_tag(self._operator, row[0], ())
            if len(row) != self._width:
                return self._wrong(row, f"it has {len(row)} values instead of {self._width}")
            for value, field, check in zip(row, self._schema, self._checks, strict=True):
                where = f"column '{field.name}' is {field.type}"
                try:
                    arrow_column([value], field.type)
                    if check is not None and not check.fits(value):
                        what = f"{value!r:.80} would not be kept as it is"
                        return self._wrong(row, f"{where}: {what}; convert it before you emit it")
                except _MISFIT as why:
                    return self._wrong(row, f"{where}: {why}")
        return self._wrong(rows[0] if rows else (), str(error))

    def _wrong(self, row: Any, why: str) -> UserFunctionError:
        shown = repr(tuple(row) if isinstance(row, tuple) else row)
        declared = ", ".join(f"{field.name} {field.type}" for field in self._schema)
        return UserFunctionError(
            f"{self._where} emitted {shown[:200]}, which is not of the output type ({declared}): {why}."
            " Nothing of this epoch was kept.",
            operator=self._operator,
        )

    def check(self, batch: Any) -> pa.RecordBatch:
        """An Arrow result of `process_batch`, cast to the declared type where that keeps its values."""
        if isinstance(batch, pa.Table):
            batch = batch.combine_chunks().to_batches()
            batch = batch[0] if batch else pa.RecordBatch.from_pylist([], schema=self._schema)
        if not isinstance(batch, pa.RecordBatch):
            raise UserFunctionError(
                f"operator '{self._operator}' returned {type(batch).__name__}; process_batch functions return a "
                "pyarrow RecordBatch or Table"
            )
        if batch.schema.names != self._schema.names:
            raise UserFunctionError(
                f"operator '{self._operator}' returned columns {batch.schema.names}, but its output type has "
                f"{self._schema.names}"
            )
        if batch.schema.types == self._schema.types:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        columns = []
        for column, field in zip(batch.columns, self._schema, strict=True):
            try:
                columns.append(cast_exactly(column, field.type))
            except CastError as error:
                raise UserFunctionError(
                    f"operator '{self._operator}', column '{field.name}': {error}. Nothing of this epoch was kept.",
                    operator=self._operator,
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def is_aside(row: Any) -> bool:
    """Whether an emitted value is meant for a side output: `yield tag, value`."""
    return isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], OutputTag)


def unknown_tag(operator: str, tag: OutputTag, known: Sequence[str]) -> UserFunctionError:
    read = f"it reads {', '.join(known)}" if known else "it reads none of this operator"
    return UserFunctionError(
        f"operator '{operator}' emitted a value to the side output '{tag.tag_id}', which the job does not read "
        f"({read}). Read it with get_side_output(OutputTag('{tag.tag_id}', ...)), or do not emit it. Nothing of "
        "this epoch was kept.",
        operator=operator,
        tag=tag.tag_id,
    )


def row_columns(batch: pa.RecordBatch, count: int) -> list[list[Any]]:
    """The first `count` columns as lists of Python values."""
    return [_python_values(batch, place) for place in range(count)]


def _python_values(batch: pa.RecordBatch, place: int) -> list[Any]:
    try:
        return python_values(batch.column(place))
    except UnicodeDecodeError as error:
        raise not_utf8(f"column '{batch.schema.names[place]}'", error.object) from None


def event_times(column: pa.Array) -> list[int | None]:
    """A timestamp column as milliseconds since 1970."""
    if not pa.types.is_timestamp(column.type):
        raise InvalidInputError(f"the event-time column has type {column.type}, which is not a timestamp")
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return [None if us is None else us // 1000 for us in micros.to_pylist()]
