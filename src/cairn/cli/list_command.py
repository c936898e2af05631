"""`cairn list`: the jobs of a directory, from their files alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from cairn import quantities
from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.config import DEFAULT_DIRECTORY
from cairn.errors import CairnError
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.storage.filesystem import local_root
from cairn.storage.running_jobs import running_directories
from cairn.text import one_line
from cairn.view.health import health_of
from cairn.view.job_documents import overview
from cairn.view.job_reader import JobReader, find_readers
from cairn.view.job_view import JobView

_COLOURS = {"RUNNING": "green", "FINISHED": "blue", "FAILED": "red", "CRASHED": "red", "RESTARTING": "yellow"}
SHAPE = 1
_WIDE = 150
"""Columns from which on everything fits into the table."""


def list_jobs(directory: str | None, running: bool, watch: float | None, out: Output) -> int:
    """Print the jobs, running ones first. With `watch`, again and again until Ctrl-C."""
    while True:
        damaged: dict[str, CairnError] = {}
        jobs = _jobs(directory, running, damaged)
        out.document({
            "version": SHAPE,
            "jobs": [{**overview(job), "failure": failure(job)} for job in jobs],
            "damaged": [{"directory": path, "error": error.message} for path, error in damaged.items()],
        })  # fmt: skip
        if not out.as_json:
            _show(jobs, damaged, directory or DEFAULT_DIRECTORY, out)
        if watch is None:
            return ExitCode.OK
        try:
            time.sleep(watch)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED


def _readers(directory: str | None, damaged: dict[str, CairnError]) -> list[JobReader]:
    """The jobs of the directory; without one, of the default directory and the running jobs of this user."""
    if directory is not None:
        return list(find_readers(directory, damaged).values())
    elsewhere = running_directories()
    own: dict[str, JobReader] = {}
    if not elsewhere or os.path.isdir(local_root(DEFAULT_DIRECTORY)):
        own = find_readers(DEFAULT_DIRECTORY, damaged)
    known = {reader.directory for reader in own.values()}
    return [*own.values(), *(JobReader(path) for path in elsewhere if path not in known and path not in damaged)]


def _jobs(directory: str | None, running: bool, damaged: dict[str, CairnError]) -> list[JobView]:
    found = []
    for reader in _readers(directory, damaged):
        try:
            found.append(reader.view())
        except CairnError as error:
            damaged[reader.directory] = error
    found.sort(key=lambda job: (not job.running, -job.started_ms))
    return [job for job in found if job.running or not running]


def failure(job: JobView) -> dict[str, str | int | None] | None:
    """Why a job has failed, in one line, and the line of user code to look at; None if it has not."""
    if job.status != "FAILED" or not job.exceptions:
        return None
    newest = job.exceptions[0]
    return {
        "cause": quantities.first_line(newest.text),
        "file": newest.facts.get("file"),
        "line": newest.facts.get("line"),
    }


def _verdict(job: JobView) -> str:
    """Is it fine? And, if it has failed, why and where."""
    verdict, told = health_of(job).verdict, failure(job)
    if told is None:
        return verdict
    where = f" ({told['file']}:{told['line']})" if told["file"] else ""
    return f"{verdict} {told['cause']}{where}"


def _called(job: JobView) -> str:
    """The id of the job, and its name where that is another one."""
    return job.job_id if job.name in ("", job.job_id) else f"{job.job_id} ({job.name})"


def _age(last: CheckpointInfo | None, now_ms: int) -> str:
    if last is None:
        return "-"
    return quantities.ago(last.end_ms, now_ms) + (", discarded" if last.discarded else "")


def _show(jobs: Sequence[JobView], damaged: Mapping[str, CairnError], directory: str, out: Output) -> None:
    if not jobs and not damaged:
        out.line(f"no jobs in {directory}; start one with: cairn run JOB.py")
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    narrow = out.columns < _WIDE
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("job", overflow="fold")
    table.add_column("state", no_wrap=True)
    if not narrow:
        table.add_column("started (UTC)", no_wrap=True)
    for name in ("duration", "epoch", "last checkpoint"):
        table.add_column(name, justify="right")
    if not narrow:
        table.add_column("state size", justify="right")
    table.add_column("health")
    if not narrow:
        table.add_column("page", overflow="fold")

    def add(*cells: str | Text) -> None:
        table.add_row(*[cell for at, cell in enumerate(cells) if not narrow or at not in (2, 6, 8)])

    for job in jobs:
        last = job.checkpoints.latest("COMPLETED")
        add(
            Text(one_line(_called(job))),
            Text(job.status, style=_COLOURS.get(job.status, "")),
            quantities.when(job.started_ms),
            quantities.duration(job.duration_ms),
            str(job.epoch) if job.epoch >= 0 else "-",
            _age(last, job.now_ms),
            quantities.size(job.state_bytes),
            Text(one_line(_verdict(job))),
            Text(one_line(job.url)),
        )
    for path, error in damaged.items():
        told = Text(one_line(f"cannot be read: {error.message}"))
        add(Text(one_line(os.path.basename(path))), Text("DAMAGED", style="red"), *("-",) * 5, told, "")
    out.table(table)
    here = local_root(directory)
    for job in jobs:
        if os.path.dirname(job.directory) != here and job.directory != here:
            out.line(f"  {job.job_id} is in another directory: {job.directory}")
    for job in jobs if narrow else ():
        if job.url:
            out.line(f"  {job.job_id}: {job.url}")
