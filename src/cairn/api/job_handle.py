"""The handle of a started job: what it does, waiting for it, stopping it."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from pyspark.errors import StreamingQueryException

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.control import CheckpointThread, Control
from cairn.coordinator.epoch_loop import EpochLoop, EpochReport
from cairn.coordinator.pending_checkpoint import SavepointOrder
from cairn.coordinator.restart_policy import RestartPolicy, worth_restarting
from cairn.errors import (
    CairnError,
    CheckpointFailedError,
    CorruptFileError,
    EpochFailedError,
    FencedError,
)
from cairn.job.epoch_gate import EpochGate
from cairn.job.events import tell
from cairn.job.failure_causes import Collisions, from_outside, jvm_gone, needs_new_process, note_damage, why_failed
from cairn.job.idle_start import tell_end
from cairn.job.interrupts import interrupts, wind_down
from cairn.job.publisher import Publisher
from cairn.job.retention import discard_all, keeps_checkpoints
from cairn.job.stopping import stop
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.model.pyflink_names import PyFlinkNames
from cairn.restore.recovery import Recovered
from cairn.spark.savepoint_writer import target_directory
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import Runs
from cairn.storage.running_jobs import forget_running, note_running
from cairn.view.job_reader import JobReader
from cairn.view.job_view import JobView
from cairn.view.notebook_html import Checkpoints, job_html

_log = get_logger("cairn.job")


class JobStatus(Enum):
    """Flink's words."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


