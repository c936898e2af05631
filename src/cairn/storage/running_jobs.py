"""Where jobs of this user run: a note for each in the user's state directory, so that commands need not be told.

Notes are hints and never trusted: whoever reads one looks into the directory that it names, as if it had been typed. A
job writes one when it starts and removes it when it ends; one that is left by a crash is removed by whoever finds that
its directory or its process is gone, but never while a process of its number exists. CAIRN_REGISTRY=0 writes and
reads none.
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
from cairn.storage.liveness import ProcessMark

SWITCH = "CAIRN_REGISTRY"
MOST = 1000
"""Notes that are read at most."""
_MAX_NOTE = 65_536


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
    own = ProcessMark.own()
    note = {"directory": directory, "pid": own.pid, "host": own.host, "boot": own.boot, "ticks": own.ticks}
    with suppress(OSError):
        os.makedirs(folder(), mode=0o700, exist_ok=True)
        unfinished = f"{path}.{os.getpid()}.tmp"
        with open(unfinished, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump(note, file)
        os.replace(unfinished, path)


def forget_running(directory: str) -> None:
    """The job has ended. A note that another process has written meanwhile stays."""
    if not _enabled():
        return
    path = _path(directory)
    note = _read(path)
    if note is not None and (note.get("pid"), note.get("host")) == (os.getpid(), socket.gethostname()):
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
    directories = set()
    for name in names:
        path = os.path.join(folder(), name)
        note = _read(path) or {}
        directory = note.get("directory")
        if not isinstance(directory, str) or not os.path.isabs(directory) or "\0" in directory:
            continue
        process = _process(note)
        alive = process.is_alive() if process is not None else None
        if os.path.isfile(os.path.join(directory, layout.JOB)) and alive is not False:
            directories.add(directory)
        elif process is None or not process.exists():
            with suppress(OSError):
                os.unlink(path)
    return sorted(directories)


def _read(path: str) -> dict[str, Any] | None:
    try:
        note = json.loads(regular_files.read(path, _MAX_NOTE))
    except (OSError, ValueError, RecursionError, CorruptFileError):
        return None
    return note if isinstance(note, dict) else None


def _process(note: dict[str, Any]) -> ProcessMark | None:
    """The process of a note. Notes of older releases have no ticks."""
    pid, ticks = note.get("pid"), note.get("ticks")
    if not isinstance(pid, int):
        return None
    known = ticks if isinstance(ticks, int) else None
    return ProcessMark(str(note.get("host")), pid, str(note.get("boot") or ""), known)
