"""Savepoints of real jobs: taken while they run, stopped with, restored with other code, parallelism and places."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from tests.support.checkpoint_lab import outputs, processed, running
from tests.support.oracle import INPUT, OUTPUT, Oracle, expected, numbered_rows, ship
from tests.support.patience import PATIENCE, until
from tests.support.spark_lab import Lab

from cairn import (
    CheckpointFailedError,
    CheckpointStatus,
    CheckpointType,
    CorruptFileError,
    FileSink,
    IncompatibleStateError,
    InvalidInputError,
    JobHandle,
    JobStatus,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    NoopSink,
    RuntimeContext,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from cairn.events import PROCESS_EVENTS, StateMoved
from cairn.snapshots.verification import verify_savepoint
from cairn.spark.logical_plan import source_names
from cairn.storage.savepoint_folder import read_savepoint

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(240, 19, seed=5)
FROM = "execution.state-recovery.path"


def tables(path: str) -> dict[str, list[Any]]:
    """All rows of a savepoint, by state, read as plain Parquet."""
    found: dict[str, list[Any]] = {}
    for operator in read_savepoint(path).operators:
        for table in operator.tables:
            rows: list[Any] = []
            for file in table.files:
                rows += [tuple(row.values()) for row in pq.read_table(f"{path}/{file.path}").to_pylist()]
            found[f"{operator.uid}.{table.spec.name}"] = sorted(rows, key=repr)
    return found


def test_a_savepoint_beside_the_stream_starts_other_jobs_at_any_parallelism(lab: Lab) -> None:
    """J1, J6, J9, J13, F11, F12: 2 to 7 to 3, other backends, a copy of the folder, the original deleted."""
    lab.feed(ROWS[:80], files=2)
    job = running(lab)
    processed(job, 80)
    made = job.trigger_savepoint(str(lab.folder / "sp"))
    assert (made.type, made.status, made.epoch) == (CheckpointType.SAVEPOINT, CheckpointStatus.COMPLETED, 1)
    held = [table for operator in read_savepoint(made.path).operators for table in operator.tables]
    assert sum(table.size for table in held) == made.written_bytes == made.full_bytes < made.savepoint_bytes
    assert all(0 < subtask.async_ms <= made.duration_ms for subtask in made.operators[0].subtasks)
    lab.feed(ROWS[80:160], files=2)
    processed(job, 160)
    again = job.trigger_savepoint(str(lab.folder / "sp"), request_id="mine")
    assert job.trigger_savepoint(str(lab.folder / "sp"), request_id="mine").path == again.path, "C11"
    assert [info.id for info in job.checkpoints()] == [2, 1]
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS[:160])
    assert verify_savepoint(made.path) == []
    assert len(list((lab.folder / "sp").iterdir())) == 2

    moved = str(lab.folder / "elsewhere" / "copy")
    shutil.copytree(made.path, moved)
    shutil.rmtree(made.path)
    steps: list[StateMoved] = []
    PROCESS_EVENTS.subscribe(StateMoved, steps.append)
    seven = running(lab, "seven", 7, **{FROM: moved, "state.backend.type": "hashmap"})
    PROCESS_EVENTS.unsubscribe(steps.append)
    assert all(step.done <= step.total for step in steps)
    assert steps[-1].done == steps[-1].total > 0, "who watches a restore hears of its end"
    beside = running(lab, "beside", 1, **{FROM: moved})
    processed(seven, 80)
    processed(beside, 80)
    beside.cancel()
    stopped = seven.stop_with_savepoint(str(lab.folder / "sp"))
    assert seven.status() is JobStatus.FINISHED
    shutil.rmtree(moved)
    late = expected(ROWS[:160])
    early = expected(ROWS[:80])
    assert outputs(lab, "seven") == outputs(lab, "beside") == sorted(set(late) - set(early))

    lab.feed(ROWS[160:200])
    three = running(lab, "three", 3, **{FROM: stopped.path, "state.backend.type": "rocksdb"})
    at_once = three.trigger_savepoint(str(lab.folder / "sp"), request_id="at-once")
    processed(three, 40)
    three.cancel()
    assert outputs(lab, "three") == sorted(set(expected(ROWS[:200])) - set(late))
    if at_once.epoch == read_savepoint(stopped.path).epoch + 1:
        assert tables(at_once.path) == tables(stopped.path), "nothing changed, so the tables are equal"
    plain = running(lab, "three", 2)
    lab.feed(ROWS[200:])
    processed(plain, 40)
    plain.cancel()
    assert outputs(lab, "three") == sorted(set(expected(ROWS)) - set(late))


def test_stop_and_start_again_in_place_from_the_savepoint(lab: Lab) -> None:
    lab.feed(ROWS[:80], files=2)
    job = running(lab, execution__checkpointing__savepoint_dir=str(lab.folder / "sp"))
    processed(job, 80)
    info = job.stop_with_savepoint()
    assert job.await_termination(PATIENCE)
    assert job.status() is JobStatus.FINISHED
    assert not list((lab.jobs / "oracle" / "stopping").glob("*"))
    with pytest.raises(CheckpointFailedError, match="not running"):
        job.stop_with_savepoint()
    lab.feed(ROWS[80:160], files=2)
    job = running(lab, parallelism=5, **{FROM: info.path})
    processed(job, 80)
    newest = job.epochs()[-1].epoch
    assert newest > info.epoch + 1, "epoch ids go on growing"
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS[:160]), "every row once: nothing lay after the savepoint"
    goes_on = {FROM: info.path, "cairn.restore.again": False}
    job = running(lab, **goes_on)  # the same command, as a supervisor would repeat it
    lab.feed(ROWS[160:200])
    processed(job, 40)
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS[:200])
    back = {FROM: info.path}
    job = running(lab, **back)
    processed(job, 120)
    job.cancel()
    replayed = [row for row in expected(ROWS[:200]) if row not in expected(ROWS[:80])]
    assert outputs(lab, "oracle") == sorted(expected(ROWS[:200]) + replayed), "a roll-back shows the rows again"
    (lab.input / max(p.name for p in lab.input.iterdir())).unlink()
    with pytest.raises(CorruptFileError, match="1 file"):  # J8
        running(lab, **back)


def test_without_a_directory_nothing_is_written(lab: Lab) -> None:
    lab.feed(ROWS[:40])
    job = running(lab)
    processed(job, 40)
    with pytest.raises(InvalidInputError, match="savepoint-dir"):
        job.trigger_savepoint()
    (lab.folder / "file").write_text("in the way")
    with pytest.raises(CheckpointFailedError):
        job.stop_with_savepoint(str(lab.folder / "file"))
    lab.feed(ROWS[40:80])
    processed(job, 80)
    assert job.status() is JobStatus.RUNNING, "a savepoint that fails leaves the job alone"
    job.cancel()


class Before(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "struct<n:int,old:string>"))
        self.parts = runtime_context.get_list_state(ListStateDescriptor("parts", "int"))
        self.by_day = runtime_context.get_map_state(MapStateDescriptor("by day", "string", "int"))
        self.plain = runtime_context.get_state(ValueStateDescriptor("plain", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n = (self.seen.value() or (0, ""))[0] + 1
        self.seen.update((n, "x"))
        self.parts.add(value.amount)
        self.by_day.put(f"d{value.seq % 3}", n)
        self.plain.update((self.plain.value() or 0) + value.amount)
        yield (value.key, n, 0)


class After(KeyedProcessFunction):
    """The same with other types, a renamed state, TTL, a default, and timers."""

    def open(self, runtime_context: RuntimeContext) -> None:
        seen = ValueStateDescriptor(
            "seen", "struct<n:bigint,kind:string,t:timestamp>", field_defaults={"kind": "migrated"}
        )
        self.seen = runtime_context.get_state(seen)
        parts = ListStateDescriptor("parts", "bigint")
        parts.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.parts = runtime_context.get_list_state(parts)
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", "string", "double"))
        self.plain = runtime_context.get_state(ValueStateDescriptor("plain", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        n, kind, t = self.seen.value() or (0, "new", None)
        self.seen.update((n + 1, kind, t))
        self.parts.add(value.amount)
        days = sum(int(count) for count in self.days.values())
        yield (value.key, n + 1, kind, sum(self.parts), days, self.plain.value() or 0)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield (ctx.get_current_key(), -1, "timer", 0, 0, 0)


def started(
    lab: Lab, name: str, function: Any, output: str, uid: Any = "op", extra: Any = False, **config: Any
) -> JobHandle:
    options = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
    env = lab.env(3, **options).set_trigger(processing_time="0 seconds")
    keyed = lab.stream(env).key_by("key")
    keyed.process(function, output, uid=uid).sink_to(FileSink(str(lab.folder / f"output-{name}")), uid="out")
    if extra:
        again = lab.spark.readStream.schema(INPUT).option("cairn.source", "extra").json(str(lab.input))
        env.from_df(again).key_by("key").count(uid="extra").sink_to(NoopSink(), uid="noop")
    return env.execute_async(name)


def test_other_code_and_other_types(lab: Lab) -> None:
    """F9, G4: renamed uid and state, fields gained and lost, numbers widened, TTL on, timers and a source added."""
    rows = ROWS[:60]
    lab.feed(rows)
    job = started(lab, "before", Before(), "key string, n int, total int")
    processed(job, 60)
    info = job.stop_with_savepoint(str(lab.folder / "sp"))
    lab.feed(ROWS[60:120])
    output = "key string, n bigint, kind string, parts bigint, days bigint, plain bigint"
    renames = {"op": "renamed", "op.by day": "op.days"}
    with pytest.raises(IncompatibleStateError, match="holds state of 'op'"):  # F10
        started(lab, "after", After(), output, uid="renamed", **{FROM: info.path})
    assert not (lab.jobs / "after").exists(), "a refused restore creates nothing"
    options: dict[str, Any] = {FROM: info.path, "cairn.restore.renames": renames}
    job = started(lab, "after", After(), output, uid="renamed", extra=True, **options)
    processed(job, 60)
    job.cancel()
    state: dict[str, dict[str, Any]] = {}
    for key, seq, amount in rows:
        mine = state.setdefault(key, {"n": 0, "parts": 0, "days": {}, "plain": 0})
        mine["n"] += 1
        mine["parts"] += amount
        mine["plain"] += amount
        mine["days"][f"d{seq % 3}"] = mine["n"]
    wanted = []
    for key, _, amount in ROWS[60:120]:
        kind = "migrated" if key in state and "made" not in state[key] else "new"
        mine = state.setdefault(key, {"n": 0, "parts": 0, "days": {}, "plain": 0, "made": True})
        mine["n"] += 1
        mine["parts"] += amount
        wanted.append((key, mine["n"], kind, mine["parts"], sum(mine["days"].values()), mine["plain"]))
    assert outputs(lab, "after") == sorted(wanted)

    job = started(lab, "after", After(), output, uid="renamed", extra=True)
    until(lambda: len(job.epochs()) > 0)
    back = job.stop_with_savepoint(str(lab.folder / "sp")).path
    options = {FROM: back, "cairn.restore.renames": {"renamed": "op", "renamed.days": "op.by day"}}
    options["execution.state-recovery.ignore-unclaimed-state"] = True
    with pytest.raises(IncompatibleStateError, match="bigint cannot become int: it is narrower") as refused:
        started(lab, "back", Before(), "key string, n int, total int", **options)
    assert "n: bigint" in refused.value.message, "both types are shown"


class Alarm(KeyedProcessFunction):
    """Registers an event-time timer far ahead for each row; on it, one more that is later still, twice."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.left = runtime_context.get_state(ValueStateDescriptor("left", "int"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.left.update(2)
        ctx.timer_service().register_event_time_timer(4_000_000_000_000)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        left = self.left.value()
        if left:
            self.left.update(left - 1)
            ctx.timer_service().register_event_time_timer(timestamp + 1)
        yield (ctx.get_current_key(), timestamp)


