"""Arrow columns as the Python values that functions are given, and the values that functions give for structs.

A struct is a row, at any depth: in a column, in an array, as a key or value of a map, in another struct. State reads
structs as the same rows (`model/types.py`), so a function sees one shape wherever a value comes from. How a type is
read is decided once per type: columns without a struct in them take Arrow's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from cairn.model.rows import row_class

Read = Callable[[pa.Array], list[Any]]
Shape = Callable[[Any], Any]


def python_values(array: pa.Array) -> list[Any]:
    """The values of a column, with structs as rows and maps as dicts."""
    return _reader(array.type)(array)


@lru_cache(maxsize=512)
def _reader(kind: pa.DataType) -> Read:
    if not has_struct(kind):
        if "map<" in str(kind):
            return lambda array: list(array.to_pylist(maps_as_pydicts="lossy"))
        return lambda array: list(array.to_pylist())
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    if pa.types.is_map(kind):
        return _map_reader(_reader(kind.key_type), _reader(kind.item_type))
    return _list_reader(_reader(kind.value_type))


def has_struct(kind: pa.DataType) -> bool:
    """Whether a type is a struct, or a list or map with a struct in it."""
    if pa.types.is_struct(kind):
        return True
    if pa.types.is_map(kind):
        return has_struct(kind.key_type) or has_struct(kind.item_type)
    return _is_list(kind) and has_struct(kind.value_type)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _struct_reader(kind: pa.StructType) -> Read:
    row = row_class(tuple(field.name for field in kind))
    readers = [_reader(field.type) for field in kind]

    def read(array: pa.Array) -> list[Any]:
        columns = [reader(column) for reader, column in zip(readers, array.flatten(), strict=True)]
        rows = map(row, zip(*columns, strict=True)) if columns else (row(()) for _ in range(len(array)))
        return _with_nulls(array, rows)

    return read


def _list_reader(item: Read) -> Read:
    def read(array: pa.Array) -> list[Any]:
        first, bounds = _bounds(array)
        items = item(array.values.slice(first, bounds[-1]))
        return _with_nulls(array, (items[start:end] for start, end in pairwise(bounds)))

    return read


def _map_reader(key: Read, item: Read) -> Read:
    def read(array: pa.Array) -> list[Any]:
        first, bounds = _bounds(array)
        keys = key(array.keys.slice(first, bounds[-1]))
        items = item(array.items.slice(first, bounds[-1]))
        entries = (dict(zip(keys[start:end], items[start:end], strict=True)) for start, end in pairwise(bounds))
        return _with_nulls(array, entries)

    return read


def _bounds(array: pa.Array) -> tuple[int, list[int]]:
    """Where the elements of an array of lists or maps begin, and the bounds of each list relative to that."""
    offsets = array.offsets.to_pylist()
    return offsets[0], [offset - offsets[0] for offset in offsets]


def _with_nulls(array: pa.Array, values: Iterable[Any]) -> list[Any]:
    if not array.null_count:
        return list(values)
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


# The other way.


def arrow_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of these values; raises what Arrow raises. Structs may be given as tuples and as dicts in one column,
    which Arrow by itself does not take.
    """
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        shape = _shape(kind)
        if shape is None:
            raise
        return pa.array(list(map(shape, values)), kind)


@lru_cache(maxsize=512)
def _shape(kind: pa.DataType) -> Shape | None:
    """What makes a tuple of every struct that was given as a dict with exactly its fields; None without structs."""
    if not has_struct(kind):
        return None
    if pa.types.is_struct(kind):
        return _struct_shape(kind)
    if pa.types.is_map(kind):
        return _map_shape(_shape(kind.key_type) or _same, _shape(kind.item_type) or _same)
    item = _shape(kind.value_type)
    assert item is not None
    return lambda value: list(map(item, value)) if isinstance(value, (list, tuple)) else value


def _same(value: Any) -> Any:
    return value


def _struct_shape(kind: pa.StructType) -> Shape:
    names = [field.name for field in kind]
    fields = set(names)
    shapes = [_shape(field.type) or _same for field in kind]

    def shaped(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == fields:
            value = tuple(value[name] for name in names)
        if isinstance(value, tuple) and len(value) == len(shapes):
            return tuple(shape(part) for shape, part in zip(shapes, value, strict=True))
        return value

    return shaped


def _map_shape(key: Shape, item: Shape) -> Shape:
    def shaped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key(k): item(v) for k, v in value.items()}
        return value

    return shaped
