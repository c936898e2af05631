"""Spark's own logs around a restore: positions of sources, the logs that file sources keep, and a folder made of them.

An entry of Spark's offset log is a version line, a line of metadata and a line for each source, by number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from cairn.errors import CorruptFileError, InvalidInputError
from cairn.model.limits import read_positions
from cairn.restore.source_matching import SourcePlan, folders
from cairn.restore.spark_logs import MAX_LOG, read_text, sealed
from cairn.storage import layout, regular_files
from cairn.storage.filesystem import sync

COMPACT_INTERVAL = 10
"""Spark's default of spark.sql.streaming.fileSource.log.compactInterval."""
_NO_POSITION = "-"


def positions_of(offsets: str) -> list[Any]:
    """The position of each source in an entry of Spark's offset log; None for one that has none."""
    try:
        return read_positions(offsets)
    except InvalidInputError as error:
        raise CorruptFileError(f"a snapshot's source positions cannot be read: {error.message}") from None


def rearranged(offsets: str, plan: SourcePlan, time_ms: int) -> str:
    """An entry of the offset log for the job's sources; one without positions if the snapshot has none."""
    if not offsets:
        head = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": time_ms, "conf": {}})]
        return "\n".join([*head, *(_NO_POSITION for _ in plan.matches)])
    lines = offsets.split("\n")
    known = lines[2:]
    chosen = [known[m.stored] if m.stored is not None and m.stored < len(known) else _NO_POSITION for m in plan.matches]
    return "\n".join([*lines[:2], *chosen])


def is_file_position(position: Any) -> bool:
    return isinstance(position, dict) and "logOffset" in position


def copy_sources(
    sources: str, target: str, offsets: str, plan: SourcePlan | None, interval: int, names: Sequence[str] = ()
) -> None:
    """The sources' own logs as they were at the positions of an entry, numbered as the plan says, if there is one.
    `names` are those of the positions."""
    positions = positions_of(offsets)
    here = folders(names, len(positions))
    there = here if plan is None else folders([match.name for match in plan.matches], len(plan.matches))
    copied: set[int] = set()
    pairs = (
        [(number, number) for number in range(len(positions))]
        if plan is None
        else [(number, match.stored) for number, match in enumerate(plan.matches) if match.stored is not None]
    )
    for number, stored in pairs:
        if there[number] in copied:
            continue
        copied.add(there[number])
        position = positions[stored] if stored < len(positions) else None
        folder = os.path.join(sources, str(here[stored] if stored < len(here) else stored))
        if os.path.isdir(folder):
            copy_source(folder, os.path.join(target, str(there[number])), position, interval)
        elif is_file_position(position):
            raise CorruptFileError(
                f"{folder} is missing: without it nobody knows which files were read before the checkpoint, "
                "and going on would leave files out. Bring it back from a copy; nothing was changed.",
                path=sources,
            )


def copy_source(folder: str, target: str, position: Any, interval: int) -> None:
    """A source's own log as it was at a position.

    The file source logs every batch of new files under a number, and all of them together in a `<n>.compact` now and
    then. What it logged after the position is left out: it finds those files again, and takes them as it did before.
    """
    if not is_file_position(position):
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(".*"))
        return
    last = int(position["logOffset"])
    version, entries = _file_log(folder, last)
    missing = next((number for number in range(last + 1) if number not in entries), None)
    if missing is not None:
        raise CorruptFileError(
            f"Spark's log of a file source in {folder} no longer says which files batch {missing} had; the "
            "checkpoint's position cannot be found again",
            path=folder,
        )
    os.makedirs(target)
    for number in range((last + 1) // interval * interval - 1, last + 1):
        if number < 0:
            continue
        together = (number + 1) % interval == 0
        wanted = range(number + 1) if together else (number,)
        text = "\n".join([version, *(line for batch in wanted for line in entries[batch].values())])
        name = f"{number}.compact" if together else str(number)
        with open(os.path.join(target, name), "x", encoding="utf-8") as file:
            file.write(text)


def _file_log(folder: str, last: int | None = None) -> tuple[str, dict[int, dict[str, str]]]:
    """All that a file source has logged: the lines of each batch by the path that they name. What it logged after
    batch `last` by itself is not looked at."""
    for attempt in range(4):
        entries: dict[int, dict[str, str]] = {}
        version = "v1"
        try:
            for name in os.listdir(folder):
                later = name.isdigit() and last is not None and int(name) > last
                if later or not re.fullmatch(r"\d+(\.compact)?", name):
                    continue
                version, *lines = read_text(os.path.join(folder, name)).split("\n")
                for line in filter(None, lines):
                    batch, path = _log_line(line, os.path.join(folder, name))
                    entries.setdefault(batch, {})[path] = line
            return version, entries
        except FileNotFoundError:  # the running query has compacted its log meanwhile
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
            f"{file} is no log of Spark's file source: {line[:80]!r}. Bring it back from a copy; nothing was changed.",
            path=file,
        ) from None


def lost_files(sources: str, offsets: str, names: Sequence[str] = ()) -> list[str]:
    """Files that a file source has read after these positions, by its log, and that are not there any more.

    Going back to the positions would read them again; without them their rows would be missing in silence.
    """
    lost: set[str] = set()
    positions = positions_of(offsets)
    for number, position in zip(folders(names, len(positions)), positions, strict=True):
        folder = os.path.join(sources, str(number))
        if not is_file_position(position) or not os.path.isdir(folder):
            continue
        _, entries = _file_log(folder)
        later = [path for batch, files in entries.items() if batch > int(position["logOffset"]) for path in files]
        lost.update(path for path in later if _is_gone(path))
    return sorted(lost)


def _is_gone(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return False  # nobody here can look there
    return not os.path.exists(parts.path) and not os.path.exists(unquote(parts.path))


def build_spark_folder(
    folder: str,
    epoch: int,
    offsets: str,
    in_flight: str,
    sources: str,
    stored_offsets: str,
    plan: SourcePlan | None,
    interval: int,
    stored_names: Sequence[str] = (),
    restores: Sequence[tuple[int, int]] = (),
) -> None:
    """Logs that end with the restored epoch and the range in flight; a fresh query id; a note of the restores in place.

    `offsets` and `in_flight` are for the job's sources; `stored_offsets` is the last entry as the snapshot has it.
    The restored epoch is not committed here: `commit_batch` does that once its manifest is there.
    """
    copy_sources(sources, os.path.join(folder, "sources"), stored_offsets, plan, interval, stored_names)
    written = {
        "metadata": msgspec.json.encode({"id": str(uuid.uuid4())}),
        f"offsets/{epoch}": offsets.encode(),
        layout.RESTORES: msgspec.json.encode(list(restores)),
    }
    if epoch > 0:  # Spark asks for the entry before its newest one, and takes it for the last committed
        written[f"offsets/{epoch - 1}"] = offsets.encode()
    if in_flight:
        written[f"offsets/{epoch + 1}"] = in_flight.encode()
    for name, data in written.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(data)
    for place, _, names in os.walk(os.path.join(folder, layout.SOURCES)):
        for name in names:  # so that the next start can tell whether they are as they were written
            with open(os.path.join(place, f".{name}.crc"), "xb") as file:
                file.write(sealed(regular_files.read(os.path.join(place, name), MAX_LOG)))
    for place, _, names in os.walk(folder):
        for name in names:
            sync(os.path.join(place, name))
        sync(place)
    sync(os.path.dirname(folder))
