"""A struct is a row at any depth, wherever a function meets it, and is taken back as a row, a tuple or a dict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from cairn import (
    AggregateFunction,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    UserFunctionError,
    ValueStateDescriptor,
)
from cairn.model.ddl import parse_type
from cairn.model.manifest import EpochContext
from cairn.runtime.join_functions import HistoryJoin, IntervalJoinFunction
from cairn.runtime.map_functions import KeyedSimple, SimpleSpec, run_simple
from cairn.runtime.reduce_function import Reduce
from cairn.runtime.row_values import python_values
from cairn.testing import KeyedProcessHarness, TwoInputHarness, WindowHarness
from cairn.testing.local_cluster import arrow_schema, arrow_type, rows_of

CITY = "struct<city:string,at:struct<x:int,y:int>>"
DEEP = f"struct<home:{CITY},others:array<{CITY}>,named:map<string,{CITY}>,counts:map<struct<x:int,y:int>,array<int>>>"
ROWS = f"user string, p {DEEP}, time timestamp"
SIDE = OutputTag("side", ROWS)


def city(name: str) -> dict[str, Any]:
    return {"city": name, "at": {"x": 1, "y": 2}}


def person(name: str) -> Any:
    return {
        "home": city(name),
        "others": [city("b"), None, ("c", (3, 4))],
        "named": {"d": city("d"), "none": None},
        "counts": {(5, 6): [7]},
    }


def row(ms: int = 0, user: str = "a") -> tuple[Any, ...]:
    return user, person(user), WindowHarness.at(ms)


def check(p: Any) -> str:
    """Reaches every struct of a person by its names; the name of the home is the answer."""
    assert p.home.at.x + p.home.at.y == 3
    assert [None if other is None else (other.city, other.at.y) for other in p.others] == [("b", 2), None, ("c", 4)]
    assert p.named["d"].at._asdict() == {"x": 1, "y": 2}
    assert p.named["none"] is None
    ((point, numbers),) = p.counts.items()
    assert (point.x, point.y, numbers) == (5, 6, [7])
    assert repr(p.home) == f"Row(city={p.home.city!r}, at=Row(x=1, y=2))"
    return str(p.home.city)


# The types.

VALUES: list[tuple[str, list[Any]]] = [
    ("struct<a:int,b:struct<c:string>>", [(1, ("x",)), None, (None, None), (2, (None,))]),
    ("array<struct<a:int>>", [[(1,), None], [], None, [(2,), (3,)]]),
    ("array<array<struct<a:int>>>", [[[(1,)], None, []], None, [[(2,), (3,)]]]),
    ("map<string,struct<a:int>>", [{"x": (1,), "y": None}, {}, None, {"z": (2,)}]),
    ("map<struct<a:int>,array<struct<b:int>>>", [{(1,): [(2,)]}, None, {(3,): None, (4,): []}]),
    ("struct<m:map<int,string>,l:array<int>>", [({1: "x"}, [1]), (None, None), ({}, [])]),
]


@pytest.mark.parametrize(("ddl", "values"), VALUES, ids=[ddl for ddl, _ in VALUES])
def test_a_column_reads_as_state_does_also_in_part(ddl: str, values: list[Any]) -> None:
    dtype = parse_type(ddl)
    column = pa.array(values, arrow_type(dtype))
    read = python_values(column)
    assert read == values
    assert repr(read) == repr([None if v is None else dtype.from_storage(dtype.to_storage(v)) for v in values])
    for start in range(len(values) + 1):
        for length in range(len(values) - start + 1):
            assert python_values(column.slice(start, length)) == values[start : start + length]


def test_a_struct_without_fields_is_an_empty_row() -> None:
    assert python_values(pa.array([{}, None], pa.struct([]))) == [(), None]


# Functions.


class Checking(KeyedProcessFunction):
    """Meets the struct in a row, in every kind of state and in a timer's state, and puts it out."""

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", DEEP))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", DEEP))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", CITY, DEEP))
        self.reduced = runtime_context.get_reducing_state(ReducingStateDescriptor("reduced", self.both, DEEP))

    @staticmethod
    def both(one: Any, other: Any) -> Any:
        assert check(one) == check(other)
        return other

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        check(value.p)
        self.value.update(value.p)
        self.list.add(value.p)
        self.map.put(value.p.home, value.p)
        self.reduced.add(value.p)
        for held in (self.value.value(), self.list.get().__next__(), self.map.get(value.p.home), self.reduced.get()):
            assert held == value.p
            check(held)
        ctx.timer_service().register_event_time_timer(5)
        ctx.output(SIDE, value)
        yield value
        yield value.user, person(value.user), value.time
        yield {"user": value.user, "p": value.p, "time": value.time}

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        (home,) = self.map.keys()
        yield ctx.get_current_key(), self.map.get(home), WindowHarness.at(timestamp)


