"""The supervisor plays the life of a job: restarts, requests that come in between, and the order of its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.job_lab import job_context
from tests.support.patience import PATIENCE, until

from cairn.api.job_handle import JobHandle
from cairn.coordinator.epoch_loop import EpochReport
from cairn.errors import CairnError, CheckpointFailedError, CorruptFileError, EpochFailedError, FencedError
from cairn.events import PROCESS_EVENTS, CheckpointCompleted, EventBus, JobEvent
from cairn.job.job_events import EpochCommitted, JobEnded, JobRestarting, JobStarted
from cairn.job.job_run import JobRun, RunParts
from cairn.job.life_cycle import JobState, JobStatus
from cairn.job.supervisor import RunStarter, Supervisor
from cairn.storage.run_records import Runs


class Query:
    """A `RunningQuery` that a test ends."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: CairnError | None = None
        self.stops = 0

    def end(self, error: CairnError | None = None) -> None:
        self._error = error
        self._ended.set()

    def is_active(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout: float) -> None:
        self._ended.wait(timeout)

    def stop(self) -> None:
        self.stops += 1
        self._ended.set()

    def waits_for_input(self) -> bool:
        return False

    def why_failed(
        self, epoch_error: BaseException | None, find_newer_run: Callable[[], FencedError | None]
    ) -> CairnError | None:
        return self._error

    def why_unreachable(self, error: Exception) -> CairnError | None:
        return None


class Job:
    """A supervised job; `queries` are those of its runs."""

    def __init__(self, folder: Path, strategy: str = "none") -> None:
        self.supervisor = Supervisor(job_context(folder, strategy))
        self.handle = JobHandle(self.supervisor)
        self.queries: list[Query] = []
        self.done: list[str] = []
        self.coordinators: list[Any] = []
        self.before_attach: Callable[[], None] = lambda: None
        self.supervisor.starter = RunStarter(self.start, lambda: self.done.append("released"))
        self.supervisor.events.subscribe(JobEvent, lambda event: self.done.append(type(event).__name__))

    def start(self, thorough: bool = False) -> None:
        supervisor = self.supervisor
        run = JobRun(supervisor.context, supervisor.gate, Runs(supervisor.context.files).take(1, 0).run, None)
        self.queries.append(Query())
        run.started(self.queries[-1])
        coordinator = SimpleNamespace(events=EventBus(), infos=list, current_epoch=lambda: -1, periodic=False)
        self.coordinators.append(coordinator)
        thread = SimpleNamespace(stop=lambda: self.done.append("checkpoints ended"))
        parts = SimpleNamespace(
            coordinator=coordinator, checkpoint_thread=thread, compactor=SimpleNamespace(wait=lambda timeout: None),
            control=SimpleNamespace(finish=lambda timeout: self.done.append("answered")), loop=None,
        )  # fmt: skip
        self.before_attach()
        supervisor.attach(run, cast(RunParts, parts))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, "fixed-delay")


def test_a_job_is_created_runs_and_finishes(job: Job) -> None:
    assert (job.handle.status(), job.handle.run, job.handle.restored_epoch) == (JobStatus.CREATED, 0, None)
    job.start()
    assert (job.handle.status(), job.handle.run) == (JobStatus.RUNNING, 1)
    assert not job.handle.await_termination(0.01)
    job.queries[0].end()
    assert job.handle.await_termination(PATIENCE)
    assert job.handle.status() is JobStatus.FINISHED
    assert job.done == ["JobStarted", "released", "checkpoints ended", "JobEnded", "answered"]


def test_a_failed_run_is_followed_by_another_until_the_strategy_says_no(tmp_path: Path) -> None:
    job = Job(tmp_path, "fixed-delay")
    job.start()
    job.queries[0].end(EpochFailedError("once"))
    until(lambda: len(job.queries) == 2 and job.handle.status() is JobStatus.RUNNING)
    assert (job.handle.restarts, job.handle.run) == (1, 2)
    assert job.handle.exception() is None
    job.queries[1].end(FencedError("a newer run has the job"))
    with pytest.raises(FencedError):
        job.handle.await_termination(PATIENCE)
    assert job.handle.status() is JobStatus.FAILED
    assert job.done[:5] == ["JobStarted", "released", "checkpoints ended", "JobRestarting", "JobStarted"]


