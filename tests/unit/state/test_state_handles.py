"""The five kinds of state through the harness: PyFlink's meanings, on every backend."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.support.state_lab import Lab, Longest, Mean

from cairn.errors import (
    StateTypeError,
)
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from cairn.model.types import Types

# Values.


def test_value_state(backend: str) -> None:
    with Lab(ValueStateDescriptor("v", "bigint"), backend=backend) as lab:
        assert lab.do("a", lambda s, c: s.v.value(), lambda s, c: s.v.update(5), lambda s, c: s.v.value()) == [
            None,
            None,
            5,
        ]
        assert lab.do("b", lambda s, c: s.v.value()) == [None]
        assert lab.do("a", lambda s, c: s.v.value()) == [5]
        assert lab.state("v", "a") == 5
        lab.do("a", lambda s, c: s.v.clear())
        assert lab.state("v", "a") is None
        lab.do("a", lambda s, c: s.v.update(6), lambda s, c: s.v.update(None))
        assert lab.state("v", "a") is None
        lab.do("a", lambda s, c: s.v.clear(), lambda s, c: s.v.update(7))
        lab.restart()
        assert lab.state("v", "a") == 7


VALUES: list[tuple[str, list[Any]]] = [
    ("bigint", [0, 1, -1, 2**63 - 1, -(2**63)]),
    ("int", [2**31 - 1, -(2**31)]),
    ("smallint", [32767, -32768]),
    ("tinyint", [127, -128]),
    ("boolean", [True, False]),
    ("double", [0.0, -0.0, 1.5, math.inf, -math.inf, 5e-324]),
    ("string", ["", "a", "\0", "é", "😀" * 100, "x" * 100_000]),
    ("binary", [b"", b"\0", bytes(range(256))]),
    ("date", [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    ("timestamp_ntz", [dt.datetime(1, 1, 1), dt.datetime(2020, 2, 29, 1, 2, 3, 4)]),
    ("decimal(10,2)", [Decimal("0.00"), Decimal("-12345678.90")]),
    ("array<int>", [[], [1, None, 3]]),
    ("map<string,int>", [{}, {"a": 1, "b": None}]),
    ("struct<a:int,b:array<string>>", [(1, ["x"]), (None, None)]),
]


def keep_twice(value: Any, states: Any, ctx: Any) -> None:
    states.v.update(value)
    states.l.add(value)


@pytest.mark.parametrize(("ddl", "values"), VALUES, ids=[ddl for ddl, _ in VALUES])
def test_every_type_reads_back_as_it_was(fast_backend: str, ddl: str, values: list[Any]) -> None:
    with Lab(ValueStateDescriptor("v", ddl), ListStateDescriptor("l", ddl), backend=fast_backend) as lab:
        for number, value in enumerate(values):
            lab.later(f"k{number}", partial(keep_twice, value))
        lab.run_epoch()
        for restarted in (False, True):
            for number, value in enumerate(values):
                found = lab.state("v", f"k{number}")
                assert found == value
                assert type(found) is type(value) or isinstance(value, tuple)
                assert repr(found) == repr(value) or isinstance(value, tuple)  # tells -0.0 from 0.0
                assert lab.state("l", f"k{number}") == [value]
            if not restarted:
                lab.restart()


def test_float_is_32_bits_and_nan_survives(backend: str) -> None:
    with Lab(ValueStateDescriptor("v", Types.FLOAT()), ValueStateDescriptor("n", "double"), backend=backend) as lab:
        lab.do("a", lambda s, c: s.v.update(110.1), lambda s, c: s.n.update(math.nan))
        assert lab.state("v", "a") == 110.0999984741211
        assert math.isnan(lab.state("n", "a"))
        lab.do("a", lambda s, c: s.v.update(110.1), lambda s, c: None)
        assert lab.do("a", lambda s, c: (s.v.update(110.1), s.v.value())[1]) == [110.0999984741211]


def test_numpy_scalars_are_taken_as_what_they_stand_for() -> None:
    names = {"i": "bigint", "d": "double", "b": "boolean", "s": "string"}
    given: dict[str, Any] = {"i": np.int64(5), "d": np.float32(1.5), "b": np.bool_(True), "s": np.str_("x")}
    with Lab(*[ValueStateDescriptor(name, ddl) for name, ddl in names.items()]) as lab:
        for name in names:
            lab.do("a", partial(lambda n, s, c: getattr(s, n).update(given[n]), name))
        found = [lab.state(name, "a") for name in names]
        assert found == [5, 1.5, True, "x"]
        assert [type(value) for value in found] == [int, float, bool, str]


def test_timestamps_keep_the_moment(backend: str) -> None:
    moment = dt.datetime(2024, 3, 31, 3, 0, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    with Lab(ValueStateDescriptor("v", "timestamp"), backend=backend) as lab:
        lab.do("a", lambda s, c: s.v.update(moment))
        assert lab.state("v", "a") == moment
        assert lab.state("v", "a").utcoffset() == dt.timedelta(0)


# Lists.


def test_list_state(backend: str) -> None:
    with Lab(ListStateDescriptor("l", "int"), backend=backend) as lab:
        assert lab.do("a", lambda s, c: list(s.l.get())) == [[]]
        lab.do("a", lambda s, c: s.l.add(3), lambda s, c: s.l.add_all([1, 2]))
        assert lab.do("a", lambda s, c: s.l.add(9), lambda s, c: list(s.l)) == [None, [3, 1, 2, 9]]
        assert lab.state("l", "a") == [3, 1, 2, 9]
        assert lab.state("l", "b") == []
        lab.do("a", lambda s, c: s.l.update([7]), lambda s, c: s.l.add(8))
        assert lab.state("l", "a") == [7, 8]
        lab.do("a", lambda s, c: s.l.add(1), lambda s, c: s.l.update([]))
        assert lab.state("l", "a") == []
        lab.do("a", lambda s, c: s.l.add(4), lambda s, c: s.l.clear(), lambda s, c: s.l.add(5))
        assert lab.state("l", "a") == [5]
        lab.restart()
        assert lab.state("l", "a") == [5]
        lab.do("a", lambda s, c: s.l.add_all(x for x in (1, 2)), lambda s, c: s.l.add_all([]))
        assert lab.state("l", "a") == [5, 1, 2]


def test_a_failing_add_all_adds_nothing() -> None:
    def step(states: Any, ctx: Any) -> Any:
        try:
            states.l.add_all([1, "x"])
        except StateTypeError:
            return list(states.l)
        raise AssertionError

    with Lab(ListStateDescriptor("l", "int")) as lab:
        assert lab.do("a", step) == [[]]


def test_a_list_that_is_read_while_it_grows(backend: str) -> None:
    def step(states: Any, ctx: Any) -> Any:
        seen = []
        for element in states.l:
            seen.append(element)
            states.l.add(element + 10)
        return seen, list(states.l)

    with Lab(ListStateDescriptor("l", "int"), backend=backend) as lab:
        lab.do("a", lambda s, c: s.l.update([1, 2]))
        assert lab.do("a", step) == [([1, 2], [1, 2, 11, 12])]


# Maps.


def test_map_state(backend: str) -> None:
    with Lab(MapStateDescriptor("m", "string", "int"), backend=backend) as lab:
        assert lab.do("a", lambda s, c: (s.m.get("x"), s.m.contains("x"), s.m.is_empty(), list(s.m))) == [
            (None, False, True, [])
        ]
        lab.do("a", lambda s, c: s.m.put("x", 1), lambda s, c: s.m.put_all({"y": 2, "z": 3}))
        lab.do("a", lambda s, c: s.m.put_all([("w", 4)]))
        assert lab.do("a", lambda s, c: (sorted(s.m.items()), sorted(s.m.keys()), sorted(s.m.values()))) == [
            ([("w", 4), ("x", 1), ("y", 2), ("z", 3)], ["w", "x", "y", "z"], [1, 2, 3, 4])
        ]
        assert lab.do("a", lambda s, c: (s.m["x"], "x" in s.m, "no" in s.m, s.m.is_empty())) == [
            (1, True, False, False)
        ]
        lab.do("a", lambda s, c: s.m.remove("x"), lambda s, c: s.m.remove("never"))
        lab.do("a", lambda s, c: s.m.__delitem__("y"), lambda s, c: s.m.__setitem__("z", 30))
        assert lab.state("m", "a") == {"w": 4, "z": 30}
        assert lab.state("m", "b") == {}
        lab.do("a", lambda s, c: s.m.clear(), lambda s, c: s.m.put("q", 1), lambda s, c: s.m.remove("w"))
        assert lab.state("m", "a") == {"q": 1}
        lab.restart()
        assert lab.state("m", "a") == {"q": 1}


def test_a_cleared_map_is_empty_at_once(backend: str) -> None:
    with Lab(MapStateDescriptor("m", "int", "int"), backend=backend) as lab:
        lab.do("a", lambda s, c: s.m.put_all({1: 1, 2: 2}))
        assert lab.do("a", lambda s, c: s.m.clear(), lambda s, c: (s.m.get(1), list(s.m.items()))) == [
            None,
            (None, []),
        ]
        assert lab.state("m", "a") == {}


MAP_KEYS: list[tuple[str, list[Any]]] = [
    ("bigint", [0, -1, 1, 2**63 - 1, -(2**63)]),
    ("string", ["", "a", "a\0", "é", "x" * 2000, "x" * 2001]),
    ("binary", [b"", b"\0", b"\xff", b"\xff\xff"]),
    ("double", [0.0, 1.5, -1.5, math.inf]),
    ("boolean", [True, False]),
    ("date", [dt.date(1970, 1, 1), dt.date(1969, 12, 31)]),
    ("decimal(5,2)", [Decimal("1.20"), Decimal("-1.20"), Decimal("0.00")]),
    ("struct<a:int,b:string>", [(1, "x"), (1, "y"), (None, "x")]),
]


@pytest.mark.parametrize(("ddl", "keys"), MAP_KEYS, ids=[ddl for ddl, _ in MAP_KEYS])
def test_map_keys_of_every_type(fast_backend: str, ddl: str, keys: list[Any]) -> None:
    with Lab(MapStateDescriptor("m", ddl, "int"), backend=fast_backend) as lab:
        lab.do("a", lambda s, c: s.m.put_all([(key, number) for number, key in enumerate(keys)]))
        expected = {key: number for number, key in enumerate(keys)}
        assert lab.state("m", "a") == expected
        lab.restart()
        assert lab.state("m", "a") == expected
        lab.do("a", lambda s, c: s.m.remove(keys[0]))
        assert lab.state("m", "a") == {key: number for key, number in expected.items() if key != keys[0]}


def test_keys_that_are_prefixes_of_each_other_keep_their_entries_apart(backend: str) -> None:
    names = ["", "a", "aa", "aaa", "a\0", "\0", "b" * 600, "b" * 601]
    with Lab(MapStateDescriptor("m", "string", "int"), ListStateDescriptor("l", "string"), backend=backend) as lab:
        for name in names:
            lab.later(name, partial(lambda n, s, c: s.m.put_all({"a": len(n), n: 1}), name))
            lab.later(name, partial(lambda n, s, c: s.l.add(n), name))
        lab.run_epoch()
        for name in names:
            assert lab.state("m", name) == ({"a": len(name)} | {name: 1})
            assert lab.state("l", name) == [name]
        lab.do("a", lambda s, c: s.m.clear(), lambda s, c: s.l.clear())
        for name in names:
            assert lab.state("l", name) == ([] if name == "a" else [name])


def test_removing_while_iterating(backend: str) -> None:
    def step(states: Any, ctx: Any) -> Any:
        seen = []
        for key, value in states.m.items():
            seen.append((key, value))
            states.m.remove(key)
            states.m.put(key + 100, 0)
        return seen

    with Lab(MapStateDescriptor("m", "int", "int"), backend=backend) as lab:
        lab.do("a", lambda s, c: s.m.put_all({1: 1, 2: 2, 3: 3}))
        assert lab.do("a", step) == [[(1, 1), (2, 2), (3, 3)]]
        assert lab.state("m", "a") == {101: 0, 102: 0, 103: 0}


# Reducing and aggregating.


def test_reducing_state(backend: str) -> None:
    descriptors = [
        ReducingStateDescriptor("r", lambda a, b: a + b, "bigint"),
        ReducingStateDescriptor("s", Longest(), "string"),
    ]
    with Lab(*descriptors, backend=backend) as lab:
        assert lab.do("a", lambda s, c: s.r.get(), lambda s, c: s.r.add(3), lambda s, c: s.r.get()) == [None, None, 3]
        lab.do("a", lambda s, c: s.r.add(4), lambda s, c: s.s.add("abc"), lambda s, c: s.s.add("x"))
        assert (lab.state("r", "a"), lab.state("s", "a")) == (7, "abc")
        lab.restart()
        assert (lab.state("r", "a"), lab.state("s", "a")) == (7, "abc")
        lab.do("a", lambda s, c: s.r.clear(), lambda s, c: s.s.add(None))
        assert (lab.state("r", "a"), lab.state("s", "a")) == (None, None)
        lab.do("a", lambda s, c: s.r.add(10))
        assert lab.state("r", "a") == 10


def test_aggregating_state(backend: str) -> None:
    with Lab(AggregatingStateDescriptor("a", Mean(), "array<bigint>"), backend=backend) as lab:
        assert lab.do("k", lambda s, c: s.a.get(), lambda s, c: s.a.add(4), lambda s, c: s.a.get()) == [None, None, 4.0]
        lab.do("k", lambda s, c: s.a.add(8))
        assert lab.state("a", "k") == 6.0
        lab.restart()
        lab.do("k", lambda s, c: s.a.add(0))
        assert lab.state("a", "k") == 4.0
        lab.do("k", lambda s, c: s.a.add(None))
        assert lab.state("a", "k") is None


def test_descriptors_refuse_wrong_functions() -> None:
    with pytest.raises(TypeError, match="ReduceFunction or a callable"):
        ReducingStateDescriptor("r", 5, "int")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AggregateFunction"):
        AggregatingStateDescriptor("a", 5, "int")  # type: ignore[arg-type]


# Changes that are not written back.


def changed_in_place(value: Any) -> Any:
    if isinstance(value, list):
        value.append("changed")
    elif isinstance(value, dict):
        value["changed"] = 1
    return value


@pytest.mark.parametrize(("ddl", "value"), [("array<string>", ["x"]), ("map<string,int>", {"x": 1}), (None, ["x"])])
def test_what_is_not_written_back_is_not_kept(backend: str, ddl: str | None, value: Any) -> None:
    descriptors = [
        ValueStateDescriptor("v", ddl),
        ListStateDescriptor("l", ddl),
        MapStateDescriptor("m", "int", ddl),
        ReducingStateDescriptor("r", lambda a, b: b, ddl),
    ]

    def write(states: Any, ctx: Any) -> None:
        given = value.copy()
        states.v.update(given)
        states.l.add(given)
        states.m.put(1, given)
        states.r.add(given)
        changed_in_place(given)

    def spoil(states: Any, ctx: Any) -> None:
        changed_in_place(states.v.value())
        for element in states.l:
            changed_in_place(element)
        changed_in_place(states.m.get(1))
        for element in states.m.values():
            changed_in_place(element)
        changed_in_place(states.r.get())

    def look(states: Any, ctx: Any) -> Any:
        return states.v.value(), list(states.l), states.m.get(1), states.r.get()

    expected = (value, [value], value, value)
    with Lab(*descriptors, backend=backend) as lab:
        assert lab.do("a", write, look, spoil, look) == [None, expected, None, expected]
        assert lab.do("a", spoil, look) == [None, expected]
        lab.restart()
        assert lab.do("a", look) == [expected]
