"""Sources by name and sinks for other systems in whole jobs on Spark."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.oracle import INPUT, OUTPUT, Oracle, expected, numbered_rows, ship
from tests.support.patience import PATIENCE
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.postgres import PostgresServer
from tests.support.spark_lab import Lab

from cairn import (
    CrashMarker,
    FileSink,
    FileSource,
    GeneratorSource,
    InvalidInputError,
    JdbcSink,
    JobStatus,
    KafkaSink,
    KafkaSource,
    RestartStrategies,
    Retry,
    ScriptedSource,
    Types,
)
from cairn.model.rows import row_class

pytestmark = pytest.mark.spark
ship(__name__)


def test_collection_of_rows_and_of_values(lab: Lab) -> None:
    env = lab.env()
    pairs = env.from_collection([("a", 1), ("b", 2), ("a", 3)], "word string, n bigint", rows_per_epoch=2)
    assert lab.run(pairs.key_by("word").sum("n", uid="sums"), "pairs") == [("a", 1), ("a", 4), ("b", 2)]
    assert len(lab.manifests("pairs")) == 2, "two epochs"
    assert lab.run(lab.env().from_collection([3, 1, 2], Types.LONG()), "numbers") == [(1,), (2,), (3,)]
    inferred = lab.env().from_collection([("x", 1.5)])
    assert inferred.df.dtypes == [("_1", "string"), ("_2", "double")]
    assert lab.env().from_collection(["x"]).df.dtypes == [("value", "string")]


def test_structs_of_a_collection_are_rows_at_any_depth_and_can_be_given_as_rows_again(lab: Lab) -> None:
    schema = "user string, home struct<city:string,at:struct<x:int>>, seen array<struct<x:int>>"
    given = [
        ("a", {"city": "Rome", "at": {"x": 1}}, [(2,)]),
        ("a", row_class(("city", "at"))(("Bonn", row_class(("x",))((3,)))), [{"x": 4}, row_class(("x",))((5,))]),
    ]

    def later(one: Any, other: Any) -> Any:
        return one if one.home.at.x > other.home.at.x else other

    rows = lab.env().from_collection(given, schema, rows_per_epoch=1)
    moved = rows.map(lambda row: row._replace(home=row.home._replace(at={"x": row.home.at.x + row.seen[-1].x})))
    latest = moved.key_by("user").reduce(later, uid="latest")
    shown = latest.map(lambda row: f"{row.home.city} {row.home.at.x}", "string")
    assert lab.run(shown, "structs") == [("Bonn 8",), ("Rome 3",)]


def test_generator_goes_on_exactly_where_it_stopped(lab: Lab) -> None:
    def source(count: int) -> GeneratorSource:
        return GeneratorSource(
            lambda i: (f"k{i % 3}", i), "key string, n bigint", rows_per_epoch=40, count=count, partitions=3
        )

    target = lab.folder / "sums"
    for count in (100, 250):
        env = lab.env()
        sums = env.from_source(source(count)).key_by("key").sum("n", uid="sums")
        sums.sink_to(FileSink(str(target)), uid="out")
        env.execute("generated")
    state = dict.fromkeys(("k0", "k1", "k2"), 0)
    want = []
    for i in range(250):
        state[f"k{i % 3}"] += i
        want.append((f"k{i % 3}", state[f"k{i % 3}"]))
    assert lab.written(target) == sorted(want)


def test_script_with_crashes_counts_each_row_once(lab: Lab) -> None:
    """A worker killed amid its rows, and a task that fails until the job must restart."""
    rows = numbered_rows(60, 5, seed=3)
    script: list[list[Any]] = [rows[:20], [*rows[20:30], CrashMarker("worker"), *rows[30:40]]]
    script.append([*rows[40:50], CrashMarker("task", times=2), *rows[50:]])
    env = lab.env()
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10))
    source = ScriptedSource(script, INPUT, str(lab.folder / "crashes"))
    checked = env.from_source(source).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    assert lab.run(checked, "oracle") == [tuple(row) for row in expected(rows)]
    assert len(list((lab.folder / "crashes").iterdir())) == 3


def test_files_are_read_by_name(lab: Lab) -> None:
    lab.input.mkdir()
    (lab.input / "a.csv").write_text("word,n\nx,1\ny,2\n")
    csv = FileSource(str(lab.input), "csv", "word string, n bigint", files_per_epoch=1, header=True)
    assert lab.run(lab.env().from_source(csv), "csv") == [("x", 1), ("y", 2)]
    assert lab.run(lab.env().read_text_file(str(lab.input)), "text") == [("word,n",), ("x,1",), ("y,2",)]
    with pytest.raises(InvalidInputError, match="not a valid schema, such as"):
        lab.env().from_source(FileSource(str(lab.input), "json", "word strong"))
    with pytest.raises(InvalidInputError, match="takes a source such as FileSource, not str"):
        lab.env().from_source(str(lab.input))  # type: ignore[arg-type]


def test_kafka_source_without_its_connector_says_what_to_do(spark: SparkSession, lab: Lab) -> None:
    with pytest.raises(InvalidInputError, match=rf"spark-sql-kafka-0-10_2.13:{spark.version}"):
        lab.env().from_source(KafkaSource("localhost:9092", "payments"))


@pytest.mark.server
def test_database_that_goes_down_amid_a_job(lab: Lab, postgres: PostgresServer) -> None:
    """Retried, then the epoch fails and the job restarts by its strategy; nothing is lost or doubled."""
    rows = numbered_rows(80, 7, seed=8)
    lab.feed(rows[:40], files=2)
    env = lab.env()
    env.set_trigger(processing_time="0 seconds")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 200))
    checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(JdbcSink(postgres.url, "downtime", retry=Retry(attempts=2, first=0.05)), uid="db")
    job = env.execute_async("oracle")
    try:
        wait(lambda: len(job.epochs()) >= 2)
        postgres.stop()
        try:
            lab.feed(rows[40:], files=2)
            wait(lambda: job.restarts >= 2)
            assert job.status() in (JobStatus.RUNNING, JobStatus.RESTARTING)
        finally:
            postgres.start()
        wait(lambda: len(postgres.rows("SELECT 1 FROM downtime")) >= len(rows))
    finally:
        job.cancel()
    found = postgres.rows('SELECT "key", seq, count, total, chain FROM downtime')
    assert sorted(found) == expected(rows)


@pytest.mark.server
def test_kafka_sink_writes_rows_as_json_or_as_columns(lab: Lab, kafka: KafkaServer) -> None:
    env = lab.env()
    rows = [("a", 1, bytearray(b"\xff")), ("b", None, bytearray(b"\x00"))]
    stream = env.from_collection(rows, "word string, n bigint, raw binary")
    whole, column = kafka.create("whole"), kafka.create("column")
    stream.sink_to(KafkaSink(kafka.address, whole, key="word"), uid="whole")
    stream.sink_to(KafkaSink(kafka.address, column, key="n", value="raw"), uid="column")
    env.execute("kafka")
    found = sorted((key, json.loads(value or b"")) for key, value, _ in kafka.read(whole))
    assert found == [
        (b"a", {"word": "a", "n": 1, "raw": "/w=="}),
        (b"b", {"word": "b", "n": None, "raw": "AA=="}),
    ]
    assert sorted(((key, value) for key, value, _ in kafka.read(column)), key=str) == [(None, b"\x00"), (b"1", b"\xff")]


def wait(condition: Any, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.1)
