"""The records as Flink's REST documents, for REST and `--json` alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cairn.model.checkpoint import CheckpointInfo, OperatorStats, SubtaskStats
from cairn.view.health import health_of
from cairn.view.reading import spread
from cairn.view.records import JobView, OperatorView, RestoreView, Spread, is_savepoint

Document = dict[str, Any]
STATISTICS = ("min", "max", "avg", "p50", "p90", "p95", "p99", "p999")


def overview(job: JobView) -> Document:
    """A job in one line."""
    return {
        "jid": job.job_id,
        "name": job.name,
        "state": job.status,
        "start-time": job.started_ms,
        "end-time": job.ended_ms or -1,
        "duration": job.duration_ms,
        "last-modification": job.epochs[-1].end_ms if job.epochs else job.started_ms,
        "run": job.run,
        "restarts": job.restarts,
        "epoch": job.epoch,
        "directory": job.directory,
        "web-url": job.url,
        "health": health_of(job).level,
        "tasks": {"total": sum(op.parallelism for op in job.operators)},
    }


def detail(job: JobView) -> Document:
    health = health_of(job)
    return {
        **overview(job),
        "now": job.now_ms,
        "maxParallelism": job.max_parallelism,
        "parallelism": job.parallelism,
        "watermark-lag": job.watermark_lag_ms,
        "state-size": job.state_bytes,
        "verdict": health.verdict,
        "reasons": health.reasons,
        "sources": job.sources,
        "sinks": job.sinks,
        "vertices": [vertex(job, operator) for operator in job.operators],
        "plan": plan(job),
    }


def vertex(job: JobView, operator: OperatorView) -> Document:
    return {
        "id": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "maxParallelism": operator.max_parallelism,
        "status": job.status,
        "key": operator.key_type,
        "skew": operator.skew,
        "state-size": operator.state_bytes,
        "metrics": {
            "read-records": operator.rows_in,
            "write-records": operator.rows_out,
            "busy-ratio": operator.busy,
            "backpressured-ratio": operator.backpressured,
            "idle-ratio": operator.idle,
            "fired-timers": operator.timers,
        },
    }


def vertex_detail(job: JobView, operator: OperatorView) -> Document:
    return {
        **vertex(job, operator),
        "states": [
            {"name": s.name, "kind": s.kind, "type": s.value_type, "key-type": s.key_type, "ttl": s.ttl_ms}
            for s in operator.states
        ],
        "subtasks": [
            {
                "subtask": s.index,
                "read-records": s.rows_in,
                "write-records": s.rows_out,
                "fired-timers": s.timers,
                "busy-ratio": s.busy,
                "backpressured-ratio": s.backpressured,
                "idle-ratio": s.idle,
            }
            for s in operator.subtasks
        ],
    }


def backpressure(operator: OperatorView) -> Document:
    return {
        "status": "ok",
        "backpressureLevel": operator.level,
        "subtasks": [
            {
                "subtask": s.index,
                "backpressureLevel": _level(s.backpressured),
                "ratio": s.backpressured,
                "busyRatio": s.busy,
                "idleRatio": s.idle,
            }
            for s in operator.subtasks
        ],
    }


def _level(share: float) -> str:
    return "ok" if share <= 0.1 else "low" if share <= 0.5 else "high"


def plan(job: JobView) -> Document:
    """The job graph, every node after those that it reads."""
    parallelism = {operator.uid: operator.parallelism for operator in job.operators}
    nodes: list[Document] = []
    for vertex_ in job.graph:
        inputs = [
            {
                "num": number,
                "id": link.id,
                "ship_strategy": link.ship,
                **({"side_output": link.side} if link.side else {}),
            }
            for number, link in enumerate(vertex_.inputs)
        ]
        node = {"id": vertex_.id, "kind": vertex_.kind, "description": vertex_.name, "inputs": inputs}
        nodes.append(node | {"parallelism": parallelism[vertex_.id]} if vertex_.id in parallelism else node)
    return {"jid": job.job_id, "name": job.name, "nodes": nodes}


def checkpoints(job: JobView, limit: int, offset: int = 0) -> Document:
    told = job.checkpoints
    restore = next((r for r in job.restores if r.kind in ("checkpoint", "savepoint")), None)
    completed, savepoint = told.latest("COMPLETED"), told.latest("COMPLETED", savepoint=True)
    failed = told.latest("FAILED")
    return {
        "counts": {
            "total": len(told.history),
            "in_progress": told.count("IN_PROGRESS"),
            "completed": told.count("COMPLETED"),
            "failed": told.count("FAILED"),
            "restored": told.restored,
        },
        "summary": {
            "checkpointed_size": numbers(told.written),
            "state_size": numbers(told.full),
            "end_to_end_duration": numbers(told.duration),
            "processed_data": numbers(Spread()),
            "persisted_data": numbers(told.in_flight),
            "alignment_buffered": numbers(Spread()),
        },
        "latest": {
            "completed": None if completed is None else checkpoint(completed),
            "savepoint": None if savepoint is None else checkpoint(savepoint),
            "failed": None if failed is None else checkpoint(failed),
            "restored": None if restore is None else restored(restore),
        },
        "history": [checkpoint(info) for info in told.history[offset : offset + limit]],
    }


def numbers(values: Spread) -> Document:
    return {name: getattr(values, name) for name in STATISTICS}


def restored(restore: RestoreView) -> Document:
    return {
        "id": restore.checkpoint,
        "restore_timestamp": restore.time_ms,
        "is_savepoint": restore.kind == "savepoint",
        "external_path": restore.path,
    }


def checkpoint(info: CheckpointInfo) -> Document:
    """One checkpoint or savepoint, without its subtasks."""
    subtasks = [subtask for operator in info.operators for subtask in operator.subtasks]
    told: Document = {
        "id": info.id,
        "status": info.status.value,
        "is_savepoint": is_savepoint(info),
        "checkpoint_type": info.type.value,
        "incremental": not info.full,
        "epoch": info.epoch,
        "trigger_timestamp": info.trigger_ms,
        "latest_ack_timestamp": max((s.ack_ms for s in subtasks), default=0) or info.end_ms or -1,
        "checkpointed_size": info.savepoint_bytes if is_savepoint(info) else info.written_bytes,
        "state_size": info.savepoint_bytes if is_savepoint(info) else info.full_bytes,
        "end_to_end_duration": info.duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": info.in_flight_rows,
        "num_subtasks": len(subtasks) or info.parts,
        "num_acknowledged_subtasks": _acknowledged(info, subtasks),
        "tasks": {operator.uid: task(operator, info) for operator in info.operators},
    }
    if is_savepoint(info):
        told["savepointFormat"] = "CANONICAL"
    if info.status.value == "COMPLETED":
        told |= {"external_path": info.path, "discarded": info.discarded}
    if info.status.value == "FAILED":
        reason = info.reason.value if info.reason is not None else ""
        told |= {"failure_timestamp": info.end_ms, "failure_message": info.failure, "failure_reason": reason}
    return told


def _acknowledged(info: CheckpointInfo, subtasks: Sequence[SubtaskStats]) -> int:
    """All of them once it is completed, also those that had nothing to do since the checkpoint before."""
    if info.status.value == "COMPLETED":
        return len(subtasks) or info.parts
    return sum(1 for s in subtasks if s.ack_ms) or info.parts_done


def task(operator: OperatorStats, info: CheckpointInfo) -> Document:
    acks = [subtask.ack_ms for subtask in operator.subtasks]
    return {
        "id": info.id,
        "status": info.status.value,
        "latest_ack_timestamp": max(acks, default=0) or -1,
        "checkpointed_size": sum(s.written_bytes for s in operator.subtasks),
        "state_size": sum(s.full_bytes for s in operator.subtasks),
        "end_to_end_duration": max((_since(info, s) for s in operator.subtasks), default=0),
        "num_subtasks": len(acks),
        "num_acknowledged_subtasks": _acknowledged(info, operator.subtasks),
    }


def _since(info: CheckpointInfo, subtask: SubtaskStats) -> int:
    return max(0, subtask.ack_ms - info.trigger_ms) if subtask.ack_ms else 0


def subtasks(operator: OperatorStats, info: CheckpointInfo) -> Document:
    """One operator's part in a checkpoint, down to the subtask."""
    rows = operator.subtasks

    def over(values: Sequence[float]) -> Document:
        return numbers(spread(values))

    return {
        **task(operator, info),
        "summary": {
            "checkpointed_size": over([s.written_bytes for s in rows]),
            "state_size": over([s.full_bytes for s in rows]),
            "end_to_end_duration": over([_since(info, s) for s in rows]),
            "checkpoint_duration": {"sync": over([s.sync_ms for s in rows]), "async": over([s.async_ms for s in rows])},
            "alignment": {"duration": over([s.alignment_ms for s in rows])},
            "start_delay": over([s.start_delay_ms for s in rows]),
        },
        "subtasks": [
            {
                "index": s.index,
                "status": info.status.value,
                "ack_timestamp": s.ack_ms,
                "end_to_end_duration": _since(info, s),
                "checkpointed_size": s.written_bytes,
                "state_size": s.full_bytes,
                "checkpoint": {"sync": s.sync_ms, "async": s.async_ms},
                "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": s.alignment_ms},
                "start_delay": s.start_delay_ms,
                "records": s.records,
                "unaligned_checkpoint": info.type.value == "UNALIGNED_CHECKPOINT",
                "aborted": info.status.value == "FAILED",
            }
            for s in rows
        ],
    }


