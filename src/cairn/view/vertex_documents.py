"""The vertices of a job graph as Flink's REST documents: sources, functions, operators and sinks alike."""

from __future__ import annotations

from typing import Any

from cairn.view.job_graph import Vertex
from cairn.view.job_view import LEVELS, JobView, OperatorView, SubtaskView

Document = dict[str, Any]
TASKS = (
    "created", "scheduled", "deploying", "running", "finished", "canceling", "canceled", "failed", "reconciling",
    "initializing",
)  # fmt: skip
_AS_IN_FLINK = {"RESTARTING": "scheduled", "CRASHED": "failed"}
NOT_KNOWN = -1
"""Flink's word for a parallelism that nobody has set. Spark decides about sources, functions and sinks each time."""


def tasks(status: str, total: int) -> dict[str, int]:
    """Flink's counts of the tasks by their state; all of them share that of the job."""
    word = _AS_IN_FLINK.get(status, status.lower())
    return {"total": total, **{name: total if name == word else 0 for name in TASKS}}


def vertex(job: JobView, told: Vertex) -> Document:
    operator = job.operator(told.id)
    parallelism = operator.parallelism if operator is not None else NOT_KNOWN
    found = {
        "id": told.id,
        "slotSharingGroupId": "default",
        "name": operator.name if operator is not None else told.name,
        "kind": told.kind,
        "maxParallelism": operator.max_parallelism if operator is not None else NOT_KNOWN,
        "parallelism": parallelism,
        "status": job.status,
        "start-time": job.started_ms,
        "end-time": job.ended_ms or -1,
        "duration": job.duration_ms,
        "tasks": tasks(job.status, max(0, parallelism)),
        "metrics": metrics(job, told),
    }
    if operator is not None:
        found |= {"key": operator.key_type, "skew": operator.skew, "state-size": operator.state_bytes}
    return found


def metrics(job: JobView, told: Vertex) -> Document:
    """Rows and load of a vertex; `complete` says whether anybody counts. Bytes between vertices are Spark's affair."""
    operator, end = job.operator(told.id), job.ends.get(told.id)
    rows = end.rows if end is not None else None
    rate = end.rate if end is not None else None
    source = told.kind == "source"
    if operator is not None:
        if not operator.recorded:
            return _metrics(None, None, [], job)
        return _metrics(operator.rows_in, operator.rows_out, operator.subtasks, job) | {
            "busy-ratio": operator.busy,
            "backpressured-ratio": operator.backpressured,
            "idle-ratio": operator.idle,
            "fired-timers": operator.timers,
            "read-records-per-second": round(operator.in_rate, 3),
            "write-records-per-second": round(operator.out_rate, 3),
        }
    none = 0 if end is not None else None
    made = _metrics(none if source else rows, rows if source else none, [], job)
    if rate is not None:
        made["write-records-per-second" if source else "read-records-per-second"] = rate
    return made


def _metrics(rows_in: int | None, rows_out: int | None, subtasks: list[SubtaskView], job: JobView) -> Document:
    busy, waiting = sum(s.busy_ms for s in subtasks), sum(s.backpressured_ms for s in subtasks)
    return {
        "read-bytes": 0,
        "read-bytes-complete": False,
        "write-bytes": 0,
        "write-bytes-complete": False,
        "read-records": rows_in or 0,
        "read-records-complete": rows_in is not None,
        "write-records": rows_out or 0,
        "write-records-complete": rows_out is not None,
        "accumulated-busy-time": round(busy),
        "accumulated-backpressured-time": round(waiting),
        "accumulated-idle-time": round(max(0.0, len(subtasks) * job.duration_ms - busy - waiting)),
    }


def detail(job: JobView, told: Vertex) -> Document:
    """A vertex down to the subtask."""
    operator = job.operator(told.id)
    return {
        **vertex(job, told),
        "now": job.now_ms,
        "states": [
            {"name": s.name, "kind": s.kind, "type": s.value_type, "key-type": s.key_type, "ttl": s.ttl_ms}
            for s in (operator.states if operator is not None else ())
        ],
        "subtasks": [_subtask(job, s) for s in (operator.subtasks if operator is not None else ())],
    }


