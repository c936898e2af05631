"""`job.plot()`: epochs, checkpoints and state size over time, as a figure of matplotlib."""

from __future__ import annotations

import datetime as dt
from typing import Any

from cairn.errors import MissingPackageError
from cairn.view.job_view import JobView, is_savepoint


def plot(job: JobView) -> Any:
    """Two charts on one time axis: durations with failures marked, and sizes. Nothing is shown by itself."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(
            "job.plot() needs matplotlib", remedy="Install it with: pip install matplotlib"
        ) from None
    ended = [info for info in reversed(job.checkpoints.history) if info.end_ms and not is_savepoint(info)]
    done = [info for info in ended if info.status.value == "COMPLETED"]
    failed = [info for info in ended if info.status.value == "FAILED"]
    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot([_moment(e.end_ms) for e in job.epochs], [e.duration_ms for e in job.epochs], label="epochs")
    above.plot([_moment(i.end_ms) for i in done], [i.duration_ms for i in done], "o", label="checkpoints")
    above.plot([_moment(i.end_ms) for i in failed], [i.duration_ms for i in failed], "rx", label="failed checkpoints")
    above.set_ylabel("duration (ms)")
    above.set_title(job.name)
    above.legend()
    below.plot([_moment(i.end_ms) for i in done], [i.full_bytes for i in done], label="full state")
    below.plot([_moment(i.end_ms) for i in done], [i.written_bytes for i in done], label="written")
    below.set_ylabel("bytes")
    below.set_xlabel("UTC")
    below.legend()
    return figure


def _moment(millis: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(millis / 1000, dt.UTC)
