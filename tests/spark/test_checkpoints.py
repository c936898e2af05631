"""Checkpoints of real jobs: taken while they run, restored in place and elsewhere, at any parallelism."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.lab import Lab
from tests.spark.oracle import OUTPUT, Oracle, expected, numbered_rows, ship

from cairn import (
    CheckpointFailedError,
    CheckpointInfo,
    CheckpointListener,
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
    NotFoundError,
    RuntimeContext,
    StorageError,
    ValueStateDescriptor,
)
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifests import ManifestStore
from cairn.testing.faults import flip_bit

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(240, 19, seed=11)
RETAIN = {
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": 20,
    "execution.checkpointing.incremental": True,
}


def running(lab: Lab, name: Any = "oracle", parallelism: Any = 2, function: Any = None, **config: Any) -> JobHandle:
    """The oracle job, waiting for files until it is canceled."""
    settings = {**RETAIN, **{key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}}
    env = lab.env(parallelism, **settings).set_trigger(processing_time="0 seconds")
    checked = lab.stream(env).key_by("key").process(function or Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.folder / f"output-{name}")), uid="out")
    return env.execute_async(name)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def processed(job: JobHandle, rows: int) -> None:
    until(lambda: sum(report.rows_in for report in job.epochs()) >= rows or job.status() is not JobStatus.RUNNING)
    if job.status() is not JobStatus.RUNNING:
        job.await_termination(60)
        pytest.fail(f"the job ended: {job.status()}")


def outputs(lab: Lab, name: str) -> list[Any]:
    return lab.written(lab.folder / f"output-{name}")


def test_checkpoints_are_taken_listed_and_kept(lab: Lab) -> None:
    lab.feed(ROWS[:80], files=2)
    job = running(lab)
    processed(job, 80)
    first = job.trigger_checkpoint()
    lab.feed(ROWS[80:160], files=2)
    processed(job, 160)
    second = job.trigger_checkpoint(full=True)
    assert [info.id for info in job.checkpoints()] == [2, 1]
    assert (first.status, first.epoch, first.full) == (CheckpointStatus.COMPLETED, 1, False)
    assert (second.epoch, second.full) == (3, True)
    assert first.written_bytes == first.full_bytes > 0
    assert sum(s.records for s in second.operators[0].subtasks) == 40, "rows of the barrier's epoch"
    job.cancel()
    assert job.status() is JobStatus.CANCELED
    assert {p.name for p in Path(first.path).iterdir()} == {"_metadata"}
    assert {p.suffix for p in Path(second.path).iterdir()} == {"", ".state"}
    assert outputs(lab, "oracle") == expected(ROWS[:160])


def test_statistics_agree_with_the_clock(lab: Lab) -> None:
    lab.feed(ROWS[:80])
    job = running(lab)
    processed(job, 80)
    before = time.time() * 1000
    info = job.trigger_checkpoint(full=True)
    after = time.time() * 1000
    job.cancel()
    assert before - 1 <= info.trigger_ms <= info.end_ms <= after + 1
    (report,) = job.epochs()
    for subtask, (_, index, metrics) in zip(info.operators[0].subtasks, report.tasks, strict=True):
        assert subtask.index == index
        assert subtask.records == metrics.rows_in
        assert subtask.ack_ms <= info.trigger_ms, "the epoch was over when it was triggered"
        assert 0 < subtask.sync_ms <= report.duration_ms
        assert 0 < subtask.async_ms <= info.duration_ms


def test_periodic_checkpoints_survive_restarts_as_history(lab: Lab) -> None:
    lab.feed(ROWS[:40])
    job = running(lab, execution__checkpointing__interval="200 ms")
    until(lambda: len([i for i in job.checkpoints() if i.status is CheckpointStatus.COMPLETED]) >= 2)
    job.cancel()
    seen = [info.id for info in job.checkpoints()]
    again = running(lab)
    assert [info.id for info in again.checkpoints()] == seen
    again.cancel()


@pytest.mark.parametrize(
    ("retention", "kept"),
    [("RETAIN_ON_CANCELLATION", 1), ("DELETE_ON_CANCELLATION", 0), ("NO_EXTERNALIZED_CHECKPOINTS", 0)],
)
def test_retention_on_cancellation(lab: Lab, retention: str, kept: int) -> None:
    lab.feed(ROWS[:40])
    job = running(lab, **{"execution.checkpointing.externalized-checkpoint-retention": retention})
    processed(job, 40)
    job.trigger_checkpoint()
    job.cancel()
    assert len(CheckpointStore(LocalFileSystem(job.directory)).numbers()) == kept
    lab.feed(ROWS[40:80])
    job = running(lab)
    processed(job, 40)
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS[:80]), "epochs do not depend on checkpoints"


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


def test_another_job_from_the_same_checkpoint(lab: Lab) -> None:
    lab.feed(ROWS[:80], files=2)
    job = running(lab)
    processed(job, 80)
    checkpoint = job.trigger_checkpoint()
    before = _listing(Path(job.directory))
    fork = running(lab, "fork", parallelism=3, execution__state_recovery__path=checkpoint.path)
    lab.feed(ROWS[80:], files=2)
    processed(fork, 160)
    processed(job, 240)
    fork.cancel()
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS)
    assert outputs(lab, "fork") == [row for row in expected(ROWS) if row not in expected(ROWS[:80])]
    assert before <= _listing(Path(job.directory)) | {p for p in before if "shared" not in p}
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
    until(lambda: sum(r.rows_in for r in fork.epochs()) >= 200 or fork.status() is not JobStatus.RUNNING, 120)
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
    with pytest.raises(InvalidInputError, match="was to start from"):
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


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class Slow(Oracle):
    """Holds an epoch up while a file exists."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        while Path(self.gate).exists():
            time.sleep(0.02)
        yield from super().process_element(value, ctx)


