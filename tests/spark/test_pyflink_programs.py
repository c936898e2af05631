"""Programs as PyFlink users write them: the functions as they are, the imports from cairn, the known results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.spark.lab import Lab
from tests.spark.oracle import ship, write_file

from cairn import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    DataStream,
    FileSink,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ReduceFunction,
    ReducingStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)
from cairn.testing import KeyedProcessHarness

pytestmark = pytest.mark.spark
ship(__name__)


def collection(
    lab: Lab, env: StreamExecutionEnvironment, rows: list[Any], columns: str, name: str = "rows"
) -> DataStream:
    """A stream of these rows in one epoch, in order, and of nothing in a second one."""
    for number, portion in enumerate((rows, [])):
        write_file(lab.folder / name, number, portion, columns)
    reader = lab.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return env.from_df(reader.json(str(lab.folder / name)))


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


def test_2_event_time_timer() -> None:
    """Timers, disorder and TTL together; time is given, since the TTL is that of the wall clock."""
    import datetime as dt

    with KeyedProcessHarness(
        SumOnTimer(), "name", "name string, amount double, ts timestamp", "name string, total double", event_time="ts"
    ) as harness:
        times = [1000, 2000, 1500, 2500, 4000, 3000, 3500, 5000]
        for (name, amount), ms in zip(SUMS, times, strict=True):
            harness.push((name, amount, dt.datetime.fromtimestamp(ms / 1000, dt.UTC)))
        assert harness.run_epoch() == []
        harness.advance_watermark((1 << 63) - 1)
        harness.advance_processing_time(999)
        found = harness.run_epoch()
        by_time = sorted(zip(times, SUMS, strict=True))
        assert [name for name, _ in found] == [name for _, (name, _) in by_time]
        finals = {"Alice": 163.3, "Bob": 102.5}
        assert [total for _, total in found] == pytest.approx([finals[name] for name, _ in found], rel=1e-6)


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


class MyKeyedCoProcessFunction(KeyedCoProcessFunction):
    def __init__(self) -> None:
        self.count_state: Any = None
        self.timer_registered = False

    def open(self, runtime_context: RuntimeContext) -> None:
        self.timer_registered = False
        self.count_state = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        if not self.timer_registered:
            ctx.timer_service().register_event_time_timer(3)
            self.timer_registered = True
        count = self.count_state.value()
        if count is None:
            count = 1
        else:
            count += 1
        self.count_state.update(count)
        yield value[0], count

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        if not self.timer_registered:
            ctx.timer_service().register_event_time_timer(3)
            self.timer_registered = True
        count = self.count_state.value()
        if count is None:
            count = 1
        else:
            count += 1
        self.count_state.update(count)
        yield value[0], count

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        yield "on_timer", timestamp


def event_time(stream: DataStream, column: str) -> DataStream:
    """A column of milliseconds as event time."""

    def add(df: Any) -> Any:
        return df.selectExpr("*", f"timestamp_millis({column}) AS event_time").withWatermark("event_time", "0 seconds")

    return stream.transform(add)


def test_6_keyed_co_process(lab: Lab) -> None:
    env = lab.env(parallelism=1)
    first = collection(lab, env, [("a", 1), ("b", 2), ("c", 3)], "f0 string, f1 bigint", "first")
    second = collection(lab, env, [("b", 2), ("c", 3), ("d", 4)], "f0 string, f1 bigint", "second")
    found = lab.run(
        event_time(first, "f1")
        .connect(event_time(second, "f1"))
        .key_by("f0", "f0")
        .process(MyKeyedCoProcessFunction(), Types.TUPLE([Types.STRING(), Types.INT()]), uid="co")
        .map(lambda x: (x[0], x[1] + 1))
    )
    assert found == [("a", 2), ("b", 2), ("b", 3), ("c", 2), ("c", 3), ("d", 2), ("on_timer", 4)]


MAP_STATE_DESC = MapStateDescriptor("mapping", Types.INT(), Types.STRING())


class MyBroadcastProcessFunction(BroadcastProcessFunction):
    def __init__(self, map_state_desc: MapStateDescriptor) -> None:
        self.map_state_desc = map_state_desc
        self.cache: dict[int, list[int]] = defaultdict(list)

    def process_element(self, value: int, ctx: Any) -> Iterator[str]:
        ro_broadcast_state = ctx.get_broadcast_state(self.map_state_desc)
        key = value % 2
        if ro_broadcast_state.contains(key):
            if self.cache.get(key) is not None:
                for v in self.cache[key]:
                    yield ro_broadcast_state.get(key) + str(v)
                self.cache[key].clear()
            yield ro_broadcast_state.get(key) + str(value)
        else:
            self.cache[key].append(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[str]:
        key = value[0]
        yield str(key) + value[1]
        broadcast_state = ctx.get_broadcast_state(self.map_state_desc)
        broadcast_state.put(key, value[1])
        if self.cache.get(key) is not None:
            for v in self.cache[key]:
                yield value[1] + str(v)
            self.cache[key].clear()


class MyKeyedBroadcastProcessFunction(KeyedBroadcastProcessFunction):
    def __init__(self, map_state_desc: MapStateDescriptor) -> None:
        self.map_state_desc = map_state_desc
        self.cache: dict[int, list[int]] = defaultdict(list)

    def process_element(self, value: Any, ctx: Any) -> Iterator[str]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10000)
        ro_broadcast_state = ctx.get_broadcast_state(self.map_state_desc)
        key = value[1] % 2
        if ro_broadcast_state.contains(key):
            yield ro_broadcast_state.get(key) + str(value[1])
        else:
            self.cache[key].append(value[1])

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[str]:
        key = value[0]
        yield str(key) + value[1]
        broadcast_state = ctx.get_broadcast_state(self.map_state_desc)
        broadcast_state.put(key, value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        yield str(timestamp) + ctx.get_current_key()


def test_7_co_broadcast_and_keyed_co_broadcast(lab: Lab) -> None:
    env = lab.env(parallelism=2)
    rules = collection(lab, env, [(0, "a"), (1, "b")], "f0 int, f1 string", "rules").broadcast(MAP_STATE_DESC)
    numbers = collection(lab, env, [(i,) for i in range(1, 6)], "n int", "numbers").map(lambda row: row.n, Types.INT())
    plain = numbers.connect(rules).process(MyBroadcastProcessFunction(MAP_STATE_DESC), Types.STRING(), uid="plain")
    data = [("a", 1), ("a", 2), ("b", 3), ("c", 4), ("c", 5), ("z", 20000)]
    keyed = event_time(collection(lab, env, data, "k string, n bigint", "keyed"), "n").key_by("k")
    timed = keyed.connect(rules).process(MyKeyedBroadcastProcessFunction(MAP_STATE_DESC), Types.STRING(), uid="keyed")
    for name, stream in (("plain-out", plain), ("keyed-out", timed)):
        stream.sink_to(FileSink(str(lab.folder / name)), uid=name)
    env.execute("broadcast")
    assert lab.written(lab.folder / "plain-out") == sorted(
        (text,) for text in ["0a", "0a", "1b", "1b", "a2", "a4", "b1", "b3", "b5"]
    )
    fired = ["10001a", "10002a", "10003b", "10004c", "10005c"]
    assert lab.written(lab.folder / "keyed-out") == sorted(
        (text,) for text in ["0a", "0a", "1b", "1b", "a2", "a4", "b1", "b3", "b5", "a20000", *fired]
    )


TAG = OutputTag("side", Types.INT())


class SideOutputs(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.reducing_state = runtime_context.get_reducing_state(
            ReducingStateDescriptor("reduce", lambda i, j: i + j, Types.INT())
        )

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[1]
        self.reducing_state.add(value[1])
        yield TAG, self.reducing_state.get()


class CoSideOutputs(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.reducing_state = runtime_context.get_reducing_state(
            ReducingStateDescriptor("reduce", lambda i, j: i + j, Types.INT())
        )

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[1]
        self.reducing_state.add(1)
        yield TAG, self.reducing_state.get()

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[1]
        self.reducing_state.add(1)
        yield TAG, self.reducing_state.get()


class BroadcastSideOutputs(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.reducing_state = runtime_context.get_reducing_state(
            ReducingStateDescriptor("reduce", lambda i, j: i + j, Types.INT())
        )

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.reducing_state.add(value[1])
        yield value[1]
        yield TAG, self.reducing_state.get()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value
        yield TAG, value


def test_8_side_outputs(lab: Lab) -> None:
    env = lab.env(parallelism=1)
    rows = collection(lab, env, [("a", 1), ("b", 2), ("a", 3), ("b", 4)], "f0 string, f1 int", "one")
    other = collection(lab, env, [("c", 5), ("a", 6)], "f0 string, f1 int", "two")
    rules = collection(lab, env, [(100,)], "v int", "three").map(lambda row: row.v, Types.INT())
    outputs = {
        "one": rows.key_by("f0").process(SideOutputs(), Types.INT(), uid="p1"),
        "co": rows.connect(other).key_by("f0", "f0").process(CoSideOutputs(), Types.INT(), uid="p2"),
        "cast": rows.key_by("f0").connect(rules.broadcast(MAP_STATE_DESC)).process(
            BroadcastSideOutputs(), Types.INT(), uid="p3"
        ),
    }  # fmt: skip
    for name, main in outputs.items():
        main.sink_to(FileSink(str(lab.folder / f"{name}-main")), uid=f"{name}-main")
        main.get_side_output(TAG).sink_to(FileSink(str(lab.folder / f"{name}-side")), uid=f"{name}-side")
    env.execute("sides")
    found = {path: [row[0] for row in lab.written(lab.folder / path)] for name in outputs for path in
             (f"{name}-main", f"{name}-side")}  # fmt: skip
    assert found == {
        "one-main": [1, 2, 3, 4], "one-side": [1, 2, 4, 6],
        "co-main": [1, 2, 3, 4, 5, 6], "co-side": [1, 1, 1, 2, 2, 3],
        "cast-main": [1, 2, 3, 4, 100], "cast-side": [1, 2, 4, 6, 100],
    }  # fmt: skip


class MyCoFlatMapFunction(CoFlatMapFunction):
    def __init__(self) -> None:
        self.map_state: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self.map_state = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.BOOLEAN()))

    def flat_map1(self, value: Any) -> Iterator[Any]:
        if value not in self.map_state:
            self.map_state[value] = True
            yield value

    def flat_map2(self, value: Any) -> Iterator[Any]:
        if value not in self.map_state:
            self.map_state[value] = True
            yield value


class MyReduceFunction(ReduceFunction):
    def __init__(self) -> None:
        self.state: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("join_count", Types.INT()))

    def reduce(self, value1: Any, value2: Any) -> Any:
        # the count of reduce calls for this key
        count = self.state.value() or 0
        self.state.update(count + 1)
        return value1[0], value1[1] + value2[1]


def test_9_and_11_keyed_co_flat_map_and_reduce_with_state(lab: Lab) -> None:
    env = lab.env()
    texts = [collection(lab, env, [(c,) for c in letters], "v string", letters).map(lambda row: row.v, Types.STRING())
             for letters in ("abc", "aab")]  # fmt: skip
    seen = (
        texts[0].connect(texts[1]).key_by("value", "value").flat_map(MyCoFlatMapFunction(), Types.STRING(), uid="seen")
    )
    rows = [(1, "a"), (1, "b"), (2, "c"), (2, "d"), (2, "e")]
    reduced = (
        collection(lab, env, rows, "k int, text string", "pairs").key_by("k").reduce(MyReduceFunction(), uid="red")
    )
    seen.sink_to(FileSink(str(lab.folder / "seen")), uid="to-seen")
    reduced.sink_to(FileSink(str(lab.folder / "reduced")), uid="to-reduced")
    env.execute("nine")
    assert lab.written(lab.folder / "seen") == [("a",), ("b",), ("c",)]
    assert lab.written(lab.folder / "reduced") == [(1, "a"), (1, "ab"), (2, "c"), (2, "cd"), (2, "cde")]
