"""What a start of a job asks recovery for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cairn.config import Settings
from cairn.restore.restore_plan import JobShape
from cairn.restore.source_logs import COMPACT_INTERVAL
from cairn.restore.state_move import Mover
from cairn.storage.filesystem import LocalFileSystem


@dataclass(frozen=True, slots=True)
class Restorer:
    """What a restore needs of the job: its shape, which is expensive to ask for, and who moves its state."""

    shape: Callable[[], JobShape]
    mover: Mover


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The job that is to start, and its directory."""

    files: LocalFileSystem
    job_id: str
    name: str
    settings: Settings
    parallelism: int
    max_parallelism: int
    uids: Sequence[str]
    """The uids of the job's operators."""
    compact_interval: int = COMPACT_INTERVAL
    """Spark's compact interval for the logs of file sources."""
    restorer: Restorer | None = None
    """Needed if the settings name a snapshot."""
    sources: Callable[[], Sequence[str]] | None = None
    """The names of the job's sources, in the order of the positions that Spark logs."""
