"""Stored forms as typed Arrow columns, and back: whole columns at a time wherever the type allows.

A value in state has a stored form (`model/types.py`): a number, a text, or bytes. Here a column of stored forms becomes
a column of the declared type, as Parquet and every reader of it know it. Numbers, texts, times and bytes are never
touched one by one. Structs, arrays and maps are stored as MessagePack and are unpacked by one call for a whole column.
Pickled values stay what they are: bytes that nobody opens.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from cairn.errors import CorruptFileError, InvalidInputError
from cairn.model.types import DataType, Storage
from cairn.state.codec import ARROW_SCALARS
from cairn.storage.state_file import ARROW_STORAGE

_SCALARS = ARROW_SCALARS | {"pickle": pa.binary()}
_SIGN = np.uint64(1 << 63)
_MAX_DEPTH = 32
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

Numbers = np.ndarray[Any, Any]


def arrow_type(dtype: DataType, depth: int = 0) -> pa.DataType:
    """The Arrow type of a declared type: what its column in a table has."""
    if depth > _MAX_DEPTH:
        raise InvalidInputError(f"a type nested deeper than {_MAX_DEPTH} levels cannot be written as a table")
    if dtype.ddl in _SCALARS:
        return _SCALARS[dtype.ddl]
    if dtype.ddl.startswith("decimal("):
        precision, scale = dtype.ddl[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    if dtype.fields:
        return pa.struct([pa.field(name, arrow_type(inner, depth + 1)) for name, inner in dtype.fields])
    if len(dtype.items) == 1:
        return pa.list_(arrow_type(dtype.items[0], depth + 1))
    if len(dtype.items) == 2:
        return pa.map_(arrow_type(dtype.items[0], depth + 1), arrow_type(dtype.items[1], depth + 1))
    raise InvalidInputError(f"type '{dtype.ddl}' cannot be written as a table: give the struct a field")


def is_pickled(dtype: DataType) -> bool:
    """Whether values of the type hold pickled bytes, themselves or somewhere inside."""
    return dtype.ddl == "pickle" or any(map(is_pickled, (*dtype.items, *(inner for _, inner in dtype.fields))))


def _is_nested(dtype: DataType) -> bool:
    return bool(dtype.fields or dtype.items)


# From stored forms to types.


def typed_column(dtype: DataType, stored: pa.Array) -> pa.Array:
    """A column of stored forms, as a state file holds it, as a column of the declared type."""
    if _is_nested(dtype):
        return _unpacked(dtype, stored.to_pylist()) if stored.null_count else _unpacked_whole(dtype, stored)
    wanted = arrow_type(dtype)
    if stored.type == wanted:
        return stored
    if dtype.ddl == "date":
        return stored.cast(pa.int32()).cast(wanted)
    return stored.cast(wanted)


def typed_list(dtype: DataType, stored: list[Any]) -> pa.Array:
    """Stored forms as a column of the declared type."""
    if _is_nested(dtype):
        return _unpacked(dtype, stored)
    return typed_column(dtype, pa.array(stored, ARROW_STORAGE[dtype.storage]))


def unpack_column(packed: pa.Array) -> list[Any]:
    """What each value of a column without nulls holds as MessagePack: one call for all of them."""
    offsets, data = parts(packed)
    return _unpack_many(len(packed), data[offsets[0] : offsets[-1]].tobytes())


def _unpack_many(count: int, body: bytes) -> list[Any]:
    """Many values that stand one after the other. Garbage is not looked for meanwhile: what is made here holds no
    cycles, and looking for them in millions of lists takes longer than making them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        found: list[Any] = _unpack(b"\xdd" + count.to_bytes(4, "big") + body)
    finally:
        if collecting:
            gc.enable()
    return found


def _unpacked_whole(dtype: DataType, stored: pa.Array) -> pa.Array:
    return _assembled(dtype, unpack_column(stored) if len(stored) else [])


def _unpacked(dtype: DataType, stored: list[Any]) -> pa.Array:
    present = [packed for packed in stored if packed is not None]
    values = _unpack_many(len(present), b"".join(present))
    made = _assembled(dtype, values)
    if len(present) == len(stored):
        return made
    places = accumulate((packed is not None for packed in stored), initial=0)
    picks = [place if packed is not None else None for place, packed in zip(places, stored, strict=False)]
    return made.take(pa.array(picks, pa.int64()))


