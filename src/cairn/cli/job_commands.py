"""`cairn savepoint` and `cairn stop`: what a running job is asked for from another process.

Both leave a request in the job's directory, which the job answers; no port is needed. With the same `--request-id` a
request can be made again after anything went wrong on the way, and never makes a second savepoint.
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

import msgspec

from cairn import quantities
from cairn.cli.checkpoint_commands import describe, following
from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.cli.progress_bar import watching
from cairn.coordinator.control import answered, ask
from cairn.errors import CheckpointFailedError, InvalidInputError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.job_lookup import open_job
from cairn.storage.manifest_store import JobIdentity
from cairn.storage.savepoint_folder import newest_savepoint
from cairn.view.job_reader import JobReader


def take_savepoint(
    job: str, directory: str | None, target: str | None, timeout: float, request: str | None, out: Output
) -> int:
    return _asked(job, directory, {"action": "savepoint", "dir": _absolute(target)}, timeout, request, out)


def stop_job(
    job: str, directory: str | None, target: str | None, drain: bool, timeout: float, request: str | None, out: Output
) -> int:
    question = {"action": "stop", "dir": _absolute(target), "drain": drain}
    return _asked(job, directory, question, timeout, request, out)


def cancel_job(job: str, directory: str | None, timeout: float, out: Output) -> int:
    """End a job without a savepoint. What is committed stays, and so do checkpoints that are configured to."""
    files, identity = open_job(job, directory)
    refuse_ended(files, identity, "it cannot be canceled")
    with watching(out, f"canceling job {identity.job_id}", lambda: None):
        answer = ask(files, {"action": "cancel"}, timeout)
    if answer is None:
        raise CheckpointFailedError(
            f"job '{identity.job_id}' did not answer in time", remedy="Check that it is running: cairn list"
        )
    if "error" in answer:
        raise CheckpointFailedError(str(answer["error"]))
    kept = CheckpointStore(files).numbers()
    told = f"checkpoints kept: {', '.join(map(str, kept))}" if kept else "no checkpoints kept"
    out.document({"version": 1, "job": identity.job_id, "canceled": True, "checkpoints": kept})
    out.line(f"job {identity.job_id} was canceled; its last committed epoch is kept, {told}")
    return ExitCode.OK


def confirm_cancel(job: str, directory: str | None, yes: bool, dry_run: bool, out: Output) -> bool:
    """Show what is lost and what is kept, and ask for confirmation. Without a terminal, raises instead of asking."""
    files, identity = open_job(job, directory)
    refuse_ended(files, identity, "it cannot be canceled")
    text = f"job {identity.job_id} will end after its running epoch, without a savepoint; committed epochs are kept"
    if dry_run:
        out.document({"version": 1, "job": identity.job_id, "canceled": False})
        out.line(f"dry run: {text}; nothing was changed")
        return False
    if yes:
        return True
    if out.as_json or not sys.stdin.isatty():
        raise InvalidInputError(
            f"canceling job '{identity.job_id}' needs a terminal to ask for confirmation", remedy="Pass --yes."
        )
    import typer

    out.message(text)
    if not typer.confirm("Cancel the job?", err=True):
        out.message("nothing was changed")
        return False
    return True


def _absolute(target: str | None) -> str | None:
    """A path means a place seen from here, not from where the job runs."""
    return None if target is None else local_root(target)


def _asked(
    job: str, directory: str | None, question: dict[str, Any], timeout: float, request: str | None, out: Output
) -> int:
    files, identity = open_job(job, directory)
    stopping = question["action"] == "stop"
    made = None
    if request is None or not answered(files, request):
        made = _made_before(files, request, stopping)
        if made is None:
            refuse_ended(files, identity, "it cannot be stopped" if stopping else "no savepoint can be taken")
    if made is not None:
        return _tell_savepoint(made, identity, stopping, out)
    what = "stopping job {} with a savepoint" if stopping else "requesting a savepoint of job {}"
    request = request or uuid.uuid4().hex
    with watching(out, what.format(identity.job_id), following(files, "savepoint", request)):
        answer = ask(files, question, timeout, request)
    if answer is None:
        raise CheckpointFailedError(
            f"job '{identity.job_id}' did not answer in time",
            remedy=f"Check that it is running: cairn checkpoints {quantities.shell_word(identity.job_id)}",
        )
    if "error" in answer:
        raise CheckpointFailedError(str(answer["error"]))
    return _tell_savepoint(msgspec.convert(answer["checkpoint"], type=CheckpointInfo), identity, stopping, out)


def _tell_savepoint(info: CheckpointInfo, identity: JobIdentity, stopping: bool, out: Output) -> int:
    out.document({**describe(info), "stopped": stopping})
    ended = f"; job {identity.job_id} has stopped" if stopping else ""
    took = quantities.duration(info.duration_ms)
    out.line(
        f"savepoint {info.id} of {identity.job_id} completed in {took}: epoch {info.epoch}, "
        f"{quantities.size(info.savepoint_bytes)}{ended}"
    )
    out.line(info.path)
    return ExitCode.OK


def _made_before(files: LocalFileSystem, request: str | None, stopping: bool) -> CheckpointInfo | None:
    """The savepoint that the same request has made in the life of a job that has ended since."""
    if request is None:
        return None
    end = JobReader(files.root).end()
    if end is None or (stopping and end.kind != "stopped"):
        return None
    done = (info for info in CheckpointStore(files).history() if info.request == request)
    return next((info for info in done if info.status is CheckpointStatus.COMPLETED), None)


_ENDINGS = {
    "finished": "has finished: its sources are exhausted",
    "stopped": "was stopped with a savepoint",
    "canceled": "was canceled",
    "failed": "has failed",
    "crashed": "has crashed: its process no longer runs",
}


def refuse_ended(files: LocalFileSystem, identity: JobIdentity, consequence: str) -> None:
    """Raise if a job has ended, with the reason and how to resume it. A job with an unknown end is still asked."""
    end = JobReader(files.root).end()
    if end is None:
        return
    when = f" {quantities.ago(end.time_ms, time.time() * 1000)}" if end.time_ms else ""
    cause = f" ({quantities.first_line(end.cause, 200)})" if end.cause else ""
    from_epoch = f" from epoch {end.epoch}" if end.epoch >= 0 else ""
    advice = f"Start it again to resume{from_epoch}: cairn run JOB.py."
    saved = newest_savepoint(CheckpointStore(files).history())
    if saved is not None:
        older = quantities.behind(saved.epoch, end.epoch)
        which = f"Its newest savepoint is at {older}; to restore it:" if older else "Or from its newest savepoint:"
        advice += f" {which} cairn run JOB.py -s {quantities.shell_word(saved.path)}"
    ending, colon, why = _ENDINGS[end.kind].partition(":")
    raise CheckpointFailedError(
        f"job '{identity.job_id}' {ending}{when}{colon}{why}{cause}, so {consequence}",
        remedy=advice,
        job=identity.job_id,
        status=end.status,
    )
