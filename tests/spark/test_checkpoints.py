"""Checkpoints of real jobs: taken while they run, at every setting; told, listed and kept."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoint_lab import RETAIN, ROWS, Slow, held, outputs, processed, running
from tests.support.oracle import OUTPUT, Oracle, expected, ship
from tests.support.patience import PATIENCE, until
from tests.support.spark_lab import Lab

from cairn import (
    CheckpointFailedError,
    CheckpointInfo,
    CheckpointListener,
    CheckpointStatus,
    CheckpointType,
    FileSink,
    JobStatus,
    NoopSink,
    StorageError,
)
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore

pytestmark = pytest.mark.spark
ship(__name__)


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
        assert subtask.ack_ms == info.trigger_ms + subtask.async_ms <= info.end_ms + 1, "the epoch was over before"
        assert subtask.sync_ms == 0, "nothing was done for the checkpoint in it"
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


def test_an_unaligned_checkpoint_does_not_wait_and_replays_what_was_in_flight(lab: Lab) -> None:
    gate = lab.folder / "gate"
    lab.feed(ROWS[:80])
    job = running(lab, function=Slow(str(gate)), execution__checkpointing__unaligned__enabled=True)
    processed(job, 80)
    gate.touch()
    lab.feed(ROWS[80:120])
    until(held(gate).exists)
    info = job.trigger_checkpoint(timeout=PATIENCE)
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
    until(held(gate).exists)
    found: list[CheckpointInfo] = []
    thread = threading.Thread(target=lambda: found.append(job.trigger_checkpoint()))
    thread.start()
    until(lambda: any(info.status is CheckpointStatus.IN_PROGRESS for info in job.checkpoints()))
    time.sleep(1.0)
    assert not found
    gate.unlink()
    thread.join(PATIENCE)
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
    until(held(gate).exists)
    with pytest.raises(CheckpointFailedError, match="expired"):
        job.trigger_checkpoint()
    with pytest.raises(CheckpointFailedError, match="tolerable failure threshold"):
        job.await_termination(PATIENCE)
    assert job.status() is JobStatus.FAILED
    gate.unlink()
    assert [info.reason.value for info in job.checkpoints() if info.reason] == ["CHECKPOINT_EXPIRED"]
    assert not (Path(job.directory) / "chk-1").exists()
    job = running(lab)
    processed(job, 40)
    job.cancel()
    assert outputs(lab, "oracle") == expected(ROWS[:120])


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
            job.await_termination(PATIENCE)
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
    assert "deleted when it ends" in caplog.text
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
