"""The job that `test_kill_streams.py` runs: operator state, broadcast state, shared state of two inputs and joins.

    rows ─► Numbers (operator state) ─┬─ even ─┬─► connect by key ─► Pairs (state of both inputs) ─► pairs/
                                      └─ odd ──┼─► key ◄─ broadcast ─ Rules (broadcast state)      ─► rules/
                                               ├─► no key ◄─ broadcast ─ Late (and raw state)      ─► late/
                                               ├─► interval join ─► Near (rows by event time)      ─► near/
                                               └─► join (rows with a time to live)                 ─► joined/

`Numbers` is read eleven times and must run once. Its argument is that of `tests.support.kill_child`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.kill_child import environment, main
from tests.support.oracle import INPUT, ship

from cairn import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    DataStream,
    FileSink,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    Time,
    ValueStateDescriptor,
)

NUMBERED = "key string, seq bigint, n bigint"
ODD = OutputTag("odd", NUMBERED)
RULES = MapStateDescriptor("rules", "string", "bigint")
NEAR = 25
"""How far apart the numbers of two rows may be that the interval join pairs."""


class Numbers(ProcessFunction, CheckpointedFunction):
    """Numbers the rows; rows with an odd `seq` go to a side output. The last number is operator state, twice."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.last = store.get_list_state(ListStateDescriptor("last", "bigint"))
        self.everywhere = store.get_union_list_state(ListStateDescriptor("everywhere", "bigint"))
        self.number = max(self.last.get(), default=0)
        found = list(self.everywhere.get())
        assert not self.number or self.number in found, f"number {self.number}, and everywhere {found}"

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.number += 1
        row = (value.key, value.seq, self.number)
        if value.seq % 2:
            ctx.output(ODD, row)
        else:
            yield row

    def snapshot_state(self, context: Any) -> None:
        self.last.update([self.number] if self.number else [])
        self.everywhere.update([self.number] if self.number else [])


class Pairs(KeyedCoProcessFunction):
    """Counts the rows of both inputs per key, in a typed state and in one of bytes."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.raw = runtime_context.get_raw_state("raw")

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        count = self.count.value() or 0
        assert int.from_bytes(self.raw.value() or b"") == count
        self.count.update(count + 1)
        self.raw.update((count + 1).to_bytes(4))
        yield (*value, count + 1)

    process_element2 = process_element1


class Rules(KeyedBroadcastProcessFunction):
    """Says for every row how many rules there are, and what they add up to."""

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        if value.seq % 20 == 0 and value.seq:
            rules.remove(value.key)
        else:
            rules.put(value.key, value.n)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = dict(ctx.get_broadcast_state(RULES).items())
        yield (*value, len(rules), sum(rules.values()))


class Late(BroadcastProcessFunction, CheckpointedFunction):
    """Says the same as `Rules`, but holds rows back, as bytes, until a broadcast row of a later epoch lets them out."""

    def initialize_state(self, context: Any) -> None:
        self.raw = context.get_operator_state_store().get_raw_state("held")
        self.held = list(self.raw.get())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        Rules.process_broadcast_element(self, value, ctx)  # type: ignore[arg-type]
        for held in self.held:
            yield tuple(json.loads(held))
        self.held = []

    def process_element(self, value: Any, ctx: Any) -> None:
        rules = dict(ctx.get_broadcast_state(RULES).items())
        self.held.append(json.dumps([*value, len(rules), sum(rules.values())]).encode())

    def snapshot_state(self, context: Any) -> None:
        self.raw.update(self.held)


class Near(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        assert (ctx.get_left_timestamp(), ctx.get_right_timestamp()) == (left.n, right.n)
        yield left.key, left.n, right.n


def timed(stream: DataStream) -> DataStream:
    """The number of a row as its event time. Numbers of an epoch are above those of all before it: none is late."""
    return stream.transform(
        lambda df: df.selectExpr("key", "n", "timestamp_millis(n) AS at").withWatermark("at", "0 seconds")
    )


def run(plan: dict[str, Any], spark: SparkSession | None = None) -> None:
    folder = Path(plan["folder"])
    env = environment(plan, spark)
    source = env.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    even = env.from_df(source).process(Numbers(), NUMBERED, uid="numbers")
    odd = even.get_side_output(ODD)
    pairs = even.connect(odd).key_by("key", "key").process(Pairs(), f"{NUMBERED}, count bigint", uid="pairs")
    rules = even.transform(lambda df: df.filter("seq % 5 = 0")).broadcast(RULES)
    checked = even.union(odd).key_by("key").connect(rules)
    ruled = checked.process(Rules(), f"{NUMBERED}, rules bigint, total bigint", uid="rules")
    late = even.union(odd).connect(rules).process(Late(), f"{NUMBERED}, rules bigint, total bigint", uid="late")
    near = timed(even).key_by("key").interval_join(timed(odd).key_by("key")).between(-NEAR, Time.milliseconds(NEAR))
    found = near.process(Near(), "key string, even bigint, odd bigint", uid="near")
    joined = even.key_by("key").join(odd.key_by("key"), ttl=Time.hours(1), uid="joined")
    numbers = joined.transform(lambda df: df.select("key", "n", "n_right"))
    found.sink_to(FileSink(str(folder / "near")), uid="to-near")
    numbers.sink_to(FileSink(str(folder / "joined")), uid="to-joined")
    pairs.sink_to(FileSink(str(folder / "pairs")), uid="to-pairs")
    late.sink_to(FileSink(str(folder / "late")), uid="to-late")
    ruled.sink_to(FileSink(str(folder / "rules")), uid="to-rules")
    env.execute("streams")


ship(__name__)
if __name__ == "__main__":
    main(run)
