"""Programs as PyFlink users write them, 1 to 5: the functions as they are, imports from cairn, the known results."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.oracle import ship, write_file
from tests.support.spark_lab import Lab, collection

from cairn import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FileSink,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from cairn.coordinator.offset_log import LocalOffsets
from cairn.testing import KeyedProcessHarness

pytestmark = pytest.mark.spark
ship(__name__)


SUMS = [("Alice", 110.1), ("Bob", 30.2), ("Alice", 20.0), ("Bob", 53.1), ("Alice", 13.1), ("Bob", 3.1), ("Bob", 16.1),
        ("Alice", 20.1)]  # fmt: skip
HI = [(1, "hi"), (2, "hello"), (3, "hi"), (4, "hello"), (5, "hi"), (6, "hello")]


class Sum(KeyedProcessFunction):
    def __init__(self) -> None:
        self.state: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        state_descriptor = ValueStateDescriptor("state", Types.FLOAT())
        state_ttl_config = (
            StateTtlConfig.new_builder(Time.seconds(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .disable_cleanup_in_background()
            .build()
        )
        state_descriptor.enable_time_to_live(state_ttl_config)
        self.state = runtime_context.get_state(state_descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        # retrieve the current count
        current = self.state.value()
        if current is None:
            current = 0
        # update the state's count
        current += value[1]
        self.state.update(current)
        yield value[0], current


class SumOnTimer(Sum):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        for _ in super().process_element(value, ctx):
            pass
        # register an event time timer 2 seconds later
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2000)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.state.value()


def test_1_state_access(lab: Lab) -> None:
    env = lab.env()
    rows = collection(lab, env, SUMS, "name string, amount double")
    found = lab.run(rows.key_by("name").process(Sum(), "name string, total double", uid="sum"))
    want = [("Alice", 110.1), ("Alice", 130.1), ("Alice", 143.2), ("Alice", 163.3),
            ("Bob", 30.2), ("Bob", 83.3), ("Bob", 86.4), ("Bob", 102.5)]  # fmt: skip
    assert [name for name, _ in found] == [name for name, _ in want]
    assert [total for _, total in found] == pytest.approx([total for _, total in want], rel=1e-6)


TIMES = [1000, 2000, 1500, 2500, 4000, 3000, 3500, 5000]


def check_program_2(found: list[Any]) -> None:
    """One output per row, in the order of the timers, each with the final sum of its key."""
    by_time = sorted(zip(TIMES, SUMS, strict=True))
    assert [name for name, _ in found] == [name for _, (name, _) in by_time]
    finals = {"Alice": 163.3, "Bob": 102.5}
    assert [total for _, total in found] == pytest.approx([finals[name] for name, _ in found], rel=1e-6)


def test_2_event_time_timer_without_spark() -> None:
    """Timers, disorder and TTL together; time is given, since the TTL is that of the wall clock."""
    with KeyedProcessHarness(
        SumOnTimer(), "name", "name string, amount double, ts timestamp", "name string, total double", event_time="ts"
    ) as harness:
        for (name, amount), ms in zip(SUMS, TIMES, strict=True):
            harness.push((name, amount, dt.datetime.fromtimestamp(ms / 1000, dt.UTC)))
        assert harness.run_epoch() == []
        harness.advance_watermark((1 << 63) - 1)
        harness.advance_processing_time(999)
        check_program_2(harness.run_epoch())


def test_2_event_time_timer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes a little forward with each epoch, however slow the machine is: the TTL is a second. A row that is
    far ahead takes the place of the watermark that a source in Flink sends when it ends.
    """
    read = LocalOffsets.read
    monkeypatch.setattr(
        LocalOffsets, "read", lambda self, epoch: replace(read(self, epoch), time_ms=1_000_000 + 400 * epoch)
    )
    columns = "name string, amount double, ms bigint"
    rows = [(name, amount, ms) for (name, amount), ms in zip(SUMS, TIMES, strict=True)]
    for number, portion in enumerate((rows, [("~", 0.0, 1_000_000)], [])):
        write_file(lab.folder / "rows", number, portion, columns)
    env = lab.env(parallelism=1)
    reader = lab.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(lab.folder / "rows"))
    timed = env.from_df(reader.selectExpr("*", "timestamp_millis(ms) AS ts")).with_watermark("ts", Time.seconds(2))
    timed.key_by("name").process(SumOnTimer(), "name string, total double", uid="sum").sink_to(
        FileSink(str(lab.folder / "sums")), uid="out"
    )
    env.execute("timers")
    parts = sorted((lab.folder / "sums").glob("part-*"))  # one of each epoch
    check_program_2([tuple(row.values()) for part in parts for row in pq.read_table(part).to_pylist()])