@pytest.mark.parametrize("drain", [True, False])
def test_drain_fires_what_is_left_of_event_time(lab: Lab, drain: bool) -> None:
    lab.feed(ROWS[:40])
    env = lab.env(2).set_trigger(processing_time="0 seconds")
    frame = lab.source().withColumn("t", F.timestamp_millis(F.col("seq"))).withWatermark("t", "1 second")
    alarms = env.from_df(frame).key_by("key").process(Alarm(), "key string, at bigint", uid="alarm")
    alarms.sink_to(FileSink(str(lab.folder / "output-alarm")), uid="out")
    job = env.execute_async("alarm")
    processed(job, 40)
    info = job.stop_with_savepoint(str(lab.folder / "sp"), drain=drain)
    assert job.status() is JobStatus.FINISHED
    keys = {row[0] for row in ROWS[:40]}
    fired = sorted((key, 4_000_000_000_000 + n) for key in keys for n in range(3))
    assert outputs(lab, "alarm") == (fired if drain else [])
    metadata = read_savepoint(info.path)
    assert metadata.drained == drain
    assert len(tables(info.path).get("alarm._timers.event", [])) == (0 if drain else len(keys))


def test_requests_at_the_same_moment(lab: Lab) -> None:
    """E9."""
    lab.feed(ROWS[:80])
    job = running(lab)
    processed(job, 80)
    made: list[Any] = []

    def take(number: int) -> None:
        made.append(job.trigger_savepoint(str(lab.folder / "sp"), request_id=f"r{number}"))

    threads = [threading.Thread(target=take, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    job.cancel()
    assert len({info.path for info in made}) == 3
    first, *others = (tables(info.path) for info in made)
    assert all(other == first for other in others)


def test_a_claimed_savepoint_goes_when_newer_checkpoints_exist(lab: Lab) -> None:
    """J9 with claiming."""
    lab.feed(ROWS[:40])
    job = running(lab)
    processed(job, 40)
    info = job.stop_with_savepoint(str(lab.folder / "sp"))
    claim = {FROM: info.path, "execution.state-recovery.claim-mode": "CLAIM", "execution.checkpointing.num-retained": 2}
    owner = running(lab, "owner", **claim)
    lab.feed(ROWS[40:80])
    processed(owner, 40)
    with pytest.raises(InvalidInputError, match="claimed by job 'owner'"):
        running(lab, "second", **{FROM: info.path})
    owner.trigger_checkpoint()
    assert Path(info.path).exists()
    owner.trigger_checkpoint()
    until(lambda: not Path(info.path).exists())
    owner.cancel()
    again = running(lab, "owner")
    lab.feed(ROWS[80:120])
    processed(again, 40)
    again.cancel()
    assert outputs(lab, "owner") == sorted(set(expected(ROWS[:120])) - set(expected(ROWS[:40])))


class Keyed(Oracle):
    pass


def test_another_key_type_and_too_many_subtasks(lab: Lab) -> None:
    """G5, J2, J3."""
    lab.feed(ROWS[:40])
    job = running(lab)
    processed(job, 40)
    info = job.stop_with_savepoint(str(lab.folder / "sp"))
    env = lab.env(2, **{FROM: info.path})
    lab.stream(env).key_by("seq").process(Keyed(), OUTPUT, uid="oracle").sink_to(NoopSink(), uid="out")
    with pytest.raises(IncompatibleStateError, match=r"keyed by \(key string\), the job keys by \(seq bigint\)"):
        env.execute("other")
    with pytest.raises(InvalidInputError, match="17"):
        running(lab, "wide", 17, **{FROM: info.path})
    with pytest.raises(IncompatibleStateError, match="16 key groups, this job requests 32"):
        running(lab, "groups", **{FROM: info.path, "pipeline.max-parallelism": 32})
    open_groups = running(lab, "open", **{FROM: info.path, "pipeline.max-parallelism": -1})
    assert read_savepoint(open_groups.stop_with_savepoint(str(lab.folder / "sp")).path).max_parallelism == 16


class CounterReader(SimpleDataSourceStreamReader):
    """Three numbers a batch, without end."""

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> Any:
        end = {"n": start["n"] + 3}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Any:
        return iter([(n,) for n in range(start["n"], end["n"])])


class Counter(DataSource):
    @classmethod
    def name(cls) -> str:
        return "counter"

    def schema(self) -> str:
        return "value bigint"

    def simpleStreamReader(self, schema: Any) -> CounterReader:
        return CounterReader()


def test_positions_of_generated_and_python_sources(lab: Lab) -> None:
    """Both go on exactly where the savepoint was taken, also when they change places."""
    lab.spark.dataSource.register(Counter)

    def start(name: str, order: list[str], **config: Any) -> JobHandle:
        env = lab.env(2, **config).set_trigger(processing_time="0 seconds")
        rate = lab.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
        frames = {
            "rate": rate.selectExpr("'rate' AS key", "value"),
            "counter": lab.spark.readStream.format("counter").load().selectExpr("'counter' AS key", "value"),
        }
        first, second = (frames[which] for which in order)
        counted = env.from_df(first.union(second)).key_by("key").process(Numbers(), "key string, n bigint", uid="n")
        counted.sink_to(FileSink(str(lab.folder / f"output-{name}")), uid="out")
        return env.execute_async(name)

    job = start("one", ["rate", "counter"])
    until(lambda: len(job.epochs()) >= 3)
    path = job.stop_with_savepoint(str(lab.folder / "sp")).path
    assert [name.partition("{")[0] for name in read_savepoint(path).source_names] == ["rate-micro-batch", "counter"]
    rates = [lab.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", n).load() for n in (4, 5)]
    assert source_names(rates[0].union(rates[1])) == source_names(rates[1].union(rates[0]))[::-1]
    assert source_names(rates[0]) != source_names(rates[1])
    lab.input.mkdir(parents=True, exist_ok=True)
    named = lab.spark.readStream.schema("n bigint").option("cairn.source", "lines").json(os.path.relpath(lab.input))
    assert source_names(named) == [f"FileSource[{lab.input}]{{lines}}"]
    job = start("two", ["counter", "rate"], **{FROM: path})
    until(lambda: len(job.epochs()) >= 3)
    job.stop_with_savepoint(str(lab.folder / "sp"))
    for key in ("rate", "counter"):
        before = [n for k, n in outputs(lab, "one") if k == key]
        after = [n for k, n in outputs(lab, "two") if k == key]
        assert before == list(range(len(before)))
        assert after == list(range(len(before), len(before) + len(after)))
        assert after


class Numbers(KeyedProcessFunction):
    """Counts the rows of each source: the n-th row must not have been seen before."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        yield (value.key, value.value)
