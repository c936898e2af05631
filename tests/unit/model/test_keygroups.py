from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import InvalidInputError, StateTypeError
from cairn.model.keygroups import (
    KeyGroupRange,
    default_max_parallelism,
    key_group,
    key_group_range,
    spark_hash,
    subtask_of,
    validate,
)

PARALLELISMS = st.integers(1, 300)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (171, 256),
        (172, 512),
        (341, 512),
        (1000, 2048),
        (21845, 32768),
        (32768, 32768),
    ],
)
def test_default_max_parallelism_is_flinks(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(
    ("parallelism", "ranges"),
    [
        (1, [(0, 127)]),
        (3, [(0, 42), (43, 85), (86, 127)]),
        (5, [(0, 25), (26, 51), (52, 76), (77, 102), (103, 127)]),
    ],
)
def test_ranges_are_flinks(parallelism: int, ranges: list[tuple[int, int]]) -> None:
    found = [key_group_range(i, parallelism, 128) for i in range(parallelism)]
    assert [(r.start, r.end) for r in found] == ranges


@given(PARALLELISMS, st.integers(0, 2000))
def test_ranges_cover_each_key_group_once_and_agree_with_subtask_of(parallelism: int, extra: int) -> None:
    max_parallelism = parallelism + extra
    expected_start = 0
    for subtask in range(parallelism):
        owned = key_group_range(subtask, parallelism, max_parallelism)
        assert owned.start == expected_start
        assert {subtask_of(g, parallelism, max_parallelism) for g in range(owned.start, owned.end + 1)} == {subtask}
        expected_start = owned.end + 1
    assert expected_start == max_parallelism


@given(PARALLELISMS)
def test_default_max_parallelism_leaves_a_key_group_for_each_subtask(parallelism: int) -> None:
    validate(parallelism, default_max_parallelism(parallelism))


def test_range_knows_its_members_and_neighbours() -> None:
    owned = KeyGroupRange(10, 19)
    assert len(owned) == 10
    assert [owned.contains(g) for g in (9, 10, 19, 20)] == [False, True, True, False]
    assert owned.intersects(KeyGroupRange(19, 30))
    assert owned.intersects(KeyGroupRange(0, 10))
    assert owned.intersects(KeyGroupRange(12, 13))
    assert not owned.intersects(KeyGroupRange(20, 30))
    assert not owned.intersects(KeyGroupRange(0, 9))


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3), (0, 32768)])
def test_impossible_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidInputError, match=f"got {start} to {end}"):
        KeyGroupRange(start, end)


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism", "named"),
    [
        (0, 128, "got 0"),
        (-3, 128, "got -3"),
        (1, 0, "got 0"),
        (1, 32769, "got 32769"),
        (129, 128, "Parallelism 129 is above the max parallelism 128"),
        (True, 128, "got True"),
        ("4", 128, "got '4'"),
    ],
)
def test_impossible_parallelism_is_refused_by_number(parallelism: Any, max_parallelism: Any, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        validate(parallelism, max_parallelism)


def test_unknown_subtask_and_key_group_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="no subtask 3 at parallelism 3"):
        key_group_range(3, 3, 128)
    with pytest.raises(InvalidInputError, match="no subtask -1"):
        key_group_range(-1, 3, 128)
    with pytest.raises(InvalidInputError, match="no key group 128"):
        subtask_of(128, 3, 128)
    with pytest.raises(InvalidInputError, match="no key group -1"):
        subtask_of(-1, 3, 128)


# Fixed by the stored format. Taken from `SELECT hash(...)` of Spark 4.3.0.
SPARK_HASHES: list[tuple[list[Any], list[str], int]] = [
    ([None], ["string"], 42),
    ([""], ["string"], 142593372),
    (["a"], ["string"], 1485273170),
    (["hello"], ["string"], -1008564952),
    (["Größe 😀"], ["string"], -1538575637),
    ([True], ["boolean"], -559580957),
    ([False], ["boolean"], 933211791),
    ([7], ["tinyint"], 1079293707),
    ([-7], ["smallint"], -1618159745),
    ([1], ["int"], -559580957),
    ([-1], ["int"], -1604776387),
    ([1], ["bigint"], -1712319331),
    ([-(2**63)], ["bigint"], -853646085),
    ([1.5], ["float"], -221251528),
    ([1.5], ["double"], 1290763749),
    ([float("nan")], ["double"], -1281358385),
    ([b"\x00\xff\x80"], ["binary"], -2052482636),
    ([dt.date(2026, 11, 15)], ["date"], -1031993870),
    ([dt.datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=dt.UTC)], ["timestamp"], -1892960626),
    ([dt.datetime(2026, 11, 15, 12, 0, 0, 123456)], ["timestamp_ntz"], -1892960626),
    ([Decimal("-12.34")], ["decimal(10,2)"], 180183791),
    ([Decimal("-12.34")], ["decimal(38,2)"], -378694793),
    (["user-7", 42], ["string", "bigint"], -1153169740),
]


