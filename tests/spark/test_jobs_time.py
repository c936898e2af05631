"""Timers and time to live in running jobs, with and without data that moves time on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.support import patience as waits
from tests.support.oracle import ship
from tests.support.patience import PATIENCE
from tests.support.spark_lab import Lab

from cairn import (
    FileSink,
    JobHandle,
    JobStatus,
    KeyedProcessFunction,
    NoopSink,
    RuntimeContext,
    StateTtlConfig,
    Time,
    TimeDomain,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark
ship(__name__)

COLUMNS = "key string, second bigint"
OUTPUT = "key string, fired bigint, count bigint, domain string"
Fired = tuple[str, int, int, str]


class Sessions(KeyedProcessFunction):
    """Counts rows per key; five seconds of event time after the last row it emits the count and starts anew."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.count.update((self.count.value() or 0) + 1)
        before = self.timer.value()
        if before is not None:
            ctx.timer_service().delete_event_time_timer(before)
        timestamp = ctx.timestamp()
        assert timestamp is not None
        assert timestamp == value.second * 1000
        self.timer.update(timestamp + 5000)
        ctx.timer_service().register_event_time_timer(timestamp + 5000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Fired]:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        assert ctx.timer_service().current_watermark() >= timestamp
        yield ctx.get_current_key(), timestamp, self.count.value(), "event"
        self.count.clear()
        self.timer.clear()