def test_a_process_function_meets_rows_everywhere_and_may_mix_rows_and_dicts_in_its_output() -> None:
    with KeyedProcessHarness(Checking(), "user", ROWS, ROWS, event_time="time", side_outputs=[SIDE]) as harness:
        harness.push(row(), row())
        made = harness.run_epoch()
        harness.advance_watermark(10)
        made += harness.run_epoch()
        assert [check(output.p) for output in made] == ["a"] * 7
        assert [check(output.p) for output in harness.side_outputs["side"]] == ["a", "a"]
        check(harness.state("value", "a"))
        check(harness.state("list", "a")[0])


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
def test_simple_functions_meet_rows(kind: str) -> None:
    def called(value: Any) -> Any:
        check(value.p)
        return [value] if kind == "flat_map" else value

    with KeyedProcessHarness(KeyedSimple(kind, called, kind), "user", ROWS, ROWS) as harness:
        harness.push(row())
        assert [check(output.p) for output in harness.run_epoch()] == ["a"]
    schema = arrow_schema(ROWS)
    batch = pa.RecordBatch.from_pylist([{"user": "a", "p": _arrow_person(), "time": None}], schema=schema)
    spec = SimpleSpec("simple", kind, called, tuple(schema.names), schema)
    context = EpochContext("", "", "job", "", 1, 0, 0, 0)
    (made,) = run_simple(spec, [batch], context, 0, 0)
    assert [check(output.p) for output in rows_of(made)] == ["a"]


def _arrow_person() -> Any:
    return {
        **person("a"),
        "others": [city("b"), None, {"city": "c", "at": {"x": 3, "y": 4}}],
        "counts": [((5, 6), [7])],
    }


def test_reduce_sees_one_shape_in_both_values() -> None:
    def both(one: Any, other: Any) -> Any:
        assert check(one.p) == check(other.p)
        assert repr(one.p) == repr(other.p)
        return other

    with KeyedProcessHarness(Reduce(both, f"struct<{_fields(ROWS)}>"), "user", ROWS, ROWS) as harness:
        harness.push(row(), row(), row())
        assert [check(output.p) for output in harness.run_epoch()] == ["a"] * 3


def _fields(columns: str) -> str:
    return columns.replace("user string", "user:string").replace(", p ", ",p:").replace(", time ", ",time:")


class Latest(AggregateFunction):
    def create_accumulator(self) -> Any:
        return None, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        assert accumulator[0] is None or check(accumulator[0]) == check(value.p)
        return value.p, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return check(accumulator[0]), accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        assert check(acc_a[0]) == check(acc_b[0])
        return acc_a[0], acc_a[1] + acc_b[1]


class Window(ProcessWindowFunction[Any, Any, str, Any]):
    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        for element in elements:
            yield check(element.p), 1


@pytest.mark.parametrize(
    "contents",
    [
        {"function": Window()},
        {"function": Window(), "reduce": lambda a, b: check(a.p) and b},
        {"function": None, "aggregate": Latest(), "accumulator_type": f"struct<p:{DEEP},n:int>"},
    ],
    ids=["elements", "reduce", "aggregate"],
)
def test_windows_meet_rows(contents: dict[str, Any]) -> None:
    with WindowHarness(
        EventTimeSessionWindows.with_gap(10), key_by="user", input_type=ROWS, output_type="city string, n int",
        event_time="time", **contents,
    ) as harness:  # fmt: skip
        harness.push(row(1), row(21), row(11))
        harness.run_epoch()
        harness.advance_watermark(100)
        assert {output.city for output in harness.run_epoch()} == {"a"}


class Meeting(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        assert repr(left.p) == repr(right.p)
        yield check(left.p), check(right.p)


@pytest.mark.parametrize("interval", [True, False], ids=["interval", "history"])
def test_joins_meet_rows_on_both_sides(interval: bool) -> None:
    types = (f"struct<{_fields(ROWS)}>",) * 2
    join = IntervalJoinFunction(Meeting(), (-5, 5), types) if interval else HistoryJoin(Meeting(), types, 0)
    with TwoInputHarness(
        join, ("user", "user"), (ROWS, ROWS), "l string, r string", event_time=("time", "time")
    ) as harness:
        harness.push1(row(10))
        harness.run_epoch()
        harness.push2(row(11))
        assert harness.run_epoch() == [("a", "a")]


PEOPLE = MapStateDescriptor("people", "string", DEEP)


class Broadcast(KeyedBroadcastProcessFunction):
    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(PEOPLE).put(check(value.p), value.p)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield check(ctx.get_broadcast_state(PEOPLE).get("b")) + check(value.p)


def test_broadcast_state_meets_rows() -> None:
    with TwoInputHarness(Broadcast(), ("user", None), (ROWS, ROWS), "out string", broadcast=[PEOPLE]) as harness:
        harness.push2(row(user="b"))
        harness.push1(row())
        assert harness.run_epoch() == [("ba",)]


def test_a_nested_row_that_does_not_fit_is_refused_by_name() -> None:
    class Wrong(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
            yield value
            yield value.user, value.p._replace(home={"city": "x"}), value.time

    with KeyedProcessHarness(Wrong(), "user", ROWS, ROWS) as harness:
        harness.push(row())
        with pytest.raises(UserFunctionError, match="column 'p' is struct"):
            harness.run_epoch()
