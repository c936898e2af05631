"""The failures of a job as Flink's REST documents."""

from __future__ import annotations

from typing import Any

from cairn.view.job_view import JobView
from cairn.view.journal import Event

Document = dict[str, Any]


def exceptions(job: JobView, most: int) -> Document:
    """The failures of the job in Flink's shape, newest first; `location` is the line of user code to look at."""
    entries = [exception(job, event) for event in job.exceptions[:most]]
    return {"exceptionHistory": {"entries": entries, "truncated": len(job.exceptions) > most}}


def exception(job: JobView, event: Event) -> Document:
    told = event.facts
    code = str(told.get("code", "error"))
    whole = str(told.get("traceback", ""))
    return {
        "exceptionName": str(told.get("exception", "")) or code,
        "message": event.text,
        "stacktrace": f"{event.text}\n\n{whole}" if whole else event.text,
        "timestamp": event.time_ms,
        "taskName": task_name(job, event),
        "endpoint": job.host if event.run == job.run else "",
        "failureLabels": {"code": code, "restarted": "true" if event.kind == "restarting" else "false"},
        "concurrentExceptions": [],
        "location": {name: told[name] for name in ("file", "line", "function") if name in told} or None,
        "run": event.run,
    }


def task_name(job: JobView, event: Event) -> str:
    """As in Flink, `name (1/2)`: the operator and the subtask that failed, if one did."""
    uid = str(event.facts.get("uid", ""))
    operator = job.operator(uid)
    name = operator.name if operator is not None else uid
    subtask = event.facts.get("subtask")
    if subtask is None:
        return name
    of = f"/{operator.parallelism}" if operator is not None else ""
    return f"{name} ({int(subtask) + 1}{of})"
