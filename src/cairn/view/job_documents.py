"""The records as Flink's REST documents, for REST and `--json` alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cairn.model.checkpoint_records import CheckpointInfo, OperatorStats, SubtaskStats
from cairn.view import vertex_documents
from cairn.view.health import health_of
from cairn.view.job_reader import spread
from cairn.view.job_view import JobView, RestoreView, Spread, is_savepoint

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
        "starts": job.starts,
        "restarts": job.restarts,
        "epoch": job.epoch,
        "directory": job.directory,
        "web-url": job.url,
        "health": health_of(job).level,
        "tasks": vertex_documents.tasks(job.status, sum(op.parallelism for op in job.operators)),
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
        "isStoppable": False,
        "timestamps": {job.status: job.ended_ms or job.started_ms},
        "status-counts": {job.status: len(job.graph)},
        "vertices": [vertex_documents.vertex(job, vertex) for vertex in job.graph],
        "plan": vertex_documents.plan(job),
    }


def checkpoints(job: JobView, limit: int, offset: int = 0) -> Document:
    told = job.checkpoints
    restore = next((r for r in job.restores if r.kind in ("checkpoint", "savepoint")), None)
    completed, savepoint = told.latest("COMPLETED"), told.latest("COMPLETED", savepoint=True)
    failed = told.latest("FAILED")
    return {
        "counts": {
            "total": told.triggered,
            "in_progress": told.in_progress,
            "completed": told.completed,
            "failed": told.failed,
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
        "checkpointed_size": info.written_bytes,
        "state_size": info.full_bytes,
        "end_to_end_duration": info.duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": info.in_flight_bytes,
        "num_subtasks": info.total or info.parts,
        "num_acknowledged_subtasks": _acknowledged(info, subtasks),
        "tasks": {operator.uid: task(operator, info) for operator in info.operators},
    }
    if is_savepoint(info):
        told |= {"savepointFormat": "CANONICAL", "savepoint_size": info.savepoint_bytes}
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
        "num_subtasks": operator.total,
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
                "status": "completed",
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
        ]
        + [
            {"index": index, "status": "pending_or_failed"}
            for index in range(operator.total)
            if index not in {s.index for s in rows}
        ],
    }


def job_config(job: JobView) -> Document:
    """Flink's document of how a job executes; `user-config` has the settings that pages show."""
    shown = {name: str(value) for name, value in job.config.items()}
    return {
        "jid": job.job_id,
        "name": job.name,
        "execution-config": {
            "execution-mode": "PIPELINED",
            "restart-strategy": str(job.config.get("restart_numbers") or job.config.get("restart", "")),
            "job-parallelism": job.parallelism,
            "object-reuse-mode": False,
            "user-config": shown,
        },
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