class CountWindowAverage(FlatMapFunction):
    def __init__(self) -> None:
        self.sum: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor("average", Types.PICKLED_BYTE_ARRAY())
        self.sum = runtime_context.get_state(descriptor)

    def flat_map(self, value: Any) -> Iterator[Any]:
        # access the state value
        current_sum = self.sum.value()
        if current_sum is None:
            current_sum = (0, 0)
        # update the count
        current_sum = (current_sum[0] + 1, current_sum[1] + value[1])
        # if the count reaches 2, emit the average and clear the state
        if current_sum[0] >= 2:
            self.sum.clear()
            yield value[0], int(current_sum[1] / current_sum[0])
        else:
            self.sum.update(current_sum)


def test_3_count_window_average(lab: Lab) -> None:
    env = lab.env()
    rows = collection(lab, env, [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)], "k bigint, v bigint")
    averages = rows.key_by("k").flat_map(CountWindowAverage(), Types.TUPLE([Types.LONG(), Types.LONG()]), uid="avg")
    assert lab.run(averages) == [(1, 4), (1, 5)]


class ReportsState(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.value_state = runtime_context.get_state(ValueStateDescriptor("value_state", Types.INT()))
        self.list_state = runtime_context.get_list_state(ListStateDescriptor("list_state", Types.INT()))
        map_state_descriptor = MapStateDescriptor("map_state", Types.INT(), Types.STRING())
        state_ttl_config = (
            StateTtlConfig.new_builder(Time.seconds(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
            .disable_cleanup_in_background()
            .build()
        )
        map_state_descriptor.enable_time_to_live(state_ttl_config)
        self.map_state = runtime_context.get_map_state(map_state_descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        current_value = self.value_state.value()
        self.value_state.update(value[0])
        current_list = list(self.list_state.get())
        self.list_state.add(value[0])
        map_entries = dict(self.map_state.items())
        keys = sorted(map_entries.keys())
        map_entries_string = [str(k) + ": " + str(map_entries[k]) for k in keys]
        map_entries_string = "{" + ", ".join(map_entries_string) + "}"  # type: ignore[assignment]
        self.map_state.put(value[0], value[1])
        current_key = ctx.get_current_key()
        yield (
            f"current key: {current_key}, current value state: {current_value}, current list state: {current_list}, "
            f"current map state: {map_entries_string}, current value: {tuple(value)}"
        )


def test_4_keyed_process_function_with_state(lab: Lab) -> None:
    env = lab.env()
    rows = collection(lab, env, [*HI, (6, "hello")], "f0 int, f1 string")
    keyed = rows.key_by(lambda value: value[1], key_type=Types.STRING())
    found = lab.run(keyed.process(ReportsState(), Types.STRING(), uid="states"))
    want = [
        ("hello", "None", "[]", "{}", (2, "hello")),
        ("hello", "2", "[2]", "{2: hello}", (4, "hello")),
        ("hello", "4", "[2, 4]", "{2: hello, 4: hello}", (6, "hello")),
        ("hello", "6", "[2, 4, 6]", "{2: hello, 4: hello, 6: hello}", (6, "hello")),
        ("hi", "None", "[]", "{}", (1, "hi")),
        ("hi", "1", "[1]", "{1: hi}", (3, "hi")),
        ("hi", "3", "[1, 3]", "{1: hi, 3: hi}", (5, "hi")),
    ]
    lines = [
        f"current key: {key}, current value state: {value}, current list state: {elements}, "
        f"current map state: {entries}, current value: {row}"
        for key, value, elements, entries, row in want
    ]
    assert found == sorted((line,) for line in lines)


class Reduces(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.reducing_state = runtime_context.get_reducing_state(
            ReducingStateDescriptor("reducing_state", lambda i, i2: i + i2, Types.INT())
        )

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.reducing_state.add(value[0])
        yield self.reducing_state.get(), value[1]


class MyAggregateFunction(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return value + accumulator

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Aggregates(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = AggregatingStateDescriptor("aggregating_state", MyAggregateFunction(), Types.INT())
        descriptor.enable_time_to_live(
            StateTtlConfig.new_builder(Time.seconds(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .disable_cleanup_in_background()
            .build()
        )
        self.aggregating_state = runtime_context.get_aggregating_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.aggregating_state.add(value[0])
        yield self.aggregating_state.get(), value[1]


def test_5_reducing_and_aggregating_state(lab: Lab) -> None:
    env = lab.env()
    keyed = collection(lab, env, HI, "f0 int, f1 string").key_by("f1")
    output = Types.TUPLE([Types.INT(), Types.STRING()])
    both = keyed.process(Reduces(), output, uid="r").union(keyed.process(Aggregates(), output, uid="a"))
    want = [(1, "hi"), (2, "hello"), (4, "hi"), (6, "hello"), (9, "hi"), (12, "hello")]
    assert lab.run(both) == sorted(want * 2)
