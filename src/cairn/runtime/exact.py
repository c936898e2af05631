"""Values that Arrow takes into a column, but not as they are.

Arrow cuts 1.5 to 1 where a column holds whole numbers, takes a number for a time or a day, a time for its day, and
makes infinity of what is too large for 32 bits. In an output column each of these is a mistake that nobody would ever
see, so they are refused, as state refuses them. What Arrow refuses by itself is not looked at here.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import pyarrow as pa

Fits = Callable[[Any], bool]
_LARGEST_FLOAT = 3.4028235677973366e38
"""From here on a number rounds to infinity in 32 bits."""


def exact_types(kind: pa.DataType) -> frozenset[type]:
    """Classes whose values fit such a column whatever they are: the quick answer for most rows."""
    none = type(None)
    if pa.types.is_integer(kind):
        return frozenset({int, none})
    if pa.types.is_timestamp(kind):
        return frozenset({dt.datetime, none})
    if pa.types.is_date(kind):
        return frozenset({dt.date, none})
    return frozenset()


def exact_fit(kind: pa.DataType) -> Fits | None:
    """Whether a value would go into such a column as it is; None for types for which Arrow sees to that."""
    if pa.types.is_integer(kind):
        return lambda value: value is None or hasattr(value, "__index__")
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return lambda value: not _is_number(value)
    if pa.types.is_date(kind):
        return lambda value: not (_is_number(value) or isinstance(value, dt.datetime))
    if pa.types.is_float32(kind):
        return lambda value: not _is_number(value) or not math.isfinite(value) or abs(float(value)) < _LARGEST_FLOAT
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _each(exact_fit(kind.value_type))
    if pa.types.is_map(kind):
        return _entries(exact_fit(kind.key_type), exact_fit(kind.item_type))
    if pa.types.is_struct(kind):
        return _fields(kind)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Number))


def _each(fits: Fits | None) -> Fits | None:
    if fits is None:
        return None
    return lambda values: values is None or all(map(fits, values))


def _entries(of_key: Fits | None, of_item: Fits | None) -> Fits | None:
    if of_key is None and of_item is None:
        return None

    def fits(entries: Any) -> bool:
        pairs = entries.items() if isinstance(entries, dict) else entries or ()
        return all((of_key is None or of_key(key)) and (of_item is None or of_item(item)) for key, item in pairs)

    return fits


def _fields(kind: pa.DataType) -> Fits | None:
    checks = [(place, field.name, fits) for place, field in enumerate(kind) if (fits := exact_fit(field.type))]
    if not checks:
        return None

    def fits_all(value: Any) -> bool:
        if isinstance(value, dict):
            return all(fits(value.get(name)) for _, name, fits in checks)
        if isinstance(value, tuple) and len(value) == kind.num_fields:
            return all(fits(value[place]) for place, _, fits in checks)
        return True  # none, or what Arrow refuses

    return fits_all


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of these values; what Arrow raises, or ValueError, for a value that it would not keep as it is."""
    column = pa.array(values, kind)
    fits = exact_fit(kind)
    if fits is not None:
        for value in values:
            if not fits(value):
                raise ValueError(f"{value!r:.80} would not be kept as it is; convert it first")
    return column
