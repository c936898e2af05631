"""Values that Arrow takes into a column, but not as they are.

Arrow cuts 1.5 to 1 where a column holds whole numbers, takes a number for a time or a day, a time for its day, truth
for a number and text for a list of letters, makes infinity of what is too large for 32 bits, moves a time with a zone
to that of Greenwich, and leaves out what a struct does not know. In an output column each of these is a mistake that
nobody would ever see, so they are refused, as state refuses them. What Arrow refuses by itself is not looked at here.

Each check has a quick answer for all values of a column together, mostly from their classes, and a slow one for one
value, which is asked where the quick one does not suffice.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from numbers import Number
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.runtime.row_values import arrow_column

Fits = Callable[[Any], bool]
Values = Callable[[], Iterable[Any]]
"""Gives the values of a column, as often as it is called."""
Deep = Callable[[Sequence[Any], pa.Array], bool]
_NONE = type(None)
_LARGEST_FLOAT = 3.4028235677973366e38
"""From here on a number rounds to infinity in 32 bits."""
_zone = attrgetter("tzinfo")


@dataclass(frozen=True, slots=True)
class Exact:
    """The check of one type."""

    fits: Fits
    """Whether one value, which Arrow has taken, goes into the column as it is."""
    classes: frozenset[type]
    """Classes of values that need no slow look; none where `deep` looks at them."""
    deep: Deep | None = None
    """What else must hold of values of those classes for that, and of the column that was made of them."""

    def all(self, values: Values, built: pa.Array) -> bool:
        """Whether these values are in the column as they are."""
        if self.deep is None:
            return self.classes.issuperset(map(type, values())) or all(map(self.fits, values()))
        held = list(values())
        known = not self.classes or self.classes.issuperset(map(type, held))
        return (known and self.deep(held, built)) or all(map(self.fits, held))


@lru_cache(maxsize=256)
def exact_fit(kind: pa.DataType) -> Exact | None:
    """The check of a type; None for types for which Arrow sees to it that values are kept."""
    if pa.types.is_integer(kind):
        return Exact(lambda value: value is None or hasattr(value, "__index__"), frozenset({int, np.int64, _NONE}))
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return Exact(_is_local_time, frozenset({dt.datetime, _NONE}), _no_zones)
        return Exact(lambda value: not _is_number(value), frozenset({dt.datetime, _NONE}))
    if pa.types.is_duration(kind):
        return Exact(lambda value: not _is_number(value), frozenset({dt.timedelta, _NONE}))
    if pa.types.is_date(kind):
        return Exact(
            lambda value: not (_is_number(value) or isinstance(value, dt.datetime)), frozenset({dt.date, _NONE})
        )
    if pa.types.is_float64(kind):
        return Exact(lambda value: not isinstance(value, (bool, np.bool_)), frozenset({float, int, np.float64, _NONE}))
    if pa.types.is_float32(kind):
        return Exact(_is_float, frozenset({float, int, np.float32, np.float64, _NONE}), _no_infinity)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(exact_fit(kind.value_type))
    if pa.types.is_map(kind):
        return _map(exact_fit(kind.key_type), exact_fit(kind.item_type))
    if pa.types.is_struct(kind):
        return _struct(kind)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Number))


def _is_local_time(value: Any) -> bool:
    return not _is_number(value) and getattr(value, "tzinfo", None) is None


def _no_zones(values: Sequence[Any], _: pa.Array) -> bool:
    return all(map(is_, map(_zone, filter(None, values)), repeat(None)))


def _is_float(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return False
    return not _is_number(value) or not math.isfinite(value) or abs(float(value)) < _LARGEST_FLOAT


def _no_infinity(_: Sequence[Any], built: pa.Array) -> bool:
    return not pc.any(pc.is_inf(built)).as_py()


def _list(item: Exact | None) -> Exact:
    def fits(values: Any) -> bool:
        if values is None:
            return True
        return not isinstance(values, (str, bytes, Mapping)) and (item is None or all(map(item.fits, values)))

    def deep(values: Sequence[Any], built: pa.Array) -> bool:
        return item is None or item.all(lambda: chain.from_iterable(filter(None, values)), built.flatten())

    return Exact(fits, frozenset({list, tuple, _NONE}), None if item is None else deep)


def _map(key: Exact | None, item: Exact | None) -> Exact | None:
    if key is None and item is None:
        return None

    def fits(entries: Any) -> bool:
        if entries is None:
            return True
        pairs = entries.items() if isinstance(entries, dict) else entries
        return all((key is None or key.fits(k)) and (item is None or item.fits(v)) for k, v in pairs)

    def deep(values: Sequence[Any], built: pa.Array) -> bool:
        if key is not None and not key.all(lambda: chain.from_iterable(filter(None, values)), built.keys):
            return False
        return item is None or item.all(
            lambda: chain.from_iterable(map(dict.values, filter(None, values))), built.items
        )

    return Exact(fits, frozenset({dict, _NONE}), deep)


def _struct(kind: pa.DataType) -> Exact:
    names = [field.name for field in kind]
    known = set(names)
    checks = [(place, name, check) for place, name in enumerate(names) if (check := exact_fit(kind[place].type))]

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            return value.keys() == known and all(check.fits(value[name]) for _, name, check in checks)
        if isinstance(value, tuple):
            return all(check.fits(value[place]) for place, _, check in checks)
        return not isinstance(value, list)  # a list of pairs; anything else is none, or refused by Arrow

    def deep(values: Sequence[Any], built: pa.Array) -> bool:
        classes = set(map(type, values))
        if _NONE in classes:
            classes.remove(_NONE)
            values = [value for value in values if value is not None]
        if all(issubclass(each, tuple) for each in classes):
            return all(check.all(_column(values, place), built.field(place)) for place, _, check in checks)
        if classes != {dict} or set(map(len, values)) != {len(names)}:
            return False
        if not all(known.issuperset(each) for each in values):
            return False
        return all(check.all(_column(values, name), built.field(place)) for place, name, check in checks)

    return Exact(fits, frozenset(), deep)


def _column(values: Sequence[Any], at: int | str) -> Values:
    return lambda: map(itemgetter(at), values)


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of these values; what Arrow raises, or ValueError, for a value that it would not keep as it is."""
    column = arrow_column(list(values), kind)
    check = exact_fit(kind)
    if check is not None and not check.all(lambda: values, column):
        wrong = next(value for value in values if not check.fits(value))
        raise ValueError(f"{wrong!r:.80} would not be kept as it is; convert it first")
    return column
