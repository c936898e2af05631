"""Going back to checkpoints of real jobs: in place and elsewhere, by hand, after damage and by restarts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoint_lab import RETAIN, ROWS, listing, outputs, processed, running
from tests.support.oracle import INPUT, OUTPUT, Oracle, expected, numbered_rows, ship, write_file
from tests.support.patience import PATIENCE, until
from tests.support.spark_lab import Lab

from cairn import (
    CorruptFileError,
    FileSink,
    IncompatibleStateError,
    InvalidInputError,
    JobHandle,
    JobStatus,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    NotFoundError,
    RuntimeContext,
    StorageError,
    ValueStateDescriptor,
)
from cairn.storage.manifest_store import ManifestStore
from cairn.testing.faults import flip_bit

pytestmark = pytest.mark.spark
ship(__name__)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_roll_back_in_place(lab: Lab, full: bool, parallelism: int) -> None:
    lab.feed(ROWS[:80], files=2)
    job = running(lab)
    processed(job, 80)
    checkpoint = job.trigger_checkpoint(full=full)
    lab.feed(ROWS[80:160], files=2)
    processed(job, 160)
    job.cancel()
    back = running(lab, parallelism=parallelism, execution__state_recovery__path=checkpoint.path)
    processed(back, 80)
    assert back.restored_epoch == 4, "epoch numbers only grow"
    back.cancel()
    lab.feed(ROWS[160:], files=1)
    again = running(lab, parallelism=2)
    processed(again, 80)
    again.cancel()
    twice = sorted(expected(ROWS[:240]) + [row for row in expected(ROWS[:160]) if row not in expected(ROWS[:80])])
    assert outputs(lab, "oracle") == twice, "what was replayed is written again, with the same values"


def test_going_back_without_repeating_the_options_keeps_the_retained_checkpoints(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(**config: Any) -> JobHandle:
        env = lab.env(2, **config).set_trigger(processing_time="0 seconds")
        checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
        checked.sink_to(FileSink(str(lab.folder / "output-oracle")), uid="out")
        return env.execute_async("oracle")

    monkeypatch.setenv("CAIRN_CONFIG", json.dumps(RETAIN))
    lab.feed(ROWS[:80], files=2)
    job = start()
    processed(job, 80)
    paths = [job.trigger_checkpoint().path for _ in range(3)]
    job.cancel()
    monkeypatch.delenv("CAIRN_CONFIG")
    back = start(execution__state_recovery__path=paths[1])
    back.trigger_checkpoint()
    back.trigger_checkpoint()
    back.cancel()
    kept = sorted(path.name for path in (lab.jobs / "oracle").glob("chk-*/_metadata"))
    assert len(kept) == 5, "the options of the first start hold, also that they outlive a cancel"
    assert "keeps its configuration of earlier runs" in caplog.text
    caplog.clear()
    forward = start(
        execution__state_recovery__path=paths[0], execution__checkpointing__num_retained=1, cairn__web__enabled=False
    )
    assert "num-retained: 20 before, 1 now, from config" in caplog.text
    assert "the next completed checkpoint discards chk-1, chk-2, chk-3, chk-4, chk-5" in caplog.text
    assert len(list((lab.jobs / "oracle").glob("chk-*"))) == 5, "said before it happens"
    forward.trigger_checkpoint()
    until(lambda: len(list((lab.jobs / "oracle").glob("chk-*"))) == 1)
    forward.cancel()


def test_another_job_from_the_same_checkpoint(lab: Lab) -> None:
    lab.feed(ROWS[:80], files=2)
    job = running(lab)
    processed(job, 80)
    checkpoint = job.trigger_checkpoint()
    before = listing(Path(job.directory))
    fork = running(lab, "fork", parallelism=3, execution__state_recovery__path=checkpoint.path)
    lab.feed(ROWS[80:], files=2)
    processed(fork, 160)
    processed(job, 240)
    fork.cancel()
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS)
    assert outputs(lab, "fork") == [row for row in expected(ROWS) if row not in expected(ROWS[:80])]
    assert before <= listing(Path(job.directory)) | {p for p in before if "shared" not in p}
    with pytest.raises(InvalidInputError, match="holds a job already"):
        running(lab, "fork", execution__state_recovery__path=checkpoint.path)


class Collect(KeyedProcessFunction):
    """All four kinds of storage: a list, a map that is overwritten, a value, and a timer that is set once a row."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.last = runtime_context.get_map_state(MapStateDescriptor("last", "string", "bigint"))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        before = self.last.get("seq")
        assert before is None or before == value.seq - 1, f"{value.key}: {before} before {value.seq}"
        self.seen.add(value.seq)
        self.last.put("seq", value.seq)
        self.count.update((self.count.value() or 0) + 1)
        yield value.key, value.seq, self.count.value(), sum(self.seen.get()), ",".join(map(str, self.seen.get()))


