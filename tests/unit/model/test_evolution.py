"""What a type may become: the table of the rules, the words for it, and whole columns on the way."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from cairn.errors import IncompatibleStateError, InvalidInputError, StateTypeError
from cairn.model.ddl import parse_type
from cairn.model.descriptors import MapStateDescriptor, ValueStateDescriptor
from cairn.model.evolution import both_schemas, change, compare
from cairn.model.manifest import StateSpec
from cairn.state.type_conversion import Conversion, pack_default
from cairn.state.typed_columns import arrow_type

ALLOWED = [
    ("tinyint", "smallint"), ("tinyint", "bigint"), ("smallint", "int"), ("int", "bigint"),
    ("float", "double"), ("tinyint", "double"), ("smallint", "double"), ("int", "double"),
    ("decimal(5,2)", "decimal(7,2)"), ("decimal(5,2)", "decimal(6,3)"), ("date", "timestamp_ntz"),
    ("struct<a:int>", "struct<a:int,b:string>"), ("struct<a:int,b:string>", "struct<a:bigint>"),
    ("struct<a:int,b:string>", "struct<b:string,a:int>"), ("array<int>", "array<bigint>"),
    ("map<string,int>", "map<string,double>"), ("array<struct<a:int>>", "array<struct<a:bigint,b:date>>"),
]  # fmt: skip
REFUSED = [
    ("bigint", "int", "narrower"), ("bigint", "double", "lose digits"), ("double", "float", "narrower"),
    ("int", "float", ""), ("string", "bigint", ""), ("bigint", "string", ""), ("timestamp", "timestamp_ntz", ""),
    ("date", "timestamp", ""), ("decimal(5,2)", "decimal(5,3)", "digits"), ("decimal(5,2)", "decimal(5,1)", "digits"),
    ("struct<a:int>", "struct<b:int>", "no field is left"), ("struct<a:bigint>", "struct<a:int>", "a: bigint"),
    ("map<int,int>", "map<bigint,int>", "keys of a map"), ("array<int>", "bigint", ""), ("pickle", "bigint", "pickled"),
    ("boolean", "int", ""), ("struct<a:int>", "int", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), ALLOWED)
def test_what_a_type_may_become(old: str, new: str) -> None:
    told = change(old, new)
    assert told.allowed
    assert told.steps, "a change says what it does"
    column = Conversion(old, new)(pa.nulls(3, arrow_type(parse_type(old))))
    assert (column.type, column.null_count) == (arrow_type(parse_type(new)), 3)


@pytest.mark.parametrize(("old", "new", "why"), REFUSED)
def test_what_a_type_may_not_become(old: str, new: str, why: str) -> None:
    told = change(old, new)
    assert not told.allowed
    assert why in "; ".join(told.problems)
    with pytest.raises(IncompatibleStateError):
        Conversion(old, new)


def test_values_on_the_way() -> None:
    def converted(old: str, new: str, values: list[Any], **defaults: bytes) -> list[Any]:
        made = Conversion(old, new, defaults)(pa.array(values, arrow_type(parse_type(old))))
        made.validate(full=True)
        return made.to_pylist()

    assert converted("int", "double", [1, None, -7]) == [1.0, None, -7.0]
    assert converted("float", "double", [0.1, None]) == [pa.scalar(0.1, pa.float32()).as_py(), None]
    assert converted("decimal(5,2)", "decimal(8,4)", [decimal.Decimal("1.25")]) == [decimal.Decimal("1.2500")]
    assert converted("date", "timestamp_ntz", [dt.date(2024, 2, 29)]) == [dt.datetime(2024, 2, 29)]
    grown = converted(
        "struct<a:int,gone:string>", "struct<b:string,a:bigint>", [{"a": 1, "gone": "x"}, None, {"a": None}],
        b=pack_default(parse_type("string"), "new"),
    )  # fmt: skip
    assert grown == [{"b": "new", "a": 1}, None, {"b": "new", "a": None}]
    assert converted("map<string,int>", "map<string,bigint>", [[("k", 1)], None, []]) == [[("k", 1)], None, []]
    nested = converted(
        "array<struct<a:int>>", "array<struct<a:int,t:struct<x:int>>>", [[{"a": 1}, None], None, []],
        **{"element.t": pack_default(parse_type("struct<x:int>"), (5,))},
    )  # fmt: skip
    assert nested == [[{"a": 1, "t": {"x": 5}}, None], None, []]


def test_slices_and_chunks_are_converted_as_what_they_show() -> None:
    old = parse_type("array<struct<a:int>>")
    whole = pa.array([[{"a": n}] for n in range(10)] + [None], arrow_type(old))
    way = Conversion(old.ddl, "array<struct<a:bigint,b:int>>")
    assert way(whole.slice(7)).to_pylist() == [[{"a": n, "b": None}] for n in (7, 8, 9)] + [None]
    chunked = pa.chunked_array([whole.slice(0, 2), whole.slice(9, 2)])
    assert way(chunked).to_pylist() == [[{"a": n, "b": None}] for n in (0, 1, 9)] + [None]


def spec(value: str, **more: Any) -> StateSpec:
    return StateSpec("s", more.pop("kind", "value"), value, **more)


def test_states_are_compared_with_kind_keys_and_ttl() -> None:
    assert compare(spec("int"), spec("int")).none
    assert compare(spec("int", ttl_ms=5), spec("int", ttl_ms=9)).none, "the bytes are the same"
    assert "instead of 5 ms" in compare(spec("int", ttl_ms=5), spec("int", ttl_ms=9)).steps[0]
    on = compare(spec("int"), spec("int", ttl_ms=5))
    assert (on.none, on.allowed) == (False, True)
    assert "time of the restore" in on.steps[0]
    assert compare(spec("int", ttl_ms=5), spec("int")).allowed
    assert "cannot become a list state" in compare(spec("int"), spec("int", kind="list")).problems[0]
    keys = compare(spec("int", kind="map", key_type="int"), spec("int", kind="map", key_type="bigint"))
    assert "map keys are int" in keys.problems[0]
    renamed = compare(StateSpec("old", "value", "int"), StateSpec("new", "value", "int"))
    assert (renamed.none, renamed.steps) == (False, ("renamed from 'old'",))


def test_the_difference_can_be_read() -> None:
    text = both_schemas(spec("struct<a:bigint,b:string>"), spec("struct<a:int,c:date>", ttl_ms=3))
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["~", "~", "-", "+"]
    assert "a: bigint" in text
    assert "a: int" in text


def test_defaults_must_name_a_field_and_fit_it() -> None:
    made = ValueStateDescriptor("s", "struct<a:int,t:struct<x:int>>", field_defaults={"t.x": 4, "a": None})
    assert made.field_defaults == {"t.x": 4}
    assert MapStateDescriptor("m", "string", "struct<a:int>", field_defaults={"a": 1}).field_defaults == {"a": 1}
    with pytest.raises(InvalidInputError, match="'b', which is not a field"):
        ValueStateDescriptor("s", "struct<a:int>", field_defaults={"b": 1})
    with pytest.raises(StateTypeError, match="default of field 'a'"):
        ValueStateDescriptor("s", "struct<a:int>", field_defaults={"a": "text"})
    assert msgspec.msgpack.decode(pack_default(parse_type("int"), 3)) == 3
