"""The vectorised aggregations against a plain loop over the rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import UserFunctionError
from cairn.runtime.aggregations import RunningAggregate

NAN = math.nan


class Context:
    """The part of a `BatchContext` that the aggregations use, over plain lists."""

    def __init__(self, keys: list[int], before: list[Any], dtype: pa.DataType) -> None:
        self.key_index = np.array(keys, dtype=np.int64)
        self.state = pa.array(before, dtype)

    def get(self, state: str) -> pa.Array:
        return self.state

    def put(self, state: str, values: pa.Array) -> None:
        self.state = values


def run(
    kind: str, keys: list[int], values: list[Any], before: list[Any], dtype: pa.DataType
) -> tuple[list[Any], list[Any]]:
    context = Context(keys, before, dtype)
    batch = pa.record_batch({"k": pa.array(keys, pa.int64()), "v": pa.array(values, dtype)})
    made = RunningAggregate(kind, "v", kind, ("k",), ("k",), kind)(batch, context)  # type: ignore[arg-type]
    return made.column(1).to_pylist(), context.state.to_pylist()


def smaller(a: float, b: float) -> float:
    """Spark's order: NaN is larger than any number."""
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)


def larger(a: float, b: float) -> float:
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


COMBINE: dict[str, Any] = {"sum": lambda a, b: a + b, "min": smaller, "max": larger}


def expected(kind: str, keys: list[int], values: list[Any], before: list[Any]) -> tuple[list[Any], list[Any]]:
    state = list(before)
    rows = []
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            state[key] = value if state[key] is None else COMBINE[kind](state[key], value)
        rows.append(state[key])
    return rows, state


def same(left: list[Any], right: list[Any]) -> bool:
    return all(
        a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
        for a, b in zip(left, right, strict=True)
    )


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@settings(deadline=None)
@given(st.data(), st.sampled_from(["sum", "min", "max"]), st.booleans())
def test_rows_and_state_are_those_of_a_plain_loop(data: st.DataObject, kind: str, floats: bool) -> None:
    number = st.floats(-1e6, 1e6) | st.just(NAN) if floats else st.integers(-(10**6), 10**6)
    count = data.draw(st.integers(1, 5))
    rows = data.draw(st.lists(st.tuples(st.integers(0, count - 1), optional(number)), min_size=1, max_size=200))
    used = sorted({key for key, _ in rows})
    keys = [used.index(key) for key, _ in rows]
    values = [value for _, value in rows]
    before = data.draw(st.lists(optional(number), min_size=len(used), max_size=len(used)))
    dtype = pa.float64() if floats else pa.int64()
    found, state = run(kind, keys, values, before, dtype)
    wanted, wanted_state = expected(kind, keys, values, before)
    assert same(found, wanted)
    assert same(state, wanted_state)


def test_large_sums_of_many_keys_are_fine() -> None:
    big = 1_700_000_000_000_000_000
    found, _ = run("sum", [0, 1, 2, 3, 4, 5, 0], [big] * 7, [None] * 6, pa.int64())
    assert found == [big] * 6 + [2 * big]


def test_a_sum_that_leaves_bigint_is_refused() -> None:
    with pytest.raises(UserFunctionError, match="leaves the range of bigint"):
        run("sum", [0, 0], [2**62, 2**62], [None], pa.int64())
    with pytest.raises(UserFunctionError, match="leaves the range of bigint"):
        run("sum", [0, 1], [-5, 1], [-(2**63) + 1, None], pa.int64())
    assert run("sum", [0], [2**62], [2**62 - 1], pa.int64())[0] == [2**63 - 1]
