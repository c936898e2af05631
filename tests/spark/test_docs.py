"""The programs in the documentation do what the text around them says."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cairn import FileSink, ForeachEpochSink, StreamExecutionEnvironment, register

DOCS = Path(__file__).parents[2] / "docs"
EVENTS = 60
pytestmark = pytest.mark.spark


def block(page: str, holding: str) -> str:
    """The one Python block of a page that holds a text."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (found,) = [text for text in blocks if holding in text]
    return str(found)


def environment(spark: SparkSession, folder: Path) -> StreamExecutionEnvironment:
    config = {
        "execution.checkpointing.dir": str(folder / "jobs"),
        "cairn.web.enabled": False,
        "execution.checkpointing.local-backup.dirs": str(folder / "stores"),
        "parallelism.default": 2,
    }
    return StreamExecutionEnvironment.get_execution_environment(spark, config).set_trigger(available_now=True)


def payments(spark: SparkSession) -> DataFrame:
    """One epoch of rows that follow from their number."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", EVENTS).load()
    return source.selectExpr("concat('u', value % 3) AS user", "value AS amount")


def test_process_batch_adds_up(spark: SparkSession, tmp_path: Path) -> None:
    env = environment(spark, tmp_path)
    names: dict[str, Any] = {"keyed": env.from_df(payments(spark)).key_by("user"), "__name__": "docs"}
    exec(block("state.md", "process_batch").replace("keyed.process_batch", "totals = keyed.process_batch"), names)
    names["totals"].sink_to(FileSink(str(tmp_path / "out")), uid="out")
    env.execute("totals")
    found = {(row.user, row.total) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert found == {(f"u{user}", sum(range(user, EVENTS, 3))) for user in range(3)}


def test_a_program_from_pyflink_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = environment(spark, tmp_path)
    monkeypatch.setattr(StreamExecutionEnvironment, "get_execution_environment", lambda: made)
    names: dict[str, Any] = {"__name__": "docs"}
    exec(block("pyflink.md", "execute_and_collect"), names)
    assert sorted(tuple(row) for row in names["results"]) == [("ann", 6), ("bob", 7)]


def test_own_sink_publishes_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "docs"}
    code = block("sinks.md", "class SqliteSink")
    assert len(code[code.index("class SqliteSink") :].splitlines()) <= 30, "a sink of one's own takes 30 lines"
    exec(code, names)
    database = tmp_path / "result.db"
    for epochs in (1, 2):
        env = environment(spark, tmp_path)
        sink = names["SqliteSink"](str(database), "counts")
        env.from_df(payments(spark)).key_by("user").count(uid="counts").sink_to(sink, uid="sqlite")
        env.execute("counts")
        with sqlite3.connect(database) as db:
            sink.commit(str(tmp_path / "gone"), epochs - 1)  # as after a crash: must change nothing
            rows = db.execute("SELECT * FROM counts ORDER BY 1, 2").fetchall()
        db.close()
        assert rows == [(f"u{user}", n) for user in range(3) for n in range(1, epochs * EVENTS // 3 + 1)]


def test_idempotent_function_may_run_twice(spark: SparkSession, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    env = environment(spark, tmp_path)
    counts = env.from_df(payments(spark)).key_by("user").count(uid="counts")

    def twice(frame: DataFrame, epoch: int) -> None:
        names["replace_epoch"](frame, epoch)
        names["replace_epoch"](frame, epoch)

    names: dict[str, Any] = {"__name__": "docs", "totals": None}
    exec(
        block("sinks.md", "def replace_epoch").split("totals.sink_to")[0].replace("result/", f"{tmp_path}/result/"),
        names,
    )
    counts.sink_to(ForeachEpochSink(twice), uid="result")
    env.execute("counts")
    assert spark.read.parquet(str(tmp_path / "result")).count() == EVENTS


def test_streams_page(spark: SparkSession, tmp_path: Path) -> None:
    """All programs of the page as one job."""
    env = environment(spark, tmp_path)
    rows = env.from_df(payments(spark))
    timed = rows.transform(lambda df: df.selectExpr("user", "amount AS number", "timestamp_seconds(amount) AS at"))
    names: dict[str, Any] = {
        "__name__": "docs",
        "payments": rows,
        "orders": timed,
        "clicks": timed.transform(lambda df: df.select("user", "at")),
        "paid": rows.transform(lambda df: df.withColumnRenamed("user", "payer")),
        "limits": rows.transform(lambda df: df.filter("amount = 0").selectExpr("'large' AS name", "55L AS amount")),
    }
    for holding in ("class Totals", "class Matched", "class Alerts", "class Batches", "class Delay"):
        exec(block("streams.md", holding), names)
    exec(block("streams.md", "with TwoInputHarness"), names)
    for name in ("totals", "large", "names", "matched", "alerts", "batches", "delays", "funnel"):
        names[name].sink_to(FileSink(str(tmp_path / name)), uid=f"to-{name}")
    env.execute("page")

    def written(name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / name)).collect())

    totals = written("totals")
    assert len(totals) == EVENTS - 1
    assert {user: max(t for u, t in totals if u == user) for user, _ in totals} == {
        f"u{user}": sum(range(user, EVENTS, 3)) for user in range(3)
    }
    large = sorted((f"u{n % 3}", n) for n in range(50, EVENTS))
    assert written("large") == large
    assert written("names") == sorted((user.upper(),) for user, _ in large)
    assert {user for user, _, _ in written("matched")} == {"u0", "u1", "u2"}
    assert written("alerts") == sorted((f"u{n % 3}", n) for n in range(56, EVENTS))
    assert len(written("batches")) == 6
    assert sum(total for (total,) in written("batches")) == sum(range(EVENTS))
    per_user = range(0, EVENTS, 3)
    assert [ms for user, ms in written("delays") if user == "u0"] == sorted(
        1000 * (b - a) for a in per_user for b in per_user if b >= a
    )
    funnel = written("funnel")
    assert len(funnel) == len(written("delays"))
    assert all(row[0] == row[2] for row in funnel)


def test_savepoints_page_reads_edits_and_bootstraps(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark, "F": F, "bootstrap_path": str(tmp_path / "boot"), "__name__": "docs"}
    exec("from cairn import Savepoint\n" + block("savepoints.md", "Savepoint.create"), names)
    names |= {"path": str(tmp_path / "boot"), "new_path": str(tmp_path / "new")}
    exec(block("savepoints.md", "Savepoint.load(spark, path) "), names)
    total = sum(range(1, 1000, 3))
    assert names["one"] == total
    assert len(names["top"].collect()) == 3
    assert names["timers"].count() == 0
    exec(block("savepoints.md", "doubled = totals"), names)
    assert names["edited"].lookup("totals", "sum", "u1") == 2 * total
    assert names["edited"].lookup("totals", "sum", "u2") is None
    register(spark)
    exec(block("savepoints.md", 'format("cairn")'), names)
    assert {row.user for row in names["frame"].collect()} == {"u0", "u1", "u2"}


def test_windows_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    """All programs of the page, over one epoch of payments and one that moves the watermark past them."""
    exec(block("windows.md", "class Count"), {"__name__": "docs"})
    for number, rows in enumerate(("(0),(30),(60),(400)", "(100000)", "(100001)")):
        frame = spark.sql(
            f"SELECT 'ann' AS user, 5L AS amount, timestamp_seconds(s) AS time FROM VALUES {rows} AS t(s)"
        )
        frame.coalesce(1).write.mode("append").parquet(str(tmp_path / f"in/{number}"))
    env = environment(spark, tmp_path)
    source = spark.readStream.schema("user string, amount bigint, time timestamp").option("maxFilesPerTrigger", 1)
    names: dict[str, Any] = {"env": env, "payments": source.parquet(str(tmp_path / "in/*")), "__name__": "docs"}
    exec(block("windows.md", "per_minute ="), names)
    exec(block("windows.md", "class Spent"), names)
    for name in ("per_minute", "visits", "late_payments"):
        names[name].sink_to(FileSink(str(tmp_path / name)), uid=f"to-{name}")
    env.execute("windows")

    def found(name: str) -> list[Any]:
        return sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / name)).collect())

    assert [(row[0], row[3]) for row in found("per_minute")] == [("ann", 10), ("ann", 5), ("ann", 5)]
    assert found("visits") == [("ann", 0, 360_000, 15), ("ann", 400_000, 700_000, 5)]
