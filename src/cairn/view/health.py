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
"""So many failures of late are no accident."""
_KEYS = 10
"""Skew is judged from so many keys for a subtask on: a handful of them is uneven by chance."""
_EPOCHS = 20


def health_of(job: JobView) -> Health:
    """The level of the worst finding. A job that ended well is `ended`, one that failed or crashed is `bad`."""
    if job.status == "FAILED":
        cause = first_line(job.exceptions[0].text) if job.exceptions else "no cause was written down"
        return Health("bad", "The job has failed.", [cause, *job.damage])
    if job.status == "CRASHED":
        told = f"Run {job.run} (process {job.pid} on {job.host}) is gone without an end; start the job again to go on."
        return Health(
            "bad", "The job has crashed.", [f"{told} Epoch {job.epoch} is the last committed one.", *job.damage]
        )
    if not job.running:
        word = {"FINISHED": "The job has finished.", "CANCELED": "The job was canceled."}.get(job.status)
        return Health("ended", word or "It is not known whether the job runs.", [*_left(job), *job.damage])
    bad = [*job.damage]
    warn: list[str] = []
    _checkpoints(job, bad, warn)
    if job.status == "RESTARTING":
        bad.append("The job failed and is being restarted; Exceptions has the cause.")
    failed = next((event.time_ms for event in job.exceptions), 0)
    again = _failures(job)
    if len(again) >= _AGAIN:
        return Health("bad", "The job fails again and again.", [_looping(job, again), *bad, *warn])
    if failed and job.status != "RESTARTING" and job.now_ms - failed < _LATELY_MS:
        told = f"It failed {ago(failed, job.now_ms)} and was started again without losing anything"
        warn.append(f"{told}; Exceptions has the cause.")
    for operator in job.operators:
        if operator.level == "high":
            share = f"{operator.backpressured:.0%}"
            warn.append(f"Operator {operator.uid} is backpressured {share} of its time: what follows it is slower.")
        if operator.skew > _SKEWED and operator.parallelism > 1 and _has_many_keys(job, operator):
            warn.append(f"Operator {operator.uid} is skewed {operator.skew:.0%}: few subtasks do most of the work.")
    if bad:
        return Health("bad", "The job runs, and something is wrong.", [*bad, *warn])
    if warn:
        return Health("warn", "The job runs; have a look.", warn)
    return Health("ok", "The job is fine.", _good(job))


def _has_many_keys(job: JobView, operator: OperatorView) -> bool:
    """Whether enough different keys came to an operator in one of its newest epochs to tell skew from chance."""
    loads = (epoch.operators.get(operator.uid, []) for epoch in job.epochs[-_EPOCHS:])
    return any(sum(load.keys for load in subtasks) >= _KEYS * operator.parallelism for subtasks in loads)


def _failures(job: JobView) -> list[int]:
    """When the job failed or crashed of late; being stopped and started again is no failure."""
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
    pace = f"It failed {len(again)} times in the last {duration(job.now_ms - again[0])} and was started again each time"
    pace += f"; it does not get beyond epoch {job.epoch}." if stuck else "."
    cause = f" The newest cause: {first_line(job.exceptions[0].text)}" if job.exceptions else ""
    return f"{pace}{cause}"


def _checkpoints(job: JobView, bad: list[str], warn: list[str]) -> None:
    interval = int(job.config.get("interval", 0))
    ended = [info for info in job.checkpoints.history if info.end_ms and not is_savepoint(info)]
    done = [info for info in ended if info.status.value == "COMPLETED"]
    failed_in_a_row = next((at for at, info in enumerate(ended) if info.status.value == "COMPLETED"), len(ended))
    if failed_in_a_row:
        text = f"The newest {failed_in_a_row} checkpoint{'s' if failed_in_a_row > 1 else ''} failed: "
        text += first_line(ended[0].failure)
        (bad if failed_in_a_row > 1 else warn).append(text)
    if interval <= 0:
        warn.append("Checkpoints are off: set execution.checkpointing.interval.")
        return
    last = done[0].end_ms if done else job.started_ms
    if last and job.now_ms - last > 3 * interval + 1000:
        bad.append(f"No checkpoint was completed for {(job.now_ms - last) / 1000:.0f} s, more than three intervals.")
    if len(done) >= 10:
        recent = sorted(info.duration_ms for info in done[:5])[2]
        before = sorted(info.duration_ms for info in done[5:])[len(done[5:]) // 2]
        if recent > _NOTICEABLE_MS and recent > _SLOWER * max(1, before):
            warn.append(f"Checkpoints take {recent} ms of late, {before} ms before.")


def _left(job: JobView) -> list[str]:
    """What a job that has ended can be started from."""
    if job.status not in ("FINISHED", "CANCELED"):
        return []
    told = [f"Started again, it goes on from epoch {job.epoch}."] if job.epoch >= 0 else []
    saved = newest_savepoint(job.checkpoints.history)
    if saved is None:
        return told
    older = behind(saved.epoch, job.epoch)
    return [*told, f"Its newest savepoint is {saved.path}" + (f" ({older}: going back to it)." if older else ".")]


def _good(job: JobView) -> list[str]:
    """What is well, for somebody who has never seen a job: it works, and could be started again without loss."""
    last = job.checkpoints.latest("COMPLETED")
    told = []
    if job.epochs:
        newest = job.epochs[-10:]
        span = newest[-1].end_ms - (newest[0].end_ms - newest[0].duration_ms)
        rows = 1000 * sum(epoch.rows_in for epoch in newest) / max(1.0, span)
        when = ago(newest[-1].end_ms, job.now_ms)
        told.append(f"It takes in about {count(rows)} rows per second; its newest epoch ended {when}.")
    if last is not None:
        age = ago(last.end_ms, job.now_ms)
        told.append(f"It could go on from checkpoint {last.id}, completed {age} in {duration(last.duration_ms)}.")
    return told
