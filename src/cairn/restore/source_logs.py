"""Spark's own logs around a restore: positions of sources, the logs that file sources keep, and a folder made of them.

An entry of Spark's offset log is a version line, a line of metadata and a line for each source, by number.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from cairn.errors import CorruptFileError, InvalidInputError
from cairn.model.limits import read_positions
from cairn.restore.source_matching import SourcePlan, folders
from cairn.restore.spark_logs import ENTRY, MAX_LOG, VERSION, read_text, sealed
from cairn.storage import layout, regular_files
from cairn.storage.filesystem import sync

COMPACT_SETTING = "spark.sql.streaming.fileSource.log.compactInterval"
COMPACT_INTERVAL = 10
"""Spark's default of `COMPACT_SETTING`."""
_NO_POSITION = "-"


@dataclass(frozen=True, slots=True)
class StoredSources:
    """The sources' own logs as a job or snapshot has them, and the entry of the offset log with their positions."""

    folder: str
    offsets: str
    names: Sequence[str] = ()
    """The names of the sources by position; empty if they are not known."""

    def positions(self) -> list[tuple[int, Any]]:
        """The number of each source's folder, and its position."""
        positions = positions_of(self.offsets)
        return list(zip(folders(self.names, len(positions)), positions, strict=True))


@dataclass(frozen=True, slots=True)
class RestoredLogs:
    """What Spark's logs say after a restore, for the sources of the job."""

    epoch: int
    offsets: str
    in_flight: str = ""
    """The entry of the epoch after it, if the snapshot was taken while that one ran."""
    restores: Sequence[tuple[int, int]] = ()
    """The restores in place up to this one, with the epoch that each went back to."""


def positions_of(offsets: str) -> list[Any]:
    """The position of each source in an entry of Spark's offset log; None for one that has none."""
    try:
        return read_positions(offsets)
    except InvalidInputError as error:
        raise CorruptFileError(f"a snapshot's source positions cannot be read: {error.message}") from None


