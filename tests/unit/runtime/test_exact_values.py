"""Output values that Arrow would change in silence: each is an error that names row, column and value."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from cairn import CollectionSource, InvalidInputError, KeyedProcessFunction, UserFunctionError
from cairn.connectors.generated_sources import _as_row
from cairn.model.manifest import EpochContext
from cairn.runtime.map_functions import SimpleSpec, run_simple
from cairn.runtime.tagged_outputs import output_builder
from cairn.testing import KeyedProcessHarness
from cairn.testing.keyed_harness import arrow_schema

NOON = dt.datetime(2026, 1, 2, 12)
DAY = dt.date(2026, 1, 2)
ZONED = dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone(dt.timedelta(hours=5)))


class Pair(NamedTuple):
    a: str
    b: int


def built(ddl: str, rows: list[Any]) -> pa.RecordBatch:
    return output_builder("op", arrow_schema(ddl), False, False, (), 0).build(rows)


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("bigint", 1.5),
        ("bigint", 2.0),
        ("bigint", Decimal("1.5")),
        ("int", np.float64(1.5)),
        ("tinyint", Decimal(2)),
        ("float", 1e300),
        ("float", -3.5e38),
        ("timestamp", 5),
        ("timestamp_ntz", 5),
        ("date", 5),
        ("date", NOON),
        ("array<bigint>", [1, 2.5]),
        ("map<string,int>", {"a": 1, "b": 2.5}),
        ("map<int,string>", {1.5: "a"}),
        ("struct<a:string,b:date>", ("x", NOON)),
        ("struct<a:string,b:date>", {"a": "x", "b": NOON}),
        ("array<struct<a:array<float>>>", [([1.0, 1e300],)]),
        ("map<string,float>", {"a": 1e300}),
        ("map<float,string>", {1e300: "a"}),
        ("double", True),
        ("float", True),
        ("array<double>", [1.0, False]),
        ("timestamp_ntz", ZONED),
        ("array<timestamp_ntz>", [NOON, ZONED]),
        ("array<string>", "ab"),
        ("array<int>", b"ab"),
        ("array<array<string>>", [["x"], "ab"]),
        ("map<string,array<string>>", {"a": "ab"}),
        ("struct<a:array<string>>", ("ab",)),
        ("struct<a:string,b:string>", {"a": "x"}),
        ("struct<a:string,b:string>", {"a": "x", "c": "y"}),
        ("struct<a:string,b:string>", {"a": "x", "b": "y", "c": "z"}),
        ("struct<a:string,b:string>", {b"a": "x", "b": "y"}),
        ("struct<a:string,b:string>", {}),
        ("struct<a:string,b:string>", [("a", "x"), ("b", "y")]),
        ("array<struct<a:bigint>>", [{"a": 1}, {"b": 1}]),
        ("map<string,struct<a:bigint>>", {"x": [("a", 1)]}),
    ],
)
def test_values_that_would_be_changed(ddl: str, value: Any) -> None:
    schema = f"user string, v {ddl}"
    for rows in ([("a", value)], [{"user": "a", "v": value}], [["a", value]], [("b", None), ("a", value)]):
        with pytest.raises(UserFunctionError, match=r"operator 'op' emitted .*column 'v' is .* would not be kept"):
            built(schema, rows)


@pytest.mark.parametrize(
    ("ddl", "value", "kept"),
    [
        ("bigint", 3, 3),
        ("bigint", np.int64(3), 3),
        ("bigint", None, None),
        ("float", 1.5, 1.5),
        ("float", 3, 3.0),
        ("float", math.inf, math.inf),
        ("float", np.float32(2.5), 2.5),
        ("double", 3, 3.0),
        ("double", 1e300, 1e300),
        ("timestamp_ntz", NOON, NOON),
        ("timestamp_ntz", np.datetime64("2026-01-02T12:00:00", "us"), NOON),
        ("timestamp_ntz", None, None),
        ("date", DAY, DAY),
        ("decimal(5,2)", Decimal("1.25"), Decimal("1.25")),
        ("array<bigint>", [1, None], [1, None]),
        ("array<bigint>", None, None),
        ("map<string,int>", {"a": None}, [("a", None)]),
        ("map<string,int>", [("a", 1)], [("a", 1)]),
        ("struct<a:string,b:date>", ("x", DAY), {"a": "x", "b": DAY}),
        ("struct<a:string,b:date>", None, None),
        ("array<string>", ["x"], ["x"]),
        ("array<bigint>", np.array([1, 2]), [1, 2]),
        ("array<bigint>", (1, 2), [1, 2]),
        ("array<float>", [1.5, math.inf, None], [1.5, math.inf, None]),
        ("double", np.float32(2.5), 2.5),
        ("timestamp", ZONED, ZONED),
        ("struct<a:string,b:bigint>", {"b": 1, "a": "x"}, {"a": "x", "b": 1}),
        ("struct<a:string,b:bigint>", Pair("x", 1), {"a": "x", "b": 1}),
        ("array<struct<a:bigint>>", [{"a": 1}, None, {"a": 2}], [{"a": 1}, None, {"a": 2}]),
        ("string", b"x", "x"),
        ("binary", "\u00e4", "\u00e4".encode()),
    ],
)
def test_values_that_are_kept(ddl: str, value: Any, kept: Any) -> None:
    for rows in ([("a", value)], [{"user": "a", "v": value}]):
        assert built(f"user string, v {ddl}", rows).column(1).to_pylist() == [kept]
    mixed = [("a", value), ("b", None), ("c", value)]
    assert built(f"user string, v {ddl}", mixed).column(1).to_pylist() == [kept, None, kept]


def test_the_first_wrong_row_is_the_one_that_is_named() -> None:
    with pytest.raises(UserFunctionError, match=r"emitted \('b', 2.5\).* 2.5 would not be kept as it is; convert it"):
        built("user string, v bigint", [("a", 1), ("b", 2.5), ("c", 3.5)])


class _Same(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield (str(value.k),)


def test_the_harness_takes_no_row_that_spark_would_not_give() -> None:
    with KeyedProcessHarness(_Same(), "k", "k bigint", "k string") as harness:
        harness.push((1,))
        assert harness.run_epoch() == [("1",)]
        with pytest.raises(InvalidInputError, match=r"column 'k' is int64: 1.5 would not be kept as it is"):
            harness.push((1.5,))


def test_keys_of_a_function_are_not_cut() -> None:
    """1.2 and 1.7 would have shared the state of 1."""
    spec = SimpleSpec("op", "key", lambda row: row.v, ("v",), arrow_schema("v double, key bigint"))
    context = EpochContext("", "", "job", "", 1, 0, 0, 0)
    batch = pa.RecordBatch.from_pydict({"v": [1.2, 1.7]})
    with pytest.raises(UserFunctionError, match=r"operator 'op': a key is not of the type int64 .*: 1.2 would not"):
        list(run_simple(spec, [batch], context, 0, 0))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", 1.5)], "column 'n' of the collection: 1.5 .float. does not fit type 'bigint'"),
        ([("a", "x")], "column 'n' of the collection: 'x'"),
        ([{"user": "a", "m": 1}], "does not fit the columns user, n: 'm'"),
        ([{"user": "a"}], "does not fit the columns user, n: 'n'"),
    ],
)
def test_collections_are_kept_as_they_are(rows: list[Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        CollectionSource(rows, StructType().add("user", "string").add("n", "long")).load(None)


def test_mappings_of_a_collection_go_by_their_names() -> None:
    assert _as_row({"n": 1, "user": "a"}, ["user", "n"]) == ("a", 1)
