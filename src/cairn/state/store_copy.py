"""One copy of a subtask's state in a backend, read through the deltas that it has not taken in yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.model.types import Storage
from cairn.state import codec
from cairn.state.backend import DamagedStoreError, Put, StateBackend
from cairn.state.store_folder import FolderLock, StoreFolder
from cairn.storage.state_file import ARROW_STORAGE, Section

_T = TypeVar("_T")
_FEW_ROWS = 64
"""Up to this many rows are looked up in a dict: vectorised calls take longer for so few."""


class StoreCopy:
    """One backend at a known version, with the deltas that are read through before it, oldest first."""

    def __init__(
        self, backend: StateBackend, layers: Sequence[Section], folder: StoreFolder | None, lock: FolderLock | None
    ) -> None:
        self._backend = backend
        self._folder = folder
        self._lock = lock
        self._layers: dict[str, list[pa.Table]] = {}
        for section in layers:
            if section.data.num_rows:
                self._layers.setdefault(section.table, []).append(section.data.combine_chunks())

    def values(self, table: str, keys: pa.Array, storage: Storage, ttl: bool) -> tuple[pa.Array, pa.Array | None]:
        """Values (null where unset) and, with TTL, their times, newest layer first, the backend for the rest."""
        layers = self._layers.get(table, [])
        if len(keys) + sum(layer.num_rows for layer in layers) <= _FEW_ROWS:
            return self._few_values(table, layers, keys.to_pylist(), storage, ttl)
        parts: list[pa.Array] = []
        stamps: list[pa.Array] = []
        places = np.full(len(keys), -1, dtype=np.int64)
        wanted = np.arange(len(keys))
        offset = 0
        for layer in reversed(layers):
            if not len(wanted):
                break
            asked = keys if len(wanted) == len(keys) else keys.take(pa.array(wanted))
            found = _rows_of_keys(asked, layer.column("key").chunk(0))
            missing = found < 0
            places[wanted] = np.where(missing, -1, found + offset)
            parts.append(layer.column("value").chunk(0))
            if ttl:
                stamps.append(layer.column("time").chunk(0))
            offset += layer.num_rows
            wanted = wanted[missing]
        if len(wanted):
            asked = keys if len(wanted) == len(keys) else keys.take(pa.array(wanted))
            values, times = codec.value_column(self._get_many(table, asked), storage, ttl)
            if not parts:
                return values, times
            places[wanted] = offset + np.arange(len(values))
            parts.append(values)
            if times is not None:
                stamps.append(times)
        where = pa.array(places)
        return _gather(parts, where), _gather(stamps, where) if ttl else None

    def _few_values(
        self, table: str, layers: Sequence[pa.Table], keys: list[bytes], storage: Storage, ttl: bool
    ) -> tuple[pa.Array, pa.Array | None]:
        """The same with a dict of all rows of the layers, which is faster for few rows."""
        values: dict[bytes, Any] = {}
        times: dict[bytes, int | None] = {}
        for layer in layers:
            names = layer.column("key").to_pylist()
            values.update(zip(names, layer.column("value").to_pylist(), strict=True))
            if ttl:
                times.update(zip(names, layer.column("time").to_pylist(), strict=True))
        missing = [key for key in keys if key not in values]
        if missing:
            read, stamps = codec.value_column(self._get_many(table, pa.array(missing, pa.binary())), storage, ttl)
            if not values:
                return read, stamps
            values.update(zip(missing, read.to_pylist(), strict=True))
            if stamps is not None:
                times.update(zip(missing, stamps.to_pylist(), strict=True))
        found = pa.array([values[key] for key in keys], ARROW_STORAGE[storage])
        return found, pa.array([times[key] for key in keys], pa.int64()) if ttl else None

    def _get_many(self, table: str, keys: pa.Array) -> list[bytes | None]:
        if not self._backend.ordered_reads:
            return self.guard(lambda: self._backend.get_many(table, keys.to_pylist()))
        order = pc.array_sort_indices(keys)
        found = self.guard(lambda: self._backend.get_many(table, keys.take(order).to_pylist()))
        answers: list[bytes | None] = [None] * len(found)
        for place, answer in zip(order.to_pylist(), found, strict=True):
            answers[place] = answer
        return answers

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        find = self._backend.getter(table)

        def get(key: bytes) -> bytes | None:
            try:
                return find(key)
            except DamagedStoreError:
                self._condemn()
                raise

        return get

    def first(self, table: str, prefix: bytes, limit: int) -> list[Put]:
        return self.guard(lambda: self._backend.first(table, prefix, limit))

    def scan(self, table: str, prefix: bytes, start: bytes) -> Iterator[Put]:
        try:
            yield from self._backend.scan(table, prefix, start)
        except DamagedStoreError:
            self._condemn()
            raise

    def guard(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except DamagedStoreError:
            self._condemn()
            raise

    def _condemn(self) -> None:
        if self._folder is not None:
            self._folder.condemn()

    def close(self) -> None:
        if not self._backend.resident:
            self._backend.close()
        if self._lock is not None:
            self._lock.release()


def _rows_of_keys(asked: pa.Array, keys: pa.Array) -> np.ndarray[Any, Any]:
    """Where each asked key stands among the keys of a layer; -1 where it does not. Both are free of repetitions.

    The smaller side is what gets hashed: after the newest layer few keys are left to ask the older ones for.
    """
    if len(asked) * 4 < len(keys):
        which = pc.index_in(keys, value_set=asked)
        rows = np.flatnonzero(np.asarray(which.is_valid()))
        found = np.full(len(asked), -1, dtype=np.int64)
        found[np.asarray(which.drop_null())] = rows
        return found
    return np.asarray(pc.index_in(asked, value_set=keys).fill_null(-1)).astype(np.int64)


def _gather(parts: Sequence[pa.Array], where: pa.Array) -> pa.Array:
    return (parts[0] if len(parts) == 1 else pa.concat_arrays(parts)).take(where)
