"""What a job tells those who look at it: its events, the statistics of its epochs, and its page."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cairn.config import Settings
from cairn.coordinator.epoch_loop import EpochReport
from cairn.coordinator.restart_policy import RestartPolicy
from cairn.errors import FAILURE_FACTS, CairnError
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.restore.recovery import Recovered
from cairn.runtime.user_errors import MOST_TEXT
from cairn.spark.task_progress import SourceRows
from cairn.storage.filesystem import FileSystem
from cairn.storage.liveness import is_alive
from cairn.storage.manifest_store import RunRecord, Runs
from cairn.view.job_lives import next_life
from cairn.view.job_reader import JobReader
from cairn.view.journal import Address, EpochRecorder, Journal
from cairn.web.driver_server import serve


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
    told = {name: error.facts[name] for name in FAILURE_FACTS if name in error.facts}
    if "traceback" not in told and error.__cause__ is not None and show_values:
        cause = error.__cause__
        told["traceback"] = f"{type(cause).__name__}: {cause}"[:MOST_TEXT]
    return told


class Publisher:
    """One for a job, over all its runs. Nothing in it can fail the job."""

    def __init__(self, files: FileSystem, job_id: str, settings: Settings) -> None:
        self._files = files
        self._job_id = job_id
        self._settings = settings
        self._journal = Journal(files)
        self.recorder = EpochRecorder(self._journal)
        self._url: str | None = None
        self._served = threading.Event()
        self._run = 0
        self._rows: SourceRows | None = None
        self._status: Callable[[], str] = lambda: "CREATED"
        self._in_progress: Callable[[], list[CheckpointInfo]] = list

    # What the read model asks of a live job.

    def status_word(self) -> str:
        return self._status()

    def in_progress(self) -> list[CheckpointInfo]:
        return self._in_progress()

    # Told by the job.

    def serve(self, status: Callable[[], str], in_progress: Callable[[], list[CheckpointInfo]]) -> None:
        """Begin to show the job, on a thread of its own: importing a server takes a while."""
        self._status, self._in_progress = status, in_progress
        if not self._settings.web.enabled:
            self._served.set()
            return
        threading.Thread(target=self._serve, name="cairn-web-start", daemon=True).start()

    def _serve(self) -> None:
        try:
            self._url = serve(self._settings.web, self._job_id, JobReader(self._files.root, self))
            if self._url is not None:
                self._journal.add_address(Address(self._run, self._url, socket.gethostname(), os.getpid()))
        finally:
            self._served.set()

    def url(self, timeout: float = 30.0) -> str | None:
        """The job's page, or None if there is none; waits while the server starts."""
        self._served.wait(timeout)
        return self._url

    def started(
        self,
        recovered: Recovered,
        sinks: Sequence[dict[str, str]],
        graph: Sequence[dict[str, Any]],
        path: str,
        duration_ms: float,
    ) -> None:
        """A run begins. `path` is the snapshot that it was told to start from, if it was."""
        manifest, run = recovered.manifest, recovered.run
        self.look(now=True)
        self._rows = None
        self._run = run.run
        self.recorder.begin(run.run)
        restored = manifest is not None and manifest.run == run.run and manifest.restored > 0
        origin = "start" if manifest is None else "resume"
        if manifest is not None and manifest.run == run.run and (restored or path):
            named = os.path.basename(path.rstrip("/"))
            origin = "checkpoint" if not path or named.startswith("chk-") else "savepoint"
        facts: dict[str, Any] = {
            "from": origin,
            "path": path,
            "checkpoint": manifest.restored if manifest is not None and origin in ("checkpoint", "savepoint") else 0,
            "epoch": manifest.epoch if manifest is not None else -1,
            "parallelism": run.parallelism,
            "duration_ms": round(duration_ms, 1),
            **self._life(run),
            "config": settings_facts(self._settings),
            "sinks": list(sinks),
            "graph": list(graph),
        }
        self._journal.add(run.run, "started", f"run {run.run} began", **facts)
        if self._url is not None:
            self._journal.add_address(Address(run.run, self._url, socket.gethostname(), os.getpid()))

    def _life(self, run: RunRecord) -> dict[str, Any]:
        """Whether this run comes after a failure. One whose process lives on was not lost but taken over."""
        try:
            events, before = self._journal.events(), Runs(self._files).record(run.run - 1)
        except CairnError:  # statistics only; what cannot be written is told of
            events, before = [], None
        lives_on = before is not None and is_alive(before.host, before.pid, before.started_ms)
        return next_life(events, bool(lives_on), run.started_ms)

    def epoch(self, report: EpochReport) -> None:
        self.recorder.record(report)

    def watch(self, rows: SourceRows) -> None:
        """Where to look for the rows of this run's sources."""
        self._rows = rows

    def look(self, now: bool = False) -> None:
        """Take in what Spark has reported. Called by a thread that may wait for Spark."""
        for epoch, ends in self._rows.news(now) if self._rows is not None else ():
            self.recorder.note(epoch, ends)

    def failed(self, error: CairnError, restarting: bool) -> None:
        facts = {"code": error.code, **failure_facts(error, self._settings.show_values)}
        self._journal.add(self._run, "restarting" if restarting else "failed", error.message, **facts)

    def ended(self, kind: str) -> None:
        """`finished`, `canceled` or `stopped`."""
        self.look(now=True)
        self.recorder.flush()
        self._journal.add(self._run, kind)
