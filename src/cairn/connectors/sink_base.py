"""The interface of a sink: two phases, of which a user implements the parts that matter.

Rows are prepared where nobody sees them, and shown once their epoch is committed.

| sink | what a reader may see after any crash |
| --- | --- |
| `FileSink`, `TableSink` | every row exactly once |
| `PrintSink` | every epoch at most once; the one during a crash may be missing on the screen |
| `ForeachEpochSink` | the function may be called again with the same epoch id: make it idempotent by that id |
| `NoopSink` | nothing |

What holds for other systems is told in their modules.
"""

from __future__ import annotations

from typing import Any


class BaseSink:
    """What all sinks share. `uid` is set when the sink is attached to a stream."""

    kind = "sink"
    materialised = False
    """True if the rows must be computed once and kept before the sink sees them, because it may read them twice."""

    only_writes = False
    """True if no Python function sees the rows on their way through this sink: then Spark may send those of the job to
    Python in batches whose bytes it does not count (`spark/arrow_batches.py`)."""

    def __init__(self) -> None:
        self.uid = ""
        self.may_repeat = False
        """Set with AT_LEAST_ONCE: rows are shown before their epoch is committed, and again if that fails."""
        self.rows: int | None = None
        """How many rows the newest prepared epoch has, set by `prepare` if it knows; None if not."""

    def start(self, spark: Any, job_dir: str, schema: Any) -> None:
        """Called once before the first epoch of a run: fail here rather than in the middle."""

    def prepare(self, frame: Any, epoch: int, attempt: str) -> Any:
        raise TypeError(f"{type(self).__name__} must define prepare()")

    def commit(self, data: Any, epoch: int) -> None:
        """Nothing to do unless a sink says otherwise."""

    def close(self) -> None:
        """Called when a run has ended, however it did: let go of connections. `start` may follow."""
