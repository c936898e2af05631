"""What a job shows to others: it writes the journal and the statistics of epochs, and serves the job's page."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from cairn.config import Settings
from cairn.coordinator.restart_policy import RestartPolicy
from cairn.errors import FAILURE_FACTS, CairnError, FencedError
from cairn.events import EventBus
from cairn.job.job_events import EpochCommitted, JobEnded, JobRestarting, JobStarted, ObservedJob
from cairn.job.life_cycle import JobState, JobStatus
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.restore.recovery import Recovered
from cairn.runtime.user_code_location import MOST_TEXT
from cairn.storage.filesystem import FileSystem
from cairn.storage.liveness import SECONDS_MS, is_alive
from cairn.storage.run_records import RunRecord, Runs
from cairn.view.job_lives import next_life
from cairn.view.job_reader import JobReader
from cairn.view.journal import Address, EpochRecorder, Journal
from cairn.web.driver_server import serve

_LOOK_SECONDS = 5.0
"""How long the last look at a run's sources waits for one in progress."""
_ENDS = {JobState.FINISHING: "finished", JobState.CANCELING: "canceled", JobState.STOPPING: "stopped"}
"""The words of the journal for jobs that have not failed."""


def settings_facts(settings: Settings) -> dict[str, Any]:
    """The settings that pages and REST show. Nothing here is secret."""
    checkpoints = settings.checkpoints
    policy = RestartPolicy(settings.restart, checkpoints)
    return {
        "interval": checkpoints.interval_ms,
        "mode": checkpoints.mode,
        "timeout": checkpoints.timeout_ms,
        "min_pause": checkpoints.min_pause_ms,
        "max_concurrent": checkpoints.max_concurrent,
        "tolerable_failures": checkpoints.tolerable_failures,
        "retention": checkpoints.retention,
        "num_retained": checkpoints.num_retained,
        "unaligned": checkpoints.unaligned,
        "aligned_timeout": checkpoints.aligned_timeout_ms,
        "incremental": checkpoints.incremental,
        "storage": checkpoints.storage,
        "savepoint_dir": checkpoints.savepoint_dir,
        "backend": settings.backend,
        "restart": policy.type,
        "restart_numbers": policy.describe(),
    }


def failure_facts(error: CairnError, show_values: bool) -> dict[str, Any]:
    """What is kept of a failure besides its message: the line of user code to look at, and the whole traceback.

    Where no function of the user's raised, the words of Spark or Python stand for the traceback, unless values are
    not to be shown: they may be in them.
    """
    facts = {name: error.facts[name] for name in FAILURE_FACTS if name in error.facts}
    if "traceback" not in facts and error.__cause__ is not None and show_values:
        cause = error.__cause__
        facts["traceback"] = f"{type(cause).__name__}: {cause}"[:MOST_TEXT]
    return facts


class RowReports(Protocol):
    """What Spark reports of the sources of a run."""

    def news(self, now: bool = False) -> Iterable[tuple[int, dict[str, int]]]:
        """Epochs that were reported since the last call, and the rows of their sources by vertex of the job graph. It
        may return nothing if it was called a moment ago, unless it must be `now`."""


