"""Columns of functions over whole batches: cast where values stay as they are, refused where they would not."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cairn import InvalidInputError, KeyedProcessFunction, UserFunctionError
from cairn.runtime.aggregations import RunningAggregate
from cairn.runtime.batches import OutputBuilder
from cairn.testing.keyed_harness import KeyedProcessHarness

NOON = dt.datetime(2026, 1, 2, 12)
ZONED = NOON.replace(tzinfo=dt.UTC)
LIST = pa.list_(pa.int64())
PAIR = pa.struct([("a", pa.int64()), ("b", pa.float32())])
MAP = pa.map_(pa.string(), pa.float32())


def checked(column: pa.Array, wanted: pa.DataType) -> list[Any]:
    builder = OutputBuilder("op", pa.schema([("v", wanted)]))
    found = builder.check(pa.RecordBatch.from_arrays([column], names=["v"])).column(0)
    assert found.type == wanted
    return list(found.to_pylist())


@pytest.mark.parametrize(
    ("column", "wanted", "kept"),
    [
        (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
        (pa.array([1], pa.int64()), pa.int32(), [1]),
        (pa.array([1], pa.uint64()), pa.float64(), [1.0]),
        (pa.array([1], pa.int64()), pa.decimal128(38, 0), [Decimal(1)]),
        (pa.array([1.5, math.inf, None]), pa.float32(), [1.5, math.inf, None]),
        (pa.array([Decimal("1.50")]), pa.decimal128(20, 1), [Decimal("1.5")]),
        (pa.array([NOON], pa.timestamp("ns")), pa.timestamp("us"), [NOON]),
        (pa.array([ZONED], pa.timestamp("ms", "Asia/Tokyo")), pa.timestamp("us", "UTC"), [ZONED]),
        (pa.array([NOON]), pa.timestamp("us", "UTC"), [ZONED]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array([b"a"], pa.large_binary()), pa.binary(), [b"a"]),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
        (pa.array(["a"], pa.large_string()).dictionary_encode(), pa.string(), ["a"]),
        (pa.nulls(2), pa.date32(), [None, None]),
        (pa.nulls(2), PAIR, [None, None]),
        (pa.array([[1], None], pa.large_list(pa.int32())), LIST, [[1], None]),
        (pa.array([[None]]), LIST, [[None]]),
        (pa.array([{"a": 1, "b": 2.5}]), PAIR, [{"a": 1, "b": 2.5}]),
        (pa.array([{"b": 2.5, "a": 1}], pa.struct({"b": pa.float64(), "a": pa.int8()})), PAIR, [{"a": 1, "b": 2.5}]),
        (pa.array([{"x": math.inf}], pa.map_(pa.string(), pa.float64())), MAP, [[("x", math.inf)]]),
        (pa.array([{"x": 1e300}, {"x": 2.0}], pa.map_(pa.string(), pa.float64()))[1:], MAP, [[("x", 2.0)]]),
    ],
)  # fmt: skip
def test_columns_that_are_cast(column: pa.Array, wanted: pa.DataType, kept: list[Any]) -> None:
    assert checked(column, wanted) == kept


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([3.0]), pa.int64()),
        (pa.array([2**40]), pa.int32()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([5], pa.int64()), pa.timestamp("us", "UTC")),
        (pa.array([5], pa.int32()), pa.date32()),
        (pa.array([1]), pa.bool_()),
        (pa.array([True]), pa.int64()),
        (pa.array([True]), pa.float64()),
        (pa.array([5]), pa.string()),
        (pa.array(["7"]), pa.int64()),
        (pa.array(["7"]).dictionary_encode(), pa.int64()),
        (pa.array([b"a"]), pa.string()),
        (pa.array(["2026-01-02"]), pa.date32()),
        (pa.array([NOON]), pa.date32()),
        (pa.array([dt.date(2026, 1, 2)]), pa.timestamp("us")),
        (pa.array([ZONED]), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1.239]), pa.decimal128(10, 2)),
        (pa.array([Decimal("1.239")]), pa.decimal128(10, 2)),
        (pa.array([Decimal("0.1")]), pa.float64()),
        (pa.array([1e39]), pa.float32()),
        (pa.array([[1.5]]), LIST),
        (pa.array([["7"]]), LIST),
        (pa.array([[1e300]]), pa.list_(pa.float32())),
        (pa.array([{"a": 1}]), PAIR),
        (pa.array([{"a": 1, "b": 1.0, "c": 1}]), PAIR),
        (pa.array([{"a": 1, "z": 1.0}]), PAIR),
        (pa.array([{"a": 1, "b": 1e300}]), PAIR),
        (pa.array([{"x": 1e300}], pa.map_(pa.string(), pa.float64())), MAP),
        (pa.array([1]), LIST),
    ],
)
def test_columns_that_are_refused(column: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(UserFunctionError, match=r"operator 'op', column 'v': the values are .*pyarrow") as error:
        checked(column, wanted)
    assert str(column.type) in error.value.message
    assert str(wanted) in error.value.message


def batches(function: Any, states: tuple[tuple[str, str], ...], output: str = "key string") -> KeyedProcessHarness:
    """A harness for a function over whole batches."""
    harness = KeyedProcessHarness(KeyedProcessFunction(), "key", "key string, v bigint", output)
    harness.spec = replace(harness.spec, function=function, vectorised=True, states=states)
    harness.restart()
    return harness


def put(ddl: str, values: Any) -> list[Any]:
    """What `get` gives in the epoch after the one that put these values."""
    found: list[Any] = []

    def function(batch: pa.RecordBatch, ctx: Any) -> None:
        found[:] = ctx.get("s").to_pylist()
        ctx.put("s", values)

    call: Callable[..., Any] = function
    with batches(call, (("s", ddl),)) as harness:
        for _ in range(2):
            harness.push(("a", 1))
            harness.run_epoch()
    return found


@pytest.mark.parametrize(
    ("ddl", "values", "stored"),
    [
        ("bigint", [5], [5]),
        ("int", np.array([5]), [5]),
        ("double", [5], [5.0]),
        ("float", [1.5], [1.5]),
        ("float", [math.inf], [math.inf]),
        ("boolean", [True], [1]),
        ("boolean", [1], [1]),
        ("date", [dt.date(1970, 1, 3)], [2]),
        ("date", [2], [2]),
        ("timestamp", [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)], [1_000_000]),
        ("timestamp", [7], [7]),
        ("timestamp_ntz", np.array(["1970-01-01T00:00:01"], "datetime64[ns]"), [1_000_000]),
        ("decimal(10,2)", [Decimal("1.5")], ["1.50"]),
        ("decimal(10,2)", ["1.50"], ["1.50"]),
        ("decimal(38,0)", [3], ["3"]),
        ("string", pa.array(["a"]).dictionary_encode(), ["a"]),
        ("string", [None], [None]),
        ("date", [None], [None]),
    ],
)
def test_values_that_go_into_state(ddl: str, values: Any, stored: list[Any]) -> None:
    assert put(ddl, values) == stored


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("bigint", [5.0]),
        ("bigint", ["5"]),
        ("bigint", [True]),
        ("bigint", [ZONED]),
        ("bigint", [2**70]),
        ("tinyint", [200]),
        ("boolean", [2]),
        ("boolean", [1.0]),
        ("float", [1e39]),
        ("double", [Decimal("0.1")]),
        ("string", [5]),
        ("date", [NOON]),
        ("timestamp", [dt.date(2026, 1, 2)]),
        ("timestamp_ntz", [ZONED]),
        ("timestamp_ntz", np.array(["1970-01-01T00:00:00.000000001"], "datetime64[ns]")),
        ("decimal(10,2)", [1.5]),
        ("decimal(10,2)", [Decimal("1.239")]),
    ],
)
def test_values_that_state_refuses(ddl: str, values: Any) -> None:
    with pytest.raises(UserFunctionError, match=r"operator '\w+', state 's': the values do not fit type"):
        put(ddl, values)


def test_wrong_keys_and_sums_are_told_with_the_operator() -> None:
    with KeyedProcessHarness(KeyedProcessFunction(), "key", "key string, v bigint", "key string") as rows:
        for key, message in ((None, "contains a null"), ("x" * 40_000, "at most 32768 are allowed")):
            rows.push((key, 1))
            with pytest.raises(InvalidInputError, match=f"operator '{rows.spec.uid}', subtask 0, epoch 0: .*{message}"):
                rows.run_epoch()
            rows.discard()
    total = RunningAggregate("sum", "v", "sum", ("key",), ("key",), "sum")
    with batches(total, (("sum", "bigint"),), "key string, sum bigint") as sums:
        sums.push((None, 1))
        with pytest.raises(InvalidInputError, match=f"operator '{sums.spec.uid}', .*contains a null"):
            sums.run_epoch()
        sums.discard()
        sums.push(("a", 2**62), ("a", 2**62))
        with pytest.raises(UserFunctionError, match=f"operator '{sums.spec.uid}', .*leaves the range of bigint"):
            sums.run_epoch()
