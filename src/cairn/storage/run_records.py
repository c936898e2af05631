"""The runs of a job as files, and how an old one is fenced off: `runs/<n>`, and the highest number owns the job."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from cairn.config import RememberedOption
from cairn.errors import CorruptFileError, FencedError, NotFoundError
from cairn.logs import get_logger
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem

_log = get_logger("cairn.job")


class RunRecord(msgspec.Struct, frozen=True):
    """`runs/<n>`: who runs the job, since when, where."""

    run: int
    host: str
    pid: int
    started_ms: int
    parallelism: int
    token: str = ""
    """Tells this run from one of the same number in another copy of the directory."""
    configuration: Mapping[str, RememberedOption] = {}
    """The options that the job was given explicitly, in this run or an earlier one. Nothing here is secret."""

    def describe(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started_ms / 1000))
        return f"run {self.run} (process {self.pid} on {self.host}, since {since})"


class Runs:
    """Who owns the job: the run with the highest number."""

    def __init__(self, files: FileSystem) -> None:
        self.files = files

    def newest(self) -> int:
        numbers = [layout.number_of(info.path) for info in self.files.list(layout.RUNS)]
        return max((n for n in numbers if n is not None), default=0)

    def record(self, run: int) -> RunRecord | None:
        try:
            return msgspec.json.decode(self.files.read(layout.run_path(run)), type=RunRecord)
        except (NotFoundError, msgspec.MsgspecError):
            return None

    def configuration(self) -> Mapping[str, RememberedOption]:
        """What the job remembers of its configuration: the record of its newest run that can be read has it."""
        for run in range(self.newest(), 0, -1):
            record = self.record(run)
            if record is not None:
                return record.configuration
            _log.warning(
                "%s/%s cannot be read: the configuration of the run before it counts", self.files.root,
                layout.run_path(run),
            )  # fmt: skip
        return {}

    def take(
        self, parallelism: int, now_ms: int, configuration: Mapping[str, RememberedOption] | None = None
    ) -> RunRecord:
        """Become the newest run. From here on every older one stops at its next commit."""
        number = 0
        while True:
            number = max(self.newest(), number) + 1  # a listing may lag behind what is there
            remembered = {
                key: option if option.run else replace(option, run=number)
                for key, option in (configuration or {}).items()
            }
            token = uuid.uuid4().hex[:12]
            record = RunRecord(number, socket.gethostname(), os.getpid(), now_ms, parallelism, token, remembered)
            try:
                self.files.create(layout.run_path(record.run), msgspec.json.encode(record))
                return record
            except FileExistsError:
                continue

    def check(self, mine: int) -> None:
        """Raise `FencedError` if a newer run has taken the job."""
        if self.files.exists(layout.run_path(mine + 1)):
            newest = self.newest()
            try:
                record = self.record(newest)
            except CorruptFileError:  # whoever wrote it, it is newer
                record = None
            who = record.describe() if record else f"run {newest}"
            raise FencedError(
                f"this is run {mine} of the job in {self.files.root}, and {who} has taken it over; this run stops and "
                "changes nothing more",
                run=mine,
                newest=newest,
            )