class JobHandle(PyFlinkNames):
    """A running or ended job, as `env.execute_async` returns it."""

    def __init__(
        self,
        name: str,
        job_id: str,
        directory: str,
        policy: RestartPolicy,
        retention: str,
        savepoint_dir: str = "",
        timers: bool = False,
        publisher: Publisher | None = None,
    ) -> None:
        self.name = name
        self.job_id = job_id
        self.directory = directory
        self.run = 0
        self.restored_epoch: int | None = None
        self.restarts = 0
        self._policy = policy
        self._retention = retention
        self._savepoint_dir = savepoint_dir
        self._timers = timers
        self._restart: Callable[[bool], None] | None = None
        """Starts another run; the argument says whether all stored bytes are to be checked first."""
        self._release: Callable[[], None] = lambda: None
        """Lets go of what the sinks hold open. Called when a run has ended."""
        self._query: Any = None
        self._compactor: Compactor | None = None
        self._coordinator: CheckpointCoordinator | None = None
        self._checkpoint_thread: CheckpointThread | None = None
        self._control: Control | None = None
        self._loop: EpochLoop | None = None
        self._reports: deque[EpochReport] = deque(maxlen=1000)
        self._listeners: list[Callable[[EpochReport], None]] = [publisher.epoch] if publisher is not None else []
        self._error: BaseException | None = None
        self._fatal: CairnError | None = None
        self._canceled = False
        self._stopped = False
        """Stopped with a savepoint: the job has come to a good end."""
        self._suspended = False
        """Interrupted: it is meant to go on."""
        self._generation = 0
        self._interrupted_wait = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._gate = EpochGate()
        self._publisher = publisher
        self._collisions = Collisions()

    @property
    def web_url(self) -> str | None:
        """The job's page, or None: it is switched off, or not installed (`pip install "cairn-streaming[ui]"`)."""
        return self._publisher.url() if self._publisher is not None else None

    def status(self) -> JobStatus:
        """RUNNING, RESTARTING, or how it ended."""
        if self._query is None:
            return JobStatus.CREATED
        if not self._over.is_set():
            return JobStatus.RUNNING if self._query.isActive else JobStatus.RESTARTING
        if self._failure() is not None:
            return JobStatus.FAILED
        return JobStatus.CANCELED if self._canceled else JobStatus.FINISHED

    def trigger_checkpoint(self, full: bool | None = None, timeout: float | None = 600.0) -> CheckpointInfo:
        """Take a checkpoint now and wait for it. `full` overrides `execution.checkpointing.incremental`.

        Raises `CheckpointFailedError` if it fails, `TimeoutError` if it takes longer than `timeout` seconds (it goes
        on then).
        """
        return self._running("checkpoint").request(full).wait(timeout)

    def trigger_savepoint(
        self,
        dir: str | None = None,  # noqa: A002 - the word of the command line
        timeout: float | None = 3600.0,
        request_id: str | None = None,
    ) -> CheckpointInfo:
        """Write a savepoint while the job runs, and wait for it; `path` of what is returned says where it is.

        It gets a folder of its own in `dir`, or in `execution.checkpointing.savepoint-dir`. Asking again with the same
        `request_id`, also after a crash, gives the same savepoint. Raises `CheckpointFailedError` if it fails, and
        `TimeoutError` if it takes longer than `timeout` seconds (it goes on then); the job goes on in any case.
        """
        return self._running("savepoint").savepoint(self._order(dir, request_id)).wait(timeout)

    def stop_with_savepoint(
        self,
        dir: str | None = None,  # noqa: A002 - the word of the command line
        drain: bool = False,
        timeout: float = 3600.0,
        request_id: str | None = None,
    ) -> CheckpointInfo:
        """Stop the job with a savepoint: no epoch lies after it, and the job is FINISHED.

        With `drain` one more epoch runs at the end of event time, so that every event-time timer fires; the job is not
        meant to be resumed then. If the savepoint fails or takes longer than `timeout` seconds the job goes on, and
        the error is raised. Asked again with its `request_id`, a stop under way is joined; another one is refused.
        """
        coordinator, loop = self._running("stop"), self._loop
        if loop is None:
            raise CheckpointFailedError(f"job '{self.name}' is not running")
        files = LocalFileSystem(self.directory)
        order = self._order(dir, request_id, drain)
        return stop(files, self._gate, coordinator, loop, order, self.run, self._timers, self._finish, timeout)

    def _order(self, directory: str | None, request_id: str | None, drain: bool = False) -> SavepointOrder:
        request = layout.checked_request(request_id) if request_id is not None else uuid.uuid4().hex
        return SavepointOrder(target_directory(directory, self._savepoint_dir), request, drained=drain)

    def _running(self, what: str) -> CheckpointCoordinator:
        coordinator = self._coordinator
        if coordinator is None or self._over.is_set():
            raise CheckpointFailedError(f"job '{self.name}' is not running, so there is nothing to {what}")
        return coordinator

    def _finish(self) -> None:
        """End a job whose stream is held: what it was asked for is done."""
        self._stopped = True
        self._end_query(grace=30.0)

    def view(self) -> JobView:
        """All that pages and metrics show of the job, as one record."""
        return JobReader(self.directory, self._publisher).view()

    def plot(self) -> Any:
        """Durations of epochs and checkpoints and the size of the state over time: a figure of matplotlib."""
        from cairn.view.plots import plot

        return plot(self.view())

    def _repr_html_(self) -> str:
        return job_html(self.view())

    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints of the job, newest first: in progress, completed and failed, also of earlier runs."""
        running = self._in_progress()
        known = {info.id for info in running}
        ended = CheckpointStore(LocalFileSystem(self.directory)).history()
        return Checkpoints(running + [info for info in ended if info.id not in known])

    def _in_progress(self) -> list[CheckpointInfo]:
        return self._coordinator.infos() if self._coordinator is not None and not self._over.is_set() else []

    def epochs(self) -> list[EpochReport]:
        """Reports of the epochs of this run, oldest first, at most the last thousand."""
        with self._lock:
            return list(self._reports)

    def add_epoch_listener(self, listener: Callable[[EpochReport], None]) -> None:
        """Call `listener(report)` after every epoch, on the thread of the stream: keep it short."""
        self._listeners.append(listener)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended, at most `timeout` seconds; True if it has. A failed job raises its error.

        Ctrl-C while waiting ends the job well: the running epoch is finished, a last checkpoint is taken if checkpoints
        are on, all checkpoints stay, and a message says what is kept. A second one ends it at once.
        """
        with interrupts() as interrupted:
            try:
                return self._await(timeout, interrupted)
            except KeyboardInterrupt:
                wind_down(self, self._gate, self._coordinator, self._suspend)
                raise

    def _suspend(self) -> None:
        """What ends now was interrupted, not given up: its checkpoints stay, whatever the retention says."""
        self._suspended = True

    def _await(self, timeout: float | None, interrupted: Callable[[], bool]) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._over.is_set():
            if interrupted():
                raise KeyboardInterrupt
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            if left <= 0:
                return False
            self._over.wait(left)
        self._settle()
        failure = self._failure()
        if failure is not None:
            raise failure
        return True

    def cancel(self, grace: float = 30.0) -> None:
        """Stop the job. The running epoch may finish within `grace` seconds; after that it is given up, and the next
        run repeats it. What is committed stays.
        """
        if self._query is not None and not self._over.is_set():
            self._canceled = True
            self._end_query(grace)
        self._settle()

    def _end_query(self, grace: float) -> None:
        """Let no further epoch begin, give the running one some time, and stop the query."""
        self._interrupted_wait.set()
        self._gate.end(grace)
        try:
            if self._query.isActive:
                self._query.stop()
        except Exception as error:  # noqa: BLE001 - an epoch that was given up ends the query with an error
            _log.debug("while stopping job %s: %s", self.name, error)
        self._over.wait(grace)

    def _settle(self) -> None:
        if self._control is not None and self._over.is_set():
            self._control.finish(10)
        if self._compactor is not None:
            self._compactor.wait(30)

    def exception(self) -> CairnError | None:
        """Why the job failed; None while it runs or when it ended well."""
        return self._failure() if self._over.is_set() else None

    def _failure(self) -> CairnError | None:
        """Why the last run failed."""
        if self._query is None or self._canceled or self._stopped:
            return None
        if self._fatal is not None:
            return self._fatal
        return why_failed(self.name, self._query, self._error, self._overtaken)

    # The supervisor: one thread that sees every run end.

    def _supervise(self) -> None:
        try:
            while True:
                self._wait_for_query()
                failure = self._failure() or self._ended_by_another()
                if isinstance(failure, CorruptFileError):
                    self._fatal = failure = note_damage(LocalFileSystem(self.directory), failure)
                self._release()
                if failure is None or not self._start_again(failure):
                    self._fatal = self._fatal or failure  # decided once: what comes later does not change how it ended
                    break
            self._closing(self._end_checkpoints)
            self._closing(self._apply_retention)
        except Exception as error:  # noqa: BLE001 - whoever waits for the job must hear that it is over
            _log.exception("the supervisor of job %s stumbled", self.name)
            self._fatal = self._fatal or EpochFailedError(f"job '{self.name}' failed: {error}")
        finally:
            try:
                self._closing(self._tell_end)
            finally:
                self._over.set()
                forget_running(self.directory)
                tell("ended", self)

    def _closing(self, step: Callable[[], None]) -> None:
        """A step after the end of the job: an error in it does not change how the job ended."""
        try:
            step()
        except Exception:  # noqa: BLE001 - the job is over, and whoever waits for it must hear how it ended
            _log.exception("job %s has ended; an error occurred while it was closed", self.name)

    def _tell_end(self) -> None:
        """Write down how the job ended."""
        if self._publisher is None:
            return
        failure = self._failure()
        if isinstance(failure, FencedError):
            return  # the directory is another run's now: nothing more is written there
        if failure is not None:
            self._publisher.look(now=True)
            self._publisher.recorder.flush()
            self._publisher.failed(failure, restarting=False)
        else:
            if not (self._canceled or self._stopped):
                tell_end(self.name, self.restored_epoch, len(self._reports))
            self._publisher.ended("canceled" if self._canceled else "stopped" if self._stopped else "finished")

    def _wait_for_query(self) -> None:
        query = self._query
        try:
            while query.isActive:
                with suppress(StreamingQueryException):  # told by `_failure`, in our words
                    query.awaitTermination(0.2)
        except Exception as error:  # noqa: BLE001 - the JVM is gone, and the query with it
            if not self._gate.ended:
                self._error = self._error or error

    def _start_again(self, failure: CairnError) -> bool:
        """Restart as the strategy allows; False if the job stays down."""
        self._end_checkpoints()
        while self._restart is not None and worth_restarting(failure) and not needs_new_process(failure):
            delay = self._collisions.next_delay(failure)
            if delay is None:
                delay = self._policy.next_delay(time.monotonic_ns() // 1_000_000)
            if delay is None:
                if self._policy.type != "none":
                    strategy = self._policy.describe()
                    _log.error("job %s stays down: its restart strategy (%s) is exhausted", self.name, strategy)
                return False
            _log.warning("job %s failed and is restarted in %d ms: %s", self.name, delay, failure)
            tell("restarting", self, failure=failure)
            if self._publisher is not None:
                self._publisher.failed(failure, restarting=True)
            if self._interrupted_wait.wait(delay / 1000):
                return False
            self._settle()
            try:
                self._error = self._fatal = None
                self.restarts += 1
                self._restart(isinstance(failure, CorruptFileError))
                if self._gate.ended:  # while it was being started
                    self._query.stop()
                return True
            except CorruptFileError as error:  # it would find the same again
                self._fatal = error
                return False
            except CairnError as error:
                self._fatal = failure = error
            except Exception as error:  # noqa: BLE001 - Spark says no: the strategy decides about another try
                told = EpochFailedError(f"job '{self.name}' could not be restarted: {error}")
                self._fatal = failure = jvm_gone(self.name, error) or told
        return False

    def _end_checkpoints(self) -> None:
        thread, self._checkpoint_thread = self._checkpoint_thread, None
        if thread is not None:
            thread.stop()

    def _apply_retention(self) -> None:
        """At the end of a job its checkpoints go or stay, as configured. Those of a job that a newer run has stay."""
        failure = self._failure()
        if self._suspended or keeps_checkpoints(self._retention, self._canceled, failure) or from_outside(failure):
            return
        if self._overtaken() is None:
            discard_all(LocalFileSystem(self.directory), self.name, self.run)

    def _fail(self, error: CairnError, query: Any = None) -> None:
        """End the run with this error, whatever it is doing. Returns at once. `query`: of a run in the making."""
        self._fatal = error
        query = query if query is not None else self._query
        threading.Thread(target=query.stop, name="cairn-fail", daemon=True).start()

    def _ended_by_another(self) -> FencedError | None:
        """Why a query ended in peace that nobody asked to end: Spark stops it for a newer one of the same session."""
        return None if self._canceled or self._stopped else self._overtaken()

    def _overtaken(self) -> FencedError | None:
        """Spark finds out by itself that someone else writes its log; the cause is a newer run of this job."""
        try:
            Runs(LocalFileSystem(self.directory)).check(self.run)
        except FencedError as error:
            return error
        return None

    # Called by the environment.

    def _attach(
        self, recovered: Recovered, query: Any, compactor: Compactor, coordinator: CheckpointCoordinator,
        thread: CheckpointThread, control: Control, loop: EpochLoop,
    ) -> None:  # fmt: skip
        """A run of the job has been started."""
        first = self._query is None
        self.run = recovered.run.run
        self.restored_epoch = recovered.manifest.epoch if recovered.manifest is not None else None
        self._compactor = compactor
        self._coordinator = coordinator
        self._checkpoint_thread = thread
        self._control = control
        self._loop = loop
        self._query = query
        coordinator.listeners.completed.append(lambda number: tell("checkpoint", self, number=number))
        tell("started", self)
        if first:
            note_running(self.directory)
            if self._publisher is not None:
                self._publisher.serve(lambda: self.status().value, self._in_progress)
            threading.Thread(target=self._supervise, name=f"cairn-supervisor-{self.job_id}", daemon=True).start()

    def _on_epoch(self, report: EpochReport) -> None:
        with self._lock:
            self._reports.append(report)
        tell("epoch", self, report=report)
        for listener in list(self._listeners):
            try:
                listener(report)
            except Exception:  # noqa: BLE001 - whatever it was, the job must not suffer
                _log.exception("an epoch listener raised; the job goes on")

    def _guarded(self, run_epoch: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """Keep the error itself: Spark only passes its text on. One of a run that was replaced meanwhile is dropped."""
        self._generation += 1
        mine = self._generation

        def call(frame: Any, batch: int) -> None:
            if not self._gate.enter():
                self._refuse(batch)
            try:
                run_epoch(frame, batch)
            except BaseException as error:
                self._keep(error, mine)
                raise
            finally:
                self._gate.leave()

        return call

    def _keep(self, error: BaseException, generation: int) -> None:
        if generation == self._generation and not self._gate.ended:
            self._error = error

    def _refuse(self, batch: int) -> None:
        """Raise out of a batch that a cancel came before: returning would make Spark commit it.

        Spark takes an error for a quiet end, not for a failure with a page of log, if it is stopping already and the
        text looks like an interrupted call.
        """
        deadline = time.monotonic() + 10
        while self._query is not None and self._query.isActive and time.monotonic() < deadline:
            time.sleep(0.01)
        raise EpochFailedError(
            f"job '{self.name}' is being stopped; batch {batch} is left to the next run\n"
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop.\n: java.lang.InterruptedException"
        )

    def __repr__(self) -> str:
        return f"<job {self.job_id!r} run {self.run}: {self.status().value}>"
