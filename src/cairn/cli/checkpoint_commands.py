"""`cairn checkpoints` and `cairn checkpoint`: list the checkpoints of a job, and take one now.

The first reads the job's directory, so it works for jobs that run, have ended or have crashed; a running job is also
asked for its checkpoints in progress. Both leave their request in that directory, where the running job answers it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from cairn import quantities
from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.cli.progress_bar import Step, watching
from cairn.coordinator.control import ask
from cairn.errors import CairnError, CheckpointFailedError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.job_lookup import open_job
from cairn.storage.liveness import is_alive
from cairn.storage.manifest_store import JobIdentity
from cairn.storage.run_records import Runs
from cairn.text import one_line

_ANSWER_SECONDS = 1.5
_WIDE = 140
"""Columns from which on everything fits into the table."""
_COLOURS = {"COMPLETED": "green", "FAILED": "red", "IN_PROGRESS": "blue"}


def show_checkpoints(job: str, directory: str | None, limit: int, out: Output) -> int:
    files, identity = open_job(job, directory)
    running = in_progress(files)
    known = {info.id for info in running}
    infos = [*running, *(info for info in CheckpointStore(files).history() if info.id not in known)][:limit]
    out.document({"job": identity.job_id, "name": identity.name, "checkpoints": [describe(info) for info in infos]})
    if out.as_json:
        return ExitCode.OK
    if not infos:
        asked = f"cairn checkpoint {quantities.shell_word(identity.job_id)}"
        out.line(f"job {identity.job_id} has no checkpoints; take one with: {asked}")
        return ExitCode.OK
    _table(identity, infos, out)
    return ExitCode.OK


def in_progress(files: LocalFileSystem) -> list[CheckpointInfo]:
    """The checkpoints in progress, as reported by the job; none if it is not running or does not answer."""
    runs = Runs(files)
    record = runs.record(runs.newest())
    if record is None or is_alive(record.host, record.pid, record.started_ms) is False:
        return []
    try:
        answer = ask(files, {"action": "progress"}, _ANSWER_SECONDS)
        return msgspec.convert((answer or {}).get("checkpoints", []), type=list[CheckpointInfo])
    except (CairnError, OSError, msgspec.MsgspecError):
        return []  # a directory that cannot be written, or a job of another release: what has ended is still shown


def following(files: LocalFileSystem, what: str, request: str = "") -> Callable[[], Step | None]:
    """Progress of the requested checkpoint or savepoint: parts written, or subtasks done."""
    since = int(time.time() * 1000) - 1000

    def look() -> Step | None:
        found = [info for info in in_progress(files) if info.request == request]
        if not request:  # a checkpoint does not record who requested it; ignore those that were in progress before
            found = [info for info in found if info.trigger_ms >= since]
        return step_of(found[0], what) if found else None

    return look


def step_of(info: CheckpointInfo, what: str) -> Step:
    if info.parts:
        return Step(f"writing {what} {info.id}", info.parts_done, info.parts, "parts")
    if info.total:
        return Step(f"{what} {info.id}", info.acknowledged, info.total, "subtasks")
    return Step(f"{what} {info.id}: waiting for the end of the running epoch")


def describe(info: CheckpointInfo) -> dict[str, Any]:
    """A checkpoint as a JSON document, sums included."""
    told: dict[str, Any] = msgspec.to_builtins(info)
    told["duration_ms"] = info.duration_ms
    told["written_bytes"] = info.written_bytes
    told["full_bytes"] = info.full_bytes
    told["acknowledged"] = info.acknowledged
    told["total"] = info.total
    for operator, stats in zip(told.get("operators", []), info.operators, strict=True):
        operator["skew"] = round(stats.skew, 3)
        operator["acknowledged"] = stats.acknowledged
        operator["total"] = stats.total
    return told


def _table(identity: JobIdentity, infos: list[CheckpointInfo], out: Output) -> None:
    """A row each. Where the terminal is too narrow for paths and causes, those that are needed follow as lines."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    narrow = out.columns < _WIDE
    out.line(f"checkpoints of {identity.name}; times are UTC")
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("id", "status", "type"):
        table.add_column(name, no_wrap=True)
    for name in ("triggered", "duration", "written", "full size"):
        table.add_column(name, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("epoch", justify="right")
        table.add_column("acknowledged", justify="right")
        table.add_column("path or cause", overflow="fold")
    for info in infos:
        cells: list[str | Text] = [
            str(info.id),
            Text(info.status.value, style=_COLOURS[info.status.value]),
            _kind(info),
            quantities.when(info.trigger_ms)[11 if narrow else 0 :],
            quantities.duration(info.duration_ms) if info.end_ms else "-",
            quantities.size(info.savepoint_bytes or info.written_bytes),
            quantities.size(info.savepoint_bytes or info.full_bytes),
        ]
        if not narrow:
            cells += [str(info.epoch) if info.epoch >= 0 else "-", Text(_acknowledged(info)), Text(_where(info))]
        table.add_row(*cells)
    out.table(table)
    for info in infos if narrow else ():
        if info.status is CheckpointStatus.FAILED or info.type is CheckpointType.SAVEPOINT:
            out.line(f"  {info.id}: {_where(info)}")


def _kind(info: CheckpointInfo) -> str:
    if info.type is CheckpointType.SAVEPOINT:
        return "savepoint"
    unaligned = "unaligned, " if info.type is CheckpointType.UNALIGNED_CHECKPOINT else ""
    return f"{unaligned}{'full' if info.full else 'incremental'}"


def _where(info: CheckpointInfo) -> str:
    if info.status is not CheckpointStatus.COMPLETED:
        return one_line(quantities.first_line(info.failure, 160))
    return "discarded" if info.discarded else one_line(info.path)


def _acknowledged(info: CheckpointInfo) -> str:
    """All subtasks in one number; while it is in progress, also those of each operator that still lacks some."""
    if not info.operators:
        return "-"
    text = f"{info.acknowledged}/{info.total}"
    if info.status is CheckpointStatus.IN_PROGRESS and len(info.operators) > 1:
        missing = [f"{op.uid} {op.acknowledged}/{op.total}" for op in info.operators if op.acknowledged < op.total]
        text += f" ({', '.join(missing)})" if missing else ""
    return one_line(text)


def take_checkpoint(job: str, directory: str | None, full: bool | None, timeout: float, out: Output) -> int:
    from cairn.cli.job_commands import refuse_ended

    files, identity = open_job(job, directory)
    refuse_ended(files, identity, "no checkpoint can be taken")
    with watching(out, f"requesting a checkpoint of job {identity.job_id}", following(files, "checkpoint")):
        answer = ask(files, {"action": "checkpoint", "full": full}, timeout)
    if answer is None:
        raise CheckpointFailedError(
            f"job '{identity.job_id}' did not answer within {timeout:.0f} s",
            remedy=f"Check that it is running: cairn checkpoints {quantities.shell_word(identity.job_id)}",
        )
    if "error" in answer:
        raise CheckpointFailedError(str(answer["error"]))
    info = msgspec.convert(answer["checkpoint"], type=CheckpointInfo)
    out.document(describe(info))
    took = quantities.duration(info.duration_ms)
    out.line(
        f"checkpoint {info.id} of {identity.job_id} completed in {took}: epoch {info.epoch}, "
        f"{quantities.size(info.written_bytes)} written, {quantities.size(info.full_bytes)} in all"
    )
    out.line(os.path.join(files.root, layout.checkpoint_folder(info.id)))
    return ExitCode.OK
