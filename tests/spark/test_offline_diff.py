"""`Savepoint.diff` and the comparison without Spark find the same differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from tests.support.diff_lab import canonical, expected, two_savepoints

from cairn import Savepoint
from cairn.testing.keyed_harness import UID

pytestmark = pytest.mark.spark
COLUMNS = ["key", "map_key", "position"]


@pytest.mark.parametrize("seed", [1, 6])
def test_spark_compares_by_the_same_rule(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    first, second, before, after = two_savepoints(tmp_path, seed)
    wanted = expected(before, after)
    old, new = Savepoint.load(spark, first), Savepoint.load(spark, second)
    counts = {row.state: (row.added, row.removed, row.changed) for row in old.diff(new).collect()}
    assert counts == {
        state: tuple(sum(change == kind for _, change in rows) for kind in ("added", "removed", "changed"))
        for state, rows in wanted.items()
    }
    for state in ("number", "deep", "by row", "elements"):
        rows = old.diff(new, UID, state).collect()
        assert {(identity(row), row.change) for row in rows} == wanted[state], state


def identity(row: Row) -> tuple[Any, ...]:
    return tuple(canonical(row[name]) for name in COLUMNS if name in row)