def test_a_fork_keeps_lists_maps_and_values_over_many_epochs(lab: Lab) -> None:
    """The new job's epochs must be above those of the old one: files, list segments and stores are ordered by them."""
    rows = numbered_rows(300, 5, seed=5)
    lab.feed(rows[:100], files=5)
    config = {"execution.checkpointing.data-inline-threshold": "0 kb", "cairn.compaction.max-chain": 4}
    job = running(lab, function=Collect(), **config)
    processed(job, 100)
    path = job.trigger_checkpoint().path
    job.cancel()
    fork = running(lab, "fork", parallelism=3, function=Collect(), execution__state_recovery__path=path, **config)
    lab.feed(rows[100:], files=14)
    until(lambda: sum(r.rows_in for r in fork.epochs()) >= 200 or fork.status() is not JobStatus.RUNNING)
    fork.cancel()
    assert fork.exception() is None
    for key, seq, count, total, listed in outputs(lab, "fork"):
        assert (count, total) == (seq + 1, sum(range(seq + 1))), key
        assert listed == ",".join(map(str, range(seq + 1)))
    assert len(outputs(lab, "fork")) == 200


def test_another_number_of_key_groups_is_refused(lab: Lab) -> None:
    lab.feed(ROWS[:40])
    job = running(lab)
    processed(job, 40)
    path = job.trigger_checkpoint().path
    job.cancel()
    with pytest.raises(IncompatibleStateError, match="the checkpoint has 16 key groups"):
        running(lab, "fork", execution__state_recovery__path=path, pipeline__max_parallelism=32)
    assert not (lab.jobs / "fork").exists()


def test_a_restore_that_failed_can_be_repeated_and_never_starts_empty(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.feed(ROWS[:40])
    job = running(lab)
    processed(job, 40)
    path = job.trigger_checkpoint().path
    job.cancel()

    def refuse(store: ManifestStore, manifest: Any) -> None:
        raise StorageError("no room (on purpose)")

    with monkeypatch.context() as patched:
        patched.setattr(ManifestStore, "publish", refuse)
        with pytest.raises(StorageError, match="on purpose"):
            running(lab, "fork", execution__state_recovery__path=path)
    with pytest.raises(InvalidInputError, match="was to be restored from"):
        running(lab, "fork")
    lab.feed(ROWS[40:80])
    fork = running(lab, "fork", execution__state_recovery__path=path)
    processed(fork, 40)
    fork.cancel()
    assert outputs(lab, "fork") == [row for row in expected(ROWS[:80]) if row not in expected(ROWS[:40])]


def test_a_fallback_does_not_pick_what_was_given_up(lab: Lab) -> None:
    config = {"execution.checkpointing.data-inline-threshold": "0 kb"}
    lab.feed(ROWS[:80], files=2)
    job = running(lab, **config)
    processed(job, 80)
    good = job.trigger_checkpoint()
    lab.feed(ROWS[80:120])
    processed(job, 120)
    job.trigger_checkpoint(full=True)
    job.cancel()
    back = running(lab, execution__state_recovery__path=good.path, **config)
    processed(back, 40)
    back.cancel()
    newest = sorted((Path(job.directory) / "shared" / "oracle").glob("000000000004-*.state"))
    newest[0].unlink()
    again = running(lab, **config)
    processed(again, 40)
    again.cancel()
    manifests = lab.manifests(retained=1)
    assert [m.restored for m in manifests if m.restored] == [1, 1], "checkpoint 2 is intact, but was given up"


class Failing(Oracle):
    """Raises as long as a file says how many times it still must."""

    def __init__(self, countdown: str) -> None:
        self.countdown = countdown

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        path = Path(self.countdown)
        left = int(path.read_text() or 0) if path.exists() else 0
        if left:
            path.write_text(str(left - 1))
            raise RuntimeError("on purpose")
        yield from super().process_element(value, ctx)


def test_a_failed_job_is_restarted_by_its_strategy(lab: Lab) -> None:
    countdown = lab.folder / "countdown"
    lab.feed(ROWS[:80], files=2)
    strategy = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 5,
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    job = running(lab, function=Failing(str(countdown)), **strategy)
    processed(job, 80)
    countdown.write_text("6")
    lab.feed(ROWS[80:], files=2)
    until(lambda: job.restarts > 0 and sum(report.rows_in for report in job.epochs()) >= 240)
    assert job.status() is JobStatus.RUNNING
    job.trigger_checkpoint()
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS)


def test_a_restart_strategy_gives_up_in_the_end(lab: Lab) -> None:
    countdown = lab.folder / "countdown"
    countdown.write_text("1000")
    lab.feed(ROWS[:40])
    strategy = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10 ms"}
    job = running(lab, function=Failing(str(countdown)), **strategy)
    with pytest.raises(Exception, match="RuntimeError"):
        job.await_termination(PATIENCE)
    assert (job.status(), job.restarts) == (JobStatus.FAILED, 1)