def _assembled(dtype: DataType, values: list[Any]) -> pa.Array:
    """Unpacked values of a struct, an array or a map as a column; all of them are there."""
    if dtype.fields:
        width = len(dtype.fields)
        if any(len(value) != width for value in values):
            raise CorruptFileError(f"a stored value of type '{dtype.ddl}' has another number of fields")
        columns: Sequence[Sequence[Any]] = list(zip(*values, strict=True)) if values else [()] * width
        arrays = [typed_list(inner, list(column)) for (_, inner), column in zip(dtype.fields, columns, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(arrow_type(dtype)))
    offsets = pa.array(np.cumsum([0, *map(len, values)]), pa.int32())
    flat = list(chain.from_iterable(values))
    if len(dtype.items) == 1:
        return pa.ListArray.from_arrays(offsets, typed_list(dtype.items[0], flat), type=arrow_type(dtype))
    keys = typed_list(dtype.items[0], [key for key, _ in flat])
    return pa.MapArray.from_arrays(offsets, keys, typed_list(dtype.items[1], [value for _, value in flat]))


# From types to stored forms.


def stored_column(dtype: DataType, typed: pa.Array) -> pa.Array:
    """The opposite of `typed_column`; `typed` has exactly the type that `arrow_type` names."""
    if _is_nested(dtype):
        return pa.array(_packed(dtype, typed), pa.binary())
    if dtype.ddl == "date":
        return typed.cast(pa.int32()).cast(pa.int64())
    return typed.cast(ARROW_STORAGE[dtype.storage])


def stored_list(dtype: DataType, typed: pa.Array) -> list[Any]:
    return _packed(dtype, typed) if _is_nested(dtype) else list(stored_column(dtype, typed).to_pylist())


def _packed(dtype: DataType, typed: pa.Array) -> list[Any]:
    valid = typed.is_valid().to_pylist() if typed.null_count else None
    made: list[Any]
    if dtype.fields:
        columns = [stored_list(inner, array) for (_, inner), array in zip(dtype.fields, typed.flatten(), strict=True)]
        made = [_pack(row) for row in zip(*columns, strict=True)]
    else:
        offsets = np.asarray(typed.offsets)
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        bounds = (offsets - first).tolist()
        ends = pairwise(bounds)
        if len(dtype.items) == 1:
            flat = stored_list(dtype.items[0], typed.values.slice(first, last - first))
            made = [_pack(flat[at:end]) for at, end in ends]
        else:
            keys = stored_list(dtype.items[0], typed.keys.slice(first, last - first))
            values = stored_list(dtype.items[1], typed.items.slice(first, last - first))
            pairs = list(zip(keys, values, strict=True))
            made = [_pack(pairs[at:end]) for at, end in ends]
    return made if valid is None else [value if there else None for value, there in zip(made, valid, strict=True)]


# Ordered bytes: keys and map keys.


def parts(column: pa.Array) -> tuple[Numbers, Numbers]:
    """Offsets (one more than rows) and bytes of a binary or text column."""
    if len(column) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def split_keys(columns: Sequence[tuple[str, DataType]], keys: pa.Array) -> tuple[Numbers, list[pa.Array]]:
    """Stored keys (`codec.with_groups`) as their key groups and the typed key columns."""
    offsets, data = parts(keys)
    starts, ends = offsets[:-1], offsets[1:]
    if ((ends - starts) < 2).any():
        raise CorruptFileError("a stored key is shorter than its key group")
    groups = data[starts].astype(np.int32) * 256 + data[starts + 1] if len(keys) else np.zeros(0, np.int32)
    at = starts + 2
    if len(columns) == 1:
        return groups, [ordered_column(columns[0][1], data, at, ends)]
    arrays = []
    for _, dtype in columns:
        if ((at + 4) > ends).any():
            raise CorruptFileError("a stored key of several columns is cut short")
        lengths = _words(data, at, 4).view(">u4").astype(np.int64)
        at = at + 4
        if ((at + lengths) > ends).any():
            raise CorruptFileError("a stored key of several columns is cut short")
        arrays.append(ordered_column(dtype, data, at, at + lengths))
        at = at + lengths
    if (at != ends).any():
        raise CorruptFileError("a stored key of several columns has bytes left over")
    return groups, arrays


def ordered_column(dtype: DataType, data: Numbers, starts: Numbers, ends: Numbers) -> pa.Array:
    """A column from the bytes that `codec` writes for keys and map keys, each from a start to an end in `data`."""
    if dtype.storage in (Storage.INT, Storage.FLOAT):
        if ((ends - starts) != 8).any():
            raise CorruptFileError(f"a stored key of type '{dtype.ddl}' has not eight bytes")
        raw = _words(data, starts, 8)
        if dtype.storage is Storage.FLOAT:
            return typed_column(dtype, pa.array(raw.view(">f8").astype(np.float64)))
        return typed_column(dtype, pa.array((raw.view(">u8").astype(np.uint64) ^ _SIGN).view(np.int64)))
    piece = _pieces(data, starts, ends)
    return typed_column(dtype, piece.cast(pa.string()) if dtype.storage is Storage.TEXT else piece)


def _words(data: Numbers, starts: Numbers, width: int) -> Numbers:
    """`width` bytes from each start, one after the other."""
    count = len(starts)
    if count > 1:
        step = int(starts[1] - starts[0])
        if step >= width and bool((np.diff(starts) == step).all()):
            view = np.lib.stride_tricks.as_strided(data[starts[0] :], (count, width), (step, 1))
            return np.ascontiguousarray(view).reshape(-1)
    return data[starts[:, None] + np.arange(width)].reshape(-1)


def _pieces(data: Numbers, starts: Numbers, ends: Numbers) -> pa.Array:
    """The bytes from each start to its end as a binary column."""
    lengths = ends - starts
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if len(starts) and bool((starts[1:] == ends[:-1]).all()):
        picked = data[starts[0] : ends[-1]]
    else:
        picked = data[np.arange(total) + np.repeat(starts - offsets[:-1], lengths)]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(picked))]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)
