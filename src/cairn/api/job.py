"""The handle of a started job: what it does, waiting for it, stopping it."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from cairn.api.recovery import Recovered
from cairn.coordinator.compaction import Compactor
from cairn.coordinator.epochs import EpochReport
from cairn.errors import CairnError, EpochFailedError, FencedError, IncompatibleStateError, from_traceback
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifests import Runs

_log = logging.getLogger("cairn.job")


class JobStatus(Enum):
    """Flink's words."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


class JobHandle:
    """A running or ended job, as `env.execute_async` returns it."""

    def __init__(self, name: str, recovered: Recovered, directory: str) -> None:
        self.name = name
        self.job_id = recovered.identity.job_id
        self.run = recovered.run.run
        self.directory = directory
        self.restored_epoch = recovered.manifest.epoch if recovered.manifest is not None else None
        self._query: Any = None
        self._compactor: Compactor | None = None
        self._reports: deque[EpochReport] = deque(maxlen=1000)
        self._listeners: list[Callable[[EpochReport], None]] = []
        self._error: BaseException | None = None
        self._canceled = False
        self._lock = threading.Lock()
        self._busy = threading.Lock()

    def status(self) -> JobStatus:
        """RUNNING, or how it ended."""
        if self._query is None:
            return JobStatus.CREATED
        if self._query.isActive:
            return JobStatus.RUNNING
        if self._failure() is not None:
            return JobStatus.FAILED
        return JobStatus.CANCELED if self._canceled else JobStatus.FINISHED

    def epochs(self) -> list[EpochReport]:
        """Reports of the epochs of this run, oldest first, at most the last thousand."""
        with self._lock:
            return list(self._reports)

    def add_epoch_listener(self, listener: Callable[[EpochReport], None]) -> None:
        """Call `listener(report)` after every epoch, on the thread of the stream: keep it short."""
        self._listeners.append(listener)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended, at most `timeout` seconds; True if it has. A failed job raises its error.

        Ctrl-C while waiting cancels the job: the running epoch is finished first. A second one gives it up.
        """
        with _interrupts() as interrupted:
            try:
                return self._await(timeout, interrupted)
            except KeyboardInterrupt:
                _log.warning("interrupted: job %s stops after its running epoch", self.name)
                self.cancel()
                raise

    def _await(self, timeout: float | None, interrupted: Callable[[], bool]) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._query.isActive:
            if interrupted():
                raise KeyboardInterrupt
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            if left <= 0:
                return False
            try:
                self._query.awaitTermination(max(left, 0.001))  # Spark refuses a wait of no milliseconds
            except Exception:
                if self._query.isActive:
                    raise
                break  # the query's error is told below, in our words
        self._settle()
        failure = self._failure()
        if failure is not None:
            raise failure
        return True

    def cancel(self, grace: float = 30.0) -> None:
        """Stop the job. The running epoch may finish within `grace` seconds; after that it is given up, and the next
        run repeats it. What is committed stays.
        """
        if self._query is not None and self._query.isActive:
            self._canceled = True
            idle = self._busy.acquire(timeout=grace)
            try:
                self._query.stop()
            except Exception as error:  # noqa: BLE001 - an epoch that was given up ends the query with an error
                _log.debug("while stopping job %s: %s", self.name, error)
            finally:
                if idle:
                    self._busy.release()
        self._settle()

    def _settle(self) -> None:
        if self._compactor is not None:
            self._compactor.wait(30)

    def exception(self) -> CairnError | None:
        """Why the job failed; None while it runs or when it ended well."""
        return self._failure()

    def _failure(self) -> CairnError | None:
        if self._query is None or self._canceled:
            return None
        spark_error = self._query.exception()
        if self._error is None and spark_error is None:
            return None
        own = self._error
        if isinstance(own, CairnError):
            return own
        text = f"{own}\n{spark_error}"
        carried = from_traceback(text) or self._overtaken() or _other_sources(text)
        if carried is None:
            carried = EpochFailedError(f"job '{self.name}' failed: {_first_lines(str(own or spark_error))}")
        carried.__cause__ = own if own is not None else spark_error
        return carried

    def _overtaken(self) -> FencedError | None:
        """Spark finds out by itself that someone else writes its log; the cause is a newer run of this job."""
        try:
            Runs(LocalFileSystem(self.directory)).check(self.run)
        except FencedError as error:
            return error
        return None

    # Called by the environment.

    def _attach(self, query: Any, compactor: Compactor) -> None:
        self._query = query
        self._compactor = compactor

    def _on_epoch(self, report: EpochReport) -> None:
        with self._lock:
            self._reports.append(report)
        for listener in list(self._listeners):
            try:
                listener(report)
            except Exception:  # noqa: BLE001 - whatever it was, the job must not suffer
                _log.exception("an epoch listener raised; the job goes on")

    def _guarded(self, run_epoch: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """Keep the error itself: Spark only passes its text on."""

        def call(frame: Any, batch: int) -> None:
            while self._canceled or not self._busy.acquire(timeout=0.05):  # `cancel` holds the lock while it stops
                if self._canceled:
                    self._refuse(batch)
            try:
                run_epoch(frame, batch)
            except BaseException as error:
                if not self._canceled:
                    self._error = error
                raise
            finally:
                self._busy.release()

        return call

    def _refuse(self, batch: int) -> None:
        """Raise out of a batch that a cancel came before: returning would make Spark commit it.

        Spark takes an error for a quiet end, not for a failure with a page of log, if it is stopping already and the
        text looks like an interrupted call.
        """
        deadline = time.monotonic() + 10
        while self._query is not None and self._query.isActive and time.monotonic() < deadline:
            time.sleep(0.01)
        raise EpochFailedError(
            f"job '{self.name}' is being canceled; batch {batch} is left to the next run\n"
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop.\n: java.lang.InterruptedException"
        )

    def __repr__(self) -> str:
        return f"<job {self.job_id!r} run {self.run}: {self.status().value}>"


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Says whether Ctrl-C was pressed; a second one raises at once.

    PySpark's own handler would cancel the Spark jobs of the running epoch, and an exception in the middle of a call to
    the JVM would break the connection.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = threading.Event()

    def note(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _other_sources(text: str) -> IncompatibleStateError | None:
    found = re.search(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]", text)
    if found is None:
        return None
    return IncompatibleStateError(
        f"the job was started with {found.group(1)} source(s) and now has {found.group(2)}; their positions are kept "
        "by number, so it cannot go on. Read as many sources as before: a stream that feeds two branches counts twice, "
        "and the first operator with on_timer adds one. The stored state is intact.",
    )


def _first_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[:8])