def test_a_job_that_cannot_be_started_again_tells_why(tmp_path: Path) -> None:
    job = Job(tmp_path, "fixed-delay")
    job.start()
    errors: list[Exception] = [CorruptFileError("damaged"), ValueError("Spark says no"), CheckpointFailedError("no")]

    def fail() -> None:
        raise errors.pop()

    job.before_attach = fail
    job.queries[0].end(EpochFailedError("once"))
    with pytest.raises(CorruptFileError, match="damaged"):
        job.handle.await_termination(PATIENCE)
    assert job.handle.restarts == 3
    assert job.done.count("JobRestarting") == 3


def test_a_cancel_between_two_runs_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, "fixed-delay")
    waiting = threading.Event()

    def no_time() -> int:
        waiting.set()
        return 3_600_000

    job.supervisor._policy.restart_delay_ms = lambda failure: no_time()  # type: ignore[method-assign]
    job.start()
    job.queries[0].end(EpochFailedError("once"))
    assert waiting.wait(PATIENCE)
    until(lambda: job.handle.status() is JobStatus.RESTARTING)
    job.handle.cancel()
    assert job.handle.status() is JobStatus.CANCELED
    assert job.handle.exception() is None
    assert len(job.queries) == 1


def test_a_cancel_while_a_run_is_being_started_stops_it(tmp_path: Path) -> None:
    job = Job(tmp_path, "fixed-delay")
    starting, canceled = threading.Event(), threading.Event()
    job.start()

    def hold() -> None:
        starting.set()
        assert canceled.wait(PATIENCE)

    job.before_attach = hold
    job.queries[0].end(EpochFailedError("once"))
    assert starting.wait(PATIENCE)
    thread = threading.Thread(target=job.handle.cancel)
    thread.start()
    until(lambda: job.supervisor.life.state is JobState.CANCELING)
    canceled.set()
    thread.join(PATIENCE)
    assert job.handle.status() is JobStatus.CANCELED
    assert job.queries[1].stops == 1


def test_a_stop_that_is_canceled_too_is_a_stop(job: Job) -> None:
    job.start()
    ended: list[JobEnded] = []
    job.supervisor.events.subscribe(JobEnded, ended.append)
    assert job.supervisor.life.request(JobState.STOPPING)
    job.handle.cancel()
    assert job.handle.status() is JobStatus.FINISHED
    assert [event.closing for event in ended] == [JobState.STOPPING]


def test_a_stop_of_a_job_that_has_failed_meanwhile_tells_why(tmp_path: Path) -> None:
    job = Job(tmp_path, "none")
    job.start()
    told: list[CairnError | None] = []
    late = threading.Thread(target=lambda: told.append(job.supervisor.finish()))

    def stop(event: JobEnded) -> None:
        late.start()

    job.supervisor.events.subscribe(JobEnded, stop)
    job.queries[0].end(EpochFailedError("it broke"))
    with pytest.raises(EpochFailedError):
        job.handle.await_termination(PATIENCE)
    late.join(PATIENCE)
    assert told == [job.handle.exception()]
    assert told[0] is not None
    assert job.handle.status() is JobStatus.FAILED


def test_a_stop_of_a_running_job_tells_of_no_failure(job: Job) -> None:
    job.start()
    assert job.supervisor.finish() is None
    assert job.handle.status() is JobStatus.FINISHED


def test_how_a_job_ended_is_decided_once(tmp_path: Path) -> None:
    """A cancel that comes while a failed job is closed does not make it a canceled one."""
    job = Job(tmp_path, "none")
    job.start()
    seen: list[JobStatus] = []

    def cancel(event: JobEnded) -> None:
        assert not job.supervisor.life.request(JobState.CANCELING)
        seen.append(event.status)
        seen.append(job.handle.status())

    job.supervisor.events.subscribe(JobEnded, cancel)
    job.queries[0].end(EpochFailedError("it broke"))
    with pytest.raises(EpochFailedError):
        job.handle.await_termination(PATIENCE)
    assert seen == [JobStatus.FAILED, JobStatus.RESTARTING], "it is FAILED once everything is done"
    assert job.handle.status() is JobStatus.FAILED


