"""The five kinds of state through the harness: PyFlink's meanings, TTL, wrong values, on every backend."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.unit.lab import BACKENDS, Lab

from cairn.errors import (
    IncompatibleStateError,
    InvalidInputError,
    NotFoundError,
    StateMisuseError,
    StateTypeError,
    UserFunctionError,
)
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from cairn.model.functions import AggregateFunction, KeyedProcessFunction, ReduceFunction
from cairn.model.types import Types
from cairn.testing.harness import KeyedProcessHarness


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["hashmap", "lmdb"])
def fast_backend(request: pytest.FixtureRequest) -> Any:
    """For tests about types, which all backends store alike."""
    return request.param


class Mean(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]


class Longest(ReduceFunction):
    def reduce(self, value1: str, value2: str) -> str:
        return value1 if len(value1) >= len(value2) else value2


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


# TTL.


def ttl(**settings: Any) -> StateTtlConfig:
    builder = StateTtlConfig.new_builder(Time.milliseconds(100))
    for name, value in settings.items():
        getattr(builder, name)(*value)
    return builder.build()


def with_ttl(descriptor: Any, config: StateTtlConfig) -> Any:
    descriptor.enable_time_to_live(config)
    return descriptor


def all_kinds(config: StateTtlConfig) -> list[Any]:
    return [
        with_ttl(ValueStateDescriptor("v", "int"), config),
        with_ttl(ListStateDescriptor("l", "int"), config),
        with_ttl(MapStateDescriptor("m", "int", "int"), config),
        with_ttl(ReducingStateDescriptor("r", lambda a, b: a + b, "int"), config),
        with_ttl(AggregatingStateDescriptor("g", Mean(), "array<bigint>"), config),
    ]


def write_all(states: Any, ctx: Any) -> None:
    states.v.update(1)
    states.l.add(1)
    states.m.put(1, 1)
    states.r.add(1)
    states.g.add(1)


def read_all(states: Any, ctx: Any) -> Any:
    return states.v.value(), list(states.l), dict(states.m.items()), states.r.get(), states.g.get()


FULL = (1, [1], {1: 1}, 1, 1.0)
EMPTY: tuple[Any, ...] = (None, [], {}, None, None)


def test_ttl_expires_at_exactly_its_length(backend: str) -> None:
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.advance_processing_time(1000)
        lab.do("a", write_all)
        lab.advance_processing_time(1099)
        assert lab.do("a", read_all) == [FULL]
        lab.advance_processing_time(1100)
        lab.restart()
        assert lab.do("a", read_all, read_all) == [EMPTY, EMPTY]
        assert lab.do("a", write_all, read_all) == [None, FULL]


def test_reading_refreshes_only_when_asked(backend: str) -> None:
    with Lab(*all_kinds(ttl(update_ttl_on_read_and_write=())), backend=backend) as lab:
        lab.do("a", write_all)
        for now in (90, 180, 270):
            lab.advance_processing_time(now)
            assert lab.do("a", read_all) == [FULL]
        lab.advance_processing_time(370)
        assert lab.do("a", read_all) == [EMPTY]


def test_expired_values_may_be_shown_one_last_time(backend: str) -> None:
    with Lab(*all_kinds(ttl(return_expired_if_not_cleaned_up=())), backend=backend) as lab:
        lab.do("a", write_all)
        lab.advance_processing_time(500)
        assert lab.do("a", read_all, read_all) == [FULL, EMPTY]
        assert lab.do("a", read_all) == [EMPTY]
        lab.restart()
        assert lab.do("a", read_all) == [EMPTY]


def test_ttl_is_per_element_and_per_entry(backend: str) -> None:
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", lambda s, c: s.l.add(1), lambda s, c: s.m.put(1, 1))
        lab.advance_processing_time(60)
        lab.do("a", lambda s, c: s.l.add(2), lambda s, c: s.m.put(2, 2))
        lab.advance_processing_time(120)
        assert lab.do("a", lambda s, c: (list(s.l), dict(s.m.items()), s.m.contains(1), s.m.get(2))) == [
            ([2], {2: 2}, False, 2)
        ]
        lab.restart()
        assert (lab.state("l", "a"), lab.state("m", "a")) == ([2], {2: 2})


def test_a_write_refreshes(backend: str) -> None:
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", lambda s, c: s.v.update(1), lambda s, c: s.m.put(1, 1))
        lab.advance_processing_time(90)
        lab.do("a", lambda s, c: s.v.update(2), lambda s, c: s.m.put(1, 2))
        lab.advance_processing_time(150)
        assert lab.do("a", lambda s, c: (s.v.value(), s.m.get(1))) == [(2, 2)]


def test_a_write_of_the_same_value_refreshes_although_the_map_is_read_afterwards(backend: str) -> None:
    """Small numbers are one and the same object in Python: what is read later must not pass for what was written."""
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", lambda s, c: s.m.put(1, 1), lambda s, c: s.m.put(2, 1))
        lab.advance_processing_time(80)
        lab.do("a", lambda s, c: s.m.put(1, 1), lambda s, c: list(s.m.keys()))
        lab.advance_processing_time(150)
        assert lab.do("a", lambda s, c: (s.m.get(1), s.m.get(2))) == [(1, None)]


def test_reading_one_entry_after_the_other_refreshes_both(backend: str) -> None:
    with Lab(*all_kinds(ttl(update_ttl_on_read_and_write=())), backend=backend) as lab:
        lab.do("a", lambda s, c: s.m.put(1, 1), lambda s, c: s.m.put(2, 1))
        lab.advance_processing_time(80)
        lab.do("a", lambda s, c: s.m.get(1), lambda s, c: s.m.get(2))
        lab.advance_processing_time(150)
        assert lab.do("a", lambda s, c: (s.m.get(1), s.m.get(2))) == [(1, 1)]


def test_disabled_ttl_is_no_ttl() -> None:
    config = StateTtlConfig.new_builder(Time.seconds(1)).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    with Lab(with_ttl(ValueStateDescriptor("v", "int"), config)) as lab:
        lab.do("a", lambda s, c: s.v.update(1))
        lab.advance_processing_time(10**9)
        assert lab.state("v", "a") == 1


def test_expired_values_do_not_come_back_after_a_restart(backend: str) -> None:
    """The clock of a restart is never behind that of the last epoch."""
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", write_all)
        lab.advance_processing_time(1000)
        lab.do("b", write_all)
        lab.restart()
        assert lab.state("v", "a") is None


def test_a_time_to_live_is_a_positive_time() -> None:
    for wrong in (Time.milliseconds(0), Time.milliseconds(-1), None):
        with pytest.raises(InvalidInputError, match="positive Time"):
            StateTtlConfig.new_builder(wrong)  # type: ignore[arg-type]


# Wrong values and wrong places.


WRONG: list[tuple[str, Any]] = [
    ("bigint", "5"),
    ("bigint", 1.0),
    ("bigint", True),
    ("bigint", 2**63),
    ("int", 2**31),
    ("tinyint", 128),
    ("double", "1"),
    ("double", Decimal(1)),
    ("double", 10**400),
    ("float", 1e300),
    ("string", b"x"),
    ("string", 5),
    ("string", "\ud800"),
    ("binary", "x"),
    ("boolean", 1),
    ("date", dt.datetime(2020, 1, 1)),
    ("timestamp", dt.date(2020, 1, 1)),
    ("timestamp_ntz", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    ("decimal(4,2)", Decimal(100)),
    ("decimal(4,2)", 1.5),
    ("decimal(4,2)", Decimal("NaN")),
    ("decimal(4,2)", Decimal("Infinity")),
    ("array<int>", 5),
    ("array<int>", ["x"]),
    ("array<int>", "12"),
    ("map<string,int>", [1]),
    ("struct<a:int>", {"b": 1}),
    ("struct<a:int>", {}),
    ("struct<a:int>", (1, 2)),
    ("struct<a:int>", 1),
    ("pickle", lambda: None),
]


@pytest.mark.parametrize(("ddl", "value"), WRONG, ids=[f"{ddl}-{value!r:.20}" for ddl, value in WRONG])
@pytest.mark.parametrize("kind", ["value", "list", "list_all", "list_update", "map", "map_key", "reducing"])
def test_a_value_that_does_not_fit_is_an_error_that_names_everything(kind: str, ddl: str, value: Any) -> None:
    descriptor: Any
    if kind == "value":
        descriptor, step = ValueStateDescriptor("it", ddl), lambda s, c: s.it.update(value)
    elif kind == "map":
        descriptor, step = MapStateDescriptor("it", "int", ddl), lambda s, c: s.it.put(1, value)
    elif kind == "map_key":
        if ddl.startswith(("array", "map", "pickle")):
            with pytest.raises(InvalidInputError, match="key"):
                MapStateDescriptor("it", ddl, "int")
            return
        descriptor, step = MapStateDescriptor("it", ddl, "int"), lambda s, c: s.it.put(value, 1)
    elif kind == "reducing":
        descriptor, step = ReducingStateDescriptor("it", lambda a, b: b, ddl), lambda s, c: s.it.add(value)
    else:
        descriptor = ListStateDescriptor("it", ddl)
        step = {
            "list": lambda s, c: s.it.add(value),
            "list_all": lambda s, c: s.it.add_all([value]),
            "list_update": lambda s, c: s.it.update([value]),
        }[kind]
    with Lab(descriptor) as lab:
        lab.later("the key", step)
        with pytest.raises(StateTypeError) as caught:
            lab.run_epoch()
        message = str(caught.value)
        assert "operator 'tested'" in message
        assert "state 'it'" in message
        assert repr(value)[:20] in message or "'x' (str)" in message
        assert lab.epoch == -1
        lab.discard()
        assert lab.run_epoch() == []


@pytest.mark.parametrize("kind", ["list", "map", "map_key"])
def test_none_is_no_element(kind: str) -> None:
    step = {
        "list": lambda s, c: s.l.add(None),
        "map": lambda s, c: s.m.put(1, None),
        "map_key": lambda s, c: s.m.get(None),
    }[kind]
    with Lab(ListStateDescriptor("l", "int"), MapStateDescriptor("m", "int", "int")) as lab:
        lab.later("a", step)
        with pytest.raises(StateTypeError, match="None is no value here"):
            lab.run_epoch()


class TouchesInOpen(KeyedProcessFunction):
    def __init__(self, where: str, what: str) -> None:
        self.where = where
        self.what = what

    def touch(self) -> None:
        {
            "value": lambda: self.v.value(),
            "update": lambda: self.v.update(1),
            "list": lambda: self.l.get(),
            "add": lambda: self.l.add(1),
            "map": lambda: self.m.get(1),
            "put": lambda: self.m.put(1, 1),
            "items": lambda: self.m.items(),
            "clear": lambda: self.m.clear(),
        }[self.what]()

    def open(self, runtime_context: Any) -> None:
        self.v = runtime_context.get_state(ValueStateDescriptor("v", "int"))
        self.l = runtime_context.get_list_state(ListStateDescriptor("l", "int"))
        self.m = runtime_context.get_map_state(MapStateDescriptor("m", "int", "int"))
        if self.where == "open":
            self.touch()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.v.update(1)
        return ()

    def close(self) -> None:
        if self.where == "close":
            self.touch()


@pytest.mark.parametrize("where", ["open", "close"])
@pytest.mark.parametrize("what", ["value", "update", "list", "add", "map", "put", "items", "clear"])
def test_state_without_a_current_key_is_an_error(where: str, what: str) -> None:
    with KeyedProcessHarness(TouchesInOpen(where, what), "k", "k string", "k string") as harness:
        harness.push("a")
        with pytest.raises(StateMisuseError, match="there is no current key here"):
            harness.run_epoch()
        assert harness.epoch == -1


def test_one_name_is_one_state() -> None:
    class Twice(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.one = runtime_context.get_state(ValueStateDescriptor("v", "int"))
            self.two = runtime_context.get_state(ValueStateDescriptor("v", "int"))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.one.update((self.two.value() or 0) + 1)
            yield (self.two.value(),)

    with KeyedProcessHarness(Twice(), "k", "k string", "n int") as harness:
        harness.push("a", "a")
        assert [row.n for row in harness.run_epoch()] == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        ValueStateDescriptor("v", "string"),
        ListStateDescriptor("v", "int"),
        MapStateDescriptor("v", "int", "int"),
        with_ttl(ValueStateDescriptor("v", "int"), ttl()),
    ],
    ids=["type", "list", "map", "ttl"],
)
def test_another_state_under_a_known_name_is_refused(other: Any) -> None:
    with Lab(ValueStateDescriptor("v", "int")) as lab:
        lab.do("a", lambda s, c: s.v.update(1))
        lab.script.descriptors = [other]
        lab.later("a", lambda s, c: None)
        with pytest.raises(IncompatibleStateError, match="state 'v': stored is a value of int, declared is a"):
            lab.run_epoch()
        lab.script.descriptors = [ValueStateDescriptor("v", "int"), other]
        with pytest.raises((IncompatibleStateError, InvalidInputError)):
            lab.run_epoch()
        lab.script.descriptors = [ValueStateDescriptor("v", "int")]
        assert lab.state("v", "a") == 1


def test_a_state_that_the_code_no_longer_declares_is_kept() -> None:
    with Lab(ValueStateDescriptor("v", "int"), ValueStateDescriptor("w", "int")) as lab:
        lab.do("a", lambda s, c: s.v.update(1), lambda s, c: s.w.update(2))
        both = lab.script.descriptors
        lab.script.descriptors = both[:1]
        lab.do("a", lambda s, c: s.v.update(3))
        lab.script.descriptors = both
        lab.restart()
        assert (lab.state("v", "a"), lab.state("w", "a")) == (3, 2)


@pytest.mark.parametrize("name", ["", "_x", ".x", "a/b", "x" * 129, "naïve", "a\n", "\u96ea"])
def test_state_names_are_checked(name: str) -> None:
    with pytest.raises(InvalidInputError, match="a state name is"):
        ValueStateDescriptor(name, "int")


def test_a_failing_function_is_named_with_its_key() -> None:
    with Lab(ValueStateDescriptor("v", "int")) as lab:
        lab.later("some key", lambda s, c: 1 / 0)
        with pytest.raises(UserFunctionError, match=r"operator 'tested', subtask 0, epoch 0, key 'some key'.*Division"):
            lab.run_epoch()
    with Lab(ValueStateDescriptor("v", "int"), show_values=False) as lab:
        lab.later("some key", lambda s, c: int("secret"))
        with pytest.raises(UserFunctionError) as caught:
            lab.run_epoch()
        assert "secret" not in str(caught.value)


def test_a_failed_epoch_leaves_nothing_behind(backend: str) -> None:
    def poison(states: Any, ctx: Any) -> None:
        states.v.update(99)
        raise RuntimeError("poison")

    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", write_all)
        lab.later("a", lambda s, c: s.v.update(50), lambda s, c: s.l.add(50), lambda s, c: s.m.clear(), poison)
        with pytest.raises(UserFunctionError):
            lab.run_epoch()
        assert lab.state("v", "a") == 1
        lab.discard()
        assert lab.do("a", read_all) == [FULL]


# The harness itself.


def test_the_harness_refuses_what_it_cannot_use() -> None:
    function = KeyedProcessFunction()
    with pytest.raises(InvalidInputError, match="there is no column 'x'"):
        KeyedProcessHarness(function, "x", "k string", "k string")
    with KeyedProcessHarness(function, "k", "k string, n int", "k string") as harness:
        with pytest.raises(InvalidInputError, match="no column 'm'"):
            harness.push({"m": 1})
        with pytest.raises(InvalidInputError, match="has 1 values"):
            harness.push(("a",))
        with pytest.raises(InvalidInputError, match="column 'n' is int32"):
            harness.push(("a", "b"))
        with pytest.raises(NotFoundError, match="declares no state 'v'"):
            harness.state("v", "a")
        harness.advance_watermark(5)
        with pytest.raises(InvalidInputError, match="cannot go back"):
            harness.advance_watermark(4)


def test_the_harness_goes_on_with_a_directory(tmp_path: Any) -> None:
    with Lab(ValueStateDescriptor("v", "int"), state_dir=tmp_path) as lab:
        lab.do("a", lambda s, c: s.v.update(1))
    with Lab(ValueStateDescriptor("v", "int"), state_dir=tmp_path, backend="lmdb", parallelism=3) as lab:
        assert lab.state("v", "a") == 1


def test_a_function_sees_where_it_runs() -> None:
    class Where(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.it = runtime_context

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            it = self.it
            yield (
                it.get_task_name_with_subtasks(),
                it.get_index_of_this_subtask(),
                it.get_number_of_parallel_subtasks(),
                it.get_max_number_of_parallel_subtasks(),
                it.get_job_parameter("p", "none"),
            )

    with KeyedProcessHarness(
        Where(), "k", "k string", "n string, i int, p int, m int, j string", parallelism=4, parameters={"p": "x"}
    ) as harness:
        harness.push(*[str(number) for number in range(50)])
        rows = harness.run_epoch()
        assert {row.i for row in rows} == {0, 1, 2, 3}
        assert {row.n for row in rows} == {f"Where ({i}/4)" for i in (1, 2, 3, 4)}
        assert {(row.p, row.m, row.j) for row in rows} == {(4, 128, "x")}


def test_outputs_that_do_not_fit_are_refused() -> None:
    class Emits(KeyedProcessFunction):
        def __init__(self, row: Any) -> None:
            self.row = row

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield self.row

    for row, why in [
        ((1,), "1 values instead of 2"),
        (("x", 1), "column 'a'"),
        ({"a": 1}, "column 'b' is missing"),
        (5, "not a tuple"),
    ]:
        with KeyedProcessHarness(Emits(row), "k", "k string", "a int, b int") as harness:
            harness.push("a")
            with pytest.raises(UserFunctionError, match=why):
                harness.run_epoch()
            assert harness.epoch == -1
    with KeyedProcessHarness(Emits({"b": 2, "a": 1}), "k", "k string", "a int, b int") as harness:
        harness.push("a")
        assert harness.run_epoch() == [(1, 2)]
