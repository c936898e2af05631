"""The supervisor of a job: it sees every run end, starts the next one or closes the job, and ends it on request.

Its states and their transitions are drawn in `job/life_cycle.py`. It sees Spark as a `RunningQuery` only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cairn.coordinator.epoch_loop import EpochReport
from cairn.coordinator.restart_policy import RestartPolicy
from cairn.errors import CairnError, CorruptFileError, EpochFailedError, InternalError
from cairn.events import PROCESS_EVENTS, CheckpointCompleted, EventBus, JobEvent
from cairn.job.epoch_gate import EpochGate
from cairn.job.failure_policy import FailurePolicy, newer_run, note_damage
from cairn.job.idle_start import tell_end
from cairn.job.job_context import JobContext
from cairn.job.job_events import EpochCommitted, EpochHistory, JobEnded, JobRestarting, JobStarted
from cairn.job.job_run import JobRun, RunParts
from cairn.job.life_cycle import FAILURE, REQUESTED, STATUS, JobState, JobStatus, LifeCycle
from cairn.job.retention import CheckpointRetention
from cairn.logs import get_logger
from cairn.storage.running_jobs import forget_running, note_running

_log = get_logger("cairn.job")
_STOP_GRACE = 30.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class RunStarter:
    """How the supervisor starts another run of its job."""

    restart: Callable[[bool], None]
    """Starts a run and attaches it; the argument says whether all stored bytes are to be checked first."""
    release: Callable[[], None]
    """Lets go of what the sinks of the run that has ended hold open."""


class Supervisor:
    """The life of one job, over all its runs.

    Threads: the supervisor's own thread, started with the first run, decides about restarts and closes the job; it
    alone changes `restarts`, and `current` after the first run. Any thread may call the public methods: what they
    share goes through `life`, `gate`, `events` and `reports`, each of which has its lock.
    """

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.life = LifeCycle()
        self.gate = EpochGate()
        self.events = EventBus()
        self.reports = EpochHistory(self.events)
        self.retention = CheckpointRetention(context)
        self.current: JobRun | None = None
        """The newest run."""
        self.restarts = 0
        self.starter: RunStarter | None = None
        """None in a job that cannot be started again."""
        self._policy = FailurePolicy(
            context.name, RestartPolicy(context.settings.restart, context.settings.checkpoints)
        )
        self._failure: CairnError | None = None

    # What the start of a run calls.

    def attach(self, run: JobRun, parts: RunParts) -> None:
        """A run has been started. It is stopped again if the end of the job has been requested meanwhile."""
        first = self.current is None
        run.parts = parts
        self.current = run
        parts.coordinator.events.subscribe(CheckpointCompleted, self._publish)
        if not self.life.enter(JobState.RUNNING):
            run.stop_query()
        if first:
            note_running(self.context.directory)
        self._publish(JobStarted(self))
        if first:
            name = f"cairn-supervisor-{self.context.job_id}"
            threading.Thread(target=self.supervise, name=name, daemon=True).start()

    def epoch_committed(self, report: EpochReport) -> None:
        """Called by the epoch loop, on the stream's thread."""
        self._publish(EpochCommitted(self, report))

    def _publish(self, event: JobEvent) -> None:
        """Tell the listeners of the job, and those of the process once the former have it."""
        self.events.publish(event)
        PROCESS_EVENTS.publish(event)

    # What users call.

    def status(self) -> JobStatus:
        return STATUS[self.life.state]

    def exception(self) -> CairnError | None:
        """Why the job failed; None while it runs or when it ended well."""
        return self._failure if self.life.ended else None

    def await_end(self, timeout: float | None, interrupted: Callable[[], bool]) -> bool:
        """Wait for the end of the job; False if it has not come in time. `KeyboardInterrupt` once `interrupted()`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.life.over:
            if interrupted():
                raise KeyboardInterrupt
            left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, deadline - time.monotonic())
            if left <= 0:
                return False
            self.life.wait_until_over(left)
        if self.current is not None:
            self.current.settle(job_is_over=True)
        return True

    def cancel(self, grace: float) -> None:
        """End the job. The running epoch may finish within `grace` seconds."""
        self.life.request(JobState.CANCELING)
        self._end_query(grace)
        if self.current is not None:
            self.current.settle(self.life.over)

    def finish(self) -> CairnError | None:
        """End a job whose stream is held: the savepoint that it is stopped with is complete.

        Returns why the job has failed if it did so before it could be stopped.
        """
        self.life.request(JobState.STOPPING)
        self._end_query(_STOP_GRACE)
        if self.life.state not in FAILURE:
            return None
        return self._failure or EpochFailedError(f"job '{self.context.name}' has failed")

    def _end_query(self, grace: float) -> None:
        """Let no further epoch begin, give the running one some time, and stop the query."""
        run = self.current
        if run is not None and not self.life.over:
            self.gate.end(grace)
            run.stop_query()
            self.life.wait_until_over(grace)

    # The supervisor's thread.

    def supervise(self) -> None:
        """See runs end until the job is over, and close it."""
        try:
            failure = self._until_down()
        except Exception as error:  # noqa: BLE001 - waiters must learn that the job is over
            _log.exception("the supervisor of job %s failed unexpectedly", self.context.name)
            failure = EpochFailedError(f"job '{self.context.name}' failed: {error}")
            self.retention.keep_all()
            if not self.life.enter(JobState.FAILING):
                failure = None
        self._failure = failure
        end = JobEnded(self, self.life.state, failure)
        try:
            self._close(end)
        finally:
            self.life.close(lambda: PROCESS_EVENTS.publish(end))

    def _until_down(self) -> CairnError | None:
        """See one run after the other end. Returns why the job stays down; None if it ended well or on request."""
        while True:
            run = self.current
            if run is None:
                raise InternalError(f"job '{self.context.name}' has no run to supervise")
            run.wait()
            failure = self._failure_of(run)
            if self.starter is not None:
                self.starter.release()
            if failure is None:
                self.life.enter(JobState.FINISHING)
                return None
            if not self.life.enter(JobState.RESTARTING):
                return None
            run.end_checkpoints()
            reason = self._start_again(run, failure)
            if reason is not None:
                return reason if self.life.enter(JobState.FAILING) else None

    def _failure_of(self, run: JobRun) -> CairnError | None:
        """Why a run that nobody has ended on purpose failed.

        A query that ended without an error has failed, too, if a newer run has taken the job: Spark stops a query for a
        newer one of the same session.
        """
        if self.life.state in REQUESTED:
            return None
        failure = run.failure() or newer_run(self.context.files, run.number)
        if isinstance(failure, CorruptFileError):
            return note_damage(self.context.files, failure)
        return failure

    def _start_again(self, run: JobRun, failure: CairnError) -> CairnError | None:
        """Start another run as the restart strategy allows. None if there is one, else why the job is down."""
        while self.starter is not None:
            delay = self._policy.restart_delay_ms(failure)
            if delay is None:
                return failure
            _log.warning("job %s failed and is restarted in %d ms: %s", self.context.name, delay, failure)
            self._publish(JobRestarting(self, failure))
            if self.life.has_left(JobState.RESTARTING, delay / 1000):
                return failure
            run.settle(job_is_over=False)
            self.restarts += 1
            try:
                self.starter.restart(isinstance(failure, CorruptFileError))
                return None
            except CorruptFileError as error:  # it would find the same again
                return error
            except CairnError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - Spark refuses: the strategy decides about another attempt
                refused = EpochFailedError(f"job '{self.context.name}' could not be restarted: {error}")
                failure = run.query.why_unreachable(error) or refused
        return failure

    def _close(self, end: JobEnded) -> None:
        """Do what follows the last run. An error in a step changes neither the other steps nor how the job ended."""
        run = self.current
        if run is None:
            return

        def tell() -> None:
            if end.closing is JobState.FINISHING:
                tell_end(self.context.name, run.restored_epoch, len(self.reports))
            self.events.publish(end)

        steps: tuple[Callable[[], None], ...] = (
            run.end_checkpoints,
            lambda: self.retention.apply(run.number, end.closing is JobState.CANCELING, end.failure),
            lambda: forget_running(self.context.directory),
            tell,
        )
        for step in steps:
            try:
                step()
            except Exception:  # noqa: BLE001 - the job is over, and its waiters must learn how it ended
                _log.exception("job %s has ended; an error occurred while it was closed", self.context.name)
