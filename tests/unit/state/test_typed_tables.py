"""Sections of state files and typed tables: what goes one way comes back the other."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import CorruptFileError, InternalError, InvalidInputError
from cairn.model.ddl import parse_columns, parse_type
from cairn.model.keygroups import key_group
from cairn.model.manifest import StateSpec
from cairn.model.types import Storage
from cairn.state import codec
from cairn.state.key_hashing import key_groups
from cairn.state.typed_columns import arrow_type, is_pickled
from cairn.state.typed_tables import table_schema, to_section, to_table
from cairn.storage.state_file import ARROW_STORAGE, Section, sorted_table

UTC = dt.UTC
SAMPLES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 0, 127],
    "smallint": [-32768, 5, 32767],
    "int": [-(2**31), 0, 7, 2**31 - 1],
    "bigint": [-(2**63), -1, 0, 1, 2**63 - 1],
    "float": [0.0, -1.5, 3.25, float("inf")],
    "double": [0.0, -1.5, 1e300, float("-inf")],
    "string": ["", "a", "grün", "x" * 300, "a\0b"],
    "binary": [b"", b"\0", b"\xff" * 9],
    "date": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    "timestamp": [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), dt.datetime(2024, 1, 1, tzinfo=UTC)],
    "timestamp_ntz": [dt.datetime(1900, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1)],
    "decimal(10,2)": [decimal.Decimal("0.00"), decimal.Decimal("-12345678.90")],
    "decimal(38,18)": [decimal.Decimal("0E-18"), decimal.Decimal("1.5"), decimal.Decimal("-1E-18")],
}
NESTED: dict[str, list[Any]] = {
    "struct<a:int,b:string>": [(1, "x"), (None, None), (-5, "")],
    "struct<d:date,t:timestamp,f:boolean,n:decimal(10,2)>": [
        (dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=UTC), True, decimal.Decimal("1.50")),
        (None, None, None, None),
    ],
    "array<bigint>": [[], [1, None, 3], [2**62]],
    "array<struct<a:int>>": [[], [(1,), None, (None,)]],
    "map<string,double>": [{}, {"a": 1.5, "b": None}],
    "map<int,array<string>>": [{1: ["a", None], 2: None}, {}],
    "struct<m:map<string,struct<x:bigint>>,l:array<array<int>>>": [({"k": (1,)}, [[1], None, []]), (None, None)],
    "struct<p:pickle>": [({"any": 1},), (None,)],
}
KEY_TYPES = list(SAMPLES)


def stored_key(columns: Any, values: Any, max_parallelism: int = 128) -> bytes:
    group = key_group(values, [dtype.ddl for _, dtype in columns], max_parallelism)
    return group.to_bytes(2, "big") + codec.KeyCodec(columns).encode_one(values)


def value_section(spec: StateSpec, columns: Any, keys: list[Any], values: list[Any]) -> Section:
    dtype = parse_type(spec.value_type)
    data: dict[str, Any] = {
        "key": pa.array([stored_key(columns, key) for key in keys], pa.binary()),
        "value": pa.array([dtype.to_storage(value) for value in values], ARROW_STORAGE[dtype.storage]),
    }
    if spec.ttl_ms:
        data["time"] = pa.array([1_000 + i for i in range(len(keys))], pa.int64())
    return Section(spec.name, "value", dtype.storage, bool(spec.ttl_ms), sorted_table(data))


def there_and_back(section: Section, columns: Any, spec: StateSpec) -> pa.Table:
    """The table of a section; the way back, from the rows in another order, gives the section again."""
    table = to_table(section, columns, spec)
    roles, schema = table_schema(columns, spec)
    assert table.schema == schema
    table.validate(full=True)
    mixed = table.take(pa.array(np.random.default_rng(1).permutation(table.num_rows)))
    for rows in (table, mixed):
        back = to_section(rows, roles, columns, spec, 128)
        assert (back.table, back.kind, back.storage, back.ttl) == (
            section.table, section.kind, section.storage, section.ttl,
        )  # fmt: skip
        if spec.kind != "list":  # segments of a list are numbered anew
            assert back.data.equals(section.data)
        assert to_table(back, columns, spec).equals(table)
    return table


@pytest.mark.parametrize("ddl", [*SAMPLES, *NESTED])
def test_values_of_every_type_go_there_and_back(ddl: str) -> None:
    values = (SAMPLES | NESTED)[ddl]
    columns = parse_columns("id bigint")
    spec = StateSpec("s", "value", ddl)
    table = there_and_back(value_section(spec, columns, [(i,) for i in range(len(values))], values), columns, spec)
    dtype = parse_type(ddl)
    by_id = dict(zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True))
    for number, value in enumerate(values):
        shown = by_id[number]
        if "pickle" in ddl:
            assert shown == {"p": None if value[0] is None else pickle.dumps(value[0], protocol=5)}
        else:
            assert dtype.to_storage(_plain(shown, dtype)) == dtype.to_storage(value)


def _plain(shown: Any, dtype: Any) -> Any:
    """What Arrow shows of a value, as user code would give it."""
    if shown is None:
        return None
    if dtype.fields:
        return tuple(_plain(shown[name], inner) for name, inner in dtype.fields)
    if len(dtype.items) == 1:
        return [_plain(item, dtype.items[0]) for item in shown]
    if len(dtype.items) == 2:
        return {_plain(key, dtype.items[0]): _plain(value, dtype.items[1]) for key, value in shown}
    return shown


@pytest.mark.parametrize("ddl", KEY_TYPES)
def test_keys_of_every_type_go_there_and_back(ddl: str) -> None:
    columns = parse_columns(f"k {ddl}")
    spec = StateSpec("s", "value", "bigint")
    keys = [(value,) for value in SAMPLES[ddl]]
    table = there_and_back(value_section(spec, columns, keys, list(range(len(keys)))), columns, spec)
    codes = {parse_type(ddl).to_storage(value) for value in table["k"].to_pylist()}
    assert codes == {parse_type(ddl).to_storage(value) for (value,) in keys}
    for row in table.to_pylist():
        assert row["key_group"] == key_group([row["k"]], [ddl], 128)


def test_several_key_columns() -> None:
    columns = parse_columns("a string, b int, c binary, d decimal(38,18)")
    keys = [("x", 1, b"", decimal.Decimal("1.5")), ("", -1, b"\0\1", decimal.Decimal(0)),
            ("long" * 9, 2**31 - 1, b"y" * 40, decimal.Decimal(-2))]  # fmt: skip
    spec = StateSpec("s", "value", "string")
    table = there_and_back(value_section(spec, columns, keys, ["1", "2", "3"]), columns, spec)
    found = {(r["a"], r["b"], r["c"], r["d"]): r["value"] for r in table.to_pylist()}
    assert found == dict(zip(keys, ["1", "2", "3"], strict=True))


@pytest.mark.parametrize("ddl", KEY_TYPES)
def test_key_groups_of_columns_are_those_of_single_keys(ddl: str) -> None:
    values = SAMPLES[ddl] * 3
    array = pa.array(values, arrow_type(parse_type(ddl)))
    for sliced, wanted in ((array, values), (array.slice(1), values[1:])):
        found = key_groups(parse_columns(f"k {ddl}, n string"), [sliced, pa.array(["n"] * len(sliced))], 32768)
        assert found.tolist() == [key_group([value, "n"], [ddl, "string"], 32768) for value in wanted]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=12), st.integers(-(2**63), 2**63 - 1), st.floats())), st.integers(1, 32768))
def test_key_groups_of_any_texts_and_numbers(rows: list[tuple[str, int, float]], groups: int) -> None:
    columns = parse_columns("a string, b bigint, c double")
    arrays = [
        pa.array([a for a, _, _ in rows], pa.string()),
        pa.array([b for _, b, _ in rows], pa.int64()),
        pa.array([c for _, _, c in rows], pa.float64()),
    ]
    wanted = [key_group(row, ["string", "bigint", "double"], groups) for row in rows]
    assert key_groups(columns, arrays, groups).tolist() == wanted


@pytest.mark.parametrize("ddl", [*SAMPLES, "struct<a:int,b:string>"])
def test_maps_have_a_row_per_entry(ddl: str) -> None:
    columns = parse_columns("id string")
    spec = StateSpec("m", "map", "bigint", ddl, ttl_ms=1000)
    dtype = parse_type(ddl)
    names = (SAMPLES | NESTED)[ddl]
    names = [name for name in names if name != (None, None)]
    rows = [(key, name, i) for i, name in enumerate(names) for key in ("a", "bb")]
    section = Section("m", "map", Storage.INT, True, sorted_table({
        "key": pa.array([stored_key(columns, (key,)) for key, _, _ in rows], pa.binary()),
        "entry": pa.array([codec.entry_key(dtype, dtype.to_storage(name)) for _, name, _ in rows], pa.binary()),
        "value": pa.array([i for _, _, i in rows], pa.int64()),
        "time": pa.array([5_000 + i for _, _, i in rows], pa.int64()),
    }))  # fmt: skip
    table = there_and_back(section, columns, spec)
    assert table.num_rows == 2 * len(names)
    found = {(r["id"], r["value"]): dtype.to_storage(_plain(r["map_key"], dtype)) for r in table.to_pylist()}
    assert found == {(key, i): dtype.to_storage(name) for key, name, i in rows}
    assert {r["last_access"] for r in table.to_pylist() if r["value"] == 0} == {
        dt.datetime(1970, 1, 1, 0, 0, 5, 0, UTC)
    }


@pytest.mark.parametrize("ddl", ["bigint", "string", "struct<a:int,b:string>", "pickle"])
def test_lists_have_a_row_per_element_in_order(ddl: str) -> None:
    columns = parse_columns("id string")
    dtype = parse_type(ddl)
    spec = StateSpec("l", "list", ddl, ttl_ms=1000)
    values = (SAMPLES | NESTED | {"pickle": [1, "two", {3}]})[ddl]
    segments = [("a", 3, values, 10), ("a", 9, values[:1], 20), ("b", 1, values[1:], 30), ("c", 2, [], 40)]
    section = Section("l", "list", Storage.BYTES, True, sorted_table({
        "key": pa.array([stored_key(columns, (key,)) for key, _, _, _ in segments], pa.binary()),
        "entry": pa.array([codec.time_bytes(epoch) for _, epoch, _, _ in segments], pa.binary()),
        "value": pa.array(
            [__import__("msgspec").msgpack.encode([dtype.to_storage(v) for v in part]) for _, _, part, _ in segments]
        ),
        "time": pa.array([time for _, _, _, time in segments], pa.int64()),
    }))  # fmt: skip
    table = there_and_back(section, columns, spec)
    of_a = [row for row in table.to_pylist() if row["id"] == "a"]
    assert [row["position"] for row in of_a] == list(range(len(values) + 1))
    assert [row["last_access"].microsecond for row in of_a] == [10_000] * len(values) + [20_000]
    roles, _ = table_schema(columns, spec)
    back = to_section(table, roles, columns, spec, 128)
    numbers = [codec.time_value(entry) for entry in back.data["entry"].to_pylist()]
    assert sorted(numbers) == [-2, -1, -1], "segments of one key keep their order and come before every epoch"


def test_timers() -> None:
    columns = parse_columns("id bigint")
    spec = StateSpec("_timers.event", "timer", "binary")
    rows = [(1, -5), (1, 5), (2, 0), (2, 2**63 - 1)]
    section = Section("_timers.event", "timer", Storage.BYTES, False, sorted_table({
        "key": pa.array([stored_key(columns, (key,)) for key, _ in rows], pa.binary()),
        "entry": pa.array([codec.time_bytes(time) for _, time in rows], pa.binary()),
        "value": pa.array([b""] * len(rows), pa.binary()),
    }))  # fmt: skip
    table = there_and_back(section, columns, spec)
    assert sorted((r["id"], r["timestamp"]) for r in table.to_pylist()) == rows
    assert table.column_names == ["id", "key_group", "timestamp"]


def test_reserved_names_that_a_key_column_has_get_an_underscore() -> None:
    columns = parse_columns("Value string, key_group int, _value int")
    spec = StateSpec("s", "value", "bigint")
    roles, schema = table_schema(columns, spec)
    assert roles.key_group == "_key_group"
    assert roles.value == "__value"
    assert schema.names == ["Value", "key_group", "_value", "_key_group", "__value"]
    there_and_back(value_section(spec, columns, [("x", 1, 2), ("y", 3, 4)], [1, 2]), columns, spec)


def test_empty_tables() -> None:
    columns = parse_columns("a string, b int")
    for spec in (
        StateSpec("s", "value", "struct<a:int>", ttl_ms=1),
        StateSpec("s", "list", "array<int>"),
        StateSpec("s", "map", "bigint", "string"),
        StateSpec("s", "timer", "binary"),
    ):
        roles, schema = table_schema(columns, spec)
        section = to_section(schema.empty_table(), roles, columns, spec, 128)
        assert to_table(section, columns, spec).equals(schema.empty_table())


def test_rows_that_cannot_be_state_are_refused_with_counts() -> None:
    columns = parse_columns("id string")
    spec = StateSpec("s", "value", "int")
    roles, _ = table_schema(columns, spec)

    def section(ids: list[Any], values: Any) -> Section:
        return to_section(pa.table({"id": pa.array(ids, pa.string()), "value": values}), roles, columns, spec, 128)

    with pytest.raises(InvalidInputError, match=r"state 's': 2 rows have a null in key column 'id'"):
        section([None, "a", None], [1, 2, 3])
    with pytest.raises(InvalidInputError, match=r"1 rows have a null in column 'value'"):
        section(["a", "b"], pa.array([1, None], pa.int32()))
    with pytest.raises(InvalidInputError, match=r"2 rows have the key of another row"):
        section(["a", "b", "a", "a"], [1, 2, 3, 4])
    with pytest.raises(InvalidInputError, match=r"column 'value' has type int64 and does not fit int32"):
        section(["a"], [1 << 40])
    with pytest.raises(InvalidInputError, match=r"no column 'value'; there are id"):
        to_section(pa.table({"id": ["a"]}), roles, columns, spec, 128)
    assert section(["a", "b"], [1, 2]).data.num_rows == 2


def test_rows_of_a_table_may_lie_about_their_key_group() -> None:
    columns = parse_columns("id bigint")
    spec = StateSpec("s", "value", "bigint")
    section = value_section(spec, columns, [(1,), (2,), (3,)], [1, 2, 3])
    table = to_table(section, columns, spec)
    lying = table.set_column(1, "key_group", pa.array([0] * 3, pa.int32()))
    assert to_section(lying, table_schema(columns, spec)[0], columns, spec, 128).data.equals(section.data)


def test_switching_ttl_on_gives_the_time_and_off_drops_it() -> None:
    columns = parse_columns("id bigint")
    plain, timed = StateSpec("s", "value", "bigint"), StateSpec("s", "value", "bigint", ttl_ms=9)
    table = to_table(value_section(plain, columns, [(1,), (2,)], [1, 2]), columns, plain)
    on = to_section(table, table_schema(columns, plain)[0], columns, timed, 128, now_ms=77)
    assert on.ttl
    assert on.data["time"].to_pylist() == [77, 77]
    off = to_section(to_table(on, columns, timed), table_schema(columns, timed)[0], columns, plain, 128)
    assert not off.ttl
    assert off.data.column_names == ["key", "value"]
    some = to_table(on, columns, timed).set_column(3, "last_access", pa.array([None, 5_000], pa.timestamp("us", "UTC")))
    assert to_section(some, table_schema(columns, timed)[0], columns, timed, 128, 8).data["time"].to_pylist() == [8, 5]


def test_stored_bytes_that_are_no_such_state_are_named() -> None:
    columns = parse_columns("id bigint")
    spec = StateSpec("s", "value", "struct<a:int,b:int>")
    key = stored_key(columns, (1,))

    def section(key: bytes, value: bytes | None) -> Section:
        data = pa.table({"key": pa.array([key], pa.binary()), "value": pa.array([value], pa.binary())})
        return Section("s", "value", Storage.BYTES, False, data)

    for bad in (section(key, b"\x91\x01"), section(key, b"\xc1"), section(key[:-1], b"\x92\x01\x02"),
                section(b"\0", b"\x92\x01\x02"), section(key, b"\x92\x01\xa1x")):  # fmt: skip
        with pytest.raises(CorruptFileError):
            to_table(bad, columns, spec)
    with pytest.raises(InternalError, match="removals"):
        to_table(section(key, None), columns, spec)


def test_pickles_are_told_and_never_opened() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit('opened')",))

    columns = parse_columns("id bigint")
    payload = pickle.dumps(Bomb())
    for ddl in ("pickle", "struct<a:pickle>", "array<pickle>"):
        assert is_pickled(parse_type(ddl))
    assert not is_pickled(parse_type("struct<a:binary>"))
    spec = StateSpec("s", "value", "pickle")
    data = pa.table({"key": pa.array([stored_key(columns, (1,))], pa.binary()), "value": pa.array([payload])})
    section = Section("s", "value", Storage.BYTES, False, data)
    assert there_and_back(section, columns, spec)["value"].to_pylist() == [payload]
