"""Declared types: DDL in, canonical DDL out; values in, the same values out."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from cairn import MapStateDescriptor
from cairn.errors import InvalidInputError, StateTypeError
from cairn.model.ddl import as_type, parse_columns, parse_type
from cairn.model.types import PICKLE, DataType, Types


@pytest.mark.parametrize(
    ("given_ddl", "canonical"),
    [
        ("BIGINT", "bigint"),
        ("long", "bigint"),
        (" integer ", "int"),
        ("byte", "tinyint"),
        ("real", "float"),
        ("decimal", "decimal(10,0)"),
        ("numeric( 5 )", "decimal(5,0)"),
        ("dec(5,2)", "decimal(5,2)"),
        ("varchar(10)", "string"),
        ("timestamp_ltz", "timestamp"),
        ("array< int >", "array<int>"),
        ("map<string, array<bigint>>", "map<string,array<bigint>>"),
        ("struct<a: int, b: struct<c:string>>", "struct<a:int,b:struct<c:string>>"),
        ("struct<a int not null, `odd name`:string>", "struct<a:int,`odd name`:string>"),
        ("struct<`a``b`:int>", "struct<`a``b`:int>"),
    ],
)
def test_ddl(given_ddl: str, canonical: str) -> None:
    parsed = parse_type(given_ddl)
    assert parsed.ddl == canonical
    assert parse_type(parsed.ddl) == parsed


@pytest.mark.parametrize(
    "wrong",
    ["", "integr", "array<int", "array<>", "map<int>", "struct<a>", "struct<a:int,a:int>", "int int", "decimal(39,0)",
     "decimal(5,6)", "decimal(x)", "a b c", "int,", "<", "`x", "array<int>>"],
)  # fmt: skip
def test_wrong_ddl_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_type(wrong)


def test_columns() -> None:
    names = [(name, dtype.ddl) for name, dtype in parse_columns("a int, `b c` array<string> NOT NULL, d decimal(5,2)")]
    assert names == [("a", "int"), ("b c", "array<string>"), ("d", "decimal(5,2)")]
    assert [name for name, _ in parse_columns("struct<x:int,y:int>")] == ["x", "y"]
    for wrong in ("", "a", "a int, A string", "a int b"):
        with pytest.raises(InvalidInputError):
            parse_columns(wrong)


@pytest.mark.parametrize(
    ("made", "ddl"),
    [
        (Types.STRING(), "string"),
        (Types.LONG(), "bigint"),
        (Types.INT(), "int"),
        (Types.SHORT(), "smallint"),
        (Types.BYTE(), "tinyint"),
        (Types.BOOLEAN(), "boolean"),
        (Types.FLOAT(), "float"),
        (Types.DOUBLE(), "double"),
        (Types.BIG_INT(), "decimal(38,0)"),
        (Types.BIG_DEC(), "decimal(38,18)"),
        (Types.INSTANT(), "timestamp"),
        (Types.SQL_DATE(), "date"),
        (Types.SQL_TIMESTAMP(), "timestamp_ntz"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "binary"),
        (Types.PRIMITIVE_ARRAY(Types.INT()), "array<int>"),
        (Types.LIST(Types.STRING()), "array<string>"),
        (Types.MAP(Types.STRING(), Types.INT()), "map<string,int>"),
        (Types.TUPLE([Types.INT(), Types.STRING()]), "struct<f0:int,f1:string>"),
        (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()]), "struct<a:int,b:string>"),
        (Types.PICKLED_BYTE_ARRAY(), "pickle"),
    ],
)
def test_pyflinks_names(made: DataType, ddl: str) -> None:
    assert made.ddl == ddl
    assert made == parse_type(ddl)


def test_as_type() -> None:
    assert as_type(None) is PICKLE
    assert as_type("int") == as_type(Types.INT()) == parse_type("int")
    with pytest.raises(InvalidInputError):
        as_type(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        Types.ROW_NAMED(["a"], [])


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "binary": st.binary(max_size=8),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(12,3)": st.decimals(-(10**8), 10**8, places=3),
}


@st.composite
def typed_values(draw: Any, depth: int = 2) -> tuple[str, Any]:
    """A type and a value of it, nested."""
    if depth == 0 or draw(st.booleans()):
        ddl = draw(st.sampled_from(sorted(SCALARS)))
        return ddl, draw(SCALARS[ddl])
    kind = draw(st.sampled_from(["array", "map", "struct"]))
    ddl, value = draw(typed_values(depth=depth - 1))
    if kind == "array":
        return f"array<{ddl}>", draw(st.sampled_from([[], [value], [value, None, value]]))
    if kind == "map":
        key = draw(st.sampled_from(sorted(SCALARS)))
        return f"map<{key},{ddl}>", {draw(SCALARS[key]): draw(st.sampled_from([value, None]))}
    return f"struct<a:{ddl},`b c`:int>", (value, None)


@settings(max_examples=300, deadline=None)
@given(typed_values())
def test_values_come_back(pair: tuple[str, Any]) -> None:
    ddl, value = pair
    dtype = parse_type(ddl)
    stored = dtype.to_storage(value)
    assert dtype.from_storage(stored) == value
    assert dtype.to_storage(dtype.from_storage(stored)) == stored


def test_what_could_be_changed_is_made_anew_at_each_read() -> None:
    for ddl, value in (("array<int>", [1]), ("map<string,int>", {"a": 1}), ("pickle", [1])):
        dtype = parse_type(ddl)
        stored = dtype.to_storage(value)
        assert dtype.from_storage(stored) is not dtype.from_storage(stored)
        assert isinstance(stored, bytes)


def test_structs_take_tuples_lists_and_mappings() -> None:
    dtype = parse_type("struct<a:int,b:string>")
    for value in ((1, "x"), [1, "x"], {"b": "x", "a": 1}):
        found = dtype.from_storage(dtype.to_storage(value))
        assert (found.a, found.b) == (1, "x")
    for wrong in ({"a": 1}, {"a": 1, "b": "x", "c": 0}, (1,), "ab", 5):
        with pytest.raises(StateTypeError):
            dtype.to_storage(wrong)


def test_decimals_are_rounded_to_their_scale_and_have_one_zero() -> None:
    dtype = parse_type("decimal(5,2)")
    assert dtype.to_storage(Decimal("1.005")) == "1.01"
    assert dtype.to_storage(7) == "7.00"
    assert dtype.to_storage(Decimal("-0")) == dtype.to_storage(Decimal("-0.001")) == "0.00"


def test_a_map_needs_keys_that_python_can_hash() -> None:
    for ddl in ("map<array<int>,int>", "map<map<int,int>,int>", "map<struct<a:array<int>>,int>"):
        with pytest.raises(InvalidInputError, match="key of a map"):
            parse_type(ddl)


def test_errors_show_a_bounded_part_of_the_value() -> None:
    with pytest.raises(StateTypeError) as caught:
        parse_type("int").to_storage("x" * 10_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("double", 1.5),
        ("float", 0.5),
        ("array<double>", [1.5]),
        ("map<string,struct<n:bigint,`odd name`:float>>", {"k": (1, 0.5)}),
        ("struct<a:decimal(5,2),b:array<int>>", (Decimal("1.25"), [1])),
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("pickle", {"any": "thing"}),
    ],
)
def test_types_and_descriptors_travel_to_workers(ddl: str, value: Any) -> None:
    """Broadcast states are a part of what workers are sent; a function may hold any descriptor."""
    dtype = parse_type(ddl)
    for dumped in (pickle.dumps(dtype), cloudpickle.dumps(dtype)):  # type: ignore[no-untyped-call]
        there = pickle.loads(dumped)
        assert there == dtype
        assert there.storage is dtype.storage
        assert there.from_storage(there.to_storage(value)) == dtype.from_storage(dtype.to_storage(value))
    descriptor = MapStateDescriptor("rules", "string", ddl)
    assert pickle.loads(pickle.dumps(descriptor)).value_type == dtype
