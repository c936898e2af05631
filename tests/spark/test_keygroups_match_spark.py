"""The Python key hash against Spark's own, over edge cases and many random values of each type."""

from __future__ import annotations

import datetime as dt
import math
import random
import string
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cairn.model.keygroups import key_group, spark_hash

pytestmark = pytest.mark.spark

MAX_PARALLELISM = 128
RANDOM_VALUES = 1000
SEED = 20261115


def _integers(bits: int, rng: random.Random) -> list[int]:
    limit = 1 << (bits - 1)
    return [0, 1, -1, 42, limit - 1, -limit] + [rng.randrange(-limit, limit) for _ in range(RANDOM_VALUES)]


def _floats(rng: random.Random) -> list[float]:
    edges = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, -math.nan, 5e-324, -5e-324, 1e-46, -1e-46, 0.1]
    return edges + [rng.uniform(-1, 1) * 10 ** rng.randint(-45, 37) for _ in range(RANDOM_VALUES)]


def _strings(rng: random.Random) -> list[str]:
    alphabet = string.printable + "äßéñ漢字かな😀\u00ff\u0080\x00"
    edges = ["", "a", "ab", "abc", "abcd", "abcde", "\x00", "😀", "é", "\u00ff" * 3]
    return edges + ["".join(rng.choices(alphabet, k=rng.randint(0, 40))) for _ in range(RANDOM_VALUES)]


def _decimals(precision: int, scale: int, rng: random.Random) -> list[Decimal]:
    top = 10**precision - 1
    edges = [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, -32768, -32769, top, -top]
    unscaled = [u for u in edges if abs(u) <= top] + [
        rng.choice((-1, 1)) * rng.randrange(10 ** rng.randint(1, precision)) for _ in range(RANDOM_VALUES)
    ]
    # A constructor from digits keeps all of them, where arithmetic would round to the context's precision.
    return [Decimal((int(u < 0), tuple(map(int, str(abs(u)))), -scale)) for u in unscaled]


def _instants(rng: random.Random) -> list[dt.datetime]:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    edges = [0, 1, -1, 999_999, 1_000_000, -1_000_001]
    spread = [rng.randrange(-(2**55), 2**56) for _ in range(RANDOM_VALUES)]
    return [epoch + dt.timedelta(microseconds=m) for m in edges + spread]


def _values(ddl_type: str) -> list[Any]:
    rng = random.Random(f"{SEED} {ddl_type}")
    match ddl_type:
        case "boolean":
            return [True, False]
        case "tinyint" | "smallint" | "int" | "bigint":
            return _integers({"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[ddl_type], rng)
        case "float" | "double":
            return _floats(rng)
        case "string":
            return _strings(rng)
        case "binary":
            return [bytes([b]) for b in range(256)] + [rng.randbytes(rng.randint(0, 40)) for _ in range(RANDOM_VALUES)]
        case "date":
            edges = [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31)]
            return edges + [dt.date.fromordinal(rng.randrange(1, 3_652_060)) for _ in range(RANDOM_VALUES)]
        case "timestamp":
            return _instants(rng)
        case "timestamp_ntz":
            return [instant.replace(tzinfo=None) for instant in _instants(rng)]
        case _:
            precision, scale = map(int, ddl_type.removeprefix("decimal(").removesuffix(")").split(","))
            return _decimals(precision, scale, rng)


def _hashes(frame: DataFrame, columns: str) -> list[tuple[int, int]]:
    rows = frame.selectExpr("i", f"hash({columns}) AS h", f"pmod(hash({columns}), {MAX_PARALLELISM}) AS g").collect()
    return [(row.h, row.g) for row in sorted(rows, key=lambda row: row.i)]


TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(4,1)",
    "decimal(9,0)",
    "decimal(18,6)",
    "decimal(19,0)",
    "decimal(20,20)",
    "decimal(38,10)",
]


@pytest.mark.parametrize("ddl_type", TYPES)
def test_hash_and_key_group_match_spark(spark: SparkSession, ddl_type: str) -> None:
    values = [*_values(ddl_type), None]
    frame = spark.createDataFrame(list(enumerate(values)), f"i int, v {ddl_type}")
    ours = [(spark_hash([v], [ddl_type]), key_group([v], [ddl_type], MAX_PARALLELISM)) for v in values]
    theirs = _hashes(frame, "v")
    different = [(v, a, b) for v, a, b in zip(values, ours, theirs, strict=True) if a != b]
    assert different == []


def test_hash_of_several_columns_matches_spark(spark: SparkSession) -> None:
    rng = random.Random(SEED)
    types = ["string", "bigint", "date", "decimal(38,10)", "boolean", "double"]
    columns = [rng.choices([*_values(t), None], k=RANDOM_VALUES) for t in types]
    rows = list(zip(*columns, strict=True))
    names = [f"c{i}" for i in range(len(types))]
    schema = ", ".join(["i int", *(f"{n} {t}" for n, t in zip(names, types, strict=True))])
    frame = spark.createDataFrame([(i, *row) for i, row in enumerate(rows)], schema)
    ours = [(spark_hash(row, types), key_group(row, types, MAX_PARALLELISM)) for row in rows]
    assert ours == _hashes(frame, ", ".join(names))