def test_an_unaligned_checkpoint_does_not_wait_and_replays_what_was_in_flight(lab: Lab) -> None:
    gate = lab.folder / "gate"
    lab.feed(ROWS[:80])
    job = running(lab, function=Slow(str(gate)), execution__checkpointing__unaligned__enabled=True)
    processed(job, 80)
    gate.touch()
    lab.feed(ROWS[80:120])
    until(lambda: (Path(job.directory) / "spark" / "offsets" / "1").exists())
    time.sleep(0.5)
    info = job.trigger_checkpoint(timeout=20)
    assert (info.type, info.epoch) == (CheckpointType.UNALIGNED_CHECKPOINT, 0)
    lab.feed(ROWS[120:160])
    gate.unlink()
    processed(job, 160)
    job.cancel()
    back = running(lab, execution__state_recovery__path=info.path)
    processed(back, 80)
    reports = back.epochs()
    back.cancel()
    assert [report.rows_in for report in reports][:2] == [40, 40], "first exactly the range in flight, then the rest"
    again = [row for row in expected(ROWS[:160]) if row not in expected(ROWS[:80])]
    assert outputs(lab, "oracle") == sorted(expected(ROWS[:160]) + again)


def test_an_aligned_checkpoint_waits_for_the_epoch(lab: Lab) -> None:
    gate = lab.folder / "gate"
    lab.feed(ROWS[:80])
    job = running(lab, function=Slow(str(gate)))
    processed(job, 80)
    gate.touch()
    lab.feed(ROWS[80:120])
    until(lambda: (Path(job.directory) / "spark" / "offsets" / "1").exists())
    time.sleep(0.5)
    found: list[CheckpointInfo] = []
    thread = threading.Thread(target=lambda: found.append(job.trigger_checkpoint()))
    thread.start()
    time.sleep(1.0)
    assert not found
    gate.unlink()
    thread.join(60)
    job.cancel()
    assert [(info.type, info.epoch) for info in found] == [(CheckpointType.CHECKPOINT, 1)]
    assert found[0].duration_ms >= 900


