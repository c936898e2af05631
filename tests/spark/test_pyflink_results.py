"""`print`, `execute_and_collect` and `add_sink` as PyFlink's programs call them."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.oracle import ship
from tests.support.spark_lab import Lab

from cairn import (
    CloseableIterator,
    CrashMarker,
    FileSink,
    GeneratorSource,
    InvalidInputError,
    JobStatus,
    RestartStrategies,
    ScriptedSource,
    StreamExecutionEnvironment,
    Time,
    Types,
    UnsupportedError,
    UserFunctionError,
)
from cairn.api.results import shown

pytestmark = pytest.mark.spark
ship(__name__)


def as_written(lab: Lab, parallelism: int = 2) -> StreamExecutionEnvironment:
    """An environment without a trigger, as PyFlink's programs have it."""
    env = lab.env(parallelism)
    env.definition.trigger = {}
    return env


def test_print_shows_values_as_flink_does(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    env = as_written(lab, parallelism=1)
    env.from_collection([1, 2, 3]).map(lambda v: v + 1).print()
    env.execute("numbers")
    assert capsys.readouterr().out == "2\n3\n4\n"

    env = as_written(lab, parallelism=1)
    rows = [("ann", 1, True, [1, 2], None), ("bob\x1b[31m\n", 2, False, [], 0.5)]
    stream = env.from_collection(rows, "name string, n int, ok boolean, list array<int>, share double")
    stream.print("people")
    stream.key_by("name").map(lambda row: row.n, Types.INT(), uid="n").print()
    env.execute("people")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(
        ["people> (ann,1,true,[1, 2],null)", "people> (bob\\x1b[31m\\n,2,false,[],0.5)", "1", "2"]
    )


def test_print_names_the_subtask_where_there_are_several(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    env = as_written(lab, parallelism=2)
    keyed = env.from_collection([("a", 1), ("b", 2), ("c", 3)], "k string, n bigint").key_by(
        lambda row: row.k, Types.STRING()
    )
    keyed.print("keyed")
    keyed.sum("n", uid="sums").print(uid="sums-out")
    env.execute("subtasks")
    lines = capsys.readouterr().out.splitlines()
    values = sorted(line.split("> ")[1] for line in lines)
    assert values == sorted(["(a,1)", "(b,2)", "(c,3)"] * 2)
    assert {line.split("> ")[0] for line in lines} <= {"keyed:1", "keyed:2", "1", "2"}
    assert sum(line.startswith("keyed:") for line in lines) == 3


def test_values_are_shown_as_flink_shows_them() -> None:
    moment = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    assert (
        shown(("a", (1, None), {"k": True}, b"\x01", moment)) == "(a,(1,null),{k=true},[1],2026-05-01 12:00:00+00:00)"
    )


def test_collected_elements_come_as_functions_see_them_and_end_with_the_collection(lab: Lab) -> None:
    moment = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    env = as_written(lab, parallelism=1)
    with env.from_collection([1, 2, 3]).map(lambda v: v * 10).execute_and_collect() as values:
        assert isinstance(values, CloseableIterator)
        assert list(values) == [10, 20, 30]
        assert list(values) == [], "the end stays the end"
    assert values.job.status() is JobStatus.FINISHED

    env = as_written(lab)
    people = env.from_collection([("ann", 1, moment)], "name string, n int, at timestamp")
    collected: Any = people.key_by("name").execute_and_collect()
    (row,) = collected
    assert (row.name, row.n, row.at, row.at.tzinfo) == ("ann", 1, moment, row[2].tzinfo)
    assert row == ("ann", 1, moment)


def test_collecting_without_a_name_starts_anew_and_with_a_name_goes_on(lab: Lab) -> None:
    def collected(name: str | None, count: int) -> list[Any]:
        env = as_written(lab, parallelism=1)
        return list(env.from_collection(range(count), rows_per_epoch=2).execute_and_collect(name))

    assert collected(None, 4) == collected(None, 4) == [0, 1, 2, 3]
    assert not any(lab.jobs.glob("collect*")), "nothing is left among the jobs"
    assert collected("goes on", 4) == [0, 1, 2, 3]
    assert collected("goes on", 6) == [4, 5]


def test_a_limit_gives_a_list_and_ends_an_endless_job(lab: Lab) -> None:
    env = lab.env(parallelism=1).set_trigger(processing_time="0 seconds")
    endless = env.from_source(GeneratorSource(lambda i: (i,), "n bigint", rows_per_epoch=10, partitions=1))
    begin = time.monotonic()
    first: list[Any] = endless.map(lambda row: row.n, Types.LONG()).execute_and_collect("endless", 15)
    assert first == list(range(15))
    assert time.monotonic() - begin < 60
    few = as_written(lab).from_collection([1, 2]).execute_and_collect(limit=5)
    assert sorted(few) == [1, 2]
    with pytest.raises(InvalidInputError, match="limit must be 1 or more, not 0"):
        as_written(lab).from_collection([1]).execute_and_collect(limit=0)


def test_closing_ends_a_job_whose_elements_nobody_takes(lab: Lab) -> None:
    env = lab.env(parallelism=1).set_trigger(processing_time="0 seconds")
    endless = env.from_source(GeneratorSource(lambda i: (i,), "n bigint", rows_per_epoch=5, partitions=1))
    rows: Any = endless.execute_and_collect("unread")
    assert rows.next() == (0,)
    deadline = time.monotonic() + 60
    while len(rows.job.epochs()) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    assert len(rows.job.epochs()) <= 3, "the stream waits for its reader"
    begin = time.monotonic()
    rows.close()
    assert time.monotonic() - begin < 20
    assert rows.job.status() is JobStatus.CANCELED
    assert list(rows) == []


def test_every_element_is_collected_once_across_failures(lab: Lab) -> None:
    script: list[list[Any]] = [[(1,), (2,)], [(3,), CrashMarker("task", 8), (4,)], [(5,)]]
    env = lab.env(parallelism=1)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, Time.milliseconds(10)))
    stream = env.from_source(ScriptedSource(script, "n bigint", str(lab.folder / "crashes")))
    rows: Any = stream.execute_and_collect("crashing")
    assert [row.n for row in rows] == [1, 2, 3, 4, 5]
    assert rows.job.restarts > 0


