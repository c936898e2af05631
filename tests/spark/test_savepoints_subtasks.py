"""Operator and broadcast state through savepoints of a real job: 2 to 3 to 1 subtasks, read offline on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.checkpoint_lab import processed
from tests.support.oracle import numbered_rows, ship
from tests.support.spark_lab import Lab

from cairn import (
    CheckpointedFunction,
    FileSink,
    InvalidInputError,
    JobHandle,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    Savepoint,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(90, 7, seed=8)
FROM = "execution.state-recovery.path"
NUMBERED = "key string, seq bigint, amount bigint, run_of bigint"
RULES = MapStateDescriptor("rules", "string", "bigint")


class Keeps(ProcessFunction, CheckpointedFunction):
    """Adds every amount to a list; a union list has how many rows each subtask of each life has seen.

    After a restart every subtask finds the counts of all, so their sum is put out with the rows of the next epoch: it
    says how many rows there were before, whatever the parallelism was.
    """

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.kept = store.get_list_state(ListStateDescriptor("kept", "bigint"))
        self.counts = store.get_union_list_state(ListStateDescriptor("counts", "struct<life:bigint,rows:bigint>"))
        self.found = list(self.counts.get())
        self.rows = 0

    def open(self, runtime_context: Any) -> None:
        self.first = runtime_context.get_index_of_this_subtask() == 0
        self.life = int(runtime_context.get_job_parameter("life", "0"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.kept.add(value.amount)
        self.rows += 1
        before = sum(count.rows for count in self.found if count.life < self.life)
        yield value.key, value.seq, value.amount, before

    def snapshot_state(self, context: Any) -> None:
        own = sum(count.rows for count in self.found if count.life == self.life) + self.rows
        before = [count for count in self.found if count.life < self.life]
        self.counts.update([*(before if self.first else ()), (self.life, own)])


class Ruled(KeyedBroadcastProcessFunction):
    """Sums by key; says with every row what the rules are."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(value.key, max(value.seq, rules.get(value.key) or 0))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.amount)
        rules = sorted(ctx.get_broadcast_state(RULES).items())
        yield value.key, value.seq, self.total.value(), value.run_of, str(rules)


def started(lab: Lab, life: int, parallelism: int, path: str | None) -> JobHandle:
    settings = {"pipeline.global-job-parameters.life": life, **({FROM: path} if path else {})}
    env = lab.env(parallelism, **settings).set_trigger(processing_time="0 seconds")
    spread = lab.stream(env).transform(lambda df: df.repartition(3))
    kept = spread.process(Keeps(), NUMBERED, uid="keeps")
    rules = kept.transform(lambda df: df.filter("seq % 3 = 0")).broadcast(RULES)  # reads the source a second time
    ruled = (
        kept.key_by("key")
        .connect(rules)
        .process(Ruled(), "key string, seq bigint, total bigint, before bigint, rules string", uid="ruled")
    )
    ruled.sink_to(FileSink(str(lab.folder / f"output-{life}")), uid="out")
    return env.execute_async(f"life-{life}")


def model(lives: list[list[Any]]) -> list[list[Any]]:
    """What each life puts out: one epoch each, all rules of an epoch before its rows."""
    totals: dict[str, int] = {}
    rules: dict[str, int] = {}
    before = 0
    told = []
    for rows in lives:
        for key, seq, _ in rows:
            if seq % 3 == 0:
                rules[key] = max(seq, rules.get(key, 0))
        found = []
        sums: dict[str, int] = {}
        for key, _, amount in rows:
            sums[key] = sums.get(key, 0) + amount
        for key, more in sums.items():
            totals[key] = totals.get(key, 0) + more
            found.append((key, before, str(sorted(rules.items()))))
        before += len(rows)
        told.append(sorted(found))
    return told


def test_operator_and_broadcast_state_from_2_to_3_to_1(lab: Lab) -> None:
    """F11, F12 for state that belongs to subtasks."""
    lives = [ROWS[:40], ROWS[40:70], ROWS[70:]]
    path: str | None = None
    taken = []
    for life, (rows, parallelism) in enumerate(zip(lives, (2, 3, 1), strict=True)):
        lab.feed(rows)
        job = started(lab, life, parallelism, path)
        processed(job, len(rows))
        path = job.stop_with_savepoint(str(lab.folder / "sp")).path
        taken.append(path)
    wanted = model(lives)
    totals: dict[str, int] = {}
    for life, rows in enumerate(lives):
        written = lab.written(lab.folder / f"output-{life}")
        assert len(written) == len(rows)
        assert sorted({(key, before, rules) for key, _, _, before, rules in written}) == wanted[life]
        for key, _, amount in rows:
            totals[key] = totals.get(key, 0) + amount

    newest = Savepoint.load(lab.spark, taken[-1])
    assert {op.uid: (op.key_type, op.parallelism) for op in newest.operators()} == {
        "keeps": ("", 1), "ruled": ("key string", 1),
    }  # fmt: skip
    assert {state.name: state.kind for state in newest.states("keeps")} == {
        "kept": "operator-list", "counts": "operator-union",
    }  # fmt: skip
    for path, count in zip(taken, (40, 70, 90), strict=True):
        savepoint = Savepoint.load(lab.spark, path)
        kept = savepoint.read_operator_state("keeps", "kept")
        assert kept.columns == ["key_group", "position", "value"]
        assert sorted(row.value for row in kept.collect()) == sorted(amount for _, _, amount in ROWS[:count])
        rules = savepoint.read_broadcast_state("ruled", "rules").collect()
        last = {key: seq for key, seq, _ in ROWS[:count] if seq % 3 == 0}
        assert sorted((row.key_group, row.map_key, row.value) for row in rules) == sorted((0, *r) for r in last.items())
    assert {row.key: row.value for row in newest.read_keyed_state("ruled", "total").collect()} == totals
    frame = lab.spark.read.format("cairn").option("uid", "keeps").option("state", "kept").load(taken[-1])
    assert frame.count() == 90
    differences = {
        (row.uid, row.state): tuple(row)[2:] for row in Savepoint.load(lab.spark, taken[0]).diff(newest).collect()
    }
    assert differences["ruled", "rules"][1] == 0
    assert sum(differences["keeps", "kept"][0:2]) > 0
    for wrong in (
        lambda: newest.read_keyed_state("ruled", "rules"),
        lambda: newest.read_operator_state("ruled", "rules"),
        lambda: newest.read_broadcast_state("ruled", "total"),
        lambda: newest.lookup("ruled", "rules", "k0"),
        lambda: newest.with_keyed_state("keeps", "kept", kept),
        lambda: newest.with_keyed_state("keeps", "new", kept),
    ):
        with pytest.raises(
            InvalidInputError, match=r"read it with|belongs to subtasks|with_keyed_state writes state of"
        ):
            wrong()
    renamed = newest.rename_operator("keeps", "other").remove_state("other", "counts").write(str(lab.folder / "edited"))
    assert renamed.read_operator_state("other", "kept").count() == 90