class Publisher:
    """Publishes one job, over all its runs. An error here never fails the job.

    Threads: the stream's thread reports epochs, the coordinator's thread looks at sources, the one that starts a run
    and the supervisor's write the journal, those of the server ask for the status. One lock guards what changes from
    run to run; another is held while sources are looked at, since Spark may take its time to answer.
    """

    def __init__(self, files: FileSystem, job_id: str, settings: Settings) -> None:
        self._files = files
        self._job_id = job_id
        self._settings = settings
        self._journal = Journal(files)
        self.recorder = EpochRecorder(self._journal)
        self._served = threading.Event()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._url: str | None = None
        self._run = 0
        self._rows: RowReports | None = None
        self._job: ObservedJob | None = None

    def follow(self, events: EventBus) -> None:
        """Show what the job publishes from now on."""
        events.subscribe(JobStarted, lambda event: self.serve(event.job))
        events.subscribe(EpochCommitted, lambda event: self.recorder.record(event.report))
        events.subscribe(JobRestarting, lambda event: self.failed(event.failure, restarting=True))
        events.subscribe(JobEnded, self.ended)

    # What the read model asks of a live job.

    def status_word(self) -> str:
        return self._job.status().value if self._job is not None else JobStatus.CREATED.value

    def in_progress(self) -> list[CheckpointInfo]:
        run = self._job.current if self._job is not None else None
        return run.in_progress() if run is not None else []

    # The page.

    def serve(self, job: ObservedJob) -> None:
        """Begin to show the job, on a thread of its own: importing a server takes a while. Once is enough."""
        with self._lock:
            known, self._job = self._job, job
        if known is not None:
            return
        if not self._settings.web.enabled:
            self._served.set()
            return
        threading.Thread(target=self._serve, name="cairn-web-start", daemon=True).start()

    def _serve(self) -> None:
        try:
            url = serve(self._settings.web, self._job_id, JobReader(self._files.root, self))
            with self._lock:
                self._url, run = url, self._run
            self._note_address(run, url)
        finally:
            self._served.set()

    def url(self, timeout: float = 30.0) -> str | None:
        """The job's page, or None if there is none; waits while the server starts."""
        self._served.wait(timeout)
        return self._url

    def _note_address(self, run: int, url: str | None) -> None:
        if url is not None:
            self._journal.add_address(Address(run, url, socket.gethostname(), os.getpid()))

    # The journal.

    def started(
        self,
        recovered: Recovered,
        sinks: Sequence[dict[str, str]],
        graph: Sequence[dict[str, Any]],
        duration_ms: float,
    ) -> None:
        """A run begins."""
        manifest, run = recovered.manifest, recovered.run
        self.look(now=True)
        with self._lock:
            self._rows, self._run, url = None, run.run, self._url
        self.recorder.begin(run.run)
        facts: dict[str, Any] = {
            "from": recovered.restored_kind or ("start" if manifest is None else "resume"),
            "path": recovered.restored_path,
            "checkpoint": manifest.restored if manifest is not None and recovered.restored_kind else 0,
            "epoch": manifest.epoch if manifest is not None else -1,
            "parallelism": run.parallelism,
            "duration_ms": round(duration_ms, 1),
            **self._life(run),
            "config": settings_facts(self._settings),
            "sinks": list(sinks),
            "graph": list(graph),
        }
        self._journal.add(run.run, "started", f"run {run.run} began", **facts)
        self._note_address(run.run, url)

    def _life(self, run: RunRecord) -> dict[str, Any]:
        """Whether this run comes after a failure. One whose process lives on was not lost but taken over.

        A container that is started again gives its process the same number within seconds, which must not count as
        living on, so the clock is trusted here.
        """
        try:
            events, before = self._journal.events(), Runs(self._files).record(run.run - 1)
        except CairnError:  # statistics only; the journal logs what cannot be written
            events, before = [], None
        lives_on = before is not None and is_alive(before.host, before.pid, before.started_ms, SECONDS_MS)
        return next_life(events, bool(lives_on), run.started_ms)

    def watch(self, rows: RowReports) -> None:
        """Where to look for the rows of this run's sources."""
        with self._lock:
            self._rows = rows

    def look(self, now: bool = False) -> None:
        """Take in what Spark has reported. Called by a thread that may wait for Spark."""
        if not self._looking.acquire(timeout=_LOOK_SECONDS if now else 0):
            return
        try:
            with self._lock:
                rows = self._rows
            for epoch, ends in rows.news(now) if rows is not None else ():
                self.recorder.note(epoch, ends)
        finally:
            self._looking.release()

    def failed(self, error: CairnError, restarting: bool) -> None:
        facts = {"code": error.code, **failure_facts(error, self._settings.show_values)}
        self._journal.add(self._current_run(), "restarting" if restarting else "failed", error.message, **facts)

    def ended(self, event: JobEnded) -> None:
        if isinstance(event.failure, FencedError):
            return  # the directory is another run's now: nothing more is written there
        self.look(now=True)
        self.recorder.flush()
        if event.failure is not None:
            self.failed(event.failure, restarting=False)
        else:
            self._journal.add(self._current_run(), _ENDS[event.closing])

    def _current_run(self) -> int:
        with self._lock:
            return self._run
