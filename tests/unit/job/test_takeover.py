"""A newer run takes the job, or the JVM dies: how the old run ends, and how the new one goes on. Without Spark."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.coordinator_lab import World
from tests.support.job_lab import add_run, ended_query, job_context
from tests.support.patience import PATIENCE

from cairn.api.job_handle import JobHandle
from cairn.coordinator.checkpoint_thread import CheckpointThread
from cairn.coordinator.ports import JobFacts
from cairn.coordinator.run_watch import LOOK_SECONDS, RunWatch
from cairn.errors import CairnError, EpochFailedError, FencedError
from cairn.job import failure_policy
from cairn.job.failure_policy import newer_run
from cairn.job.job_events import JobEnded
from cairn.job.job_run import JobRun
from cairn.job.life_cycle import JobState, JobStatus
from cairn.job.supervisor import RunStarter, Supervisor
from cairn.spark.savepoint_writer import SparkSavepoints, _Writing
from cairn.spark.spark_query import SparkQuery
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.run_records import Runs
from cairn.storage.savepoint_folder import SavepointFolder
from cairn.testing.faults import Fault, FaultPlan, FaultyFileSystem

SOURCE_LOG = "Multiple streaming queries are concurrently using file:/jobs/j/spark/sources/0.\n=== Streaming Query ==="
OFFSET_LOG = (
    "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3.\n"
    "Please make sure only one streaming job runs on a specific checkpoint location at a time. SQLSTATE: 40000"
)


def restarting(supervisor: Supervisor, restart: Any) -> None:
    supervisor.starter = RunStarter(restart, lambda: None)


def take_over(folder: Path) -> None:
    Runs(LocalFileSystem(str(folder))).take(1, 0)


# The old run.


def test_a_run_at_rest_hears_of_a_newer_one_within_a_second(tmp_path: Path) -> None:
    runs = Runs(LocalFileSystem(str(tmp_path)))
    told: list[FencedError] = []
    now = [100.0]
    watch = RunWatch(runs, runs.take(1, 0).run, told.append, clock=lambda: now[0])
    watch.look()
    take_over(tmp_path)
    watch.look()
    assert told == [], "it looks once a second, not at every turn"
    now[0] += LOOK_SECONDS
    watch.look()
    assert "run 2 (process" in told[0].message
    now[0] += 10 * LOOK_SECONDS
    watch.look()
    assert len(told) == 1


def test_a_run_that_has_ended_is_not_overtaken_by_its_own_restart(tmp_path: Path) -> None:
    runs = Runs(LocalFileSystem(str(tmp_path)))
    told: list[FencedError] = []
    watch = RunWatch(runs, runs.take(1, 0).run, told.append)
    watch.end()
    take_over(tmp_path)
    watch.look()
    assert told == []


def test_storage_that_fails_for_a_moment_overtakes_nobody(tmp_path: Path) -> None:
    plan = FaultPlan([Fault(operation="exists", pattern="runs/*")])
    files = FaultyFileSystem(LocalFileSystem(str(tmp_path)), plan)
    runs = Runs(LocalFileSystem(str(tmp_path)))
    told: list[FencedError] = []
    now = [100.0]
    watch = RunWatch(Runs(files), runs.take(1, 0).run, told.append, clock=lambda: now[0])
    take_over(tmp_path)
    watch.look()
    assert (told, plan.used) == ([], {0: 1})
    now[0] += LOOK_SECONDS
    watch.look()
    assert len(told) == 1


def test_the_thread_of_the_coordinator_looks_also_when_nothing_happens(tmp_path: Path) -> None:
    world = World(tmp_path)
    runs = Runs(LocalFileSystem(str(tmp_path)))
    heard = threading.Event()
    watch = RunWatch(runs, runs.take(1, 0).run, lambda error: heard.set())
    thread = CheckpointThread(world.coordinator, watch=watch)
    try:
        take_over(tmp_path)
        assert heard.wait(PATIENCE)
    finally:
        thread.stop()


def test_an_overtaken_run_is_stopped_and_fails_and_leaves_everything(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(0)
    world.coordinator.request()
    world.step()
    job = Supervisor(job_context(tmp_path))
    run = JobRun(job.context, job.gate, Runs(job.context.files).take(1, 0).run, None)
    take_over(tmp_path)
    overtaken = newer_run(job.context.files, run.number)
    assert overtaken is not None
    run.fail(overtaken)  # the query is not even started yet
    stopped = threading.Event()
    query = ended_query()
    query.isActive = True

    def stop() -> None:
        query.isActive = False
        stopped.set()

    query.stop = stop
    query.awaitTermination = lambda timeout: stopped.wait(timeout)
    run.started(SparkQuery("job", query))
    assert stopped.wait(PATIENCE)
    job.current = run
    job.life.enter(JobState.RUNNING)
    job.supervise()
    assert job.status() is JobStatus.FAILED
    with pytest.raises(FencedError, match="run 2"):
        JobHandle(job).await_termination(PATIENCE)
    assert world.store.numbers() == [1]


def test_a_query_that_another_run_ended_in_peace_is_a_failure(tmp_path: Path) -> None:
    """The same cell of a notebook twice: Spark stops the first query without an error."""
    job = Supervisor(job_context(tmp_path))
    add_run(job, ended_query())
    take_over(tmp_path)
    job.supervise()
    assert job.status() is JobStatus.FAILED
    assert isinstance(job.exception(), FencedError)


@pytest.mark.parametrize("request_", [JobState.CANCELING, JobState.STOPPING, None])
def test_a_run_that_ended_by_itself_stays_ended_well_whoever_comes_later(
    tmp_path: Path, request_: JobState | None
) -> None:
    job = Supervisor(job_context(tmp_path))
    add_run(job, ended_query())
    if request_ is None:
        job.supervise()
        take_over(tmp_path)
    else:
        job.life.request(request_)
        take_over(tmp_path)
        job.supervise()
    assert job.status() is (JobStatus.CANCELED if request_ is JobState.CANCELING else JobStatus.FINISHED)
    assert job.exception() is None
    assert JobHandle(job).await_termination(PATIENCE)


# The new run.


@pytest.mark.parametrize("text", [SOURCE_LOG, OFFSET_LOG])
def test_the_rightful_run_starts_again_whatever_the_strategy(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_policy, "_PAUSE_MS", 1)
    job = Supervisor(job_context(tmp_path))
    add_run(job, ended_query(text))
    restarting(job, lambda thorough: add_run(job, ended_query()))
    job.supervise()
    assert (job.restarts, job.status()) == (1, JobStatus.FINISHED)


def test_it_gives_up_after_three_times_and_keeps_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_policy, "_PAUSE_MS", 1)
    world = World(tmp_path)
    world.commit(0)
    world.coordinator.request()
    world.step()
    job = Supervisor(job_context(tmp_path))
    add_run(job, ended_query(SOURCE_LOG))
    restarting(job, lambda thorough: add_run(job, ended_query(SOURCE_LOG)))
    job.supervise()
    assert job.restarts == 3
    error = job.exception()
    assert isinstance(error, EpochFailedError)
    assert "another process wrote to Spark's log of this job (file:/jobs/j/spark/sources/0)" in error.message
    assert "End the other process" in error.message
    assert world.store.numbers() == [1]


def test_a_run_that_meets_the_newer_one_does_not_start_again(tmp_path: Path) -> None:
    job = Supervisor(job_context(tmp_path, "fixed-delay"))
    add_run(job, ended_query(SOURCE_LOG))
    restarting(job, lambda thorough: pytest.fail("it was started again"))
    take_over(tmp_path)
    job.supervise()
    assert isinstance(job.exception(), FencedError)


# The JVM.


def raise_in_epoch(run: JobRun, error: Exception | None) -> None:
    """Let an epoch of the run raise an error."""

    def epoch(frame: Any, batch: int) -> None:
        if error is not None:
            raise error

    with suppress(Exception):
        run.guarded(epoch)(None, 0)


@pytest.mark.parametrize("strategy", ["none", "fixed-delay"])
@pytest.mark.parametrize("before", [None, ConnectionResetError(104, "Connection reset by peer")])
def test_a_dead_jvm_is_told_by_its_name_and_ends_the_job(tmp_path: Path, strategy: str, before: Any) -> None:
    world = World(tmp_path)
    world.commit(0)
    world.coordinator.request()
    world.step()
    job = Supervisor(job_context(tmp_path, strategy))
    run = add_run(job, ended_query(ConnectionRefusedError(111, "Connection refused")))
    raise_in_epoch(run, before)
    restarting(job, lambda thorough: pytest.fail("no restart can help"))
    job.supervise()
    error = job.exception()
    assert isinstance(error, EpochFailedError)
    assert "Spark's JVM has ended" in error.message
    assert "start the job again in a new process" in error.message
    assert world.store.numbers() == [1], "nothing is wrong with the job"


def test_a_jvm_that_dies_before_the_restart_ends_the_job(tmp_path: Path) -> None:
    job = Supervisor(job_context(tmp_path, "fixed-delay"))
    add_run(job, ended_query("java.lang.OutOfMemoryError"))
    calls: list[bool] = []

    def restart(thorough: bool) -> None:
        calls.append(thorough)
        raise ConnectionRefusedError(111, "Connection refused")

    restarting(job, restart)
    job.supervise()
    assert len(calls) == 1
    assert "Spark's JVM has ended" in str(job.exception())


def test_a_connection_of_the_users_own_that_breaks_is_not_taken_for_the_jvm(tmp_path: Path) -> None:
    job = Supervisor(job_context(tmp_path))
    raise_in_epoch(add_run(job, ended_query("the database is away")), ConnectionRefusedError(111, "database is away"))
    job.supervise()
    error: CairnError | None = job.exception()
    assert error is not None
    assert "JVM" not in error.message
    assert "database is away" in error.message


def test_what_a_savepoint_has_written_goes_also_when_the_jvm_is_gone(tmp_path: Path) -> None:
    def refuse(group: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobGroup=refuse))
    background: Any = None
    writer = SparkSavepoints(spark, LocalFileSystem(str(tmp_path / "job")), JobFacts("job", "Job", 1), 10, background)
    folder = SavepointFolder.begin(str(tmp_path / "sp"), "abc")
    Path(folder.path, "part").write_bytes(b"x")
    writer._writing[1] = _Writing(folder, "savepoint-job-abc", 1)
    writer.cancel(1)
    assert list((tmp_path / "sp").iterdir()) == []
    assert writer._writing[1].given_up


# The end of a run, with more than one thread.


def test_closing_while_a_step_deletes_checkpoints_deletes_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, num_retained=1)
    for epoch in (0, 1):
        world.commit(epoch)
        world.coordinator.request()
        if epoch == 0:
            world.step()
    deleting, go_on = threading.Event(), threading.Event()
    discard, calls = CheckpointStore.discard, []

    def slow(store: CheckpointStore, number: int) -> None:
        calls.append(number)
        deleting.set()
        assert go_on.wait(60)
        discard(store, number)

    monkeypatch.setattr(CheckpointStore, "discard", slow)
    errors: list[BaseException] = []

    def guarded(call: Any) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    step = guarded(world.coordinator.step)
    assert deleting.wait(60)
    close = guarded(world.coordinator.close)
    close.join(0.2)  # without the lock it would delete the same one now
    go_on.set()
    for thread in (step, close):
        thread.join(60)
    assert errors == []
    assert calls == [1]
    assert world.store.numbers() == [2]


def test_a_checkpoint_that_is_being_completed_when_the_job_ends_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.commit(0)
    request = world.coordinator.request()
    complete = CheckpointStore.complete

    def closing(store: CheckpointStore, checkpoint: Any) -> None:
        closer = threading.Thread(target=world.coordinator.close)
        closer.start()
        closer.join(0.2)
        complete(store, checkpoint)

    monkeypatch.setattr(CheckpointStore, "complete", closing)
    world.step()
    assert request.wait(60).id == 1
    assert world.store.numbers() == [1]


@pytest.mark.parametrize("step", ["end_checkpoints", "retention", "listener"])
def test_an_error_while_a_finished_job_is_closed_does_not_make_it_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    job = Supervisor(job_context(tmp_path))
    run = add_run(job, ended_query())

    def stumble(*arguments: Any) -> None:
        raise ValueError("list.remove(x): x not in list")

    if step == "listener":
        job.events.subscribe(JobEnded, stumble)
    elif step == "retention":
        monkeypatch.setattr(job.retention, "apply", stumble)
    else:
        monkeypatch.setattr(run, "end_checkpoints", stumble)
    job.supervise()
    assert job.exception() is None
    assert job.status() is JobStatus.FINISHED
    expected = "a listener of JobEnded raised" if step == "listener" else "an error occurred while it was closed"
    assert expected in caplog.text