def test_an_expired_checkpoint_fails_the_job_unless_tolerated(lab: Lab) -> None:
    gate = lab.folder / "gate"
    lab.feed(ROWS[:80])
    job = running(lab, function=Slow(str(gate)), execution__checkpointing__timeout="300 ms")
    processed(job, 80)
    gate.touch()
    lab.feed(ROWS[80:120])
    until(lambda: (Path(job.directory) / "spark" / "offsets" / "1").exists())
    time.sleep(0.5)
    with pytest.raises(CheckpointFailedError, match="expired"):
        job.trigger_checkpoint()
    with pytest.raises(CheckpointFailedError, match="tolerable failure threshold"):
        job.await_termination(60)
    assert job.status() is JobStatus.FAILED
    gate.unlink()
    assert [info.reason.value for info in job.checkpoints() if info.reason] == ["CHECKPOINT_EXPIRED"]
    assert not (Path(job.directory) / "chk-1").exists()
    job = running(lab)
    processed(job, 40)
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS[:120])


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
    until(lambda: job.restarts > 0 and sum(report.rows_in for report in job.epochs()) >= 240, 90)
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
        job.await_termination(60)
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
    before = _listing(Path(job.directory))
    state = next(Path(info.path).glob("*.state"))
    flip_bit(state, -20)
    with pytest.raises(CorruptFileError, match="chk-1"):
        running(lab, **config, execution__state_recovery__path=info.path)
    with pytest.raises(NotFoundError, match="completed there: chk-1"):
        running(lab, **config, execution__state_recovery__path=str(Path(info.path).with_name("chk-9")))
    with pytest.raises(NotFoundError, match="is no checkpoint"):
        running(lab, **config, execution__state_recovery__path=job.directory)
    left = {name for name in _listing(Path(job.directory)) - before if not name.startswith("runs/")}
    assert left == set()


class Hearing(Oracle, CheckpointListener):
    """Writes down what it hears."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        Path(self.folder, f"complete-{checkpoint_id}").touch()


class HearingSink(NoopSink, CheckpointListener):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard.append(checkpoint_id)


def test_functions_and_sinks_hear_of_checkpoints(lab: Lab) -> None:
    heard = lab.folder / "heard"
    heard.mkdir()
    lab.feed(ROWS[:40])
    env = lab.env(2, **RETAIN).set_trigger(processing_time="0 seconds")
    sink = HearingSink()
    checked = lab.stream(env).key_by("key").process(Hearing(str(heard)), OUTPUT, uid="oracle")
    checked.sink_to(sink, uid="out")
    job = env.execute_async("hearing")
    processed(job, 40)
    job.trigger_checkpoint()
    lab.feed(ROWS[40:80])
    processed(job, 80)
    job.cancel()
    assert [path.name for path in heard.iterdir()] == ["complete-1"]
    assert sink.heard == [1]


def test_at_least_once_shows_rows_before_the_commit_and_again_after_a_failure(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}
    lab.feed(ROWS[:40])
    job = running(lab, **config)
    processed(job, 40)
    job.cancel()
    lab.feed(ROWS[40:80])

    def refuse(store: ManifestStore, manifest: Any) -> None:
        raise StorageError("cannot write the manifest (on purpose)")

    with monkeypatch.context() as patched:
        patched.setattr(ManifestStore, "publish", refuse)
        job = running(lab, **config)
        with pytest.raises(StorageError, match="on purpose"):
            job.await_termination(60)
    assert outputs(lab, "oracle") == expected(ROWS[:80]), "shown although not committed"
    job = running(lab, **config)
    processed(job, 40)
    job.cancel()
    again = [row for row in expected(ROWS[:80]) if row not in expected(ROWS[:40])]
    assert outputs(lab, "oracle") == sorted(expected(ROWS[:80]) + again), "rows twice, state once"


def test_storage_of_the_driver_is_limited_and_gone_with_it(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.feed(ROWS[:80])
    env = lab.env(2, **RETAIN, **{"execution.checkpointing.storage": "jobmanager"})
    env.set_trigger(processing_time="0 seconds")
    checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.folder / "output-held")), uid="out")
    with caplog.at_level(logging.WARNING, logger="cairn"):
        job = env.execute_async("held")
    assert "when it ends they are gone" in caplog.text
    processed(job, 80)
    assert job.trigger_checkpoint().status is CheckpointStatus.COMPLETED
    job.cancel()
    assert not str(job.directory).startswith(str(lab.jobs))


@pytest.mark.parametrize(("enabled", "how"), [(True, {"warm", "caught-up"}), (False, {"rebuilt"})])
def test_local_recovery(lab: Lab, enabled: bool, how: set[str]) -> None:
    option = {"execution.checkpointing.local-backup.enabled": enabled}
    for number in range(2):
        lab.feed(ROWS[number * 80 : number * 80 + 80], files=2)
        job = running(lab, **option)
        processed(job, 80)
        job.cancel()
    first = next(report for report in job.epochs() if not report.rolled_forward)
    assert {metrics.store for _, _, metrics in first.tasks} <= how
    assert outputs(lab, "oracle") == expected(ROWS[:160])


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
