"""Typed Arrow columns of one declared type as columns of another, by the rules of `model/evolution.py`.

Whole columns at a time: no Python per row. Null stays null, and a field that is new in a struct is null or the default
that the descriptor names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from cairn.errors import IncompatibleStateError
from cairn.model.ddl import parse_type
from cairn.model.evolution import ELEMENT, VALUE, change
from cairn.model.types import DataType
from cairn.state.typed_columns import arrow_type


@dataclass(frozen=True, slots=True)
class Conversion:
    """The way from one type to another, for whole columns. Travels to the workers."""

    old: str
    new: str
    defaults: Mapping[str, bytes] = field(default_factory=dict)
    """Defaults of new fields, in the packed form of `StateDeclaration`."""

    def __post_init__(self) -> None:
        told = change(self.old, self.new)
        if not told.allowed:
            raise IncompatibleStateError(f"{self.old} cannot become {self.new}: {'; '.join(told.problems)}")

    def __call__(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        if self.old == self.new:
            return column
        old, new = parse_type(self.old), parse_type(self.new)
        if isinstance(column, pa.ChunkedArray):
            chunks = [self._convert(chunk, old, new, "") for chunk in column.chunks]
            return pa.chunked_array(chunks, arrow_type(new))
        return self._convert(column, old, new, "")

    def _convert(self, array: pa.Array, old: DataType, new: DataType, where: str) -> pa.Array:
        if old.ddl == new.ddl:
            return array if array.type == arrow_type(new) else array.cast(arrow_type(new))
        if array.offset:
            array = array.take(pa.array(np.arange(len(array))))  # nested arrays cannot be put together from slices
        target = arrow_type(new)
        if new.fields:
            return self._struct(array, old, new, where)
        if new.items:
            mask = array.is_null() if array.null_count else None
            if len(new.items) == 1:
                items = self._convert(array.values, old.items[0], new.items[0], _inside(where, ELEMENT))
                return pa.ListArray.from_arrays(array.offsets, items, type=target, mask=mask)
            items = self._convert(array.items, old.items[1], new.items[1], _inside(where, VALUE))
            keys = array.keys.cast(target.key_type)
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=mask)
        return array.cast(target)

    def _struct(self, array: pa.Array, old: DataType, new: DataType, where: str) -> pa.Array:
        before = dict(old.fields)
        places = {name: number for number, (name, _) in enumerate(old.fields)}
        children = []
        for name, inner in new.fields:
            path = _inside(where, name)
            if name in before:
                children.append(self._convert(array.field(places[name]), before[name], inner, path))
            else:
                children.append(self._added(inner, path, len(array)))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(arrow_type(new)), mask=mask)

    def _added(self, dtype: DataType, path: str, count: int) -> pa.Array:
        target = arrow_type(dtype)
        packed = self.defaults.get(path)
        if packed is None:
            return pa.nulls(count, target)
        value = _plain(dtype, dtype.from_storage(msgspec.msgpack.decode(packed)))
        return pa.array([value], target).take(pa.array(np.zeros(count, dtype=np.int64)))


def pack_default(dtype: DataType, value: Any) -> bytes:
    """A default as `StateDeclaration` carries it; raises `StateTypeError` if it does not fit the type."""
    return msgspec.msgpack.encode(dtype.to_storage(value))


def _plain(dtype: DataType, value: Any) -> Any:
    """A user's value in the form that Arrow makes arrays of."""
    if value is None:
        return None
    if dtype.fields:
        return {name: _plain(inner, part) for (name, inner), part in zip(dtype.fields, value, strict=True)}
    if dtype.ddl.startswith("array<"):
        return [_plain(dtype.items[0], item) for item in value]
    if dtype.ddl.startswith("map<"):
        return [(_plain(dtype.items[0], key), _plain(dtype.items[1], item)) for key, item in value.items()]
    return value


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