def checkpoint_config(job: JobView) -> Document:
    """The settings of the newest run, in Flink's names."""
    told = job.config
    retention = str(told.get("retention", "NO_EXTERNALIZED_CHECKPOINTS"))
    return {
        "mode": str(told.get("mode", "EXACTLY_ONCE")).lower(),
        "interval": int(told.get("interval", 0)),
        "timeout": int(told.get("timeout", 0)),
        "min_pause": int(told.get("min_pause", 0)),
        "max_concurrent": int(told.get("max_concurrent", 1)),
        "externalization": {
            "enabled": retention != "NO_EXTERNALIZED_CHECKPOINTS",
            "delete_on_cancellation": retention == "DELETE_ON_CANCELLATION",
        },
        "state_backend": str(told.get("backend", "")),
        "checkpoint_storage": str(told.get("storage", "")),
        "unaligned_checkpoints": bool(told.get("unaligned", False)),
        "aligned_checkpoint_timeout": int(told.get("aligned_timeout", 0)),
        "tolerable_failed_checkpoints": int(told.get("tolerable_failures", 0)),
        "checkpoints_after_tasks_finish": False,
        "state_changelog_enabled": False,
        "incremental": bool(told.get("incremental", False)),
        "num_retained": int(told.get("num_retained", 1)),
        "savepoint_directory": str(told.get("savepoint_dir", "")),
        "checkpoint_directory": job.directory,
    }
