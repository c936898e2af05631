"""Key bytes: different keys never have the same, equal keys always do, and they read back."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import InvalidInputError
from cairn.model.ddl import parse_type
from cairn.model.types import Storage
from cairn.state import codec
from cairn.state.codec import KeyCodec
from cairn.storage.state_file import ARROW_STORAGE
from cairn.testing.keyed_harness import arrow_type

TYPES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=20),
    "binary": st.binary(max_size=20),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(10,0)": st.decimals(-(10**9), 10**9, places=0),
    "decimal(38,18)": st.decimals(-(10**19), 10**19, places=18),
}


def encoded(ddl: str, values: list[Any]) -> list[bytes]:
    dtype = parse_type(ddl)
    return KeyCodec([("k", dtype)]).encode([pa.array(values, arrow_type(dtype))]).to_pylist()


@pytest.mark.parametrize("ddl", TYPES)
def test_keys_of_every_type(ddl: str) -> None:
    made = KeyCodec([("k", parse_type(ddl))])

    @settings(max_examples=60, deadline=None)
    @given(st.lists(TYPES[ddl], min_size=2, max_size=6))
    def check(values: list[Any]) -> None:
        keys = encoded(ddl, values)
        for value, key in zip(values, keys, strict=True):
            assert made.decode(key) == value
            assert made.encode_one([value]) == key
        for one, key_one in zip(values, keys, strict=True):
            for two, key_two in zip(values, keys, strict=True):
                assert (one == two) == (key_one == key_two)

    check()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=4), st.integers(-5, 5)), min_size=2, max_size=6))
def test_keys_of_several_columns(rows: list[tuple[str, bytes, int]]) -> None:
    made = KeyCodec([(name, parse_type(ddl)) for name, ddl in (("a", "string"), ("b", "binary"), ("c", "int"))])
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(columns[0], pa.string()), pa.array(columns[1], pa.binary()), pa.array(columns[2], pa.int32())]
    keys = made.encode(arrays).to_pylist()
    assert [made.decode(key) for key in keys] == rows
    assert [made.encode_one(row) for row in rows] == keys
    assert len(set(keys)) == len(set(rows))


def test_columns_do_not_run_into_each_other() -> None:
    made = KeyCodec([("a", parse_type("string")), ("b", parse_type("string"))])
    keys = {made.encode_one(pair) for pair in [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]}
    assert len(keys) == 4


def test_zeros_and_nans_are_one_key() -> None:
    for ddl in ("float", "double"):
        assert len(set(encoded(ddl, [0.0, -0.0]))) == 1
        assert len(set(encoded(ddl, [math.nan, -math.nan, float("nan")]))) == 1
    assert len(set(encoded("decimal(5,2)", [Decimal("0.00"), Decimal("-0.00")]))) == 1
    made = KeyCodec([("k", parse_type("decimal(5,2)"))])
    assert made.encode_one([Decimal("-0.00")]) == made.encode_one([0]) == encoded("decimal(5,2)", [Decimal(0)])[0]


def test_small_decimals_are_the_same_by_either_way() -> None:
    values = [
        Decimal("1E-18"),
        Decimal("-1E-18"),
        Decimal(0),
        Decimal("1E-7"),
        Decimal("1234567890.5"),
        Decimal("1E+19"),
    ]
    made = KeyCodec([("k", parse_type("decimal(38,18)"))])
    exact = [value.quantize(Decimal("1E-18"), context=Context(prec=50)) for value in values]
    assert encoded("decimal(38,18)", exact) == [made.encode_one([value]) for value in values]


def test_numbers_sort_as_bytes() -> None:
    numbers = [-(2**63), -1, 0, 1, 255, 256, 2**63 - 1]
    assert sorted(encoded("bigint", numbers)) == encoded("bigint", numbers)
    assert sorted(map(codec.time_bytes, numbers)) == [codec.time_bytes(n) for n in numbers]
    assert [codec.time_value(codec.time_bytes(n)) for n in numbers] == numbers


def test_slices_and_units_of_columns() -> None:
    made = KeyCodec([("k", parse_type("timestamp"))])
    moments = [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, tzinfo=dt.UTC)]
    for unit in ("us", "ms", "s"):
        array = pa.array(moments, pa.timestamp(unit, "UTC"))
        assert [made.decode(key) for key in made.encode([array]).to_pylist()] == moments
        assert made.encode([array[1:]]).to_pylist() == made.encode([array]).to_pylist()[1:]


def test_null_keys_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="key column 'k' contains a null"):
        encoded("string", ["a", None])


def test_keys_have_a_limit() -> None:
    assert len(encoded("string", ["x" * codec.MAX_KEY_BYTES])[0]) == codec.MAX_KEY_BYTES
    with pytest.raises(InvalidInputError, match="takes 32769 bytes; at most 32768 are allowed"):
        encoded("string", ["x" * (codec.MAX_KEY_BYTES + 1)])


@pytest.mark.parametrize("ddl", ["array<int>", "map<string,int>", "struct<a:int>", "pickle"])
def test_what_cannot_be_a_key_is_refused(ddl: str) -> None:
    with pytest.raises(InvalidInputError, match="which cannot be a key"):
        KeyCodec([("k", parse_type(ddl))])


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_no_entry_prefix_begins_another(one: bytes, two: bytes) -> None:
    if one != two:
        assert not codec.entry_prefix(one).startswith(codec.entry_prefix(two))


@pytest.mark.parametrize("ddl", [ddl for ddl in TYPES if ddl != "float"])
def test_map_keys(ddl: str) -> None:
    dtype = parse_type(ddl)

    @settings(max_examples=40, deadline=None)
    @given(TYPES[ddl], TYPES[ddl])
    def check(one: Any, two: Any) -> None:
        entries = [codec.entry_key(dtype, dtype.to_storage(value)) for value in (one, two)]
        assert [codec.entry_value(dtype, entry) for entry in entries] == [one, two]
        assert (entries[0] == entries[1]) == (one == two)

    check()


COLUMNS: list[tuple[Storage, list[Any]]] = [
    (Storage.INT, [1, None, -(2**63), 2**63 - 1]),
    (Storage.FLOAT, [1.5, None, -0.0, math.inf]),
    (Storage.TEXT, ["", None, "é"]),
    (Storage.BYTES, [b"", None, b"\xff"]),
]


@pytest.mark.parametrize(("storage", "values"), COLUMNS)
@pytest.mark.parametrize("ttl", [False, True])
@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("few", [64, -1])
def test_value_columns(
    monkeypatch: pytest.MonkeyPatch, storage: Storage, values: list[Any], ttl: bool, cut: int, few: int
) -> None:
    monkeypatch.setattr(codec, "_FEW_ROWS", few)
    array = pa.array(values, ARROW_STORAGE[storage])[cut:]
    times = pa.array([5 if value is not None else None for value in values], pa.int64())[cut:] if ttl else None
    raw = codec.value_bytes(array, storage, times)
    found, found_times = codec.value_column(raw, storage, ttl)
    assert found.to_pylist() == values[cut:]
    assert found.type == ARROW_STORAGE[storage]
    assert (found_times.to_pylist() if found_times is not None else None) == (
        times.to_pylist() if times is not None else None
    )
    one = raw[-1]
    assert one is not None
    assert codec.stored_values(storage, [one[8:] if ttl else one] * 2) == [values[-1]] * 2
    nothing, _ = codec.value_column([None, None], storage, ttl)
    assert nothing.to_pylist() == [None, None]
    assert nothing.type == ARROW_STORAGE[storage]
