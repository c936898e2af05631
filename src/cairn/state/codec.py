"""Key and value bytes: how keys, map keys and values become the bytes that backends and state files hold.

A key is encoded so that equal bytes mean equal keys and nothing else: fixed eight bytes for numbers and times,
the text or bytes themselves for a single text or binary column, and length-prefixed parts for several columns.
The encoding of a key and its key group (`model/keygroups.py`) are part of the stored format and never change.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptFileError, InvalidInputError
from cairn.model.ddl import key_ddl
from cairn.model.rows import row_class
from cairn.model.types import DataType, Storage
from cairn.storage.state_file import ARROW_STORAGE

MAX_KEY_BYTES = 32 * 1024
_SIGN = 1 << 63
_FEW_ROWS = 64
_double = struct.Struct(">d")
_long = struct.Struct("<q").pack
_FLOATS = ("float", "double")
ARROW_SCALARS = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
"""The Arrow types of plain columns, in the DDL of their types. All of them can be keys."""


def check_key_type(name: str, dtype: DataType) -> None:
    """Refuse what cannot be a key, before anything runs."""
    if dtype.ddl in ARROW_SCALARS or dtype.ddl.startswith("decimal("):
        return
    raise InvalidInputError(
        f"key column '{name}' has type {dtype.ddl}, which cannot be a key: use strings, binary, numbers, booleans, "
        "dates or timestamps (several columns may be given)",
        column=name,
    )


class KeyCodec:
    """Encodes the key columns of a batch at once, and decodes one key at a time."""

    def __init__(self, columns: Sequence[tuple[str, DataType]]) -> None:
        for name, dtype in columns:
            check_key_type(name, dtype)
        self.columns = tuple(columns)
        self.ddl = key_ddl((name, dtype.ddl) for name, dtype in columns)
        self._row = row_class(tuple(name for name, _ in columns))

    def encode(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """One binary value per row. Null keys are refused, and those that are too long to be stored."""
        encoded = self.joined(arrays)
        if encoded.get_total_buffer_size() <= MAX_KEY_BYTES:
            return encoded
        longest = pc.max(pc.binary_length(encoded)).as_py() or 0
        if longest > MAX_KEY_BYTES:
            raise InvalidInputError(
                f"a key of ({self.ddl}) takes {longest} bytes; at most {MAX_KEY_BYTES} are allowed", size=longest
            )
        return encoded

    def joined(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """`encode` for what is compared only, and may be of any length."""
        parts = []
        for (name, dtype), array in zip(self.columns, arrays, strict=True):
            if array.null_count:
                raise InvalidInputError(
                    f"key column '{name}' contains a null, which cannot be a key: filter it out or use coalesce()",
                    column=name,
                )
            if pa.types.is_string(array.type):
                _check_text(f"key column '{name}'", array)
            parts.append(_key_bytes(dtype, array))
        if len(parts) == 1:
            return parts[0]
        pieces: list[pa.Array] = []
        for part in parts:
            pieces += [_lengths(part), part]
        return pc.binary_join_element_wise(*pieces, _blank())

    def encode_one(self, values: Sequence[Any]) -> bytes:
        """The bytes of one key given as Python values."""
        arrays = [
            pa.array([dtype.to_storage(value)], ARROW_STORAGE[dtype.storage])
            for (_, dtype), value in zip(self.columns, values, strict=True)
        ]
        return bytes(self.encode(arrays)[0].as_py())

    def decode(self, key: bytes) -> Any:
        """The key as user code sees it: the value of the one column, or a named tuple."""
        if len(self.columns) == 1:
            return _key_value(*self.columns[0], key)
        values = []
        at = 0
        for name, dtype in self.columns:
            length = int.from_bytes(key[at : at + 4], "big")
            values.append(_key_value(name, dtype, key[at + 4 : at + 4 + length]))
            at += 4 + length
        return self._row(values)

    def decode_columns(self, keys: pa.Array) -> list[pa.Array]:
        """The columns of many keys (with their groups), in the types in which they are stored as Arrow columns.

        With two columns of which the second takes eight bytes, no key is looked at by itself.
        """
        if len(self.columns) == 2 and _fixed_width(self.columns[1][1]) and len(keys):
            parts = [pc.binary_slice(keys, 6, -12), pc.binary_slice(keys, -8)]
            return [_key_column(dtype, part) for (_, dtype), part in zip(self.columns, parts, strict=True)]
        rows = [self.decode(key[2:]) for key in keys.to_pylist()]
        rows = [(row,) for row in rows] if len(self.columns) == 1 else rows
        return [
            pa.array([row[place] for row in rows], _key_arrow(dtype)) for place, (_, dtype) in enumerate(self.columns)
        ]


def _fixed_width(dtype: DataType) -> bool:
    return dtype.storage is Storage.INT or dtype.ddl in _FLOATS


def _key_arrow(dtype: DataType) -> pa.DataType:
    """The Arrow type of a key column."""
    if dtype.ddl.startswith("decimal("):
        precision, scale = dtype.ddl[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return ARROW_SCALARS[dtype.ddl]


def _key_column(dtype: DataType, part: pa.Array) -> pa.Array:
    """A column from the bytes of its values in keys."""
    arrow = _key_arrow(dtype)
    if dtype.ddl in _FLOATS:
        return pa.array(np.frombuffer(b"".join(part.to_pylist()), ">f8").astype(np.float64)).cast(arrow)
    if dtype.storage is Storage.INT:
        numbers = pa.array(ordered_numbers(part))
        if dtype.ddl == "boolean":
            return pc.not_equal(numbers, 0)
        return numbers.cast(pa.int32()).cast(arrow) if dtype.ddl == "date" else numbers.cast(arrow)
    if dtype.storage is Storage.TEXT:
        return part.cast(pa.string()).cast(arrow)
    return part


@cache
def _blank() -> pa.Scalar:
    """The separator of joined keys. Made on first use: Arrow loads pandas for it, which an import must not."""
    return pa.scalar(b"", pa.binary())


def _lengths(part: pa.Array) -> pa.Array:
    lengths = np.asarray(pc.binary_length(part)).astype(">u4")
    return _fixed(lengths.view(np.uint8), 4, len(part))


def _fixed(raw: np.ndarray[Any, Any], width: int, count: int) -> pa.Array:
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(raw))]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=0)


def _key_bytes(dtype: DataType, array: pa.Array) -> pa.Array:
    if dtype.ddl in _FLOATS:
        numbers = np.array(array.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return _fixed(numbers.astype(">f8").view(np.uint8), 8, len(array))
    if dtype.storage is Storage.INT:
        return group_order(int_storage(dtype, array))
    if dtype.ddl.startswith("decimal("):
        return array.cast(pa.string()).cast(pa.binary())
    return array.view(pa.binary()) if pa.types.is_string(array.type) else array.cast(pa.binary())


def int_storage(dtype: DataType, array: pa.Array) -> np.ndarray[Any, Any]:
    """A column of an integer-stored type as int64: booleans, numbers, days, microseconds."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    elif pa.types.is_date(array.type):
        array = array.cast(pa.date32()).cast(pa.int32())
    return np.asarray(array.cast(pa.int64()))