def _subtask(job: JobView, told: SubtaskView) -> Document:
    return {
        "subtask": told.index,
        "status": job.status,
        "attempt": max(0, job.run - 1),
        "host": job.host,
        "start-time": job.started_ms,
        "end-time": job.ended_ms or -1,
        "duration": job.duration_ms,
        "metrics": _metrics(told.rows_in, told.rows_out, [told], job),
        "read-records": told.rows_in,
        "write-records": told.rows_out,
        "fired-timers": told.timers,
        "busy-ratio": told.busy,
        "backpressured-ratio": told.backpressured,
        "idle-ratio": told.idle,
    }


def backpressure(job: JobView, operator: OperatorView | None) -> Document:
    """Flink's document. `deprecated` is its word for a vertex of which nothing is measured."""
    if operator is None:
        return {"status": "deprecated", "subtasks": []}
    return {
        "status": "ok",
        "backpressureLevel": operator.level,
        "backpressure-level": operator.level,
        "end-timestamp": job.epochs[-1].end_ms if job.epochs else job.started_ms,
        "subtasks": [
            {
                "subtask": s.index,
                "attempt-number": max(0, job.run - 1),
                "backpressureLevel": level(s.backpressured),
                "backpressure-level": level(s.backpressured),
                "ratio": s.backpressured,
                "busyRatio": s.busy,
                "idleRatio": s.idle,
            }
            for s in operator.subtasks
        ],
    }


def level(share: float) -> str:
    return next(word for most, word in LEVELS if share <= most or word == "high")


def plan(job: JobView) -> Document:
    """The job graph, every node after those that it reads."""
    nodes: list[Document] = []
    for told in job.graph:
        inputs = [
            {
                "num": number,
                "id": link.id,
                "ship_strategy": link.ship,
                "exchange": "pipelined_bounded",
                **({"side_output": link.side} if link.side else {}),
            }
            for number, link in enumerate(told.inputs)
        ]
        operator = job.operator(told.id)
        nodes.append(
            {
                "id": told.id,
                "kind": told.kind,
                "parallelism": operator.parallelism if operator is not None else NOT_KNOWN,
                "operator": "",
                "operator_strategy": "",
                "description": told.name,
                "inputs": inputs,
                "optimizer_properties": {},
            }
        )
    return {"jid": job.job_id, "name": job.name, "type": "STREAMING", "nodes": nodes}


def metrics_by_subtask(job: JobView, told: Vertex) -> dict[int, dict[str, int | float]]:
    """Flink's metrics of each subtask. A source or a sink has one, a function without state none: nobody counts."""
    operator, end = job.operator(told.id), job.ends.get(told.id)
    if operator is not None and not operator.recorded:
        return {}
    if operator is not None:
        return {s.index: _operator_metrics(job, s) for s in operator.subtasks}
    if end is None or end.rows is None:
        return {}
    word = "Out" if told.kind == "source" else "In"
    found: dict[str, int | float] = {f"numRecords{word}": end.rows, f"numRecords{word}PerSecond": end.rate or 0.0}
    return {0: found | ({"currentOutputWatermark": job.watermark} if told.kind == "source" else {})}


def _operator_metrics(job: JobView, told: SubtaskView) -> dict[str, int | float]:
    return {
        "numRecordsIn": told.rows_in,
        "numRecordsOut": told.rows_out,
        "numRecordsInPerSecond": told.in_rate,
        "numRecordsOutPerSecond": told.out_rate,
        "numFiredTimers": told.timers,
        "numFiredTimersPerSecond": told.timer_rate,
        "busyTimeMsPerSecond": round(1000 * told.busy, 1),
        "backPressuredTimeMsPerSecond": round(1000 * told.backpressured, 1),
        "idleTimeMsPerSecond": round(1000 * told.idle, 1),
        "accumulateBusyTimeMs": told.busy_ms,
        "accumulateBackPressuredTimeMs": told.backpressured_ms,
        "currentInputWatermark": job.watermark,
    }
