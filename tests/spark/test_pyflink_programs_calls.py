"""Programs as PyFlink users write them, by what they call: collections of single values, key functions, positions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from tests.support.oracle import ship
from tests.support.spark_lab import Lab

from cairn import (
    CoMapFunction,
    InvalidInputError,
    KeyedCoProcessFunction,
    KeySelector,
    MapFunction,
    RuntimeContext,
    Types,
)

pytestmark = pytest.mark.spark
ship(__name__)

PAIRS = [(1, "a"), (5, "b"), (3, "a"), (2, "b"), (4, "a")]
NUMBER_AND_NAME = Types.TUPLE([Types.LONG(), Types.STRING()])


class ByName(KeySelector):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.place = 1

    def get_key(self, value: Any) -> str:
        return str(value[self.place])


class Numbers(CoMapFunction):
    def map1(self, value: Any) -> str:
        return f"first {value}"

    def map2(self, value: Any) -> str:
        return f"second {value[0]}"


class Together(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield f"{ctx.get_current_key()}: {value}"

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield f"{ctx.get_current_key()}: {value[0]} {value[1]}"


class Marked(MapFunction):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def map(self, value: Any) -> tuple[str, int]:
        return f"{self.kind} {value.f1}", value.f0


def test_functions_get_the_single_values_of_a_collection_themselves(lab: Lab) -> None:
    env = lab.env()
    typed = env.from_collection([1, 2, 3], Types.LONG()).map(lambda v: v + 1)
    inferred = env.from_collection([10, 20, None, 30]).filter(lambda v: v is not None).map(lambda v: v // 10)
    words = env.from_collection(["a b", "c"]).flat_map(lambda line: line.split()).map(len, Types.LONG())
    parity = env.from_collection(range(1, 6)).key_by(lambda v: v % 2, Types.LONG()).reduce(lambda a, b: a + b, uid="r")
    want = [2, 3, 4, *[1, 2, 3], *[1, 1, 1], *[1, 4, 9, 2, 6]]
    assert lab.run(typed.union(inferred, words, parity)) == sorted((number,) for number in want)


def test_lists_and_maps_can_be_the_values_of_a_collection(lab: Lab) -> None:
    env = lab.env()
    arrays = env.from_collection([[1, 2], [3]], Types.PRIMITIVE_ARRAY(Types.INT())).map(
        lambda values: str(values), Types.STRING()
    )
    basic = env.from_collection([["x"], []], Types.BASIC_ARRAY(Types.STRING())).map(str, Types.STRING())
    maps = env.from_collection([{"a": 1}], Types.MAP(Types.STRING(), Types.INT())).map(
        lambda counts: str(counts["a"]), Types.STRING()
    )
    octets = env.from_collection([b"\x01\x02"], Types.PRIMITIVE_ARRAY(Types.BYTE())).map(
        lambda value: value.hex(), Types.STRING()
    )
    assert lab.run(arrays.union(basic, maps, octets)) == sorted(
        [("[1, 2]",), ("[3]",), ("['x']",), ("[]",), ("1",), ("0102",)]
    )


def test_a_collection_takes_every_type_that_pyflink_names(lab: Lab) -> None:
    moment = dt.datetime(2026, 5, 1, 12, 30, tzinfo=dt.UTC)
    fields: list[tuple[Any, Any]] = [
        (Types.BOOLEAN(), True), (Types.BYTE(), 1), (Types.SHORT(), 2), (Types.INT(), 3), (Types.LONG(), 4),
        (Types.FLOAT(), 0.5), (Types.DOUBLE(), 1.5), (Types.STRING(), "s"), (Types.CHAR(), "c"),
        (Types.BIG_INT(), Decimal(10**30)), (Types.BIG_DEC(), Decimal("1.25")), (Types.INSTANT(), moment),
        (Types.SQL_DATE(), moment.date()), (Types.SQL_TIMESTAMP(), moment.replace(tzinfo=None)),
        (Types.LIST(Types.LONG()), [1, 2]), (Types.OBJECT_ARRAY(Types.STRING()), ["x"]),
        (Types.MAP(Types.STRING(), Types.LONG()), {"k": 1}), (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00"),
    ]  # fmt: skip
    row_type = Types.ROW([dtype for dtype, _ in fields])
    named = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
    env = lab.env()
    values = tuple(value for _, value in fields)
    seen = env.from_collection([values], row_type).map(
        lambda row: str([type(v).__name__ for v in row]) + str(row[9]) + str(row[11]), Types.STRING()
    )
    names = env.from_collection([{"a": 1, "b": "x"}], named).map(lambda row: f"{row.a}{row.b}", Types.STRING())
    kinds = [type(value).__name__ for value in values]
    assert lab.run(seen.union(names)) == sorted([("1x",), (f"{kinds}{Decimal(10**30)}{moment}",)])


def test_a_collection_that_has_no_one_type_is_refused_with_the_way_out(lab: Lab) -> None:
    env = lab.env()
    refused: list[tuple[Any, Any, str]] = [
        ([[1, 2], [3]], None, r"rows of 1 and of 2 values.*Types\.LIST\(Types\.LONG\(\)\)"),
        ([1, (2, 3)], None, "has rows .tuples, lists, dicts. and single values"),
        ([None], None, r"Spark cannot infer the type.*Types\.LONG\(\)"),
        ([1], Types.PICKLED_BYTE_ARRAY(), "pickled values cannot be columns: declare a type"),
        ([(1,)], Types.LONG(), r"\(1,\) \(tuple\) does not fit type 'bigint'"),
        ([1.5], Types.PRIMITIVE_ARRAY(Types.INT()), "1.5 .float. does not fit type 'array<int>'"),
    ]
    for elements, dtype, message in refused:
        with pytest.raises(InvalidInputError, match=message):
            env.from_collection(elements, dtype)


def test_keys_by_a_function_with_its_type_and_by_a_key_selector(lab: Lab) -> None:
    env = lab.env()
    rows = env.from_collection(PAIRS, NUMBER_AND_NAME)
    by_function = rows.key_by(lambda value: value[1], Types.STRING()).reduce(lambda a, b: (a[0] + b[0], a[1]), uid="f")
    by_selector = rows.key_by(ByName(), Types.STRING()).reduce(lambda a, b: (a[0] + b[0], a[1]), uid="s")
    by_name = rows.key_by(ByName(), key_type="string").reduce(lambda a, b: (a[0] + b[0], a[1]), uid="n")
    sums = [(1, "a"), (4, "a"), (8, "a"), (5, "b"), (7, "b")]
    assert lab.run(by_function.union(by_selector, by_name)) == sorted(sums * 3)


def test_connected_streams_are_keyed_by_functions(lab: Lab) -> None:
    env = lab.env()
    numbers = env.from_collection([1, 2, 3], Types.LONG())
    pairs = env.from_collection([(7, "1"), (8, "2")], NUMBER_AND_NAME)
    keyed = numbers.connect(pairs).key_by(str, lambda pair: pair[1], Types.STRING())
    together = keyed.process(Together(), Types.STRING(), uid="together")
    selected = pairs.connect(pairs).key_by(ByName(), "f1", key_type=Types.STRING())
    mapped = selected.map(Numbers(), Types.STRING(), uid="mapped").filter(lambda text: text.startswith("second"))
    plain = numbers.connect(pairs).map(Numbers(), Types.STRING(), uid="plain")
    keyed_texts = ["1: 1", "2: 2", "3: 3", "1: 7 1", "2: 8 2"]
    mapped_texts = ["second 7", "second 8"]
    plain_texts = ["first 1", "first 2", "first 3", "second 7", "second 8"]
    want = [(text,) for text in (*keyed_texts, *mapped_texts, *plain_texts)]
    assert lab.run(together.union(mapped, plain)) == sorted(want)


def test_aggregations_by_position_give_rows_like_those_of_the_stream(lab: Lab) -> None:
    env = lab.env(parallelism=1)
    rows = env.from_collection(PAIRS, NUMBER_AND_NAME)
    keyed = rows.key_by("f1")
    results = {
        "sum": keyed.sum(0, uid="sum"),
        "default": keyed.sum(uid="default"),
        "min": keyed.min(0, uid="min"),
        "max": rows.key_by(lambda value: value[1], Types.STRING()).max(0, uid="max"),
        "min_by": keyed.min_by(0, uid="min_by"),
        "max_by": keyed.max_by("f0", uid="max_by"),
    }
    pair = Types.TUPLE([Types.STRING(), Types.LONG()])
    marked = [stream.map(Marked(kind), pair) for kind, stream in results.items()]
    sums = {"a": [1, 4, 8], "b": [5, 7]}
    largest = {"a": [1, 3, 4], "b": [5, 5]}
    smallest = {"a": [1, 1, 1], "b": [5, 2]}
    want = {"sum": sums, "default": sums, "min": smallest, "max": largest, "min_by": smallest, "max_by": largest}
    assert lab.run(marked[0].union(*marked[1:])) == sorted(
        (f"{kind} {key}", number)
        for kind, by_key in want.items()
        for key, numbers in by_key.items()
        for number in numbers
    )


def test_min_by_keeps_the_whole_first_row_and_min_only_the_value(lab: Lab) -> None:
    env = lab.env(parallelism=1)
    columns = "key string, n bigint, note string"
    rows = env.from_collection([("k", 3, "first"), ("k", None, "null"), ("k", 1, "least"), ("k", 1, "again")], columns)
    keyed = rows.key_by("key")
    both = keyed.min(1, uid="min").union(keyed.min_by("n", uid="by"), keyed.max_by(2, uid="text"))
    first, null = ("k", 3, "first"), ("k", None, "null")
    want_min = [first, first, ("k", 1, "first"), ("k", 1, "first")]
    want_min_by = [first, first, ("k", 1, "least"), ("k", 1, "least")]
    want = [*want_min, *want_min_by, first, null, null, null]
    assert lab.run(both) == sorted(want, key=lambda row: [(value is not None, value) for value in row])


def test_single_values_have_sums_and_extremes_too(lab: Lab) -> None:
    keyed = lab.env().from_collection([3, 1, 2], Types.LONG()).key_by(lambda value: 0, Types.INT())
    assert lab.run(keyed.sum(0, uid="s").union(keyed.min(uid="m"), keyed.max_by(uid="x"))) == sorted(
        [(3,), (4,), (6,), (3,), (1,), (1,), (3,), (3,), (3,)]
    )


def test_columns_that_cannot_be_aggregated_are_named(lab: Lab) -> None:
    keyed: Any = lab.env().from_collection([(1, "a", [1])], "n int, name string, list array<int>").key_by("name")
    refused: list[tuple[Any, str]] = [
        (
            lambda: keyed.sum(3),
            r"sum: there is no column at position 3; the stream has 3, counted from 0: n, name, list",
        ),
        (lambda: keyed.sum(1), "sum: column 'name' has type string, and sum takes numbers; use reduce"),
        (lambda: keyed.max_by("list"), r"max_by: column 'list' has type array<int>, and max_by takes values that have"),
        (lambda: keyed.min_by("other"), "there is no column 'other' for min_by; the stream has n, name, list"),
        (lambda: keyed.sum(lambda row: row.n), "sum takes the name or the position of a column, not function"),
        (lambda: keyed.count_window(2).sum("other"), "there is no column 'other' for sum"),
    ]
    for call, message in refused:
        with pytest.raises(InvalidInputError, match=message):
            call()


def test_what_cannot_be_a_key_is_said_in_a_sentence(lab: Lab) -> None:
    stream: Any = lab.env().from_collection(PAIRS, NUMBER_AND_NAME)
    refused: list[tuple[Any, str]] = [
        (lambda: stream.key_by(lambda v: v[1]), r"needs the type of its keys, as in key_by\(f, key_type="),
        (lambda: stream.key_by(ByName()), "needs the type of its keys"),
        (lambda: stream.key_by(ByName(), "f1"), r"must be the only one among the keys, followed by their type"),
        (lambda: stream.key_by(0), "a key is a function, a column name or a Spark column, not int"),
        (lambda: stream.connect(stream).key_by("f1", "f1", Types.STRING()), "key_type is the type of what a Python"),
        (lambda: stream.connect(stream).key_by(1, 1), "a key is a function, a column name or a Spark column, not int"),
        (lambda: stream.connect(stream).key_by(lambda v: v[1], lambda v: v[1]), "needs the type of its keys"),
    ]
    for call, message in refused:
        with pytest.raises(InvalidInputError, match=message):
            call()
