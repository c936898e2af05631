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

SHAPE = 1


class RunEvents:
    """Writes lines to what was stdout when it was made; whatever else is printed then goes to stderr."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._jobs: dict[str, _Count] = {}

    def tell(self, event: str, job: Any, facts: dict[str, Any]) -> None:
        """As `cairn.job.events` calls it."""
        known = self._jobs.setdefault(job.job_id, _Count(job))
        self._write({"event": event, "time_ms": _now(), "job": job.job_id, **known.told(event, facts)})

    def summary(self, code: int, error: CairnError | None) -> None:
        self._write({
            "event": "summary",
            "version": SHAPE,
            "time_ms": _now(),
            "exit_code": int(code),
            "jobs": [count.summary() for count in self._jobs.values()],
            "error": None if error is None else problem_document(error),
        })  # fmt: skip

    def _write(self, document: dict[str, Any]) -> None:
        with self._lock:
            print(json_line(document), file=self._stream, flush=True)


class _Count:
    """One job: its handle, and the sums over its epochs."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self._epochs = self._rows_in = self._rows_out = 0
        self._epoch = -1
        self._checkpoint: int | None = None

    def told(self, event: str, facts: dict[str, Any]) -> dict[str, Any]:
        job = self._job
        if event == "started":
            return {
                "name": job.name, "run": job.run, "restored_epoch": job.restored_epoch, "directory": job.directory,
            }  # fmt: skip
        if event == "epoch":
            report = facts["report"]
            self._epochs, self._epoch = self._epochs + 1, report.epoch
            self._rows_in, self._rows_out = self._rows_in + report.rows_in, self._rows_out + report.rows_out
            return {
                "run": job.run, "epoch": report.epoch, "duration_ms": round(report.duration_ms, 3),
                "rows_in": report.rows_in, "rows_out": report.rows_out, "keys": report.keys,
                "bytes_written": report.bytes_written,
            }  # fmt: skip
        if event == "checkpoint":
            self._checkpoint = facts["number"]
            return {"run": job.run, "checkpoint": facts["number"], "path": self._path(facts["number"])}
        if event == "restarting":
            return {"run": job.run, "error": problem_document(facts["failure"])}
        return {"run": job.run, "state": job.status().value}

    def _path(self, number: int) -> str:
        from cairn.storage import layout

        return os.path.join(self._job.directory, layout.checkpoint_folder(number))

    def summary(self) -> dict[str, Any]:
        job = self._job
        error = job.exception()
        path = self._path(self._checkpoint) if self._checkpoint is not None else None
        return {
            "job": job.job_id,
            "name": job.name,
            "directory": job.directory,
            "state": job.status().value,
            "run": job.run,
            "restarts": job.restarts,
            "epoch": self._epoch if self._epochs else job.restored_epoch,
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
    """Tells of all jobs that are started meanwhile. What the script prints goes to stderr, so that stdout is JSON."""
    from cairn.job.events import watchers

    events = RunEvents(sys.stdout)
    watchers.append(events.tell)
    try:
        with redirect_stdout(sys.stderr):
            yield events
    finally:
        watchers.remove(events.tell)