def group_order(numbers: np.ndarray[Any, Any]) -> pa.Array:
    """int64 as eight bytes that sort like the numbers."""
    flipped = (numbers.astype(np.int64).view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8")
    return _fixed(flipped.view(np.uint8), 8, len(numbers))


def ordered_numbers(raw: pa.Array) -> np.ndarray[Any, Any]:
    """The opposite of `group_order`."""
    flipped = np.frombuffer(b"".join(raw.to_pylist()), ">u8").astype(np.uint64)
    return (flipped ^ np.uint64(_SIGN)).view(np.int64)


def _key_value(name: str, dtype: DataType, key: bytes) -> Any:
    if dtype.ddl in _FLOATS:
        return _double.unpack(key)[0]
    if dtype.storage is Storage.INT:
        return dtype.from_storage(int.from_bytes(key, "big") - _SIGN)
    if dtype.storage is Storage.TEXT:
        try:
            return dtype.from_storage(key.decode())
        except UnicodeDecodeError:
            raise CorruptFileError(
                f"key column '{name}' is {dtype.ddl}, and a stored key contains bytes that are not UTF-8: "
                f"{key[:80]!r}. It may have been written by a version of cairn that accepted such keys; drop it, or "
                "roll back to a snapshot without it."
            ) from None
    return key


def not_utf8(where: str, data: bytes) -> InvalidInputError:
    """The error for a string from Spark that is not valid UTF-8."""
    return InvalidInputError(
        f"{where} holds bytes that are not UTF-8: {data[:80]!r}. Spark keeps any bytes in a string column, Python does "
        "not. Repair the text before it comes here with make_valid_utf8(), filter such rows out with is_valid_utf8(), "
        "or declare the column as binary.",
        data=data[:80],
    )


def _check_text(where: str, array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for data in array.cast(pa.binary()).to_pylist():
            try:
                data.decode()
            except UnicodeDecodeError:
                raise not_utf8(where, data) from None
        raise


def with_groups(groups: np.ndarray[Any, Any], keys: pa.Array) -> pa.Array:
    """The stored key: two bytes of key group in front of the encoded key."""
    prefix = _fixed(groups.astype(">u2").view(np.uint8), 2, len(keys))
    return pc.binary_join_element_wise(prefix, keys, _blank())


def entry_key(dtype: DataType, stored: Any) -> bytes:
    """A map key as bytes; map entries are iterated in the order of these bytes."""
    if dtype.storage is Storage.INT:
        return int(stored + _SIGN).to_bytes(8, "big")
    if dtype.storage is Storage.TEXT:
        return str(stored).encode()
    if dtype.storage is Storage.FLOAT:
        return _double.pack(math.nan if stored != stored else stored + 0.0)
    return bytes(stored)


def entry_value(dtype: DataType, entry: bytes) -> Any:
    """The map key that `entry_key` encoded, as user code sees it."""
    if dtype.storage is Storage.INT:
        return dtype.from_storage(int.from_bytes(entry, "big") - _SIGN)
    if dtype.storage is Storage.TEXT:
        return dtype.from_storage(entry.decode())
    if dtype.storage is Storage.FLOAT:
        return _double.unpack(entry)[0]
    return dtype.from_storage(entry)


@lru_cache(maxsize=128)
def _words(order: str, kind: str, count: int) -> struct.Struct:
    return struct.Struct(f"{order}{count}{kind}")


def stored_entries(storage: Storage, entries: list[bytes]) -> list[Any]:
    """The stored forms of map keys from their entry bytes; those of floating-point keys are the bytes themselves."""
    if storage is Storage.INT:
        return [number - _SIGN for number in _words(">", "Q", len(entries)).unpack(b"".join(entries))]
    return [entry.decode() for entry in entries] if storage is Storage.TEXT else entries


def entry_prefix(key: bytes) -> bytes:
    """What all entries of a key begin with in a backend; no key's prefix is the beginning of another's."""
    return len(key).to_bytes(2, "big") + key


def time_bytes(timestamp: int) -> bytes:
    """A timer's time as bytes that sort like the times."""
    return (timestamp + _SIGN).to_bytes(8, "big")


def time_value(raw: bytes) -> int:
    return int.from_bytes(raw[:8], "big") - _SIGN


def value_bytes(values: pa.Array, storage: Storage, times: pa.Array | None) -> list[bytes | None]:
    """A value column as the bytes a backend holds: the value, after eight bytes of time when the state has TTL."""
    if storage is Storage.INT and len(values) <= _FEW_ROWS:  # the calls below take longer than so few rows
        numbers = values.to_pylist()
        if times is None:
            return [None if number is None else _long(number) for number in numbers]
        return [
            None if number is None else _long(time or 0) + _long(number)
            for number, time in zip(numbers, times.to_pylist(), strict=True)
        ]
    if storage in (Storage.INT, Storage.FLOAT):
        validity, data = values.buffers()
        raw = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(8), len(values), [validity, data], values.null_count, values.offset
        ).cast(pa.binary())
    else:
        raw = values.cast(pa.binary())
    if times is not None:
        stamps = _fixed(np.asarray(times.fill_null(0)).astype("<i8").view(np.uint8), 8, len(times))
        raw = pc.binary_join_element_wise(stamps, raw, _blank())
    return list(raw.to_pylist())


def value_column(raw: Sequence[bytes | None], storage: Storage, ttl: bool) -> tuple[pa.Array, pa.Array | None]:
    """The opposite of `value_bytes`: values and, with TTL, their times."""
    times = None
    if ttl:
        stamps = [None if b is None else int.from_bytes(b[:8], "little", signed=True) for b in raw]
        times = pa.array(stamps, pa.int64())
        raw = [None if b is None else b[8:] for b in raw]
    if storage is Storage.TEXT:
        return pa.array(raw, pa.binary()).cast(pa.string()), times
    if storage is Storage.BYTES:
        return pa.array(raw, pa.binary()), times
    present = [b for b in raw if b is not None]
    numbers = np.frombuffer(b"".join(present), "<i8" if storage is Storage.INT else "<f8")
    if len(present) == len(raw):
        return pa.array(numbers), times
    mask = np.array([b is None for b in raw], dtype=bool)
    full = np.zeros(len(raw), dtype=numbers.dtype)
    full[~mask] = numbers
    return pa.array(full, mask=mask), times


def stored_values(storage: Storage, raw: list[bytes]) -> list[Any]:
    """The stored forms of some values from their bytes (without time)."""
    if storage is Storage.INT:
        return list(_words("<", "q", len(raw)).unpack(b"".join(raw)))
    if storage is Storage.FLOAT:
        return list(_words("<", "d", len(raw)).unpack(b"".join(raw)))
    return [text.decode() for text in raw] if storage is Storage.TEXT else raw
