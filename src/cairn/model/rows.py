"""The named tuples that rows, struct values and keys of several columns are given as."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache
from keyword import iskeyword
from typing import Any

_PARTS = ("_asdict", "_field_defaults", "_fields", "_make", "_replace")
"""What a named tuple calls its own parts: no column is reached by such a name."""


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> Any:
    """The named tuple of rows with these columns. A column whose name is no attribute is reachable by position.

    It is made from an iterable of its values, as a tuple is: rows are made by the million, and this spares each of
    them the constructor that `namedtuple` writes in Python. Names with a leading underscore, which `namedtuple` does
    not take, are attributes like others: Spark's own tuples have the columns `_1`, `_2` and so on.
    """
    fields = _fields(names)
    plain = namedtuple("Row", [f"f{place}" for place in range(len(names))])  # type: ignore[misc]
    own = vars(plain)
    kept = {name: part for name, part in own.items() if name not in plain._fields}
    for name in ("__new__", "__getnewargs__"):
        del kept[name]
    kept |= {field: own[f"f{place}"] for place, field in enumerate(fields)}
    kept |= {"_fields": fields, "__match_args__": fields, "__repr__": _shown, "_replace": _replaced}
    return type("Row", (tuple,), kept | {"__reduce__": lambda row: (_rebuilt, (names, tuple(row)))})


def _fields(names: Sequence[str]) -> tuple[str, ...]:
    """The attributes of the columns: their names, or a free name with the position where the name cannot be one."""
    fits = [
        name.isidentifier()
        and not iskeyword(name)
        and not name.startswith("__")
        and name not in _PARTS
        and name not in names[:place]
        for place, name in enumerate(names)
    ]
    fields = []
    for place, name in enumerate(names):
        field = name if fits[place] else f"_{place}"
        while not fits[place] and (field in names or field in fields):
            field += "_"
        fields.append(field)
    return tuple(fields)


def _shown(row: Any) -> str:
    return f"Row({', '.join(f'{field}={value!r}' for field, value in zip(row._fields, row, strict=True))})"


def _replaced(row: Any, /, **changes: Any) -> Any:
    """A row with other values in these columns."""
    made = type(row)(changes.pop(field, value) for field, value in zip(row._fields, row, strict=True))
    if changes:
        raise ValueError(f"Got unexpected field names: {list(changes)!r}")
    return made


def _rebuilt(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_class(names)(values)
