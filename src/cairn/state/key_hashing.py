"""The key groups of whole key columns: the formula of `model/keygroups.py`, with NumPy on Arrow's buffers.

Part of the stored format, as that module is: the results must never change. What it computes for one key is computed
here for a column at a time; decimals of more than 18 digits, whose hash runs over bytes of their own, go there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.model.keygroups import SPARK_HASH_SEED, spark_hash
from cairn.model.types import DataType, Storage
from cairn.state.typed_columns import parts, stored_column

_Words = np.ndarray[Any, Any]
_C1, _C2, _M = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)


def key_groups(columns: Sequence[tuple[str, DataType]], arrays: Sequence[pa.Array], max_parallelism: int) -> _Words:
    """The key group of every row, as int32. The columns have the types of `columns.arrow_type` and hold no null."""
    count = len(arrays[0])
    hashed = np.full(count, SPARK_HASH_SEED, np.uint32)
    for (_, dtype), array in zip(columns, arrays, strict=True):
        hashed = _hashed(dtype, array, hashed)
    return (hashed.view(np.int32).astype(np.int64) % max_parallelism).astype(np.int32)


def _hashed(dtype: DataType, array: pa.Array, seed: _Words) -> _Words:
    if dtype.ddl.startswith("decimal("):
        return _decimals(dtype, array, seed)
    if dtype.ddl == "float":
        numbers = np.array(array, dtype=np.float32) + np.float32(0)
        numbers[np.isnan(numbers)] = np.float32(np.nan)
        words = numbers.view(np.uint32)
        return _finish(_mix(seed, np.where(np.isnan(numbers), np.uint32(0x7FC00000), words)), 4)
    if dtype.ddl == "double":
        wide = np.array(array, dtype=np.float64) + 0.0
        return _long(np.where(np.isnan(wide), np.uint64(0x7FF8000000000000), wide.view(np.uint64)), seed)
    if dtype.storage is Storage.INT:
        stored = np.asarray(stored_column(dtype, array))
        if dtype.ddl in ("bigint", "timestamp", "timestamp_ntz"):
            return _long(stored.view(np.uint64), seed)
        return _finish(_mix(seed, stored.astype(np.int32).view(np.uint32)), 4)
    return _bytes(array, seed)


def _decimals(dtype: DataType, array: pa.Array, seed: _Words) -> _Words:
    if array.type.precision <= 18:
        raw = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)[array.offset : array.offset + len(array), 0]
        return _long(np.ascontiguousarray(raw), seed)
    made = [spark_hash([value], [dtype.ddl], int(at)) for value, at in zip(array.to_pylist(), seed, strict=True)]
    return np.array(made, np.int64).astype(np.int32).view(np.uint32)


def _long(values: _Words, seed: _Words) -> _Words:
    low = (values & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return _finish(_mix(_mix(seed, low), (values >> np.uint64(32)).astype(np.uint32)), 8)


def _bytes(array: pa.Array, seed: _Words) -> _Words:
    """Whole words first, then each byte that is left with its sign, as Spark does."""
    offsets, data = parts(array)
    starts = offsets[:-1]
    lengths = (offsets[1:] - starts).astype(np.uint32)
    hashed = seed.copy()
    aligned = (lengths & ~np.uint32(3)).astype(np.int64)
    longest = int(aligned.max(initial=0))
    rows: _Words | None = None  # None while every row takes part
    for at in range(0, longest, 4):
        if rows is not None or not bool((aligned > at).all()):
            rows = np.flatnonzero(aligned > at) if rows is None else rows[aligned[rows] > at]
        begin = (starts if rows is None else starts[rows]) + at
        word = data[begin].astype(np.uint32)
        for byte in (1, 2, 3):
            word |= data[begin + byte].astype(np.uint32) << np.uint32(8 * byte)
        if rows is None:
            hashed = _mix(hashed, word)
        else:
            hashed[rows] = _mix(hashed[rows], word)
    for byte in range(3):
        rows = np.flatnonzero(aligned + byte < lengths)
        if len(rows) == 0:
            break
        tail = data[starts[rows] + aligned[rows] + byte].view(np.int8).astype(np.int32).view(np.uint32)
        hashed[rows] = _mix(hashed[rows], tail)
    return _finish(hashed, lengths)


def _mix(h: _Words, word: _Words) -> _Words:
    k = word * _C1
    k = (k << np.uint32(15)) | (k >> np.uint32(17))
    h = h ^ (k * _C2)
    h = (h << np.uint32(13)) | (h >> np.uint32(19))
    mixed: _Words = h * np.uint32(5) + _M
    return mixed


def _finish(h: _Words, length: int | _Words) -> _Words:
    h = h ^ (np.uint32(length) if isinstance(length, int) else length)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h
