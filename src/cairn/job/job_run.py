"""One run of a job: what runs in it, and the error that ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.checkpoint_thread import CheckpointThread
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.control import Control
from cairn.errors import CairnError, EpochFailedError, InternalError
from cairn.job.epoch_gate import EpochGate
from cairn.job.failure_policy import newer_run
from cairn.job.job_context import JobContext
from cairn.job.running_query import RunningQuery
from cairn.job.stopping import Draining
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo

_log = get_logger("cairn.job")
_POLL_SECONDS = 0.2
_REFUSAL_SECONDS = 10.0

RunEpoch = Callable[[Any, int], None]
"""Called by Spark with the rows of a batch and its number."""


@dataclass(frozen=True)
class RunParts:
    """What works beside the query in one run."""

    coordinator: CheckpointCoordinator
    checkpoint_thread: CheckpointThread
    control: Control
    compactor: Compactor
    loop: Draining


class JobRun:
    """One run of a job, from before its query is started until after it has ended.

    Threads: epochs run on the stream's thread, `fail` is called from any, all else from the supervisor's and from those
    of users. One lock guards what changes; the parts are set once, before the job is RUNNING.
    """

    def __init__(self, context: JobContext, gate: EpochGate, number: int, restored_epoch: int | None) -> None:
        self.number = number
        self.restored_epoch = restored_epoch
        """The epoch that it continues from, None if it is the first of the job."""
        self.parts: RunParts | None = None
        self._context = context
        self._gate = gate
        self._lock = threading.Lock()
        self._query: RunningQuery | None = None
        self._epoch_error: BaseException | None = None
        self._imposed: CairnError | None = None
        self._checkpoints_ended = False

    def guarded(self, run_epoch: RunEpoch) -> RunEpoch:
        """`run_epoch` behind the gate of the job. Its error is kept: Spark passes on its text only."""

        def call(frame: Any, batch: int) -> None:
            if not self._gate.enter():
                self._refuse(batch)
            try:
                run_epoch(frame, batch)
            except BaseException as error:
                if not self._gate.ended:
                    with self._lock:
                        self._epoch_error = error
                raise
            finally:
                self._gate.leave()

        return call

    def _refuse(self, batch: int) -> None:
        """Raise out of a batch that a cancel came before: returning would make Spark commit it.

        Spark takes an error for a quiet end, not for a failure with a page of log, if it is stopping already and the
        text looks like an interrupted call.
        """
        deadline = time.monotonic() + _REFUSAL_SECONDS
        with self._lock:
            query = self._query
        while query is not None and query.is_active() and time.monotonic() < deadline:
            time.sleep(0.01)
        raise EpochFailedError(
            f"job '{self._context.name}' is being stopped; batch {batch} is left to the next run\n"
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop.\n: java.lang.InterruptedException"
        )

    def started(self, query: RunningQuery) -> None:
        """The query of the run has been started. If the run has been failed before, it is stopped at once."""
        with self._lock:
            self._query = query
            imposed = self._imposed
        if imposed is not None:
            self.fail(imposed)

    @property
    def query(self) -> RunningQuery:
        with self._lock:
            query = self._query
        if query is None:
            raise InternalError(f"run {self.number} of job '{self._context.name}' has no query yet")
        return query

    def fail(self, error: CairnError) -> None:
        """End the run with this error, whatever it is doing. Returns at once."""
        with self._lock:
            self._imposed = error
            query = self._query
        if query is not None:
            threading.Thread(target=self.stop_query, name="cairn-fail", daemon=True).start()

    def stop_query(self) -> None:
        """Stop the query if it is active. Never raises: the supervisor sees how it ended."""
        try:
            if self.query.is_active():
                self.query.stop()
        except Exception as error:  # noqa: BLE001 - an epoch that was given up ends the query with an error
            _log.debug("while stopping job %s: %s", self._context.name, error)

    def wait(self) -> None:
        """Wait until the query has ended."""
        try:
            while self.query.is_active():
                self.query.wait(_POLL_SECONDS)
        except Exception as error:  # noqa: BLE001 - the JVM is gone, and the query with it
            if not self._gate.ended:
                with self._lock:
                    self._epoch_error = self._epoch_error or error

    def failure(self) -> CairnError | None:
        """Why the run has failed; None if it has not. Of a run whose query has ended."""
        with self._lock:
            imposed, epoch_error = self._imposed, self._epoch_error
        if imposed is not None:
            return imposed
        return self.query.why_failed(epoch_error, lambda: newer_run(self._context.files, self.number))

    def in_progress(self) -> list[CheckpointInfo]:
        """The checkpoints that are being taken, newest first."""
        with self._lock:
            ended = self._checkpoints_ended
        return self.parts.coordinator.infos() if self.parts is not None and not ended else []

    def end_checkpoints(self) -> None:
        """End the coordinator and its thread: no checkpoint is taken any more."""
        with self._lock:
            ended, self._checkpoints_ended = self._checkpoints_ended, True
        if self.parts is not None and not ended:
            self.parts.checkpoint_thread.stop()

    def settle(self, job_is_over: bool) -> None:
        """Wait a while for those who still work for the run: a compaction, and answers to requests about its end."""
        if self.parts is not None:
            if job_is_over:
                self.parts.control.finish(10)
            self.parts.compactor.wait(30)
