"""Types made at random and changed at random: what the rules allow, the columns can do, and nothing else is allowed."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cairn.errors import IncompatibleStateError
from cairn.model.ddl import parse_type
from cairn.model.evolution import change
from cairn.state.type_conversion import Conversion
from cairn.state.typed_columns import arrow_type

_WIDER = {"tinyint": "smallint", "smallint": "int", "int": "bigint", "float": "double"}
_SCALARS = st.sampled_from(["tinyint", "smallint", "int", "bigint", "float", "double", "string", "date", "boolean"])


def _struct(fields: list[str]) -> str:
    return "struct<" + ",".join(f"f{place}:{ddl}" for place, ddl in enumerate(fields)) + ">"


_TYPES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda ddl: f"array<{ddl}>"),
        inner.map(lambda ddl: f"map<string,{ddl}>"),
        st.lists(inner, min_size=1, max_size=3).map(_struct),
    ),
    max_leaves=6,
)


@st.composite
def _grown(draw: Any) -> tuple[str, str]:
    """A type and one that the rules let it become."""
    old = draw(_TYPES)

    def grow(ddl: str) -> str:
        dtype = parse_type(ddl)
        if dtype.fields:
            kept = [f"{name}:{grow(inner.ddl)}" for name, inner in dtype.fields]
            if len(kept) > 1 and draw(st.booleans()):
                kept.pop(draw(st.integers(0, len(kept) - 1)))
            if draw(st.booleans()):
                kept.insert(draw(st.integers(0, len(kept))), f"added:{draw(_SCALARS)}")
            return f"struct<{','.join(draw(st.permutations(kept)))}>"
        if ddl.startswith("array<"):
            return f"array<{grow(dtype.items[0].ddl)}>"
        if ddl.startswith("map<"):
            return f"map<{dtype.items[0].ddl},{grow(dtype.items[1].ddl)}>"
        return _WIDER.get(ddl, ddl) if draw(st.booleans()) else ddl

    return old, grow(old)


def _values(ddl: str) -> Any:
    dtype = parse_type(ddl)
    made: Any
    if dtype.fields:
        made = st.fixed_dictionaries({name: _values(inner.ddl) for name, inner in dtype.fields})
    elif ddl.startswith("array<"):
        made = st.lists(_values(dtype.items[0].ddl), max_size=3)
    elif ddl.startswith("map<"):
        made = st.dictionaries(st.text(max_size=3), _values(dtype.items[1].ddl), max_size=3).map(
            lambda entries: list(entries.items())
        )
    elif ddl in ("float", "double"):
        made = st.integers(-1000, 1000).map(float)
    elif ddl == "boolean":
        made = st.booleans()
    elif ddl == "string":
        made = st.text(max_size=5)
    elif ddl == "date":
        made = st.dates()
    else:
        made = st.integers(dtype.low, dtype.high)
    return st.none() | made


def _model(value: Any, old: str, new: str) -> Any:
    """The conversion of one value in plain Python."""
    if value is None:
        return None
    before, after = parse_type(old), parse_type(new)
    if after.fields:
        known = dict(before.fields)
        return {
            name: _model(value[name], known[name].ddl, inner.ddl) if name in known else None
            for name, inner in after.fields
        }
    if new.startswith("array<"):
        return [_model(item, before.items[0].ddl, after.items[0].ddl) for item in value]
    if new.startswith("map<"):
        return [(key, _model(item, before.items[1].ddl, after.items[1].ddl)) for key, item in value]
    return value


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(pair=_grown(), data=st.data())
def test_what_is_allowed_keeps_every_value(pair: tuple[str, str], data: Any) -> None:
    old, new = pair
    assert change(old, new).allowed
    values = data.draw(st.lists(_values(old), max_size=6))
    column = pa.array(values, arrow_type(parse_type(old)))
    made = Conversion(old, new)(column)
    made.validate(full=True)
    assert made.type == arrow_type(parse_type(new))
    assert made.to_pylist() == [_model(value, old, new) for value in values]
    start = data.draw(st.integers(0, len(values)))
    assert Conversion(old, new)(column.slice(start)).to_pylist() == made.to_pylist()[start:]


@given(old=_TYPES, new=_TYPES)
def test_any_two_types_are_told_apart_without_a_crash(old: str, new: str) -> None:
    told = change(old, new)
    assert told.none == (old == new)
    assert told.none or bool(told.steps) or bool(told.problems)
    if told.allowed:
        Conversion(old, new)(pa.nulls(1, arrow_type(parse_type(old))))
    else:
        with pytest.raises(IncompatibleStateError, match=re.escape(old)):
            Conversion(old, new)


@given(types=st.tuples(_TYPES, _TYPES, _TYPES))
def test_two_allowed_steps_are_one_allowed_step_for_scalars(types: tuple[str, str, str]) -> None:
    first, second, third = types
    if "<" in first + second + third:
        return
    if change(first, second).allowed and change(second, third).allowed:
        way = change(first, third)
        assert way.allowed or (first, third) == ("bigint", "double")
