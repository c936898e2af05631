"""The whole story of an upgrade: run, savepoint, other code and schema, rescale, an edit with Spark SQL, restore, a
second job beside it, and a roll-back; every number is what a plain model says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoint_lab import RETAIN, outputs, processed
from tests.support.oracle import numbered_rows, ship
from tests.support.spark_lab import Lab

from cairn import (
    FileSink,
    JobHandle,
    JobStatus,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    Savepoint,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(200, 17, seed=21)
FROM = "execution.state-recovery.path"
OUTPUT = "key string, total bigint, bonus bigint, seen int"


class First(KeyedProcessFunction):
    """What runs today: a total that is an int, and the amounts."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.account = runtime_context.get_state(ValueStateDescriptor("account", "struct<total:int,note:string>"))
        self.amounts = runtime_context.get_list_state(ListStateDescriptor("amounts", "int"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        total = (self.account.value() or (0, ""))[0] + value.amount
        self.account.update((total, "v1"))
        self.amounts.add(value.amount)
        yield (value.key, total, 0, len(list(self.amounts)))


class Second(KeyedProcessFunction):
    """What shall run tomorrow: a wider total, no note, a bonus that begins at 5, and a timer."""

    step = 1

    def open(self, runtime_context: RuntimeContext) -> None:
        wanted = ValueStateDescriptor("account", "struct<total:bigint,bonus:bigint>", field_defaults={"bonus": 5})
        self.account = runtime_context.get_state(wanted)
        self.amounts = runtime_context.get_list_state(ListStateDescriptor("amounts", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        total, bonus = self.account.value() or (0, 0)
        self.account.update((total + value.amount, bonus + self.step))
        self.amounts.add(value.amount)
        yield (value.key, total + value.amount, bonus + self.step, len(list(self.amounts)))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return iter(())


class Experiment(Second):
    step = 10


class Model:
    """The accounts in plain dicts."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.accounts: dict[str, tuple[int, int, int]] = {}

    def feed(self, rows: Any) -> list[Any]:
        out = []
        for key, _, amount in rows:
            total, bonus, seen = self.accounts.get(key, (0, 0, 0))
            self.accounts[key] = (total + amount, bonus + self.step, seen + 1)
            out.append((key, *self.accounts[key]))
        return out

    def copy(self, step: int) -> Model:
        made = Model(step)
        made.accounts = dict(self.accounts)
        return made


def start(lab: Lab, name: str, function: KeyedProcessFunction, parallelism: int, **config: Any) -> JobHandle:
    env = lab.env(parallelism, **{**RETAIN, **config}).set_trigger(processing_time="0 seconds")
    accounts = lab.stream(env).key_by("key").process(function, OUTPUT, uid="accounts")
    accounts.sink_to(FileSink(str(lab.folder / f"output-{name}")), uid="out")
    return env.execute_async(name)


def files_of(folder: str) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in Path(folder).rglob("*") if p.is_file()}


def test_an_upgrade_from_beginning_to_end(lab: Lab) -> None:
    model = Model()
    shown: list[Any] = []

    # Run, and stop with a savepoint.
    lab.feed(ROWS[:80], files=2)
    job = start(lab, "payments", First(), 2)
    processed(job, 80)
    before = job.stop_with_savepoint(str(lab.folder / "savepoints"))
    shown += model.feed(ROWS[:80])
    assert job.status() is JobStatus.FINISHED
    assert outputs(lab, "payments") == sorted(shown)

    # Edit one state with Spark SQL: a gift of 1000 to some, and one account is closed.
    loaded = Savepoint.load(lab.spark, before.path)
    loaded.read_keyed_state("accounts", "account").createOrReplaceTempView("account")
    edited = lab.spark.sql(
        "SELECT key, named_struct('total', value.total + IF(key LIKE 'k1%', 1000, 0), 'note', value.note) AS value "
        "FROM account WHERE key <> 'k2'"
    )
    new = str(lab.folder / "savepoints" / "edited")
    loaded.with_keyed_state("accounts", "account", edited).write(new)
    for key, (total, _, seen) in list(model.accounts.items()):
        gift = 1000 if key.startswith("k1") else 0
        model.accounts[key] = (total + gift, 5, seen) if key != "k2" else (0, 0, seen)

    # The new code with another schema goes on from it at another parallelism; an experiment runs beside it.
    experiment = model.copy(step=10)
    model.step = 1
    lab.feed(ROWS[80:120], files=2)
    job = start(lab, "payments", Second(), 5, **{FROM: new})
    processed(job, 40)
    given = files_of(new)
    beside = start(lab, "experiment", Experiment(), 3, **{FROM: new})
    processed(beside, 40)
    beside.cancel()
    assert files_of(new) == given, "a savepoint is read, never touched"
    assert outputs(lab, "experiment") == sorted(experiment.feed(ROWS[80:120]))
    shown += model.feed(ROWS[80:120])
    assert outputs(lab, "payments") == sorted(shown)

    # A checkpoint, more rows, and back to the checkpoint in place: the same rows come again, under new epoch numbers.
    point = job.trigger_checkpoint()
    kept = model.copy(step=1)
    lab.feed(ROWS[120:160], files=2)
    processed(job, 80)
    last = job.epochs()[-1].epoch
    job.cancel()
    shown += model.feed(ROWS[120:160])
    job = start(lab, "payments", Second(), 4, **{FROM: point.path})
    processed(job, 40)
    assert job.epochs()[0].epoch > last, "epoch ids go on growing"
    shown += kept.feed(ROWS[120:160])
    lab.feed(ROWS[160:])
    processed(job, 80)
    shown += kept.feed(ROWS[160:])
    end = job.stop_with_savepoint(str(lab.folder / "savepoints"))
    assert outputs(lab, "payments") == sorted(shown), "the replayed rows are shown again, nothing is swallowed"

    # What is stored in the end is what the model holds.
    stored = Savepoint.load(lab.spark, end.path).read_keyed_state("accounts", "account").collect()
    found = {row["key"]: (row["value"]["total"], row["value"]["bonus"]) for row in stored}
    assert found == {key: (total, bonus) for key, (total, bonus, _) in kept.accounts.items()}
