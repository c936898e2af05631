"""The handle of a started job: what it does, waiting for it, stopping it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cairn.coordinator.epoch_loop import EpochReport
from cairn.errors import CairnError
from cairn.job.actions import CANCEL_GRACE, SAVEPOINT_TIMEOUT, JobActions
from cairn.job.interrupts import interrupts, wind_down
from cairn.job.job_events import EpochCommitted
from cairn.job.life_cycle import JobStatus
from cairn.job.publisher import Publisher
from cairn.job.supervisor import Supervisor
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.model.pyflink_names import PyFlinkNames
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.view.job_reader import JobReader
from cairn.view.job_view import JobView
from cairn.view.notebook_html import CheckpointTable, job_html


class JobHandle(PyFlinkNames):
    """A running or ended job, as `env.execute_async` returns it. Its methods may be called from any thread."""

    def __init__(self, supervisor: Supervisor, publisher: Publisher | None = None) -> None:
        self.name = supervisor.context.name
        self.job_id = supervisor.context.job_id
        self.directory = supervisor.context.directory
        self._supervisor = supervisor
        self._actions = JobActions(supervisor)
        self._publisher = publisher

    @property
    def run(self) -> int:
        """The number of the newest run, 0 if there is none."""
        run = self._supervisor.current
        return run.number if run is not None else 0

    @property
    def restored_epoch(self) -> int | None:
        """The epoch that the newest run continues from, None if it began anew."""
        run = self._supervisor.current
        return run.restored_epoch if run is not None else None

    @property
    def restarts(self) -> int:
        """How often the job was started again after a failure."""
        return self._supervisor.restarts

    @property
    def web_url(self) -> str | None:
        """The job's page, or None: it is switched off, or not installed (`pip install "cairn-streaming[ui]"`)."""
        return self._publisher.url() if self._publisher is not None else None

    def status(self) -> JobStatus:
        """RUNNING, RESTARTING, or how it ended."""
        return self._supervisor.status()

    def exception(self) -> CairnError | None:
        """Why the job failed; None while it runs or when it ended well."""
        return self._supervisor.exception()

    def trigger_checkpoint(self, full: bool | None = None, timeout: float | None = 600.0) -> CheckpointInfo:
        """Take a checkpoint now and wait for it. `full` overrides `execution.checkpointing.incremental`.

        Raises `CheckpointFailedError` if it fails, `TimeoutError` if it takes longer than `timeout` seconds (it goes
        on then).
        """
        return self._actions.checkpoint(full).wait(timeout)

    def trigger_savepoint(
        self,
        dir: str | None = None,  # noqa: A002 - the word of the command line
        timeout: float | None = SAVEPOINT_TIMEOUT,
        request_id: str | None = None,
    ) -> CheckpointInfo:
        """Write a savepoint while the job runs, and wait for it; `path` of what is returned says where it is.

        It gets a folder of its own in `dir`, or in `execution.checkpointing.savepoint-dir`. Asking again with the same
        `request_id`, also after a crash, gives the same savepoint. Raises `CheckpointFailedError` if it fails, and
        `TimeoutError` if it takes longer than `timeout` seconds (it continues then); the job continues in any case.
        """
        return self._actions.savepoint(dir, request_id).wait(timeout)

    def stop_with_savepoint(
        self,
        dir: str | None = None,  # noqa: A002 - the word of the command line
        drain: bool = False,
        timeout: float = SAVEPOINT_TIMEOUT,
        request_id: str | None = None,
    ) -> CheckpointInfo:
        """Stop the job with a savepoint: no epoch lies after it, and the job is FINISHED.

        With `drain` one more epoch runs at the end of event time, so that every event-time timer fires; the job is not
        meant to be resumed then. If the savepoint fails or takes longer than `timeout` seconds the job continues, and
        the error is raised. If the job fails while the savepoint is completed, it is FAILED, and the
        `CheckpointFailedError` names the savepoint. Asked again with its `request_id`, a stop in progress is joined;
        another one is refused.
        """
        return self._actions.stop(dir, drain, timeout, request_id)

    def cancel(self, grace: float = CANCEL_GRACE) -> None:
        """Stop the job. The running epoch may finish within `grace` seconds; after that it is given up, and the next
        run repeats it. What is committed stays.
        """
        self._supervisor.cancel(grace)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended, at most `timeout` seconds; True if it has. A failed job raises its error.

        Ctrl-C while waiting ends the job well: the running epoch is finished, a last checkpoint is taken if checkpoints
        are on, all checkpoints stay, and a message says what is kept. A second one ends it at once.
        """
        supervisor = self._supervisor
        with interrupts() as interrupted:
            try:
                ended = supervisor.await_end(timeout, interrupted)
            except KeyboardInterrupt:
                parts = supervisor.current.parts if supervisor.current is not None else None
                coordinator = parts.coordinator if parts is not None else None
                wind_down(self, supervisor.gate, coordinator, supervisor.retention.keep_all)
                raise
        failure = self.exception()
        if failure is not None:
            raise failure
        return ended

    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints of the job, newest first: in progress, completed and failed, also of earlier runs."""
        run = self._supervisor.current
        running = run.in_progress() if run is not None else []
        known = {info.id for info in running}
        ended = CheckpointStore(self._supervisor.context.files).history()
        return CheckpointTable(running + [info for info in ended if info.id not in known])

    def epochs(self) -> list[EpochReport]:
        """Reports of the epochs of this run, oldest first, at most the last thousand."""
        return self._supervisor.reports.all()

    def add_epoch_listener(self, listener: Callable[[EpochReport], None]) -> None:
        """Call `listener(report)` after every epoch, on the thread of the stream: keep it short."""
        self._supervisor.events.subscribe(EpochCommitted, lambda event: listener(event.report))

    def view(self) -> JobView:
        """All that pages and metrics show of the job, as one record."""
        return JobReader(self.directory, self._publisher).view()

    def plot(self) -> Any:
        """Durations of epochs and checkpoints and the size of the state over time: a figure of matplotlib."""
        from cairn.view.plots import plot

        return plot(self.view())

    def _repr_html_(self) -> str:
        return job_html(self.view())

    def __repr__(self) -> str:
        return f"<job {self.job_id!r} run {self.run}: {self.status().value}>"
