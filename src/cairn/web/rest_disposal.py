"""Savepoints that are deleted over REST: those that a job here made, or that lie where savepoints may be written."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from cairn.errors import CairnError, CheckpointFailedError, InvalidInputError
from cairn.storage import layout
from cairn.storage.filesystem import local_root
from cairn.storage.savepoint_folder import dispose
from cairn.view.job_view import JobView, is_savepoint
from cairn.web.rest_triggers import AT_ONCE, REMEMBERED, Trigger, below, cause, document, unknown


def allowed_savepoint(jobs: Iterable[JobView], given: str, roots: Sequence[str]) -> str:
    """The real path of a savepoint that may be deleted from here; everything else is refused, whether it exists or not.

    A savepoint's own folder is meant, so the root that it lies in is none, nor is anything deeper than a savepoint.
    """
    refused = InvalidInputError(
        "this is neither a savepoint of a job of this server nor one in execution.checkpointing.savepoint-dir or "
        "cairn.web.savepoint-roots",
        remedy="For other directories use the command line: cairn savepoint-dispose PATH.",
    )
    if "\0" in given or not given.strip():
        raise refused
    wanted = os.path.realpath(local_root(given))
    if layout.is_savepoint_progress(os.path.basename(wanted)):  # a job may be writing it
        raise refused
    places = set(filter(None, roots))
    for job in jobs:
        places.add(str(job.config.get("savepoint_dir", "")))
        for info in job.checkpoints.history:
            if is_savepoint(info) and info.path and os.path.realpath(info.path) == wanted:
                return wanted
    if any(below(wanted, place) and wanted != os.path.realpath(local_root(place)) for place in filter(None, places)):
        return wanted
    raise refused


class DisposalRequests:
    """The disposals of this server by trigger id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Trigger] = OrderedDict()

    def start(self, path: str, trigger_id: str) -> None:
        """Delete a savepoint, once for a trigger id. What is no savepoint is told now, before anything is deleted."""
        layout.checked(trigger_id, "trigger id")
        with self._lock:
            known = self._known.get(trigger_id)
            if known is not None:
                if known.asked != {"path": path}:
                    raise CheckpointFailedError(
                        f"trigger id {trigger_id} was used for another savepoint; use a new one"
                    )
                return
            if sum(1 for trigger in self._known.values() if not trigger.done.is_set()) >= AT_ONCE:
                raise CheckpointFailedError(f"{AT_ONCE} savepoints are already being deleted; wait for one of them")
            dispose(path, dry_run=True)
            trigger = self._known[trigger_id] = Trigger("dispose", {"path": path})
            for old in [k for k, t in self._known.items() if t.done.is_set()][: max(0, len(self._known) - REMEMBERED)]:
                del self._known[old]
        threading.Thread(target=_dispose, args=(trigger,), name="cairn-disposal", daemon=True).start()

    def find(self, trigger_id: str) -> dict[str, Any]:
        trigger = self._known.get(trigger_id)
        if trigger is None:
            raise unknown("this server", trigger_id)
        if not trigger.done.is_set():
            return document("IN_PROGRESS", None)
        failed = {"failure-cause": cause(str(trigger.answer["error"]))} if "error" in trigger.answer else {}
        return document("COMPLETED", failed)


def _dispose(trigger: Trigger) -> None:
    try:
        dispose(trigger.asked["path"])
    except (CairnError, OSError) as error:
        trigger.answer = {"error": str(error)}
    finally:
        trigger.done.set()
