"""Is the job fine? A level and the reasons for it, from the records alone."""

from __future__ import annotations

from cairn.quantities import ago, behind, count, duration, first_line
from cairn.storage.savepoint_folder import newest_savepoint
from cairn.view.job_view import Health, JobView, OperatorView, is_savepoint

_SKEWED = 0.5
_SLOWER = 3.0
_NOTICEABLE_MS = 1000
_LATELY_MS = 300_000
_AGAIN = 3
"""From this many recent failures on, the job is reported as failing repeatedly."""
_KEYS = 10
"""Skew is judged from so many keys for a subtask on: a handful of them is uneven by chance."""
_EPOCHS = 20


def health_of(job: JobView) -> Health:
    """The level of the worst finding. A job that ended well is `ended`, one that failed or crashed is `bad`."""
    if job.status == "FAILED":
        cause = first_line(job.exceptions[0].text) if job.exceptions else "The cause is unknown."
        return Health("bad", "The job has failed.", [cause, *job.damage])
    if job.status == "CRASHED":
        told = f"The process of run {job.run} ({job.pid} on {job.host}) ended unexpectedly. Restart the job to resume."
        return Health("bad", "The job has crashed.", [f"{told} Last committed epoch: {job.epoch}.", *job.damage])
    if not job.running:
        word = {"FINISHED": "The job has finished.", "CANCELED": "The job was canceled."}.get(job.status)
        return Health("ended", word or "The status of the job is unknown.", [*_left(job), *job.damage])
    bad = [*job.damage]
    warn: list[str] = []
    _checkpoints(job, bad, warn)
    if job.status == "RESTARTING":
        bad.append("The job failed and is restarting; see Exceptions for the cause.")
    failed = next((event.time_ms for event in job.exceptions), 0)
    again = _failures(job)
    if len(again) >= _AGAIN:
        return Health("bad", "The job fails repeatedly.", [_looping(job, again), *bad, *warn])
    if failed and job.status != "RESTARTING" and job.now_ms - failed < _LATELY_MS:
        warn.append(f"It failed {ago(failed, job.now_ms)} and recovered; see Exceptions for the cause.")
    for operator in job.operators:
        if operator.level == "high":
            share = f"{operator.backpressured:.0%}"
            warn.append(f"Operator {operator.uid} is backpressured {share} of the time: downstream is slower.")
        if operator.skew > _SKEWED and operator.parallelism > 1 and _has_many_keys(job, operator):
            warn.append(f"Operator {operator.uid} has a skew of {operator.skew:.0%}: few subtasks do most of the work.")
    if bad:
        return Health("bad", "The job is running with problems.", [*bad, *warn])
    if warn:
        return Health("warn", "The job is running with warnings.", warn)
    return Health("ok", "The job is healthy.", _good(job))


def _has_many_keys(job: JobView, operator: OperatorView) -> bool:
    """Whether enough different keys came to an operator in one of its newest epochs to tell skew from chance."""
    loads = (epoch.operators.get(operator.uid, []) for epoch in job.epochs[-_EPOCHS:])
    return any(sum(load.keys for load in subtasks) >= _KEYS * operator.parallelism for subtasks in loads)


def _failures(job: JobView) -> list[int]:
    """When the job failed or crashed recently; a stop and a new start are not failures."""
    found = []
    before = ""
    for event in job.events:
        if event.kind in ("failed", "restarting") or (event.kind == "started" and before == "started"):
            found.append(event.time_ms)
        before = event.kind
    return [moment for moment in found if job.now_ms - moment < _LATELY_MS]


def _looping(job: JobView, again: list[int]) -> str:
    starts = [restore.epoch for restore in job.restores[:_AGAIN]]
    stuck = len(starts) == _AGAIN and len(set(starts)) == 1 and job.epoch in (-1, *starts)
    pace = f"It failed and restarted {len(again)} times in the last {duration(job.now_ms - again[0])}"
    pace += f" without getting beyond epoch {job.epoch}." if stuck else "."
    cause = f" Latest cause: {first_line(job.exceptions[0].text)}" if job.exceptions else ""
    return f"{pace}{cause}"


def _checkpoints(job: JobView, bad: list[str], warn: list[str]) -> None:
    interval = int(job.config.get("interval", 0))
    ended = [info for info in job.checkpoints.history if info.end_ms and not is_savepoint(info)]
    done = [info for info in ended if info.status.value == "COMPLETED"]
    failed_in_a_row = next((at for at, info in enumerate(ended) if info.status.value == "COMPLETED"), len(ended))
    if failed_in_a_row:
        text = (
            f"The latest {failed_in_a_row} checkpoints failed: "
            if failed_in_a_row > 1
            else "The latest checkpoint failed: "
        )
        text += first_line(ended[0].failure)
        (bad if failed_in_a_row > 1 else warn).append(text)
    if interval <= 0:
        warn.append("Checkpointing is off; set execution.checkpointing.interval.")
        return
    last = done[0].end_ms if done else job.started_ms
    if last and job.now_ms - last > 3 * interval + 1000:
        bad.append(f"No checkpoint has completed for {duration(job.now_ms - last)}, more than three intervals.")
    if len(done) >= 10:
        recent = sorted(info.duration_ms for info in done[:5])[2]
        before = sorted(info.duration_ms for info in done[5:])[len(done[5:]) // 2]
        if recent > _NOTICEABLE_MS and recent > _SLOWER * max(1, before):
            warn.append(f"Checkpoints have slowed down: {recent} ms recently, {before} ms before.")


def _left(job: JobView) -> list[str]:
    """What a job that has ended can be started from."""
    if job.status not in ("FINISHED", "CANCELED"):
        return []
    told = [f"A restart resumes from epoch {job.epoch}."] if job.epoch >= 0 else []
    saved = newest_savepoint(job.checkpoints.history)
    if saved is None:
        return told
    older = behind(saved.epoch, job.epoch)
    return [*told, f"Latest savepoint: {saved.path}" + (f" ({older})." if older else ".")]


def _good(job: JobView) -> list[str]:
    """Good news, for users who are new to jobs: the job works, and could be restarted without loss."""
    last = job.checkpoints.latest("COMPLETED")
    told = []
    if job.epochs:
        newest = job.epochs[-10:]
        span = newest[-1].end_ms - (newest[0].end_ms - newest[0].duration_ms)
        rows = 1000 * sum(epoch.rows_in for epoch in newest) / max(1.0, span)
        when = ago(newest[-1].end_ms, job.now_ms)
        told.append(f"It processes about {count(rows)} rows per second; the latest epoch ended {when}.")
    if last is not None:
        age = ago(last.end_ms, job.now_ms)
        kept = "discarded" if last.discarded else "restorable"
        told.append(f"Latest checkpoint: {last.id} ({kept}), completed {age} in {duration(last.duration_ms)}.")
    return told
