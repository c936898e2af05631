"""The jobs that a server shows: those of a directory, or of this process. Records are built at most twice a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

from cairn.errors import CairnError, CorruptFileError, NotFoundError, remedy
from cairn.view.job_reader import JobReader, find_readers, no_such_job
from cairn.view.job_view import JobView

_FRESH = 0.5
_LOOK_AGAIN = 2.0
_ENDED_KEPT = 20


def _advice(error: CairnError) -> str:
    """What helps where not even the name of the job can be read."""
    if isinstance(error, CorruptFileError) and "remedy" not in error.facts:
        return "Bring the file back from a copy. Until then, start the job from a savepoint under another name."
    return remedy(error) or ""


class Catalogue:
    """Jobs by id. Safe for many threads; one of them builds, the others take what it built."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._readers: dict[str, JobReader] = {}
        self._looked = 0.0
        self._lock = threading.RLock()
        self._views: dict[str, tuple[float, JobView]] = {}
        self._damaged: dict[str, CairnError] = {}
        """Folders whose `job.json` cannot be read, and why."""
        self._unread: dict[str, CairnError] = {}
        """Jobs of which something else cannot be read."""
        if directory is not None:
            self._look()

    def add(self, job_id: str, reader: JobReader) -> None:
        """A job of this process; it takes the place of an earlier one of its id."""
        with self._lock:
            self._readers.pop(job_id, None)
            self._views.pop(job_id, None)
            self._readers[job_id] = reader
            for old in list(self._readers)[:-_ENDED_KEPT]:
                live = self._readers[old].live
                if live is None or live.status_word() not in ("RUNNING", "RESTARTING", "CREATED"):
                    del self._readers[old]

    def _look(self) -> None:
        """A directory may have got new jobs."""
        if self._directory is None or time.monotonic() - self._looked < _LOOK_AGAIN:
            return
        damaged: dict[str, CairnError] = {}
        found = find_readers(self._directory, damaged)
        self._damaged = damaged
        self._readers = {job: self._readers.get(job, reader) for job, reader in found.items()}
        self._looked = time.monotonic()

    def readers(self) -> Mapping[str, JobReader]:
        with self._lock:
            self._look()
            return dict(self._readers)

    def reader(self, job: str) -> JobReader:
        readers = self.readers()
        if job not in readers:
            for path, error in self._damaged.items():
                if os.path.basename(path) == job:  # a job's folder has its id for a name
                    raise error
            raise no_such_job(job, list(readers))
        return readers[job]

    def view(self, job: str) -> JobView:
        reader = self.reader(job)
        with self._lock:
            known = self._views.get(job)
            if known is not None and time.monotonic() - known[0] < _FRESH:
                return known[1]
            made = reader.view()
            self._views[job] = (time.monotonic(), made)
            return made

    def damaged(self) -> list[dict[str, str]]:
        """The jobs that cannot be read, with the reason; the others are none the worse for them."""
        with self._lock:
            self._look()
            found = {**self._damaged, **self._unread}
        return [
            {"directory": path, "code": error.code, "error": error.message, "remedy": _advice(error)}
            for path, error in sorted(found.items())
        ]

    def views(self) -> list[JobView]:
        """All jobs that can be read, the running ones first, then the newest."""
        found = []
        unread: dict[str, CairnError] = {}
        for job, reader in self.readers().items():
            try:
                found.append(self.view(job))
            except NotFoundError:
                continue  # removed meanwhile
            except CairnError as error:
                unread[reader.directory] = error
        with self._lock:
            self._unread = unread
        return sorted(found, key=lambda view: (not view.running, -view.started_ms))
