"""Where jobs of this user run: a note for each in the user's state directory, so that commands need not be told.

Notes are hints and never trusted: whoever reads one looks into the directory that it names, as if it had been typed. A
job writes one when it starts and removes it when it ends; one that is left by a crash is removed by whoever finds that
its directory or its process is gone. CAIRN_REGISTRY=0 writes and reads none.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from contextlib import suppress
from typing import Any

from cairn.errors import CorruptFileError
from cairn.storage import layout, regular_files

SWITCH = "CAIRN_REGISTRY"
MOST = 1000


def folder() -> str:
    """`$XDG_STATE_HOME/cairn/jobs`."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "cairn", "jobs")


def _path(directory: str) -> str:
    return os.path.join(folder(), hashlib.blake2b(directory.encode(), digest_size=16).hexdigest() + ".json")


def _enabled() -> bool:
    return os.environ.get(SWITCH, "1") not in ("0", "false", "no")


def note_running(directory: str) -> None:
    """This process runs the job in `directory`. A note that cannot be written is no loss."""
    if not _enabled():
        return
    path = _path(directory)
    told = {"directory": directory, "pid": os.getpid(), "host": socket.gethostname()}
    with suppress(OSError):
        os.makedirs(folder(), mode=0o700, exist_ok=True)
        unfinished = f"{path}.{os.getpid()}.tmp"
        with open(unfinished, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump(told, file)
        os.replace(unfinished, path)


def forget_running(directory: str) -> None:
    """The job has ended. A note that another process has written meanwhile stays."""
    if not _enabled():
        return
    path = _path(directory)
    told = _read(path)
    if told is not None and (told.get("pid"), told.get("host")) == (os.getpid(), socket.gethostname()):
        with suppress(OSError):
            os.unlink(path)


def running_directories() -> list[str]:
    """Directories of jobs that may be running, each with a `job.json` in it."""
    if not _enabled():
        return []
    try:
        names = sorted(name for name in os.listdir(folder()) if name.endswith(".json"))[:MOST]
    except OSError:
        return []
    found = set()
    for name in names:
        path = os.path.join(folder(), name)
        told = _read(path)
        directory = told.get("directory") if told is not None else None
        if not isinstance(directory, str) or not os.path.isabs(directory) or "\0" in directory:
            continue
        if not os.path.isfile(os.path.join(directory, layout.JOB)) or _gone(told or {}):
            with suppress(OSError):
                os.unlink(path)
            continue
        found.add(directory)
    return sorted(found)


def _read(path: str) -> dict[str, Any] | None:
    try:
        told = json.loads(regular_files.read(path, 65_536))
    except (OSError, ValueError, CorruptFileError):
        return None
    return told if isinstance(told, dict) else None


def _gone(told: dict[str, Any]) -> bool:
    """Whether the process is gone; of another host's nobody knows."""
    pid = told.get("pid")
    if told.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