class Later(KeyedProcessFunction):
    """Says once, a moment after the first row of a key, how many rows it has seen."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        if self.count.value() is None:
            service = ctx.timer_service()
            service.register_processing_time_timer(service.current_processing_time() + 1)
            service.register_processing_time_timer(service.current_processing_time() + 1)
        self.count.update((self.count.value() or 0) + 1)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Fired]:
        assert ctx.time_domain() is TimeDomain.PROCESSING_TIME
        yield ctx.get_current_key(), 0, self.count.value(), "processing"


def start(lab: Lab, function: KeyedProcessFunction, available_now: bool) -> JobHandle:
    env = lab.env()
    if not available_now:
        env.set_trigger(processing_time="100 milliseconds")
    frame = lab.source(COLUMNS).withColumn("ts", F.timestamp_seconds("second")).withWatermark("ts", "0 seconds")
    fired = env.from_df(frame).key_by("key").process(function, OUTPUT, uid="timers")
    fired.sink_to(FileSink(str(lab.output)), uid="out")
    return env.execute_async("timers")


def until(lab: Lab, job: JobHandle, count: int) -> list[Any]:
    deadline = time.monotonic() + PATIENCE
    while len(lab.written()) < count:
        assert job.status() is JobStatus.RUNNING, job.exception()
        assert time.monotonic() < deadline, lab.written()
        time.sleep(0.1)
    return lab.written()


def test_event_time_timers_follow_the_watermark(lab: Lab) -> None:
    lab.feed_file([("a", 10), ("a", 12), ("b", 13)], COLUMNS)
    lab.feed_file([("c", 30)], COLUMNS)
    lab.feed_file([("c", 31)], COLUMNS)  # the watermark of this epoch is 30: a and b are over
    lab.feed_file([("a", 32)], COLUMNS)
    start(lab, Sessions(), available_now=True).await_termination()
    assert lab.written() == [("a", 17_000, 2, "event"), ("b", 18_000, 1, "event")]
    lab.feed_file([("d", 60)], COLUMNS)
    lab.feed_file([("d", 61)], COLUMNS)
    start(lab, Sessions(), available_now=True).await_termination()
    assert lab.written() == [
        ("a", 17_000, 2, "event"),
        ("a", 37_000, 1, "event"),
        ("b", 18_000, 1, "event"),
        ("c", 36_000, 2, "event"),
    ]


def test_time_goes_on_when_no_data_arrives(lab: Lab) -> None:
    """The watermark that the last file moved reaches its timers without another file, and each fires once."""
    lab.feed_file([("a", 10), ("b", 100)], COLUMNS)
    job = start(lab, Sessions(), available_now=False)
    assert until(lab, job, 1) == [("a", 15_000, 1, "event")]
    time.sleep(0.5)
    lab.feed_file([("c", 200)], COLUMNS)
    assert until(lab, job, 2) == [("a", 15_000, 1, "event"), ("b", 105_000, 1, "event")]
    epochs = len(job.epochs())
    waits.until(lambda: len(job.epochs()) > epochs)
    job.cancel()
    assert len(lab.written()) == 2


def test_processing_time_timers(lab: Lab) -> None:
    lab.feed_file([("a", 1), ("a", 2), ("b", 3)], COLUMNS)
    job = start(lab, Later(), available_now=False)
    assert until(lab, job, 2) == [("a", 0, 2, "processing"), ("b", 0, 1, "processing")]
    job.cancel()
    again = start(lab, Later(), available_now=False)
    waits.until(lambda: len(again.epochs()) >= 2)
    again.cancel()
    assert len(lab.written()) == 2, "a timer fired twice"


def test_timers_survive_a_restart_at_other_parallelism(lab: Lab) -> None:
    lab.feed_file([(f"k{i}", 10) for i in range(20)], COLUMNS)
    start(lab, Sessions(), available_now=True).await_termination()
    assert lab.written() == []
    lab.feed_file([("late", 100)], COLUMNS)
    lab.feed_file([("late", 101)], COLUMNS)
    env = lab.env(parallelism=3)
    frame = lab.source(COLUMNS).withColumn("ts", F.timestamp_seconds("second")).withWatermark("ts", "0 seconds")
    fired = env.from_df(frame).key_by("key").process(Sessions(), OUTPUT, uid="timers")
    fired.sink_to(FileSink(str(lab.output)), uid="out")
    env.execute("timers")
    assert lab.written() == sorted((f"k{i}", 15_000, 1, "event") for i in range(20))


class Expiring(KeyedProcessFunction):
    """One value that lives for a millisecond, one for an hour."""

    def open(self, runtime_context: RuntimeContext) -> None:
        short = ValueStateDescriptor("short", "bigint")
        short.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(1)).build())
        long = ValueStateDescriptor("long", "bigint")
        long.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.short = runtime_context.get_state(short)
        self.long = runtime_context.get_state(long)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
        self.short.update((self.short.value() or 0) + 1)
        self.long.update((self.long.value() or 0) + 1)
        yield value.key, self.short.value(), self.long.value()


def test_time_to_live(lab: Lab) -> None:
    for _ in range(3):
        lab.feed_file([("a", 1), ("a", 2)], COLUMNS)
    env = lab.env()
    stream = env.from_df(lab.source(COLUMNS)).key_by("key")
    got = lab.run(stream.process(Expiring(), "key string, short bigint, long bigint", uid="ttl"))
    assert got == [("a", 1, 1), ("a", 1, 3), ("a", 1, 5), ("a", 2, 2), ("a", 2, 4), ("a", 2, 6)]


class Rearms(KeyedProcessFunction):
    """A timer that registers itself again for the same and for a past time must not keep an epoch from ending."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_processing_time_timer(1)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[int]]:
        ctx.timer_service().register_processing_time_timer(timestamp)
        yield (timestamp,)


def test_timer_that_rearms_itself(lab: Lab) -> None:
    for _ in range(4):
        lab.feed_file([("a", 1)], COLUMNS)
    env = lab.env()
    fired = env.from_df(lab.source(COLUMNS)).key_by("key").process(Rearms(), "at bigint", uid="rearms")
    fired.sink_to(FileSink(str(lab.output)), uid="out")
    env.from_df(lab.source(COLUMNS)).sink_to(NoopSink())
    env.execute("rearms")
    assert lab.written() == [(1,), (1,), (1,)]