def test_a_run_that_is_failed_ends_with_that_error(job: Job) -> None:
    job.supervisor.starter = None
    job.start()
    assert job.supervisor.current is not None
    job.supervisor.current.fail(CheckpointFailedError("too many failed"))
    with pytest.raises(CheckpointFailedError):
        job.handle.await_termination(PATIENCE)
    assert job.queries[0].stops == 1


def test_an_error_of_the_supervisor_itself_ends_the_job_and_keeps_its_checkpoints(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(job.supervisor.retention, "keep_all", lambda: kept.append(True))
    job.supervisor.starter = RunStarter(job.start, lambda: cast(Any, None)())
    job.start()
    job.queries[0].end()
    with pytest.raises(EpochFailedError, match="not callable"):
        job.handle.await_termination(PATIENCE)
    assert (job.handle.status(), kept) == (JobStatus.FAILED, [True])


def test_events_of_a_job_reach_its_listeners_and_those_of_the_process(job: Job) -> None:
    heard: list[JobEvent] = []
    reports: list[EpochReport] = []
    PROCESS_EVENTS.subscribe(JobEvent, heard.append)
    try:
        job.handle.add_epoch_listener(lambda report: cast(Any, None)())
        job.handle.add_epoch_listener(reports.append)
        job.start()
        report = EpochReport(0, 10, 5, 3, 3, 100, 12.5, 0, 0)
        job.supervisor.epoch_committed(report)
        job.coordinators[0].events.publish(CheckpointCompleted("job", 1))
        job.queries[0].end(EpochFailedError("once"))
        until(lambda: job.handle.run == 2)
        job.handle.cancel()
    finally:
        PROCESS_EVENTS.unsubscribe(heard.append)
    assert job.handle.epochs() == reports == [report]
    kinds = [type(event) for event in heard]
    assert kinds == [JobStarted, EpochCommitted, CheckpointCompleted, JobRestarting, JobStarted, JobEnded]


def test_the_process_hears_of_what_the_job_has_noted_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, "none")
    heard: list[tuple[str, object]] = []
    monkeypatch.setattr("cairn.job.supervisor.forget_running", lambda directory: job.done.append("forgotten"))

    def hear(event: JobEvent) -> None:
        if isinstance(event, EpochCommitted):
            heard.append(("epoch", [len(job.handle.epochs()), job.done[-1]]))
        if isinstance(event, JobEnded):
            heard.append(("ended", [*job.done[-2:], job.handle.status(), type(job.handle.exception())]))
            assert not job.supervisor.life.wait_until_over(0.01), "who waits for the end goes on after that"

    PROCESS_EVENTS.subscribe(JobEvent, hear)
    try:
        job.start()
        job.supervisor.epoch_committed(EpochReport(0, 10, 5, 3, 3, 100, 12.5, 0, 0))
        job.queries[0].end(EpochFailedError("it broke"))
        with pytest.raises(EpochFailedError):
            job.handle.await_termination(PATIENCE)
    finally:
        PROCESS_EVENTS.unsubscribe(hear)
    assert heard == [
        ("epoch", [1, "EpochCommitted"]),
        ("ended", ["forgotten", "JobEnded", JobStatus.FAILED, EpochFailedError]),
    ]


def test_nothing_can_be_asked_of_a_job_that_does_not_run(job: Job) -> None:
    for ask in (job.handle.trigger_checkpoint, job.handle.trigger_savepoint, job.handle.stop_with_savepoint):
        with pytest.raises(CheckpointFailedError, match="is not running, so there is nothing to"):
            ask()
    job.handle.cancel()
    assert job.handle.status() is JobStatus.CREATED


def test_epochs_after_a_cancel_are_refused_and_the_first_error_is_kept(tmp_path: Path) -> None:
    job = Job(tmp_path, "none")
    job.start()
    run = job.supervisor.current
    assert run is not None
    job.handle.cancel()
    epochs: list[int] = []
    with pytest.raises(EpochFailedError, match="is being stopped; batch 7 is left to the next run"):
        run.guarded(lambda frame, batch: epochs.append(batch))(None, 7)
    assert epochs == []
