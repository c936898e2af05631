"""Side outputs, simple functions, unions: each function runs once in an epoch, however many streams read it."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.support.oracle import numbered_rows, ship
from tests.support.spark_lab import Lab, query_of

from cairn import (
    FileSink,
    InvalidInputError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    StateTtlConfig,
    Time,
    Types,
    UserFunctionError,
    ValueStateDescriptor,
)
from cairn.view.job_reader import JobReader

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(60, 7, seed=3)
ODD = OutputTag("odd", "key string, mark bigint")
MARKS = OutputTag("marks", Types.LONG())


class Marks(KeyedProcessFunction):
    """Puts a random number out, the same to three outputs, and leaves a file for every time that it is opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint"))
        (self.folder / f"{os.getpid()}-{uuid.uuid4().hex}").touch()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        mark = random.getrandbits(60)
        self.last.update(mark)
        yield value.key, mark
        ctx.output(ODD, (value.key, mark))
        yield MARKS, mark


class Count(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.key, value.mark


class Plus(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.more = int(runtime_context.get_job_parameter("more", "1"))

    def map(self, value: int) -> int:
        return value + self.more


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    (tmp_path / "calls").mkdir()
    return tmp_path / "calls"


def test_an_operator_runs_once_for_all_its_readers(lab: Lab, calls: Path) -> None:
    """A function that is not deterministic, read by five sinks in four ways, with another operator behind it."""
    lab.feed(ROWS, files=2)
    env = lab.env()
    marked = lab.stream(env).key_by("key").process(Marks(calls), "key string, mark bigint", uid="marks")
    streams = {
        "main": marked.transform(lambda df: df.filter("mark >= 0").select("mark")),
        "again": marked.key_by("key").process(Count(), "key string, mark bigint", uid="count").transform(
            lambda df: df.select("mark")
        ),
        "odd": marked.get_side_output(ODD).transform(lambda df: df.select("mark")),
        "marks": marked.get_side_output(MARKS),
        "mapped": marked.get_side_output(MARKS).map(Plus(), uid="plus").map(lambda v: v - 1, Types.LONG()),
    }  # fmt: skip
    for name, stream in streams.items():
        stream.sink_to(FileSink(str(lab.folder / name)), uid=f"to-{name}")
    job = env.execute("marks")
    plan = query_of(job)._jsq.explainInternal(False)
    assert plan.count("MapInArrow cairn:marks(") == 1
    assert plan.count("ReusedExchange") >= 4
    found = {name: [row[0] for row in lab.written(lab.folder / name)] for name in streams}
    assert len(set(found["main"])) == len(ROWS)
    assert all(marks == found["main"] for marks in found.values())
    assert len(list(calls.iterdir())) == 2 * 2, "once in each of two subtasks and two epochs"

    # What the pages draw.
    graph = {vertex.id: vertex for vertex in JobReader(job.directory).view().graph}
    assert [vertex.kind for vertex in graph.values()].count("source") == 1
    assert graph["source-0"].name.startswith("FileSource[")
    links = {name: [(link.id, link.ship, link.side) for link in vertex.inputs] for name, vertex in graph.items()}
    assert links["marks"] == [("source-0", "HASH", "")]
    assert links["count"] == [("marks", "HASH", "")]
    assert links["to-main"] == [("marks", "FORWARD", "")]
    assert links["to-odd"] == [("marks", "FORWARD", ODD.tag_id)]
    assert links["plus"] == [("marks", "FORWARD", MARKS.tag_id)]
    assert (graph["plus"].kind, graph["plus"].name) == ("function", "Plus")


def test_sinks_on_the_outputs_of_one_operator(lab: Lab, calls: Path) -> None:
    lab.feed(ROWS)
    env = lab.env()
    marked = lab.stream(env).key_by("key").process(Marks(calls), "key string, mark bigint", uid="marks")
    marked.sink_to(FileSink(str(lab.folder / "main")), uid="main")
    marked.get_side_output(ODD).sink_to(FileSink(str(lab.folder / "odd")), uid="odd")
    marked.get_side_output(MARKS).sink_to(FileSink(str(lab.folder / "marks")), uid="side")
    env.execute("marks")
    main = lab.written(lab.folder / "main")
    assert len(main) == len(ROWS)
    assert lab.written(lab.folder / "odd") == main
    assert [row[0] for row in lab.written(lab.folder / "marks")] == sorted(mark for _, mark in main)
    assert len(list(calls.iterdir())) == 2


def test_map_filter_flat_map_and_union(lab: Lab) -> None:
    lab.feed(ROWS)
    env = lab.env()
    rows = lab.stream(env)
    low = rows.filter(lambda row: row.amount < 0).map(lambda row: (row.key, -row.amount), "key string, n bigint")
    high = rows.filter(lambda row: row.amount >= 0).map(lambda row: (row.key, row.amount), "key string, n bigint")
    words = low.union(high).flat_map(lambda row: [row.key] * (row.n % 3), Types.STRING())
    found = lab.run(words)
    assert found == sorted((key,) for key, _, amount in ROWS for _ in range(abs(amount) % 3))


def test_what_streams_refuse(lab: Lab, calls: Path) -> None:
    env = lab.env()
    rows = lab.stream(env)
    marked = rows.key_by("key").process(Marks(calls), "key string, mark bigint", uid="marks")
    with pytest.raises(InvalidInputError, match="'late' of it; call get_side_output on what process"):
        rows.get_side_output(OutputTag("late", "int"))
    marked.get_side_output(ODD)
    with pytest.raises(InvalidInputError, match=r"operator 'marks': the side output 'odd' has type .* already"):
        marked.get_side_output(OutputTag("odd", "int"))
    with pytest.raises(InvalidInputError, match="union: the streams have different columns"):
        rows.union(marked)
    with pytest.raises(InvalidInputError, match="key_by with a function needs the type of its keys"):
        rows.key_by(lambda row: row.key)
    with pytest.raises(InvalidInputError, match="a Python function must be the only one"):
        rows.key_by("key", lambda row: row.key)
    with pytest.raises(InvalidInputError, match="two environments"):
        rows.union(lab.stream(lab.env()))
    with pytest.raises(InvalidInputError, match="map takes a MapFunction or a function of one value, not int"):
        rows.map(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="Spark's own stateful operator Deduplicate"):
        rows.transform(lambda df: df.dropDuplicates(["key"]))
    with pytest.raises(InvalidInputError, match="the uid 'marks' is used twice"):
        rows.key_by("key").process(Marks(calls), "key string, mark bigint", uid="marks")


class Nothing(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None: ...
    def process_element2(self, value: Any, ctx: Any) -> None: ...


class NoPairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> None: ...


def test_what_two_streams_refuse(lab: Lab) -> None:
    """Definitions of connected, broadcast and joined streams that cannot work say so where they are made."""
    env = lab.env()
    plain = lab.stream(env)
    timed = plain.transform(lambda df: df.withColumn("at", F.timestamp_millis("seq"))).with_watermark("at", "0 seconds")
    keyed, by_number, with_time = plain.key_by("key"), plain.key_by("seq"), timed.key_by("key")
    turned = plain.transform(lambda df: df.select("seq", "key", "amount"))
    rules = MapStateDescriptor("rules", "string", "bigint")
    numbers: Any = ListStateDescriptor("numbers", "int")
    old = MapStateDescriptor("old", "string", "bigint")
    old.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    pairs = with_time.interval_join(with_time)
    minute: Any = "1 minute"
    other: Any = lab.stream(lab.env())
    unkeyed: Any = timed
    function: Any = Count()
    refused: list[tuple[Any, str]] = [
        (lambda: turned.transform(lambda df: df.withColumnRenamed("key", "sum")).key_by("sum").sum("amount", uid="s"),
         r"would have the column 'sum' twice \(sum, sum\): rename the one that is yours"),
        (lambda: keyed.process(function, "n int, m int, n int", uid="t"), "the column 'n' twice"),
        (lambda: plain.union(plain, turned), r"union: the streams have different columns.*transform"),
        (lambda: keyed.connect(by_number), r"keys of different types, \(string\) and \(bigint\).*cast a column"),
        (lambda: plain.connect(plain).key_by("key", "seq"), "keys of different types"),
        (lambda: plain.connect(plain).key_by(["key", "seq"], "key"), "key"),
        (lambda: keyed.connect(unkeyed), "one of the two streams is keyed and the other is not; key both"),
        (lambda: plain.connect(other), "two environments"),
        (lambda: plain.connect(plain).process(Nothing(), "n int", uid="x"), "without keys takes a CoProcessFunction"),
        (lambda: keyed.connect(keyed).process(function, "n int", uid="x"), "takes a KeyedCoProcessFunction, not Count"),
        (lambda: plain.broadcast(numbers), "broadcast takes MapStateDescriptors, not ListStateDescriptor"),
        (lambda: plain.broadcast(old), "'old' cannot have a time to live"),
        (lambda: plain.broadcast(rules, rules), "two states with the name 'rules'"),
        (lambda: keyed.connect(plain.broadcast(rules)).process(function, "n int", uid="x"),
         "with keys takes a KeyedBroadcastProcessFunction, not Count"),
        (lambda: keyed.interval_join(keyed), "the left stream has no event time; declare it with"),
        (lambda: with_time.interval_join(keyed), "the right stream has no event time"),
        (lambda: with_time.interval_join(unkeyed), r"takes a keyed stream, not DataStream: call key_by"),
        (lambda: with_time.interval_join(timed.key_by("seq")), "keys of different types"),
        (lambda: pairs.process(NoPairs(), "n int", uid="x"), r"call between\(lower, upper\) before process"),
        (lambda: pairs.between(Time.seconds(5), Time.seconds(-5)), "lower bound, 5000 ms, is above the upper one, -5"),
        (lambda: pairs.between(0, minute), r"a bound is a Time such as Time.seconds\(-5\).*not '1 minute'"),
        (lambda: pairs.between(7, 7).upper_bound_exclusive().process(NoPairs(), "n int"), "no time lies between"),
        (lambda: with_time.interval_join(with_time).between(0, 5).side_output_left_late_data(OutputTag("late", "n int"))
         .process(NoPairs(), "n int", uid="l"), r"'late' has columns of types \(int\); late rows go out as they"),
        (lambda: keyed.join(keyed, how="left"), r"a left join needs between=\(lower, upper\)"),
        (lambda: keyed.join(keyed, how="outer"), "how is one of inner, left, right, full, not 'outer'"),
        (lambda: keyed.join(keyed, ttl=Time.seconds(0)), r"ttl is a positive Time such as Time.hours\(1\)"),
        (lambda: with_time.join(with_time, between=(0, 5), ttl=Time.hours(1)), "leave out ttl"),
    ]  # fmt: skip
    for make, message in refused:
        with pytest.raises(InvalidInputError, match=message):
            make()


def test_late_rows_of_a_join_have_an_output_also_if_nobody_reads_it(lab: Lab) -> None:
    env = lab.env()
    plain = lab.stream(env)
    timed = plain.transform(lambda df: df.withColumn("at", F.timestamp_millis("seq"))).with_watermark("at", "0 seconds")
    late = OutputTag("late", "key string, seq bigint, amount bigint, at timestamp")
    pairs = timed.key_by("key").interval_join(timed.key_by("key")).between(0, 5).side_output_right_late_data(late)
    made = pairs.process(NoPairs(), "n int", uid="pairs")
    assert env.definition.functions["pairs"].sides == [late]
    assert made.get_side_output(late).df.columns == ["key", "seq", "amount", "at"]


def test_side_output_that_nobody_reads_fails_the_epoch(lab: Lab, calls: Path) -> None:
    lab.feed(ROWS[:3])
    env = lab.env()
    marked = lab.stream(env).key_by("key").process(Marks(calls), "key string, mark bigint", uid="marks")
    marked.get_side_output(MARKS).sink_to(FileSink(str(lab.folder / "side")), uid="side")
    with pytest.raises(UserFunctionError, match="side output 'odd', which the job does not read"):
        env.execute("marks")
