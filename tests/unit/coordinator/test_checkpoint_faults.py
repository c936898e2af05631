"""Checkpoints beside slow, lagging and failing storage, slow tasks and readers; and what is told while one runs."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.coordinator_lab import World, manifest
from tests.support.job_lab import add_run, ended_query, job_context
from tests.support.patience import PATIENCE
from typer.testing import CliRunner

from cairn.cli.main import app
from cairn.coordinator.checkpoint_statistics import Insight
from cairn.coordinator.checkpoint_thread import CheckpointThread
from cairn.coordinator.control import Control
from cairn.errors import (
    CheckpointFailedError,
    CorruptFileError,
    EpochFailedError,
    IncompatibleStateError,
    NotFoundError,
    StorageError,
)
from cairn.job.supervisor import Supervisor
from cairn.model.checkpoint_records import CheckpointStatus
from cairn.model.manifest import StateHandle, TaskMetrics
from cairn.spark.task_progress import between_ends
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import collect, plan_garbage
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore, create_identity
from cairn.storage.run_records import Runs
from cairn.testing.faults import Fault, FaultPlan, FaultyFileSystem

ALWAYS = 1_000_000


def take(world: World, epoch: int) -> None:
    world.commit(epoch)
    world.coordinator.request()
    world.step()


# A9: a task that sleeps past the timeout.


def test_a_slow_task_costs_its_checkpoint_and_the_next_one_succeeds(tmp_path: Path) -> None:
    world = World(tmp_path, timeout_ms=300, tolerable_failures=1)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    late = world.coordinator.request()
    world.step()
    world.step(300)
    with pytest.raises(CheckpointFailedError, match="expired before completing: its running epoch took over 300 ms"):
        late.wait(0)
    assert world.failed == [], "one is tolerated"
    world.coordinator.epoch_committed(manifest(1), [])
    world.coordinator.request()
    world.step()
    assert world.history() == [(1, "FAILED", "CHECKPOINT_EXPIRED"), (2, "COMPLETED", "")]
    for epoch in (2, 3):
        world.coordinator.epoch_began(epoch, "")
        world.coordinator.request()
        world.step()
        world.step(300)
        world.coordinator.epoch_committed(manifest(epoch), [])
    assert [info.id for info in world.failed] == [4], "two in a row are one too many; the success in between counted"
    assert world.store.numbers() == [2]


# D9: slow storage.


def test_slow_metadata_holds_up_neither_epochs_nor_requests(tmp_path: Path) -> None:
    world = World(tmp_path, interval_ms=100, timeout_ms=1000)
    gate, entered = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        entered.set()
        assert gate.wait(PATIENCE)

    world.files.plan = FaultPlan([Fault("slow", operation="create", pattern="chk-*", seconds=30)], sleep=sleep)
    world.commit(0)
    world.clock.now += 100
    thread = threading.Thread(target=world.coordinator.step)
    thread.start()
    assert entered.wait(PATIENCE)
    for epoch in range(1, 50):
        world.clock.now += 100
        world.commit(epoch)
        world.coordinator.pins()
    assert world.store.numbers() == [], "not there before it is there whole"
    gate.set()
    thread.join(PATIENCE)
    assert world.store.numbers() == [1], "complete, if late: who is listed can be restored"
    assert len(world.coordinator._schedule) <= 1, "what was due meanwhile did not pile up"


# D11: listings that lag.


def test_a_checkpoint_that_the_listing_does_not_show_yet_is_found(tmp_path: Path) -> None:
    world = World(tmp_path, num_retained=5)
    world.files.plan = FaultPlan(list_lag=1000)
    for epoch in range(3):
        take(world, epoch)
    assert world.files.folders("") == []
    assert world.store.numbers() == [1, 2, 3]
    assert world.store.next_number() == 4
    again = world.start(manifest(2))
    again.request()
    world.step()
    assert world.store.numbers() == [1, 2, 3, 4], "no number is used twice"


def test_a_deleted_checkpoint_that_the_listing_still_shows_is_none(tmp_path: Path) -> None:
    world = World(tmp_path, num_retained=1)
    for epoch in range(3):
        take(world, epoch)
    world.files.plan = FaultPlan(list_lag=10_000)
    assert "chk-1" in world.files.folders("")
    assert world.store.numbers() == [3]
    assert [checkpoint.id for checkpoint in world.store.all()] == [3]


# D19: readers.


def test_a_checkpoint_that_is_being_read_stays_until_the_reader_is_done(tmp_path: Path) -> None:
    world = World(tmp_path, num_retained=1)
    take(world, 0)
    reader = CheckpointStore(LocalFileSystem(str(tmp_path)))  # of another process
    with reader.hold(1):
        take(world, 1)
        world.step(60_000)
        assert reader.numbers() == [2]
        assert reader.let_go() == [1], "not retained any more, but read"
        assert reader.load(1).files() <= world.coordinator.pins().files, "nor does anything go that it needs"
    assert [path.name for path in (tmp_path / "chk-1").iterdir()] == ["_metadata"]
    world.step(600_000)
    assert reader.numbers() == [2]
    assert not (tmp_path / "chk-1").exists()
    assert world.coordinator.pins().released == manifest(0).files()


def test_a_reader_that_died_does_not_keep_a_checkpoint_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    take(world, 0)
    world.files.create("chk-1/_reading-dead", b"")
    with pytest.raises(StorageError, match="is being read"):
        world.store.discard(1)
    assert world.store.numbers() == [1]
    monkeypatch.setattr("cairn.storage.checkpoint_store.READER_SECONDS", -1.0)
    world.store.discard(1)
    assert not (tmp_path / "chk-1").exists()


def test_holding_what_is_gone_or_cannot_be_marked(tmp_path: Path) -> None:
    world = World(tmp_path)
    take(world, 0)
    with pytest.raises(NotFoundError, match="discarded just now"), world.store.hold(9):
        pass
    assert not (tmp_path / "chk-9").exists()
    world.files.plan = FaultPlan([Fault("error", operation="create", times=ALWAYS)])
    with world.store.hold(1):
        assert world.store.readers(1) == []


# D20: a failed checkpoint that shared files with an earlier one.


def test_discarding_a_failed_checkpoint_harms_no_other(tmp_path: Path) -> None:
    world = World(tmp_path, num_retained=5, tolerable_failures=9)
    manifests = ManifestStore(world.files)
    known = {}
    for epoch in range(3):
        known[epoch] = manifest(epoch)
        for path in known[epoch].files() - {info.path for info in world.files.walk("shared")}:
            world.files.create(path, b"state")
        manifests.publish(known[epoch])
    take(world, 1)
    world.commit(2)
    world.coordinator.request(full=True)
    world.step()
    world.files.create("chk-2/op-g0-1-ab.state", b"snapshot")
    world.files.plan = FaultPlan([Fault("error", operation="create", pattern="chk-2/_metadata")])
    world.runner.started[2]({"op": [StateHandle(2, 0, 127, 8, "c", "chk-2/op-g0-1-ab.state", snapshot=True)]})
    world.step()
    world.coordinator.request()  # shares everything with the first, and fails
    world.files.plan = FaultPlan([Fault("error", operation="create", pattern="chk-3/_metadata")])
    world.step()
    assert [status for _, status, _ in world.history()] == ["COMPLETED", "FAILED", "FAILED"]
    assert world.store.numbers() == [1]
    assert not (tmp_path / "chk-2").exists()
    collect(manifests, plan_garbage(known, 1, world.coordinator.pins()))
    checkpoint = world.store.load(1)
    assert all(world.files.exists(path) for path in checkpoint.files())


# Deletes that fail.


def test_a_checkpoint_that_cannot_be_deleted_is_told_once_and_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, num_retained=1)
    fault = Fault("error", operation="delete", pattern="chk-1/*", times=ALWAYS)
    world.files.plan = plan = FaultPlan([fault])
    take(world, 0)
    with caplog.at_level(logging.DEBUG, logger="cairn.checkpoint"):
        take(world, 1)
        for _ in range(60):
            world.step(1000)
    told = [record for record in caplog.records if "cannot delete checkpoint 1" in record.message]
    assert [record.levelname for record in told].count("WARNING") == 1
    assert 5 <= plan.used[0] <= 8, "after 1, 2, 4, 8, ... seconds, not in every step"
    assert (world.store.numbers(), world.store.let_go()) == ([2], [1])
    assert manifest(0).files() <= world.coordinator.pins().files, "it is still whole"
    take(world, 2)
    assert (world.store.numbers(), world.store.let_go()) == ([3], [1]), "others are not held up"
    world.files.plan = FaultPlan()
    world.step(600_000)
    assert (world.store.numbers(), world.store.let_go()) == ([3], [])


def test_the_folder_of_a_failed_checkpoint_is_tried_again_too(tmp_path: Path) -> None:
    world = World(tmp_path, incremental=False, tolerable_failures=9)
    world.commit(0)
    world.coordinator.request()
    world.step()
    world.files.create("chk-1/op-g0-1-ab.state", b"half")
    world.files.plan = FaultPlan([Fault("error", operation="delete", times=2)])
    world.runner.started[1](RuntimeError("no room"))
    world.step()
    assert (tmp_path / "chk-1").exists()
    world.step(10)
    assert (tmp_path / "chk-1").exists()
    for _ in range(5):
        world.step(2000)
    assert not (tmp_path / "chk-1").exists()


# The end of a job.


@pytest.mark.parametrize("retention", ["NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION"])
@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (CorruptFileError("a file is damaged"), True),
        (StorageError("the storage is away"), True),
        (IncompatibleStateError("the code declares another type"), True),
        (EpochFailedError("the function raised"), None),
        (None, False),
    ],
)
def test_checkpoints_are_kept_when_they_may_be_all_that_is_left(
    tmp_path: Path, retention: str, error: Any, kept: bool | None
) -> None:
    world = World(tmp_path)
    take(world, 0)
    job = Supervisor(job_context(tmp_path, retention=retention))
    run = add_run(job, ended_query(), number=1)
    if error is not None:
        run.fail(error)
    job.supervise()
    if kept is None:
        kept = retention == "DELETE_ON_CANCELLATION"
    assert world.store.numbers() == ([1] if kept else [])
    assert job.life.over


def test_a_checkpoint_that_cannot_be_deleted_at_the_end_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, num_retained=3)
    for epoch in range(3):
        take(world, epoch)
    job = Supervisor(job_context(tmp_path))
    add_run(job, ended_query(), number=1)
    with world.store.hold(2):
        job.supervise()
        assert (world.store.numbers(), world.store.let_go()) == ([], [2])
    assert "checkpoint 2 of job job is left" in caplog.text
    assert job.exception() is None


# The first trigger.


def test_what_a_snapshot_writes_while_it_is_being_deleted_goes_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, timeout_ms=1000)
    world.commit(0)
    world.coordinator.request(full=True)
    world.step()
    path = layout.full_snapshot_path(1, "op", 0, 1, "0123abcd")
    abandon = CheckpointStore.abandon

    def late(store: CheckpointStore, number: int, run: int) -> None:
        abandon(store, number, run)
        monkeypatch.undo()
        world.files.create(path, b"late")
        world.runner.started[1](StorageError("canceled"))

    monkeypatch.setattr(CheckpointStore, "abandon", late)
    world.step(later=1000)
    assert world.history() == [(1, "FAILED", "CHECKPOINT_EXPIRED")]
    world.step()
    assert not world.files.exists(path)


@pytest.mark.parametrize(("min_pause", "expected"), [(0, 1), (40, 40)])
def test_after_a_failover_the_first_trigger_waits_for_the_pause_only(
    tmp_path: Path, min_pause: int, expected: int
) -> None:
    world = World(tmp_path, interval_ms=1000, min_pause_ms=min_pause)
    clock, coordinator = world.clock, world.start(manifest(0), failover=True)
    began = clock.now
    while not world.store.numbers():
        clock.now += 1
        coordinator.step()
        assert clock.now - began <= 1000
    assert clock.now - began == expected
    for _ in range(999):
        clock.now += 1
        coordinator.step()
    assert world.store.numbers() == [1], "from then on an interval lies in between"
    clock.now += 1 + min_pause
    coordinator.step()
    assert world.store.numbers() == [2]


# What is told while a checkpoint runs.


def test_acknowledgements_of_a_checkpoint_in_progress(tmp_path: Path) -> None:
    acked: list[tuple[str, int, TaskMetrics]] = []
    written: list[tuple[str, int]] = []
    world = World(tmp_path)
    insight = Insight(
        [("op", "Op", 2), ("other", "Other", 3)],
        lambda epoch: acked if epoch == 1 else [("op", 0, TaskMetrics())],
        lambda number: written,
        lambda tasks: {"op": 12.5},
    )
    coordinator = world.start(manifest(0), insight=insight)
    coordinator.epoch_began(1, "offsets of 1")
    incremental = coordinator.request()
    world.step()

    def counts() -> list[tuple[str, int, int]]:
        (info,) = coordinator.infos()
        assert info.status is CheckpointStatus.IN_PROGRESS
        assert (info.acknowledged, info.total) == (sum(op.acknowledged for op in info.operators), 5)
        return [(op.uid, op.acknowledged, op.total) for op in info.operators]

    assert counts() == [("op", 0, 2), ("other", 0, 3)]
    ended = world.clock.now + 99
    acked.append(("op", 1, TaskMetrics(rows_in=7, ended_ms=ended)))
    acked.append(("other", 2, TaskMetrics()))
    assert counts() == [("op", 1, 2), ("other", 1, 3)]
    assert [(s.index, s.records, s.ack_ms) for s in coordinator.infos()[0].operators[0].subtasks] == [(1, 7, ended)]
    coordinator.epoch_committed(manifest(1), acked)
    world.step()
    info = incremental.wait(0)
    assert [(op.uid, op.acknowledged, op.total) for op in info.operators] == [("op", 2, 2)]
    assert [s.alignment_ms for s in info.operators[0].subtasks] == [12.5, 12.5]
    coordinator.request(full=True)
    world.step()
    assert counts() == [("op", 0, 2), ("other", 0, 3)], "a full checkpoint is acknowledged when it is written"
    written.append(("op", 0))
    assert counts() == [("op", 1, 2), ("other", 0, 3)]


def test_the_command_line_asks_the_running_job(tmp_path: Path) -> None:
    world = World(tmp_path / "jobs" / "payments")
    create_identity(world.files, "payments", "Payments", 128)
    Runs(world.files).take(2, int(time.time() * 1000))
    insight = Insight([("op", "Op", 2)], lambda epoch: [("op", 1, TaskMetrics())])
    world.start(insight=insight)
    take(world, 0)
    world.coordinator.epoch_began(1, "offsets of 1")
    world.coordinator.request()
    world.step()
    thread = CheckpointThread(world.coordinator, Control(world.files, world.coordinator).serve)
    try:
        shown = CliRunner().invoke(app, ["checkpoints", "payments", "--dir", str(tmp_path / "jobs"), "--json"])
        text = CliRunner().invoke(app, ["checkpoints", "payments", "--dir", str(tmp_path / "jobs")]).stdout
    finally:
        thread.stop()
    first, second = json.loads(shown.stdout)["checkpoints"]
    assert (first["id"], first["status"], first["acknowledged"], first["total"]) == (2, "IN_PROGRESS", 1, 2)
    assert (second["id"], second["status"], second["acknowledged"], second["total"]) == (1, "COMPLETED", 2, 2)
    assert "IN_PROGRESS" in text
    assert "1/2" in text
    assert not list((tmp_path / "jobs" / "payments" / layout.CONTROL).iterdir())


# Alignment, from what Spark's status store says.


def stage(number: int, ends: list[int], read: int = 0, wrote: int = 0) -> Any:
    """A finished stage whose tasks, all launched at 1000, ended then."""
    tasks = [
        SimpleNamespace(
            index=lambda i=index: i,
            status=lambda: "SUCCESS",
            launchTime=lambda: SimpleNamespace(getTime=lambda: 1000),
            duration=lambda e=end: SimpleNamespace(isDefined=lambda: True, get=lambda: e - 1000),
        )
        for index, end in enumerate(ends)
    ]
    return SimpleNamespace(
        stageId=lambda: number, attemptId=lambda: 0, numTasks=lambda: len(ends), shuffleReadRecords=lambda: read,
        shuffleWriteRecords=lambda: wrote, status=lambda: SimpleNamespace(toString=lambda: "COMPLETE"), tasks=tasks,
    )  # fmt: skip


def status_store(*stages: Any) -> Any:
    by_number = {made.stageId(): made for made in stages}
    return SimpleNamespace(
        lastStageAttempt=lambda number: by_number[number],
        taskList=lambda number, attempt, most: SimpleNamespace(
            size=lambda: len(by_number[number].tasks), apply=lambda place: by_number[number].tasks[place]
        ),
    )


def test_alignment_is_from_the_first_to_the_last_end_upstream() -> None:
    """The last task of a stage brings the rows that every subtask gets: it does not count."""
    store = status_store(stage(4, [1500, 1100, 1900, 1001], wrote=10), stage(5, [3000, 3000], read=10))
    assert between_ends(store, 5, 1) == 800.0
    alone = status_store(stage(4, [1500, 1001], wrote=3), stage(5, [3000], read=3))
    assert between_ends(alone, 5, 1) == 0.0


def test_two_shuffles_into_one_stage_are_waited_for_together() -> None:
    stages = [stage(2, [1100, 1001], wrote=4), stage(3, [1700, 1001], wrote=6), stage(4, [3000], read=10)]
    assert between_ends(status_store(*stages), 4, 2) == 600.0


def test_alignment_is_not_told_where_the_rows_do_not_fit() -> None:
    store = status_store(stage(4, [1500, 1100, 1001], wrote=10), stage(5, [3000], read=11))
    assert between_ends(store, 5, 1) is None


def test_a_faulty_file_system_lags_in_folders_too(tmp_path: Path) -> None:
    files = FaultyFileSystem(LocalFileSystem(str(tmp_path)), FaultPlan(list_lag=3))
    files.create("a/x", b"")
    assert files.folders("") == []
    files.exists("a/x")
    files.exists("a/x")
    assert files.folders("") == ["a"]
