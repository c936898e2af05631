"""Sinks: what a plain reader finds, and what happens when one reads twice, in part, or fails."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.support.oracle import OUTPUT, Oracle, expected, numbered_rows, ship
from tests.support.spark_lab import Lab

from cairn import (
    EpochFailedError,
    FileSink,
    ForeachEpochSink,
    InvalidInputError,
    JobStatus,
    NoopSink,
    PrintSink,
    StreamExecutionEnvironment,
    TableSink,
)
from cairn.connectors.sink_base import BaseSink
from cairn.spark import arrow_batches

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(200, 11, seed=5)


def oracle_to(lab: Lab, sink: BaseSink) -> StreamExecutionEnvironment:
    env = lab.env()
    lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle").sink_to(sink, uid="out")
    return env


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_file_sink_is_read_by_plain_spark(lab: Lab, kind: str) -> None:
    lab.feed(ROWS, files=3)
    options: dict[str, Any] = {"header": True} if kind == "csv" else {}
    oracle_to(lab, FileSink(str(lab.output), format=kind, **options)).execute("oracle")
    reader = lab.spark.read.schema(OUTPUT).format(kind).options(**options)
    assert sorted(tuple(row) for row in reader.load(str(lab.output)).collect()) == expected(ROWS)
    assert not list((lab.output / "_cairn").rglob("part-*")), "prepared files are left over"


def test_file_sink_writes_no_files_for_epochs_without_rows(lab: Lab) -> None:
    lab.feed(ROWS, files=1)
    lab.feed([])
    lab.feed([])
    lab.oracle()
    assert {int(path.name.split("-")[1]) for path in lab.output.glob("part-*")} == {0}


def test_csv_with_header_and_epoch_without_rows(lab: Lab) -> None:
    """A file with nothing but a header is no output."""
    lab.feed(ROWS, files=1)
    lab.feed([])
    oracle_to(lab, FileSink(str(lab.output), format="csv", header=True)).execute("oracle")
    found = lab.spark.read.option("header", True).csv(str(lab.output))
    assert found.count() == len(ROWS)


def test_file_sink_refuses_what_it_cannot_use(lab: Lab) -> None:
    with pytest.raises(InvalidInputError, match="not 'avro'"):
        FileSink(str(lab.output), format="avro")
    lab.output.write_text("a file")
    lab.feed(ROWS[:5])
    with pytest.raises(InvalidInputError, match="is a file, not a directory"):
        lab.oracle()


def test_table_sink(lab: Lab) -> None:
    lab.feed(ROWS[:100], files=2)
    oracle_to(lab, TableSink("checked")).execute("oracle")
    assert sorted(tuple(row) for row in lab.spark.table("checked").collect()) == expected(ROWS[:100])
    lab.feed(ROWS[100:], files=2)
    oracle_to(lab, TableSink("checked")).execute("oracle")
    found = lab.spark.sql("select * from checked order by key, seq").collect()
    assert [tuple(row) for row in found] == expected(ROWS)


def test_table_sink_before_any_row(lab: Lab) -> None:
    lab.feed([])
    oracle_to(lab, TableSink("nothing_yet")).execute("oracle")
    assert lab.spark.table("nothing_yet").columns == ["key", "seq", "count", "total", "chain"]
    assert lab.spark.table("nothing_yet").count() == 0


def test_print_sink(lab: Lab) -> None:
    lab.feed([("a", 0, 1), ("a", 1, 2)])
    lab.feed([("b", seq, 1) for seq in range(9)])
    out = io.StringIO()
    env = lab.env()
    lab.stream(env).key_by("key").sum("amount", uid="s").sink_to(PrintSink(limit=4, stream=out))
    env.execute("print")
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["0> key='a', sum=1", "0> key='a', sum=3"]
    assert len(lines) == 7
    assert lines[-1] == "1> ... and 5 more rows"


def test_foreach_sink_may_read_its_rows_any_number_of_times(lab: Lab) -> None:
    """Two actions on the output: state advances once, both see the same rows."""
    lab.feed(ROWS, files=3)
    seen: list[tuple[int, int, list[Any]]] = []

    def twice(frame: DataFrame, epoch: int) -> None:
        assert not frame.isStreaming
        seen.append((epoch, frame.count(), [tuple(row) for row in frame.collect()]))
        frame.filter("count > 3").count()

    job = oracle_to(lab, ForeachEpochSink(twice)).execute("oracle")
    assert [epoch for epoch, _, _ in seen] == [0, 1, 2]
    assert all(count == len(rows) for _, count, rows in seen)
    assert sorted(row for _, _, rows in seen for row in rows) == expected(ROWS)
    assert sum(report.rows_in for report in job.epochs()) == len(ROWS)


def test_foreach_sink_that_reads_a_part_or_nothing(lab: Lab) -> None:
    """The rows of the epoch are processed whole, whatever the sink looks at."""
    lab.feed(ROWS, files=4)
    first: list[Any] = []

    def part(frame: DataFrame, epoch: int) -> None:
        if epoch % 2 == 0:
            first.extend(frame.take(1))

    oracle_to(lab, ForeachEpochSink(part)).execute("oracle")
    assert len(first) == 2
    more = [(key, seq + 1, 5) for key, seq in {key: seq for key, seq, _ in ROWS}.items()]
    lab.feed(more)
    lab.oracle()  # fails unless the state saw every row
    assert len(lab.written()) == len(more)


def test_own_sink_that_reads_a_part_is_refused(lab: Lab) -> None:
    class Peek(BaseSink):
        kind = "peek"

        def prepare(self, frame: Any, epoch: int, attempt: str) -> None:
            frame.take(1)

    lab.feed(numbered_rows(40, 3))
    env = lab.env(parallelism=4)
    lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle").sink_to(Peek(), uid="out")
    with pytest.raises(EpochFailedError, match=r"operator 'oracle': \d of 4 subtasks did not finish epoch 0"):
        env.execute("oracle")
    assert lab.manifests() == []


def test_sink_that_raises_leaves_the_state_as_it_was(lab: Lab) -> None:
    lab.feed(ROWS, files=4)

    def broken(frame: DataFrame, epoch: int) -> None:
        assert frame.count() > 0
        if epoch == 2:
            raise RuntimeError("no room at the other end")

    env = oracle_to(lab, ForeachEpochSink(broken))
    job = env.execute_async("oracle")
    with pytest.raises(EpochFailedError, match=r"sink 'out'.*RuntimeError: no room at the other end.*epoch 2"):
        job.await_termination()
    assert job.status() is JobStatus.FAILED
    assert isinstance(job.exception(), EpochFailedError)
    assert [manifest.epoch for manifest in lab.manifests()] == [0, 1]
    seen: list[int] = []
    again = oracle_to(lab, ForeachEpochSink(lambda frame, epoch: seen.append(epoch))).execute("oracle")
    assert seen == [2, 3]
    assert again.restored_epoch == 1


def test_two_sinks_on_one_stream(lab: Lab) -> None:
    lab.feed(ROWS, files=3)
    env = lab.env()
    checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    seen: list[Any] = []
    checked.sink_to(FileSink(str(lab.output)), uid="files")
    checked.sink_to(ForeachEpochSink(lambda frame, epoch: seen.extend(map(tuple, frame.collect()))), uid="seen")
    job = env.execute("oracle")
    assert lab.written() == expected(ROWS)
    assert sorted(seen) == expected(ROWS)
    assert sum(report.rows_in for report in job.epochs()) == len(ROWS)


def test_two_sinks_on_two_streams(lab: Lab) -> None:
    lab.feed(ROWS, files=3)
    env = lab.env()
    source = lab.source()
    env.from_df(source).key_by("key").process(Oracle(), OUTPUT, uid="oracle").sink_to(
        FileSink(str(lab.output)), uid="checked"
    )
    counts = lab.folder / "counts"
    env.from_df(source).key_by("seq").count(uid="counted").sink_to(FileSink(str(counts)), uid="counts")
    env.execute("oracle")
    assert lab.written() == expected(ROWS)
    per_seq: dict[int, int] = {}
    want = []
    for _, seq, _ in ROWS:
        per_seq[seq] = per_seq.get(seq, 0) + 1
        want.append((seq, per_seq[seq]))
    assert lab.written(counts) == sorted(want)


def test_one_operator_feeds_two_streams(lab: Lab) -> None:
    """Side outputs: both branches see the same rows, and the state advances once."""
    lab.feed(ROWS, files=3)
    env = lab.env()
    checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    low, high = lab.folder / "low", lab.folder / "high"
    env.from_df(checked.df.filter("total < 0")).sink_to(FileSink(str(low)), uid="low")
    env.from_df(checked.df.filter("total >= 0")).sink_to(FileSink(str(high)), uid="high")
    env.execute("oracle")
    assert lab.written(low) == [row for row in expected(ROWS) if row[3] < 0]
    assert lab.written(high) == [row for row in expected(ROWS) if row[3] >= 0]
    manifest = lab.manifests()[-1]
    assert len([handle for handle in manifest.operators[0].chain if handle.epoch == 2]) <= 2


def test_stream_without_operators(lab: Lab) -> None:
    lab.feed(ROWS, files=2)
    env = lab.env()
    lab.stream(env).sink_to(FileSink(str(lab.output)), uid="out")
    env.execute("copy")
    assert lab.written() == sorted(ROWS)


def test_noop_sink_and_reused_sinks(lab: Lab) -> None:
    lab.feed(ROWS[:20])
    sink = NoopSink()
    job = oracle_to(lab, sink).execute("oracle")
    assert job.epochs()[0].rows_out == 20
    env = lab.env()
    with pytest.raises(InvalidInputError, match="attached already"):
        lab.stream(env).sink_to(sink)
    with pytest.raises(InvalidInputError, match=r"takes a sink such as FileSink, .*, not str"):
        lab.stream(env).sink_to("folder")  # type: ignore[arg-type]


def test_folder_with_odd_characters(lab: Lab) -> None:
    """Blanks, percent signs, hashes and letters of other alphabets in every path."""
    odd = Lab(lab.spark, Path(lab.folder) / "a b%20c#ü")
    odd.feed(ROWS, files=2)
    odd.oracle("Jöb #1 %", pipeline__job_id="odd")
    assert odd.written() == expected(ROWS)
    odd.feed([])
    odd.oracle("Jöb #1 %", pipeline__job_id="odd")


def test_spark_counts_no_bytes_while_rows_are_narrow(lab: Lab) -> None:
    """The settings by which the epochs were planned: limited at first, lifted, limited again after wide rows."""
    found: list[str | None] = []

    class Watching(NoopSink):
        def prepare(self, frame: Any, epoch: int, attempt: str) -> Any:
            found.append(frame.sparkSession.conf.get(arrow_batches.BYTES, None))
            return super().prepare(frame, epoch, attempt)

    for text in ["narrow", "narrow", "w" * 3 * arrow_batches.NARROW, "narrow"]:
        lab.feed_file([(text, 1)] * 4, "key string, v bigint")
    env = lab.env()
    lab.stream(env, "key string, v bigint").key_by("key").sum("v", uid="sum").sink_to(Watching(), uid="out")
    env.execute("narrow")
    lifted = arrow_batches.LIFTED[arrow_batches.BYTES]
    assert found == [None, lifted, lifted, None]
    assert lab.spark.conf.get(arrow_batches.BYTES, None) is None


def test_python_functions_of_others_keep_the_limit(lab: Lab) -> None:
    rows = lab.source("key string, v bigint")
    plus_one = F.udf(lambda v: v + 1, "bigint")
    env = lab.env()
    keyed = env.from_df(rows).key_by("key").sum("v", uid="sum")
    mapped = env.from_df(rows).map(lambda row: (row.key, 1), "key string, one bigint", uid="map")
    frames = {
        "ours": (keyed.df, False),
        "map on a plain stream": (mapped.df, True),
        "a UDF before": (env.from_df(rows.withColumn("v", plus_one("v"))).key_by("key").sum("v", uid="u").df, True),
        "a UDF after": (keyed.df.filter(plus_one("sum") > 1), True),
        "mapInArrow": (rows.mapInArrow(lambda batches: batches, rows.schema), True),
    }
    for name, (frame, others) in frames.items():
        assert arrow_batches._others_in(lab.spark, frame, ["sum", "u"]) is others, name