def test_the_error_of_the_job_comes_after_what_was_committed(lab: Lab) -> None:
    env = as_written(lab, parallelism=1)
    values: Any = env.from_collection([4, 2, 0], rows_per_epoch=1).map(lambda v: 8 // v).execute_and_collect()
    assert [next(values), next(values)] == [2, 4]
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        next(values)


def test_add_sink_takes_sinks_and_what_it_returns_has_sentences(lab: Lab) -> None:
    env = as_written(lab)
    attached: Any = env.from_collection(["x"]).add_sink(FileSink(str(lab.folder / "added")), uid="added")
    with pytest.raises(UnsupportedError, match=r"no 'uid', which PyFlink has: .*sink_to\(sink, uid='...'\)"):
        attached.uid("sink")
    with pytest.raises(UnsupportedError, match=r"no 'set_parallelism'.*env\.set_parallelism"):
        attached.set_parallelism(1)
    wrong: Any = print
    with pytest.raises(InvalidInputError, match="takes a sink such as FileSink, or ForeachEpochSink"):
        env.from_collection(["x"]).add_sink(wrong)
    env.execute("added")
    assert lab.written(lab.folder / "added") == [("x",)]


def test_a_job_without_a_name_is_refused_with_the_reason(lab: Lab) -> None:
    env = as_written(lab)
    env.from_collection([1]).print()
    with pytest.raises(
        InvalidInputError, match=r"a job needs a name, as in env\.execute.*its state is stored under this name"
    ):
        env.execute()


def test_names_that_only_pyflink_has_end_in_sentences(lab: Lab, tmp_path: Path) -> None:
    env: Any = as_written(lab)
    stream: Any = env.from_collection([(1, "a")], "n bigint, k string")
    keyed = stream.key_by("k")
    calls: list[tuple[Any, str]] = [
        (lambda: stream.map(lambda r: r).name("x"), r"map\(f, name="),
        (lambda: stream.assign_timestamps_and_watermarks(None), r"call with_watermark\('time', Time.seconds\(10\)\)"),
        (lambda: stream.rebalance(), r"df.repartition\(n\)"),
        (lambda: keyed.broadcast(), "call it on the stream in front of key_by"),
        (lambda: keyed.slot_sharing_group("g"), "Spark has no slots"),
        (lambda: stream.broadcast().map(lambda r: r), "can only be connected"),
        (lambda: keyed.count_window(2).evictor(None), "leave out rows in the window function"),
        (lambda: env.add_jars("a.jar"), "spark.jars"),
        (lambda: env.get_checkpoint_config().set_fail_on_checkpointing_errors(True), "tolerable_checkpoint_failure"),
    ]
    for call, sentence in calls:
        with pytest.raises(UnsupportedError, match=sentence):
            call()
