"""Changes requested over REST: start one, report its progress. Requests reach a job through its `control/` folder."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cairn.coordinator.control import ask
from cairn.errors import CairnError, CheckpointFailedError, InvalidInputError, NotFoundError
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.view.job_view import JobView

REMEMBERED = 1000
AT_ONCE = 32
_PATIENCE = 3600.0


@dataclass
class Trigger:
    """One request and its answer."""

    action: str
    asked: dict[str, Any]
    done: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] = field(default_factory=dict)


class Triggers:
    """The requests of this server by job and trigger id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Trigger] = OrderedDict()

    def start(self, job: JobView, trigger_id: str, action: str, asked: dict[str, Any]) -> None:
        """Send a request to the job, once per trigger id.

        Raises if the id was used for another request, or if too many requests are in progress.
        """
        layout.checked_request(layout.checked(trigger_id, "trigger id"))
        key = (job.job_id, trigger_id)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                if (known.action, known.asked) != (action, asked):
                    raise CheckpointFailedError(f"trigger id {trigger_id} was used for another request; use a new one")
                return
            _refuse_ended(job)
            if sum(1 for trigger in self._known.values() if not trigger.done.is_set()) >= AT_ONCE:
                raise CheckpointFailedError(f"{AT_ONCE} requests are already in progress; wait for one of them")
            trigger = self._known[key] = Trigger(action, asked)
            for old in [k for k, t in self._known.items() if t.done.is_set()][: max(0, len(self._known) - REMEMBERED)]:
                del self._known[old]
        files = LocalFileSystem(job.directory)
        threading.Thread(target=_ask, args=(files, trigger, trigger_id), name="cairn-trigger", daemon=True).start()

    def refuse_ended(self, job: JobView, trigger_id: str | None) -> None:
        """Raise if a job that has ended is asked for something new."""
        if (job.job_id, trigger_id) not in self._known:
            _refuse_ended(job)

    def find(self, job: JobView, trigger_id: str, actions: Sequence[str]) -> dict[str, Any]:
        """Flink's document: `status.id`, and when it is COMPLETED the `operation`."""
        trigger = self._known.get((job.job_id, trigger_id))
        if trigger is None or trigger.action not in actions:
            made = next((info for info in job.checkpoints.history if info.request and info.request == trigger_id), None)
            if made is None or "savepoint" not in actions:
                raise unknown(f"job '{job.job_id}'", trigger_id)
            if made.status.value == "IN_PROGRESS":
                return document("IN_PROGRESS", None)
            failed = {"failure-cause": cause(made.failure)} if made.status.value == "FAILED" else {}
            return document("COMPLETED", failed or {"location": made.path})
        if not trigger.done.is_set():
            return document("IN_PROGRESS", None)
        answer = trigger.answer
        if "error" in answer:
            word = "failureCause" if trigger.action == "checkpoint" else "failure-cause"
            return document("COMPLETED", {word: cause(str(answer["error"]))})
        info = answer.get("checkpoint", {})
        if trigger.action == "checkpoint":
            return document("COMPLETED", {"checkpointId": info.get("id", 0)})
        return document("COMPLETED", {"location": info.get("path", "")})


def _refuse_ended(job: JobView) -> None:
    if not job.running:
        raise CheckpointFailedError(
            f"job '{job.job_id}' is {job.status} and accepts no requests",
            remedy="Start it again; committed epochs are intact.",
        )


def _ask(files: LocalFileSystem, trigger: Trigger, trigger_id: str) -> None:
    try:
        question = {"action": trigger.action, **trigger.asked}
        answer = ask(files, question, _PATIENCE, trigger_id)
        trigger.answer = answer or {"error": "the job did not answer; check that it is running"}
    except (CairnError, OSError) as error:
        trigger.answer = {"error": str(error)}
    finally:
        trigger.done.set()


def unknown(who: str, trigger_id: str) -> NotFoundError:
    return NotFoundError(f"{who} has no request with the id {trigger_id[:128]!r}")


def cause(text: str) -> dict[str, str]:
    return {"class": "CheckpointFailedError", "stack-trace": text}


def document(status: str, operation: dict[str, Any] | None) -> dict[str, Any]:
    return {"status": {"id": status}, "operation": operation}


def allowed_target(job: JobView, given: str | None, roots: Sequence[str]) -> str | None:
    """The directory for a savepoint: none for the job's own, or one below a root that the configuration names."""
    own = str(job.config.get("savepoint_dir", ""))
    if not given:
        if not own:
            raise InvalidInputError(
                "no directory for the savepoint: pass one below cairn.web.savepoint-roots",
                remedy="Set execution.checkpointing.savepoint-dir for the job.",
            )
        return None
    if "\0" in given:
        raise InvalidInputError("a directory name cannot contain a null character")
    wanted = os.path.realpath(local_root(given))
    if any(below(wanted, root) for root in filter(None, (own, *roots))):
        return wanted
    raise InvalidInputError(
        "the web page may write savepoints only below execution.checkpointing.savepoint-dir and "
        "cairn.web.savepoint-roots",
        remedy="For other directories use the command line: cairn savepoint JOB DIR.",
    )


def below(real_path: str, root: str) -> bool:
    """Whether a real path is a directory or lies in it, links followed."""
    top = os.path.realpath(local_root(root))
    return real_path == top or real_path.startswith(top.rstrip(os.sep) + os.sep)
