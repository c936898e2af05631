"""The working stores of all jobs in a host's local directory: whose they are, how large, how old, and letting them go.

A job's stores lie in a folder that is named by a hash; `owner.json` in it says which job that is. A store whose job is
gone is of no use to anybody: it can be thrown away, and if the job comes back after all it is built anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass

from cairn.errors import CorruptFileError, StorageError
from cairn.model.manifest import EpochContext
from cairn.storage import layout, regular_files

_OWNER = "owner.json"


@dataclass(frozen=True, slots=True)
class JobStores:
    """All working stores of one job on this host."""

    path: str
    job_dir: str
    """Empty if it is not known whose they are."""
    state: str
    """`live`: its job is there. `dead`: its directory is gone, or holds another job now. `hidden`: neither the
    directory nor the one around it can be seen, as when a mount is missing. `unknown`: nothing says whose they are."""
    size: int
    used: float
    """When something in it was last written."""


def note_owner(stores: str, context: EpochContext) -> None:
    """Say whose stores these are, once."""
    path = os.path.join(stores, _OWNER)
    if os.path.exists(path):
        return
    os.makedirs(stores, mode=0o700, exist_ok=True)
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"job_dir": context.job_dir, "incarnation": context.incarnation, "job_id": context.job_id}, file)
    os.replace(temporary, path)


def survey(local_dir: str) -> list[JobStores]:
    """The stores of every job in a local directory, the largest first. Other folders are none of our business."""
    found = []
    try:
        names = sorted(os.listdir(local_dir))
    except (FileNotFoundError, NotADirectoryError):
        return []
    for name in names:
        path = os.path.join(local_dir, name)
        if re.fullmatch(r"[0-9a-f]{16}", name) and os.path.isdir(path) and not os.path.islink(path):
            found.append(_look_at(path, name))
    return sorted(found, key=lambda stores: -stores.size)


def _look_at(path: str, name: str) -> JobStores:
    size, used = 0, os.stat(path).st_mtime
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                info = os.lstat(os.path.join(folder, file))
            except FileNotFoundError:
                continue  # a task is at work
            size += info.st_blocks * 512
            used = max(used, info.st_mtime)
    job_dir, state = _owner(path, name)
    return JobStores(path, job_dir, state, size, used)


def _owner(path: str, name: str) -> tuple[str, str]:
    try:
        told = json.loads(regular_files.read(os.path.join(path, _OWNER), regular_files.limit_of(_OWNER)))
        job_dir, incarnation = str(told["job_dir"]), str(told["incarnation"])
    except (OSError, ValueError, KeyError, TypeError, CorruptFileError):
        return "", "unknown"
    if layout.store_folder(job_dir, incarnation) != name:  # somebody wrote something else there
        return "", "unknown"
    try:
        identity = json.loads(regular_files.read(os.path.join(job_dir, layout.JOB), regular_files.limit_of(layout.JOB)))
        same = identity.get("incarnation") == incarnation
        return job_dir, "live" if same else "dead"
    except FileNotFoundError:
        seen = os.path.isdir(os.path.dirname(os.path.abspath(job_dir)))
        return job_dir, "dead" if seen else "hidden"
    except (OSError, ValueError, AttributeError, CorruptFileError):
        return job_dir, "hidden"


def remove(stores: JobStores) -> None:
    """Delete the stores of a job that is gone. Looks once more: a job may have come back."""
    if _owner(stores.path, os.path.basename(stores.path))[1] != "dead":
        raise StorageError(f"{stores.path} is not removed: its job is not known to be gone", path=stores.path)
    shutil.rmtree(stores.path, ignore_errors=True)
    if os.path.lexists(stores.path):
        raise StorageError(f"cannot remove the working stores {stores.path}; remove them by hand", path=stores.path)
