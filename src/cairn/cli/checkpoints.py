"""`cairn checkpoints` and `cairn checkpoint`: what checkpoints a job has, and taking one now.

The first reads the job's directory, so it works for jobs that run, have ended or have crashed; a job that runs is also
asked what it is at. Both leave their request in that directory, where the running job answers it.
"""

from __future__ import annotations

import difflib
import os
import socket
import time
from typing import Any

import msgspec

from cairn.cli.output import ExitCode, Output
from cairn.config import DEFAULT_DIRECTORY
from cairn.coordinator.control import ask
from cairn.errors import CairnError, CheckpointFailedError, InvalidInputError, NotFoundError
from cairn.model.checkpoint import CheckpointInfo, CheckpointStatus
from cairn.storage import layout
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.manifests import JobIdentity, Runs, load_identity

_ANSWER_SECONDS = 1.5
_COLOURS = {"COMPLETED": "green", "FAILED": "red", "IN_PROGRESS": "blue"}


def open_job(job: str, directory: str | None) -> tuple[LocalFileSystem, JobIdentity]:
    """The job that a name, an id prefix or a path means."""
    if os.sep in job or os.path.isdir(job):
        files = LocalFileSystem(local_root(job))
        identity = load_identity(files)
        if identity is None:
            raise NotFoundError(f"{files.root} holds no job of cairn", path=files.root)
        return files, identity
    root = local_root(directory or DEFAULT_DIRECTORY)
    found = []
    seen: list[tuple[str, str]] = []
    damaged: dict[str, CairnError] = {}
    for name in LocalFileSystem(root).folders(""):
        files = LocalFileSystem(os.path.join(root, name))
        try:
            identity = load_identity(files)
        except CairnError as error:  # its neighbours are none the worse for it
            damaged[name] = error
            continue
        if identity is not None:
            seen.append((identity.job_id, identity.name))
        if identity is not None and (identity.name == job or identity.job_id.startswith(job)):
            found.append((files, identity))
    exact = [pair for pair in found if job in (pair[1].name, pair[1].job_id)]
    meant = [name for name in damaged if name.startswith(job)]  # a job's folder has its id for a name
    if not exact and (job in damaged or (not found and len(meant) == 1)):
        raise damaged[job if job in damaged else meant[0]]
    if len(exact) == 1 or (not exact and len(found) == 1 and not meant):
        return (exact or found)[0]
    if not found and not meant:
        near = difflib.get_close_matches(job, [name for ids in seen for name in ids], 1)
        hint = f"; did you mean '{near[0]}'?" if near else "; give its path, or its directory with --dir"
        unread = f". Not looked at, since their {layout.JOB} cannot be read: {', '.join(damaged)}" if damaged else ""
        raise NotFoundError(f"there is no job '{job}' in {root}{hint}{unread}", job=job)
    names = ", ".join(sorted([*(identity.job_id for _, identity in found), *meant]))
    raise InvalidInputError(f"'{job}' could be any of {names}; give more of the id", job=job)


def show_checkpoints(job: str, directory: str | None, limit: int, out: Output) -> int:
    files, identity = open_job(job, directory)
    running = in_progress(files)
    known = {info.id for info in running}
    infos = [*running, *(info for info in CheckpointStore(files).history() if info.id not in known)][:limit]
    out.document({"job": identity.job_id, "name": identity.name, "checkpoints": [describe(info) for info in infos]})
    if out.as_json:
        return ExitCode.OK
    if not infos:
        out.line(f"job {identity.job_id} has no checkpoints yet; take one with: cairn checkpoint {identity.job_id}")
        return ExitCode.OK
    _table(identity, infos)
    return ExitCode.OK


def in_progress(files: LocalFileSystem) -> list[CheckpointInfo]:
    """The checkpoints that the running job is taking, as it tells; none if it does not run or does not answer."""
    runs = Runs(files)
    record = runs.record(runs.newest())
    if record is None or (record.host == socket.gethostname() and not _alive(record.pid)):
        return []
    try:
        answer = ask(files, {"action": "progress"}, _ANSWER_SECONDS)
        return msgspec.convert((answer or {}).get("checkpoints", []), type=list[CheckpointInfo])
    except (CairnError, OSError, msgspec.MsgspecError):
        return []  # a directory that cannot be written, or a job of another release: what has ended is still shown


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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


def _table(identity: JobIdentity, infos: list[CheckpointInfo]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"checkpoints of {identity.name}"), box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("id", "status", "type", "epoch"):
        table.add_column(name)
    for name in ("acknowledged", "triggered", "duration", "written", "full size"):
        table.add_column(name, justify="right")
    table.add_column("path or cause", overflow="fold")
    for info in infos:
        status = info.status.value + (" (discarded)" if info.discarded else "")
        kind = info.type.value.removesuffix("CHECKPOINT").strip("_").lower() or "aligned"
        table.add_row(
            str(info.id),
            Text(status, style=_COLOURS[info.status.value]),
            f"{kind}, {'full' if info.full else 'incremental'}",
            str(info.epoch) if info.epoch >= 0 else "-",
            _acknowledged(info),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.trigger_ms / 1000)),
            f"{info.duration_ms:,} ms" if info.end_ms else "-",
            size(info.written_bytes),
            size(info.full_bytes),
            Text(info.path if info.status is CheckpointStatus.COMPLETED else info.failure),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=220)
    console.print(table)


def _acknowledged(info: CheckpointInfo) -> str:
    """All subtasks in one number; while it is in progress, also those of each operator that still lacks some."""
    if not info.operators:
        return "-"
    text = f"{info.acknowledged}/{info.total}"
    if info.status is CheckpointStatus.IN_PROGRESS and len(info.operators) > 1:
        missing = [f"{op.uid} {op.acknowledged}/{op.total}" for op in info.operators if op.acknowledged < op.total]
        text += f" ({', '.join(missing)})" if missing else ""
    return text


def size(count: int) -> str:
    """Bytes for people."""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def take_checkpoint(job: str, directory: str | None, full: bool | None, timeout: float, out: Output) -> int:
    files, identity = open_job(job, directory)
    if not out.as_json:
        out.message(f"asking job {identity.job_id} for a checkpoint")
    answer = ask(files, {"action": "checkpoint", "full": full}, timeout)
    if answer is None:
        raise CheckpointFailedError(
            f"job '{identity.job_id}' did not answer within {timeout:.0f} s",
            remedy=f"Is it running? Look with: cairn checkpoints {identity.job_id}",
        )
    if "error" in answer:
        raise CheckpointFailedError(str(answer["error"]))
    info = msgspec.convert(answer["checkpoint"], type=CheckpointInfo)
    out.document(describe(info))
    out.line(
        f"checkpoint {info.id} of {identity.job_id} completed in {info.duration_ms} ms: epoch {info.epoch}, "
        f"{size(info.written_bytes)} written, {size(info.full_bytes)} in all"
    )
    out.line(os.path.join(files.root, layout.checkpoint_folder(info.id)))
    return ExitCode.OK