@pytest.mark.parametrize(("values", "types", "expected"), SPARK_HASHES)
def test_hash_is_sparks(values: list[Any], types: list[str], expected: int) -> None:
    assert spark_hash(values, types) == expected


@given(st.text(), st.integers(1, 32768))
def test_key_group_is_the_positive_modulus_of_the_hash(key: str, max_parallelism: int) -> None:
    group = key_group([key], ["string"], max_parallelism)
    assert 0 <= group < max_parallelism
    assert (group - spark_hash([key], ["string"])) % max_parallelism == 0


@pytest.mark.parametrize("ddl_type", ["float", "double"])
def test_minus_zero_and_zero_are_one_key(ddl_type: str) -> None:
    assert spark_hash([-0.0], [ddl_type]) == spark_hash([0.0], [ddl_type])


def test_float_that_rounds_to_minus_zero_is_zero() -> None:
    assert spark_hash([-1e-60], ["float"]) == spark_hash([0.0], ["float"])


def test_one_instant_in_two_time_zones_is_one_key() -> None:
    utc = dt.datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=dt.UTC)
    east = utc.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))
    assert spark_hash([utc], ["timestamp"]) == spark_hash([east], ["timestamp"])


def test_null_leaves_the_hash_of_the_other_columns() -> None:
    assert spark_hash([None, 7, None], ["string", "int", "date"]) == spark_hash([7], ["int"])


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("LONG", "bigint", 5),
        (" Integer ", "int", 5),
        ("short", "smallint", 5),
        ("byte", "tinyint", 5),
        ("real", "float", 1.5),
        ("varchar(10)", "string", "x"),
        ("timestamp_ltz", "timestamp", 5),
        ("decimal", "decimal(10,0)", Decimal(5)),
        ("numeric(12)", "decimal(12, 0)", Decimal(5)),
    ],
)
def test_type_aliases_hash_alike(alias: str, name: str, value: Any) -> None:
    assert spark_hash([value], [alias]) == spark_hash([value], [name])


@pytest.mark.parametrize(
    ("value", "ddl_type"),
    [(np.int64(7), "bigint"), (np.int8(7), "int"), (np.float64(1.5), "double"), (np.bool_(True), "boolean")],
)
def test_numpy_scalars_hash_like_python_values(value: Any, ddl_type: str) -> None:
    assert spark_hash([value], [ddl_type]) == spark_hash([value.item()], [ddl_type])


@pytest.mark.parametrize(
    ("value", "ddl_type", "why"),
    [
        (1, "boolean", "True or False"),
        (True, "int", "whole number"),
        (1.0, "int", "whole number"),
        ("1", "bigint", "whole number"),
        (128, "tinyint", "from -128 to 127"),
        (2**31, "int", "from -2147483648"),
        (2**63, "bigint", "from -9223372036854775808"),
        (1e39, "float", "too large"),
        (10**400, "double", "too large"),
        ("1", "double", "a number"),
        (b"x", "string", "a str"),
        ("\ud800", "string", "surrogate"),
        ("x", "binary", "bytes"),
        (dt.datetime(2026, 1, 1), "date", "datetime.date"),
        (dt.datetime(2026, 1, 1), "timestamp", "no time zone"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "timestamp_ntz", "replace"),
        ("2026-01-01", "timestamp", "datetime.datetime"),
        (Decimal("1.234"), "decimal(10,2)", "more than 2 digits after the point"),
        (Decimal(12345), "decimal(4,0)", "more than 4 digits"),
        (Decimal("NaN"), "decimal(4,0)", "finite"),
        (1.5, "decimal(4,1)", "finite decimal"),
    ],
)
def test_value_that_does_not_fit_its_type_is_refused(value: Any, ddl_type: str, why: str) -> None:
    with pytest.raises(StateTypeError, match=why):
        key_group([value], [ddl_type], 128)


@pytest.mark.parametrize("ddl_type", ["array<int>", "map<string,int>", "struct<a:int>", "void", "decimal(39,0)", "x"])
def test_type_that_cannot_be_a_key_is_refused(ddl_type: str) -> None:
    with pytest.raises(InvalidInputError):
        key_group([1], [ddl_type], 128)


def test_values_and_types_must_pair_up() -> None:
    with pytest.raises(InvalidInputError, match="2 column types, 1 values"):
        key_group(["a"], ["string", "int"], 128)
    with pytest.raises(InvalidInputError, match="0 column types"):
        key_group([], [], 128)


def test_module_needs_neither_spark_nor_arrow() -> None:
    script = "import sys, cairn.model.keygroups; print({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
