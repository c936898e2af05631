"""The events of a job's life; `cairn.events` explains how they travel."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from cairn.coordinator.epoch_loop import EpochReport
from cairn.errors import CairnError
from cairn.events import EventBus, JobEvent
from cairn.job.job_context import JobContext
from cairn.job.job_run import JobRun
from cairn.job.life_cycle import STATUS, JobState, JobStatus, end_of

_REPORTS_KEPT = 1000


class ObservedJob(Protocol):
    """What listeners may ask of the job that an event is about."""

    @property
    def context(self) -> JobContext: ...
    @property
    def current(self) -> JobRun | None: ...
    @property
    def restarts(self) -> int: ...

    def status(self) -> JobStatus: ...
    def exception(self) -> CairnError | None: ...


@dataclass(frozen=True)
class JobStarted(JobEvent):
    """A run of the job has been started, the first or one after a failure."""

    job: ObservedJob


@dataclass(frozen=True)
class EpochCommitted(JobEvent):
    """Published on the stream's thread."""

    job: ObservedJob
    report: EpochReport


@dataclass(frozen=True)
class JobRestarting(JobEvent):
    """A run has failed, and another one is about to be started."""

    job: ObservedJob
    failure: CairnError


@dataclass(frozen=True)
class JobEnded(JobEvent):
    """The job is over. It is published before those who wait for the job continue.

    The status is final for listeners of the process; listeners of the job, the journal among them, hear of it before.
    """

    job: ObservedJob
    closing: JobState
    """The state that the job leaves now."""
    failure: CairnError | None

    @property
    def status(self) -> JobStatus:
        return STATUS[end_of(self.closing)]


class EpochHistory:
    """The reports of a job's newest epochs.

    Threads: the stream's thread appends, any thread reads; one lock guards them.
    """

    def __init__(self, events: EventBus) -> None:
        self._lock = threading.Lock()
        self._reports: deque[EpochReport] = deque(maxlen=_REPORTS_KEPT)
        events.subscribe(EpochCommitted, self._append)

    def _append(self, event: EpochCommitted) -> None:
        with self._lock:
            self._reports.append(event.report)

    def all(self) -> list[EpochReport]:
        """Oldest first."""
        with self._lock:
            return list(self._reports)

    def __len__(self) -> int:
        with self._lock:
            return len(self._reports)
