"""Who is told what jobs of this process do: `cairn run --json` is. Nobody is told unless somebody asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cairn.logs import get_logger

_log = get_logger("cairn.job")

Watcher = Callable[[str, Any, dict[str, Any]], None]
"""Called with the event, the job's handle, and facts. Events: started, epoch, checkpoint, restarting, ended."""

watchers: list[Watcher] = []


def tell(event: str, job: Any, **facts: Any) -> None:
    """On whatever thread it happens; what a watcher raises costs the job nothing."""
    for watcher in tuple(watchers):
        try:
            watcher(event, job, facts)
        except Exception:  # noqa: BLE001 - whatever it was, the job must not suffer
            _log.exception("somebody who watches job %s raised; the job goes on", job.job_id)
