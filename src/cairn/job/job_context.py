"""What is the same in all runs of a job."""

from __future__ import annotations

from dataclasses import dataclass

from cairn.config import Settings
from cairn.storage.filesystem import LocalFileSystem


@dataclass(frozen=True)
class JobContext:
    """A job as it was started: its names, its directory, its settings. Never changes, so any thread may read it."""

    name: str
    job_id: str
    files: LocalFileSystem
    settings: Settings
    timers: bool = False
    """Whether an operator of the job has timers: then a drain needs one more epoch."""

    @property
    def directory(self) -> str:
        return self.files.root
