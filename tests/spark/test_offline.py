"""The offline API on real Spark: snapshots read, compared, edited, made from batch data, and read as a data source."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.support.oracle import INPUT, numbered_rows, ship
from tests.support.patience import PATIENCE
from tests.support.spark_lab import Lab

from cairn import (
    CorruptFileError,
    InvalidInputError,
    JobStatus,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    NoopSink,
    NotFoundError,
    RuntimeContext,
    Savepoint,
    ValueStateDescriptor,
)
from cairn.model.keygroups import key_group
from cairn.snapshots.verification import verify_savepoint
from cairn.testing.faults import flip_bit

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("offline")]
ship(__name__)

ROWS = numbered_rows(120, 17, seed=5)
FAR = 10**15


class AllKinds(KeyedProcessFunction):
    """Keeps what it sees in every kind of state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "struct<seq:bigint,day:date>"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.parity = runtime_context.get_map_state(MapStateDescriptor("parity", "int", "bigint"))
        self.any = runtime_context.get_state(ValueStateDescriptor("any"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.amount)
        self.last.update((value.seq, dt.date(2024, 1, 1) + dt.timedelta(days=value.seq)))
        self.seen.add(value.seq)
        self.parity.put(value.seq % 2, (self.parity.get(value.seq % 2) or 0) + 1)
        self.any.update({"seq": value.seq})
        ctx.timer_service().register_processing_time_timer(FAR + value.seq)
        yield (value.key,)


class Model:
    """What the state must be."""

    def __init__(self, rows: list[Any]) -> None:
        self.seen: dict[str, list[int]] = {}
        self.total: dict[str, int] = {}
        for key, seq, amount in rows:
            self.seen.setdefault(key, []).append(seq)
            self.total[key] = self.total.get(key, 0) + amount

    def parity(self, key: str) -> dict[int, int]:
        odd = sum(seq % 2 for seq in self.seen[key])
        return {number: count for number, count in ((0, len(self.seen[key]) - odd), (1, odd)) if count}


@pytest.fixture(scope="module")
def job_dir(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job's directory with two checkpoints: chk-1 after the first half of the rows, chk-2 (full) after all."""
    lab = Lab(spark, tmp_path_factory.mktemp("offline"))
    env = lab.env(2, **{
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": 5,
        "execution.checkpointing.incremental": True,
    }).set_trigger(processing_time="0 seconds")  # fmt: skip
    lab.feed(ROWS[:60], files=3)
    stream = lab.stream(env, INPUT).key_by("key").process(AllKinds(), "key string", uid="kinds", name="All kinds")
    stream.sink_to(NoopSink(), uid="out")
    job = env.execute_async("kinds")
    for count, full in ((60, False), (120, True)):
        deadline = time.monotonic() + PATIENCE
        while sum(report.rows_in for report in job.epochs()) < count and job.status() is JobStatus.RUNNING:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        job.trigger_checkpoint(full=full)
        if count == 60:
            lab.feed(ROWS[60:], files=2)
    job.cancel()
    return str(job.directory)


@pytest.fixture(scope="module")
def savepoint(spark: SparkSession, job_dir: str, tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    """A savepoint written from chk-2."""
    return Savepoint.load(spark, f"{job_dir}/chk-2").write(str(tmp_path_factory.mktemp("sp") / "a [b] {c}"))


def rows(frame: DataFrame) -> list[Any]:
    return sorted(tuple(row) for row in frame.collect())


def check_all(snapshot: Savepoint, model: Model) -> None:
    assert [op.uid for op in snapshot.operators()] == ["kinds"]
    names = {state.name: state for state in snapshot.states("kinds")}
    assert set(names) == {"total", "last", "seen", "parity", "any", "_timers_processing"}
    assert [name for name, state in names.items() if state.pickled] == ["any"]
    total = snapshot.read_keyed_state("kinds", "total")
    assert total.columns == ["key", "key_group", "value"]
    assert rows(total) == sorted((k, key_group([k], ["string"], 16), v) for k, v in model.total.items())
    seen = snapshot.read_keyed_state("kinds", "seen").select("key", "position", "value")
    assert rows(seen) == sorted((k, i, seq) for k, found in model.seen.items() for i, seq in enumerate(found))
    parity = snapshot.read_keyed_state("kinds", "parity").select("key", "map_key", "value")
    assert rows(parity) == sorted((k, p, n) for k in model.seen for p, n in model.parity(k).items())
    last = snapshot.read_keyed_state("kinds", "last").select("key", "value.seq")
    assert rows(last) == sorted((k, found[-1]) for k, found in model.seen.items())
    timers = snapshot.read_timers("kinds", "processing").select("key", "timestamp")
    assert rows(timers) == sorted((k, FAR + seq) for k, found in model.seen.items() for seq in found)
    assert snapshot.read_timers("kinds", "event").count() == 0
    for key in ("k1", "k16"):
        assert snapshot.lookup("kinds", "total", key) == model.total[key]
        assert snapshot.lookup("kinds", "seen", key) == model.seen[key]
        assert snapshot.lookup("kinds", "parity", {"key": key}) == model.parity(key)
        assert snapshot.lookup("kinds", "last", key).day == dt.date(2024, 1, 1) + dt.timedelta(model.seen[key][-1])
        assert snapshot.lookup("kinds", "_timers_processing", key) == [FAR + seq for seq in model.seen[key]]
    assert snapshot.lookup("kinds", "total", "nobody") is None
    assert snapshot.lookup("kinds", "seen", "nobody") == []


def test_checkpoints_and_savepoints_read_alike(spark: SparkSession, job_dir: str, savepoint: Savepoint) -> None:
    check_all(Savepoint.load(spark, f"{job_dir}/chk-1"), Model(ROWS[:60]))
    check_all(Savepoint.load(spark, job_dir), Model(ROWS))
    check_all(savepoint, Model(ROWS))
    assert verify_savepoint(savepoint.path) == []
    assert [file.path for file in savepoint.metadata.sources], "the file source's log came along"
    assert savepoint.metadata.offsets


def test_pickles_stay_bytes_unless_they_are_allowed_by_name(spark: SparkSession, savepoint: Savepoint) -> None:
    raw = savepoint.lookup("kinds", "any", "k1")
    assert isinstance(raw, bytes)
    assert dict(savepoint.read_keyed_state("kinds", "any").dtypes)["value"] == "binary"
    allowed = Savepoint.load(spark, savepoint.path, allow_pickled=["kinds.any"])
    assert allowed.lookup("kinds", "any", "k1") == {"seq": Model(ROWS).seen["k1"][-1]}
    with pytest.raises(NotFoundError, match=r"allow_pickled names 'kinds\.other'"):
        Savepoint.load(spark, savepoint.path, allow_pickled=["kinds.other"])


def test_diff_tells_added_removed_and_changed(spark: SparkSession, job_dir: str, savepoint: Savepoint) -> None:
    before, after = Model(ROWS[:60]), Model(ROWS)
    first = Savepoint.load(spark, f"{job_dir}/chk-1")
    told = {row.state: (row.added, row.removed, row.changed) for row in first.diff(savepoint).collect()}
    new = set(after.total) - set(before.total)
    changed = {key for key in before.total if before.total[key] != after.total[key]}
    assert told["total"] == (len(new), 0, len(changed))
    assert told["seen"] == (60, 0, 0)
    assert told["_timers_processing"] == (60, 0, 0)
    found = rows(first.diff(savepoint, "kinds", "total"))
    assert found == sorted(
        [(key, "added", None, after.total[key]) for key in new]
        + [(key, "changed", before.total[key], after.total[key]) for key in changed],
        key=lambda row: row[:2],
    )
    assert {tuple(row)[2:] for row in savepoint.diff(Savepoint.load(spark, job_dir)).collect()} == {(0, 0, 0)}
    gone = savepoint.remove_state("kinds", "total").rename_operator("kinds", "other")
    counts = {(row.uid, row.state): (row.added, row.removed) for row in savepoint.diff(gone).collect()}
    assert counts["kinds", "total"] == (0, 17)
    assert counts["other", "seen"] == (120, 0)
    with pytest.raises(NotFoundError, match="neither"):
        savepoint.diff(gone, "nobody", "total")


def test_editing_with_spark_sql(spark: SparkSession, savepoint: Savepoint, tmp_path: Path) -> None:
    model = Model(ROWS)
    doubled = savepoint.read_keyed_state("kinds", "total").withColumn("value", F.col("value") * 2).filter("key <> 'k3'")
    longer = savepoint.read_keyed_state("kinds", "seen").filter("position % 2 = 0")
    edited = (
        savepoint.with_keyed_state("kinds", "total", doubled)
        .with_keyed_state("kinds", "seen", longer)
        .rename_operator("kinds", "renamed")
        .with_keyed_state("new-op", "flag", spark.range(5).selectExpr("id", "id > 2 AS value"), key_by="id")
    )
    assert edited.lookup("renamed", "total", "k1") == 2 * model.total["k1"], "an edit can be read before it is written"
    made = edited.write(str(tmp_path / "edited"))
    assert verify_savepoint(made.path) == []
    assert made.metadata.offsets == savepoint.metadata.offsets
    assert rows(made.read_keyed_state("renamed", "total").select("key", "value")) == sorted(
        (key, 2 * total) for key, total in model.total.items() if key != "k3"
    )
    assert made.lookup("renamed", "seen", "k1") == model.seen["k1"][::2], "positions only order: gaps are closed"
    assert made.lookup("renamed", "parity", "k1") == model.parity("k1"), "what was not edited is as it was"
    assert made.lookup("new-op", "flag", 4) is True
    assert [state.value_type for state in made.states("new-op")] == ["boolean"]
    untouched = {file.name for file in Path(savepoint.path, "tables/kinds/parity").iterdir()}
    assert {file.name for file in Path(made.path, "tables/renamed/parity").iterdir()} == untouched
    with pytest.raises(InvalidInputError, match="exists already"):
        edited.write(made.path)
    assert made.remove_operator("new-op").write(str(tmp_path / "less")).operators()[0].uid == "renamed"


def test_edits_that_cannot_be_state_are_refused_with_counts(
    spark: SparkSession, savepoint: Savepoint, tmp_path: Path
) -> None:
    good = savepoint.read_keyed_state("kinds", "total").select("key", "value")
    bad = good.union(good.filter("key = 'k1'")).union(spark.sql("SELECT null, 1L UNION ALL SELECT 'x', null"))
    with pytest.raises(InvalidInputError) as error:
        savepoint.with_keyed_state("kinds", "total", bad).write(str(tmp_path / "bad"))
    assert error.value.facts == {"null_keys": 1, "nulls": 1, "misfits": 0, "duplicates": 1}
    assert "1 rows have the key of another row" in error.value.message
    assert os.listdir(tmp_path) == [], "nothing is left behind"
    wide = spark.sql("SELECT 'a' AS key, 7L AS map_key, 1L AS value UNION ALL SELECT 'b', 1L << 40, 2L")
    with pytest.raises(InvalidInputError, match="1 rows have a number that does not fit its type"):
        savepoint.with_keyed_state("kinds", "parity", wide).write(str(tmp_path / "bad"))
    with pytest.raises(InvalidInputError, match="column 'value' has type string, and the state has bigint; cast it"):
        savepoint.with_keyed_state("kinds", "total", good.withColumn("value", F.lit("x")))
    with pytest.raises(InvalidInputError, match="no column 'map_key'"):
        savepoint.with_keyed_state("kinds", "parity", good)
    with pytest.raises(InvalidInputError, match="key_by"):
        savepoint.with_keyed_state("other", "total", good)
    with pytest.raises(InvalidInputError, match="cannot become a value of string"):
        savepoint.with_keyed_state("kinds", ValueStateDescriptor("total", "string"), good)
    for uid in ("../x", "/etc", "a/b", "", "x" * 200):
        with pytest.raises(InvalidInputError, match="cannot be used"):
            savepoint.with_keyed_state(uid, "total", good, key_by="key")


def test_bootstrap_from_batch_data(spark: SparkSession, tmp_path: Path) -> None:
    history = spark.range(1000).selectExpr("id % 100 AS user", "cast(id % 3 AS string) AS region", "id AS amount")
    totals = history.groupBy("user", "region").agg(F.sum("amount").alias("value"))
    pages = history.selectExpr("user", "region", "region AS map_key", "1.5D AS value").distinct()
    events = history.selectExpr("user", "region", "amount AS position", "named_struct('a', amount) AS value")
    made = (
        Savepoint.create(max_parallelism=32)
        .with_keyed_state("totals", "sum", totals, key_by=["user", "region"], name="Totals")
        .with_keyed_state("totals", "pages", pages)
        .with_keyed_state("totals", ListStateDescriptor("events", "struct<a:bigint>"), events)
        .with_keyed_state("totals", "_timers_event", history.selectExpr("user", "region", "amount AS timestamp"))
        .write(str(tmp_path / "boot"))
    )
    assert made.max_parallelism == 32
    assert made.lookup("totals", "sum", (7, "1")) == sum(i for i in range(1000) if i % 100 == 7 and i % 3 == 1)
    assert made.lookup("totals", "pages", (7, "1")) == {"1": 1.5}
    assert [e.a for e in made.lookup("totals", "events", (7, "1"))] == [
        i for i in range(1000) if i % 100 == 7 and i % 3 == 1
    ]
    assert made.lookup("totals", "_timers_event", {"user": 7, "region": "1"})[0] == 7
    assert [op.name for op in made.operators()] == ["Totals"]
    with pytest.raises(InvalidInputError, match="give 2 values, not 1"):
        made.lookup("totals", "sum", 7)
    assert made.lookup("totals", "sum", ("7", "1")) == made.lookup("totals", "sum", (7, "1"))  # text, as in commands
    with pytest.raises(InvalidInputError, match="user"):
        made.lookup("totals", "sum", ("seven", "1"))
    with pytest.raises(NotFoundError, match="did you mean 'totals'"):
        made.states("total")


def test_the_data_source_reads_savepoints_and_all_checkpoints(
    spark: SparkSession, job_dir: str, savepoint: Savepoint
) -> None:
    read = spark.read.format("cairn")
    found = read.option("uid", "kinds").option("state", "total").load(savepoint.path)
    assert rows(found.select("key", "value")) == sorted(Model(ROWS).total.items())
    over_time = read.option("state", "total").option("checkpoints", "all").load(job_dir)
    assert over_time.columns[0] == "checkpoint"
    assert rows(over_time.filter("key = 'k1'").select("checkpoint", "value")) == [
        (1, Model(ROWS[:60]).total["k1"]),
        (2, Model(ROWS).total["k1"]),
    ]
    with pytest.raises(Exception, match="name the state: operator 'kinds' has"):
        spark.read.format("cairn").load(savepoint.path).schema  # noqa: B018
    with pytest.raises(Exception, match="has no option stat"):
        spark.read.format("cairn").option("stat", "total").load(savepoint.path).schema  # noqa: B018


def test_damage_is_found_before_a_row_is_given(spark: SparkSession, savepoint: Savepoint, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(savepoint.path, copy)
    part = next((copy / "tables/kinds/total").iterdir())
    flip_bit(part, part.stat().st_size // 2)
    damaged = Savepoint.load(spark, str(copy))
    with pytest.raises(CorruptFileError, match="does not match its checksum"):
        damaged.read_keyed_state("kinds", "total")
    with pytest.raises(CorruptFileError, match="checksum"):
        damaged.diff(savepoint, "kinds", "total")
    with pytest.raises(CorruptFileError, match="checksum"):
        damaged.write(str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()


def test_keys_of_any_name_and_maps_inside_of_values(spark: SparkSession, tmp_path: Path) -> None:
    def made(entries: str) -> Savepoint:
        keys = spark.sql("select cast(0.1 as float) `my key`, 1L value")
        nested = f"named_struct('m', map({entries}), 'l', array(map('z', map({entries}))), 'n', cast(null as int))"
        values = spark.sql(f"select k, {nested} value from values ('a'), ('b') as t(k)")
        both = Savepoint.create(16).with_keyed_state("floats", "s", keys, key_by="my key")
        return both.with_keyed_state("nested", "s", values, key_by="k")

    edit = made("'x', 1, 'y', 2")
    assert edit.lookup("floats", "s", 0.1) == 1, "before it is written"
    written = edit.write(str(tmp_path / "sp"))
    assert written.lookup("floats", "s", {"my key": 0.1}) == 1
    assert written.operators()[0].key_type == "`my key` float"
    assert [row["my key"] for row in written.read_keyed_state("floats", "s").collect()] == [pytest.approx(0.1)]
    counted = rows(written.diff(made("'y', 2, 'x', 1")))  # entries of a map have no order
    assert counted == [("floats", "s", 0, 0, 0), ("nested", "s", 0, 0, 0)]
    assert rows(written.diff(made("'x', 1, 'y', 3"), "nested", "s").select("k", "change")) == [
        ("a", "changed"), ("b", "changed"),
    ]  # fmt: skip