def rearranged(offsets: str, plan: SourcePlan, time_ms: int) -> str:
    """An entry of the offset log for the job's sources, without positions if the snapshot has none."""
    if not offsets:
        head = [VERSION, json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": time_ms, "conf": {}})]
        return "\n".join([*head, *(_NO_POSITION for _ in plan.matches)])
    lines = offsets.split("\n")
    stored = lines[2:]
    numbers = [match.stored for match in plan.matches]
    chosen = [stored[n] if n is not None and n < len(stored) else _NO_POSITION for n in numbers]
    return "\n".join([*lines[:2], *chosen])


def is_file_position(position: Any) -> bool:
    return isinstance(position, dict) and "logOffset" in position


def copy_sources(stored: StoredSources, target: str, plan: SourcePlan | None, interval: int) -> None:
    """Copy the sources' own logs as they were at the stored positions.

    With a plan the copies have the numbers of the job's sources. `interval` is the compact interval of file sources.
    """
    positions = stored.positions()
    wanted = [folder for folder, _ in positions]
    pairs = [(number, number) for number in range(len(positions))]
    if plan is not None:
        wanted = folders([match.name for match in plan.matches], len(plan.matches))
        pairs = [(number, match.stored) for number, match in enumerate(plan.matches) if match.stored is not None]
    copied: set[int] = set()
    for number, source in pairs:
        if wanted[number] in copied:
            continue
        copied.add(wanted[number])
        folder_number, position = positions[source] if source < len(positions) else (source, None)
        folder = os.path.join(stored.folder, str(folder_number))
        if os.path.isdir(folder):
            copy_source(folder, os.path.join(target, str(wanted[number])), position, interval)
        elif is_file_position(position):
            raise CorruptFileError(
                f"{folder} is missing: without it, it is unknown which files were read before the checkpoint, "
                "and files could be skipped. Restore it from a backup; nothing was changed.",
                path=stored.folder,
            )


def copy_source(folder: str, target: str, position: Any, interval: int) -> None:
    """Copy a source's own log as it was at a position.

    The file source logs every batch of new files under a number, and all of them together in a `<n>.compact` now and
    then. Batches after the position are left out: the source lists those files again.
    """
    if not is_file_position(position):
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(".*"))
        return
    last = int(position["logOffset"])
    version, entries = _file_log(folder, last)
    missing = next((number for number in range(last + 1) if number not in entries), None)
    if missing is not None:
        raise CorruptFileError(
            f"Spark's log of a file source in {folder} no longer contains batch {missing}, so the "
            "position of the checkpoint cannot be restored",
            path=folder,
        )
    os.makedirs(target)
    for number in range((last + 1) // interval * interval - 1, last + 1):
        if number < 0:
            continue
        compacted = (number + 1) % interval == 0
        batches = range(number + 1) if compacted else (number,)
        text = "\n".join([version, *(line for batch in batches for line in entries[batch].values())])
        name = f"{number}.compact" if compacted else str(number)
        with open(os.path.join(target, name), "x", encoding="utf-8") as file:
            file.write(text)


def _file_log(folder: str, last: int | None = None) -> tuple[str, dict[int, dict[str, str]]]:
    """The version line of a file source's log, and the lines of each batch by the path that they name.

    Entries after batch `last` are not read.
    """
    for attempt in range(4):
        entries: dict[int, dict[str, str]] = {}
        version = VERSION
        try:
            for name in os.listdir(folder):
                later = name.isdigit() and last is not None and int(name) > last
                if later or not ENTRY.fullmatch(name):
                    continue
                version, *lines = read_text(os.path.join(folder, name)).split("\n")
                for line in filter(None, lines):
                    batch, path = _log_line(line, os.path.join(folder, name))
                    entries.setdefault(batch, {})[path] = line
            return version, entries
        except FileNotFoundError:  # a running query has compacted its log in the meantime
            if attempt == 3:
                raise
    raise CorruptFileError(f"the log of a file source in {folder} cannot be read", path=folder)


def _log_line(line: str, file: str) -> tuple[int, str]:
    """The batch and the path that a line of a file source's log names."""
    try:
        entry = json.loads(line)
        return int(entry["batchId"]), str(entry["path"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise CorruptFileError(
            f"{file} is not a log of Spark's file source: {line[:80]!r}. Restore it from a backup; nothing "
            "was changed.",
            path=file,
        ) from None


def lost_files(stored: StoredSources) -> list[str]:
    """Files that a file source has read after the stored positions, by its log, and that no longer exist.

    Going back to the positions would read them again; without them their rows would be missing in silence.
    """
    lost: set[str] = set()
    for number, position in stored.positions():
        folder = os.path.join(stored.folder, str(number))
        if not is_file_position(position) or not os.path.isdir(folder):
            continue
        _, entries = _file_log(folder)
        later = [path for batch, files in entries.items() if batch > int(position["logOffset"]) for path in files]
        lost.update(path for path in later if _is_gone(path))
    return sorted(lost)


def _is_gone(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return False  # this process cannot look there
    return not os.path.exists(parts.path) and not os.path.exists(unquote(parts.path))


def build_spark_folder(
    folder: str, logs: RestoredLogs, stored: StoredSources, plan: SourcePlan | None, interval: int
) -> None:
    """Write the folder of a query that continues from a restored epoch, with a fresh query id.

    `stored` has the logs and the last entry as the snapshot has them. The restored epoch is not committed here:
    `commit_batch` does that once its manifest is there.
    """
    copy_sources(stored, os.path.join(folder, layout.SOURCES), plan, interval)
    _write_logs(folder, logs)
    _seal_sources(folder)
    for place, _, names in os.walk(folder):
        for name in names:
            sync(os.path.join(place, name))
        sync(place)
    sync(os.path.dirname(folder))


def _write_logs(folder: str, logs: RestoredLogs) -> None:
    epoch, offsets = logs.epoch, logs.offsets.encode()
    contents = {
        layout.QUERY_ID: msgspec.json.encode({"id": str(uuid.uuid4())}),
        f"{layout.OFFSETS}/{epoch}": offsets,
        layout.RESTORES: msgspec.json.encode(list(logs.restores)),
    }
    if epoch > 0:  # Spark reads the entry before its newest one and takes it for the last committed one
        contents[f"{layout.OFFSETS}/{epoch - 1}"] = offsets
    if logs.in_flight:
        contents[f"{layout.OFFSETS}/{epoch + 1}"] = logs.in_flight.encode()
    for name, data in contents.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(data)


def _seal_sources(folder: str) -> None:
    """Put checksums beside the logs of sources, so that the next start can verify them."""
    for place, _, names in os.walk(os.path.join(folder, layout.SOURCES)):
        for name in names:
            with open(os.path.join(place, f".{name}.crc"), "xb") as file:
                file.write(sealed(regular_files.read(os.path.join(place, name), MAX_LOG)))
