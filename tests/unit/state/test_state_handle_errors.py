"""Wrong values, wrong places and wrong names: each an error that names everything, with nothing lost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from tests.support.state_lab import FULL, Lab, all_kinds, read_all, ttl, with_ttl, write_all

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
    ValueStateDescriptor,
)
from cairn.model.functions import AggregateFunction, KeyedProcessFunction
from cairn.runtime.reduce_function import Reduce
from cairn.testing.keyed_harness import KeyedProcessHarness

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
        with pytest.raises(StateTypeError, match="None is not allowed as a value"):
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


def test_a_reduce_function_that_returns_none_is_named() -> None:
    def larger(one: int, other: int) -> Any:
        return max(one, other) if other < 100 else None

    with Lab(ReducingStateDescriptor("it", larger, "bigint")) as lab:
        lab.do("k", lambda s, c: s.it.add(1), lambda s, c: s.it.add(5))
        lab.later("k", lambda s, c: s.it.add(100))
        with pytest.raises(
            UserFunctionError, match=r"operator 'tested'.*key 'k': the reduce function larger returned None"
        ):
            lab.run_epoch()
        assert lab.state("it", "k") == 5


def test_reduce_of_a_keyed_stream_refuses_none() -> None:
    reduced = Reduce(lambda one, other: None if other.n < 0 else (one.k, one.n + other.n), "struct<k:string,n:bigint>")
    with KeyedProcessHarness(reduced, "k", "k string, n bigint", "k string, n bigint") as harness:
        harness.push(("a", 1), ("a", 2))
        assert harness.run_epoch() == [("a", 1), ("a", 3)]
        harness.push(("a", -1))
        with pytest.raises(UserFunctionError, match=r"operator 'tested'.*the reduce function <lambda> returned None"):
            harness.run_epoch()
        harness.discard()
        harness.push(("a", 4))
        assert harness.run_epoch() == [("a", 7)]
    with (
        KeyedProcessHarness(Reduce(max, "bigint"), "k", "k string", "k string") as harness,
        pytest.raises(UserFunctionError, match=r"reduce was given a null, which cannot be combined; filter out nulls"),
    ):
        harness.spec.function.process_element(None, None)


def test_an_aggregate_function_that_returns_none_is_named() -> None:
    class Sum(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: int, accumulator: int) -> Any:
            return accumulator + value if value < 100 else None

        def get_result(self, accumulator: int) -> int:
            return accumulator

        def merge(self, a: int, b: int) -> int:
            return a + b

    with Lab(AggregatingStateDescriptor("it", Sum(), "bigint")) as lab:
        lab.do("k", lambda s, c: s.it.add(1), lambda s, c: s.it.add(5))
        lab.later("k", lambda s, c: s.it.add(100))
        with pytest.raises(UserFunctionError, match=r"operator 'tested'.*key 'k': Sum.add\(\) returned None"):
            lab.run_epoch()
        assert lab.state("it", "k") == 6
