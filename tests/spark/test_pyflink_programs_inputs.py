"""Programs as PyFlink users write them, 6 to 9 and 11: two inputs, broadcast state, side outputs, functions in reduce.

The functions as they are, imports from cairn, the known results. `test_windows.py` has program 10.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.oracle import ship
from tests.support.spark_lab import Lab, collection

from cairn import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    DataStream,
    FileSink,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ReduceFunction,
    ReducingStateDescriptor,
    RuntimeContext,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark
ship(__name__)


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
