"""`/metrics` for Prometheus: Flink's meanings, base units, help texts. No label ever holds a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from cairn.model.checkpoint_records import CheckpointInfo
from cairn.view.job_view import ENDED, JobView, OperatorView, is_savepoint

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Value = Callable[[JobView], float | None]
_OperatorValue = Callable[[OperatorView], float]


def _last(job: JobView) -> CheckpointInfo | None:
    return job.checkpoints.latest("COMPLETED")


def _failed_in_a_row(job: JobView) -> float:
    ended = [info for info in job.checkpoints.history if info.end_ms and not is_savepoint(info)]
    return float(next((at for at, info in enumerate(ended) if info.status.value == "COMPLETED"), len(ended)))


def _of_last(read: Callable[[CheckpointInfo], float]) -> _Value:
    def value(job: JobView) -> float | None:
        last = _last(job)
        return None if last is None else read(last)

    return value


def _of_epoch(read: Callable[..., float]) -> _Value:
    return lambda job: read(job.epochs[-1]) if job.epochs else None


def _restore(job: JobView) -> float | None:
    found = next((r for r in job.restores if r.kind in ("checkpoint", "savepoint")), None)
    return found.time_ms / 1000 if found is not None else None


JOB_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("cairn_job_running", "1 while the job runs or is being restarted.", lambda job: float(job.running)),
    ("cairn_job_start_timestamp_seconds", "When somebody last started the job; restarts after a failure do not count.",
     lambda job: job.begun_ms / 1000 if job.begun_ms else None),
    ("cairn_job_uptime_seconds", "Since the newest run began.",
     lambda job: job.duration_ms / 1000 if job.running else 0),
    ("cairn_last_checkpoint_duration_seconds", "Of the newest completed one (lastCheckpointDuration).",
     _of_last(lambda info: info.duration_ms / 1000)),
    ("cairn_last_checkpoint_size_bytes", "Written for the newest completed one (lastCheckpointSize).",
     _of_last(lambda info: info.written_bytes)),
    ("cairn_last_checkpoint_full_size_bytes", "All that the newest completed one refers to (lastCheckpointFullSize).",
     _of_last(lambda info: info.full_bytes)),
    ("cairn_last_checkpoint_id", "Number of the newest completed one (lastCompletedCheckpointId).",
     _of_last(lambda info: info.id)),
    ("cairn_last_checkpoint_timestamp_seconds", "When it was completed (lastCheckpointCompletedTimestamp).",
     _of_last(lambda info: info.end_ms / 1000)),
    ("cairn_last_restore_timestamp_seconds", "When a snapshot was last restored (lastCheckpointRestoreTimestamp).",
     _restore),
    ("cairn_checkpoint_interval_seconds", "As configured; 0 if there are no periodic checkpoints.",
     lambda job: float(job.config.get("interval", 0)) / 1000),
    ("cairn_checkpoints_in_progress", "Checkpoints and savepoints in progress (numberOfInProgressCheckpoints).",
     lambda job: float(job.checkpoints.in_progress)),
    ("cairn_checkpoint_failures_in_a_row", "Failed checkpoints since the last completed one.", _failed_in_a_row),
    ("cairn_epoch", "The newest committed epoch.", lambda job: float(job.epoch)),
    ("cairn_epoch_duration_seconds", "How long the newest epoch took.",
     _of_epoch(lambda epoch: epoch.duration_ms / 1000)),
    ("cairn_epoch_rows_in", "Rows of the newest epoch.", _of_epoch(lambda epoch: epoch.rows_in)),
    ("cairn_epoch_bytes_written", "State changes that the newest epoch wrote.",
     _of_epoch(lambda epoch: epoch.bytes_written)),
    ("cairn_watermark_lag_seconds", "Wall clock minus watermark; absent without event time.",
     lambda job: None if job.watermark_lag_ms is None else job.watermark_lag_ms / 1000),
)  # fmt: skip
OPERATOR_GAUGES: tuple[tuple[str, str, _OperatorValue], ...] = (
    ("cairn_state_bytes", "Files that hold the operator's state.", lambda op: op.state_bytes),
    ("cairn_operator_busy_ratio", "Share of time at work, highest subtask (busyTimeMsPerSecond).", lambda op: op.busy),
    ("cairn_operator_backpressured_ratio", "Share of time its rows wait to be taken (backPressuredTimeMsPerSecond).",
     lambda op: op.backpressured),
    ("cairn_operator_idle_ratio", "Share of time without rows, lowest subtask (idleTimeMsPerSecond).",
     lambda op: op.idle),
    ("cairn_operator_skew_ratio", "0 if the subtasks get equal numbers of rows, 1 if one gets all.",
     lambda op: op.skew),
    ("cairn_operator_parallelism", "Subtasks of the operator.", lambda op: op.parallelism),
)  # fmt: skip
_ALWAYS_KNOWN = ("cairn_state_bytes", "cairn_operator_parallelism")
"""Of operators: these are in what is committed, the others only in what the job wrote down of its epochs."""
OPERATOR_COUNTERS: tuple[tuple[str, str, _OperatorValue], ...] = (
    (
        "cairn_operator_records_in",
        "Rows in, since the run began (numRecordsIn); of operators and sinks.",
        lambda op: op.rows_in,
    ),
    (
        "cairn_operator_records_out",
        "Rows out, since the run began (numRecordsOut); of operators and sources.",
        lambda op: op.rows_out,
    ),
    ("cairn_operator_timers_fired", "Timers fired, since the run began.", lambda op: op.timers),
)
_COUNTED_BY = {"source": "cairn_operator_records_out", "sink": "cairn_operator_records_in"}
JOB_COUNTERS: tuple[tuple[str, str, Callable[[JobView], float]], ...] = (
    ("cairn_job_restarts", "Runs after one that failed or crashed (numRestarts).", lambda job: job.restarts),
    ("cairn_job_starts", "Runs that somebody began, restarts after a failure left out.", lambda job: job.starts),
)
STATES = ("CREATED", "RUNNING", "RESTARTING", *ENDED, "UNKNOWN")


def families(jobs: Iterable[JobView]) -> Iterator[Metric]:
    """All metrics of these jobs."""
    found = list(jobs)
    for name, text, read in JOB_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=["job"])
        for job in found:
            value = read(job)
            if value is not None:
                gauge.add_metric([job.job_id], value)
        yield gauge
    for name, text, count_of in JOB_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=["job"])
        for job in found:
            counter.add_metric([job.job_id], count_of(job))
        yield counter
    states = GaugeMetricFamily("cairn_job_state", "1 for the state that the job is in.", labels=["job", "state"])
    counts = CounterMetricFamily(
        "cairn_checkpoints", "Checkpoints and savepoints that ended in the job's life, by result "
        "(numberOfCompletedCheckpoints, numberOfFailedCheckpoints).", labels=["job", "result"],
    )  # fmt: skip
    for job in found:
        for state in STATES:
            states.add_metric([job.job_id, state], float(job.status == state))
        counts.add_metric([job.job_id, "completed"], job.checkpoints.completed)
        counts.add_metric([job.job_id, "failed"], job.checkpoints.failed)
    yield states
    yield counts
    for name, text, value_of in OPERATOR_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=["job", "operator"])
        for job in found:
            for operator in job.operators:
                if operator.recorded or name in _ALWAYS_KNOWN:
                    gauge.add_metric([job.job_id, operator.uid], value_of(operator))
        yield gauge
    for name, text, value_of in OPERATOR_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=["job", "operator"])
        for job in found:
            for operator in job.operators:
                if operator.recorded:
                    counter.add_metric([job.job_id, operator.uid], value_of(operator))
            for end in job.ends.values():
                if end.rows is not None and name == _COUNTED_BY[end.kind]:
                    counter.add_metric([job.job_id, end.id], end.rows)
        yield counter


class _JobCollector:
    def __init__(self, jobs: Iterable[JobView]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        return families(self._jobs)


def exposition(jobs: Iterable[JobView]) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_JobCollector(jobs))
    return generate_latest(registry)