def test_damaged_state_falls_back_to_the_newest_intact_checkpoint(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    config = {"execution.checkpointing.data-inline-threshold": "0 kb"}
    lab.feed(ROWS[:80], files=2)
    job = running(lab, **config)
    processed(job, 80)
    job.trigger_checkpoint()
    lab.feed(ROWS[80:160], files=2)
    processed(job, 160)
    job.trigger_checkpoint()
    lab.feed(ROWS[160:200])
    processed(job, 200)
    job.cancel()
    newest = sorted((Path(job.directory) / "shared" / "oracle").glob("000000000003-*.state"))
    newest[0].unlink()
    with caplog.at_level(logging.ERROR, logger="cairn"):
        back = running(lab, **config)
    processed(back, 120)
    back.cancel()
    assert "Falling back to checkpoint 1" in caplog.text, "the second one needs the missing file, too"
    assert newest[0].name in caplog.text
    lab.feed(ROWS[200:])
    again = running(lab, **config)
    processed(again, 40)
    again.cancel()
    found = outputs(lab, "oracle")
    assert set(found) == set(expected(ROWS)), "every row has its one right result, replayed ones more than once"


def test_damage_without_a_checkpoint_stops_the_job(lab: Lab) -> None:
    config = {"execution.checkpointing.data-inline-threshold": "0 kb"}
    lab.feed(ROWS[:80], files=2)
    job = running(lab, **config)
    processed(job, 80)
    job.cancel()
    state = sorted((Path(job.directory) / "shared" / "oracle").glob("*.state"))
    state[0].write_bytes(state[0].read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=state[0].name):
        running(lab, **config)


def test_a_damaged_checkpoint_is_refused_by_name_and_nothing_changes(lab: Lab) -> None:
    config = {"execution.checkpointing.data-inline-threshold": "0 kb"}
    lab.feed(ROWS[:80], files=2)
    job = running(lab, **config)
    processed(job, 80)
    info = job.trigger_checkpoint(full=True)
    job.cancel()
    before = listing(Path(job.directory))
    state = next(Path(info.path).glob("*.state"))
    flip_bit(state, -20)
    with pytest.raises(CorruptFileError, match="chk-1"):
        running(lab, **config, execution__state_recovery__path=info.path)
    with pytest.raises(NotFoundError, match="completed there: chk-1"):
        running(lab, **config, execution__state_recovery__path=str(Path(info.path).with_name("chk-9")))
    with pytest.raises(CorruptFileError, match="chk-1"):  # the newest checkpoint of the job
        running(lab, **config, execution__state_recovery__path=job.directory)
    left = {name for name in listing(Path(job.directory)) - before if not name.startswith("runs/")}
    assert left == set()


def test_a_checkpoint_of_another_job_cannot_be_claimed(lab: Lab) -> None:
    lab.feed(ROWS[:40])
    job = running(lab)
    processed(job, 40)
    path = job.trigger_checkpoint().path
    job.cancel()
    claim = {"execution.state-recovery.path": path, "execution.state-recovery.claim-mode": "CLAIM"}
    with pytest.raises(InvalidInputError, match="cannot be claimed"):
        running(lab, "other", **claim)
    assert not (lab.jobs / "other").exists()


def test_a_source_of_two_branches_falls_back_and_sources_keep_their_places(lab: Lab) -> None:
    other = lab.folder / "other"
    write_file(other, 0, ROWS[:20])

    def start(swapped: bool = False) -> JobHandle:
        env = lab.env(1, **RETAIN).set_trigger(processing_time="0 seconds")
        stream, second = lab.stream(env), env.from_df(lab.spark.readStream.schema(INPUT).json(str(other)))
        for uid, source in (("one", second if swapped else stream), ("two", stream), ("other", second)):
            checked = source.key_by("key").process(Oracle(), OUTPUT, uid=uid)
            checked.sink_to(FileSink(str(lab.folder / f"output-{uid}")), uid=f"out-{uid}")
        return env.execute_async("fan")

    lab.feed(ROWS[:40])
    job = start()
    processed(job, 40)
    job.trigger_checkpoint()
    lab.feed(ROWS[40:80])
    processed(job, 80)
    job.cancel()
    with pytest.raises(IncompatibleStateError, match=r"same as source 0.*The job now reads .*same as source"):
        start(swapped=True)
    newest = max((lab.jobs / "fan" / "epochs").iterdir())
    flip_bit(newest, 60)
    back = start()
    processed(back, 40)
    back.cancel()
    assert set(outputs(lab, "one")) == set(outputs(lab, "two")) == set(expected(ROWS[:80]))
    assert outputs(lab, "other") == expected(ROWS[:20])
