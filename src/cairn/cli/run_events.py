"""What `cairn run --json` prints: a JSON document in a line for each thing that happens, and a summary at the end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from cairn.cli.output import json_line, problem_document
from cairn.errors import CairnError
from cairn.events import PROCESS_EVENTS, CheckpointCompleted, JobEvent
from cairn.job.job_events import EpochCommitted, JobEnded, JobRestarting, JobStarted, ObservedJob
from cairn.storage import layout

SHAPE = 1
_NAMES: dict[type[JobEvent], str] = {
    JobStarted: "started",
    EpochCommitted: "epoch",
    CheckpointCompleted: "checkpoint",
    JobRestarting: "restarting",
    JobEnded: "ended",
}


class RunEvents:
    """Writes lines to what was stdout when it was made; whatever else is printed then goes to stderr.

    Threads: events come on any thread; one lock guards the sums and the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._jobs: dict[str, _Sums] = {}

    def hear(self, event: JobEvent) -> None:
        """Listens to the events of the process."""
        with self._lock:
            sums, job_id = self._sums_of(event)
            line = sums.line(event) if sums is not None else None
            if line is not None:
                self._write({"event": _NAMES[type(event)], "time_ms": _now(), "job": job_id, **line})

    def _sums_of(self, event: JobEvent) -> tuple[_Sums | None, str]:
        if isinstance(event, CheckpointCompleted):
            return self._jobs.get(event.job_id), event.job_id
        if isinstance(event, JobStarted | EpochCommitted | JobRestarting | JobEnded):
            job_id = event.job.context.job_id
            return self._jobs.setdefault(job_id, _Sums(event.job)), job_id
        return None, ""

    def summary(self, code: int, error: CairnError | None) -> None:
        with self._lock:
            self._write({
                "event": "summary",
                "version": SHAPE,
                "time_ms": _now(),
                "exit_code": int(code),
                "jobs": [sums.summary() for sums in self._jobs.values()],
                "error": None if error is None else problem_document(error),
            })  # fmt: skip

    def _write(self, document: dict[str, Any]) -> None:
        print(json_line(document), file=self._stream, flush=True)


class _Sums:
    """One job, and the sums over its epochs. Guarded by the lock of `RunEvents`."""

    def __init__(self, job: ObservedJob) -> None:
        self._job = job
        self._epochs = self._rows_in = self._rows_out = 0
        self._epoch = -1
        self._checkpoint: int | None = None

    def line(self, event: JobEvent) -> dict[str, Any] | None:
        """What is printed of an event; None for those that are not."""
        context, run = self._job.context, self._run()
        if isinstance(event, JobStarted):
            return {
                "name": context.name, "run": run, "restored_epoch": self._restored(), "directory": context.directory,
            }  # fmt: skip
        if isinstance(event, EpochCommitted):
            report = event.report
            self._epochs, self._epoch = self._epochs + 1, report.epoch
            self._rows_in, self._rows_out = self._rows_in + report.rows_in, self._rows_out + report.rows_out
            return {
                "run": run, "epoch": report.epoch, "duration_ms": round(report.duration_ms, 3),
                "rows_in": report.rows_in, "rows_out": report.rows_out, "keys": report.keys,
                "bytes_written": report.bytes_written,
            }  # fmt: skip
        if isinstance(event, CheckpointCompleted):
            self._checkpoint = event.number
            return {"run": run, "checkpoint": event.number, "path": self._path(event.number)}
        if isinstance(event, JobRestarting):
            return {"run": run, "error": problem_document(event.failure)}
        if isinstance(event, JobEnded):
            return {"run": run, "state": event.status.value}
        return None

    def _run(self) -> int:
        return self._job.current.number if self._job.current is not None else 0

    def _restored(self) -> int | None:
        return self._job.current.restored_epoch if self._job.current is not None else None

    def _path(self, number: int) -> str:
        return os.path.join(self._job.context.directory, layout.checkpoint_folder(number))

    def summary(self) -> dict[str, Any]:
        job, context = self._job, self._job.context
        error = job.exception()
        path = self._path(self._checkpoint) if self._checkpoint is not None else None
        return {
            "job": context.job_id,
            "name": context.name,
            "directory": context.directory,
            "state": job.status().value,
            "run": self._run(),
            "restarts": job.restarts,
            "epoch": self._epoch if self._epochs else self._restored(),
            "epochs": self._epochs,
            "rows_in": self._rows_in,
            "rows_out": self._rows_out,
            "checkpoint": path if path is not None and os.path.isdir(path) else None,
            "error": None if error is None else problem_document(error),
        }


def _now() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def watched() -> Iterator[RunEvents]:
    """Prints the events of all jobs of this process. What the script prints goes to stderr, so that stdout is JSON."""
    events = RunEvents(sys.stdout)
    for kind in _NAMES:  # not `JobEvent`: the progress of a restore is measured only if somebody hears of it
        PROCESS_EVENTS.subscribe(kind, events.hear)
    try:
        with redirect_stdout(sys.stderr):
            yield events
    finally:
        PROCESS_EVENTS.unsubscribe(events.hear)
