"""Spark's own logs around a restore: positions of sources, the logs that file sources keep, and a folder made of them.

An entry of Spark's offset log is a version line, a line of metadata and a line per source, by number. A snapshot also
says what each source reads, so that sources are found again when others were added, removed or put in another order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from cairn.errors import CorruptFileError, IncompatibleStateError, InvalidInputError
from cairn.model.limits import read_positions
from cairn.model.manifest import NO_WATERMARK
from cairn.storage.filesystem import sync

COMPACT_INTERVAL = 10
"""Spark's default of spark.sql.streaming.fileSource.log.compactInterval."""
TICKS = "cairn-ticks"
"""The source that makes an epoch at every trigger in jobs with timers. It is always the last one."""
_NO_POSITION = "-"


@dataclass(frozen=True, slots=True)
class SourceMatch:
    """What a source of the job goes on from: the source of the snapshot with this number, or None for its beginning."""

    name: str
    stored: int | None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The sources of a job in their order, and those of the snapshot that nothing goes on from."""

    matches: tuple[SourceMatch, ...]
    left: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What people should know before they start."""
        told = [
            f"source {number} ({match.name}) is new and starts at its beginning"
            for number, match in enumerate(self.matches)
            if match.stored is None and match.name != TICKS
        ]
        return told + [f"source {name} of the snapshot is gone, and its position with it" for name in self.left]


def match_sources(stored: Sequence[str], positions: int, wanted: Sequence[str]) -> SourcePlan:
    """Find the sources of a snapshot again: by what they read, then by their kind in order.

    `stored` may be empty for a snapshot that says nothing of its sources; then they are taken by number, which works
    only for as many as there were (and one more or less for the ticks of a job with timers).
    """
    if len(stored) != positions:
        return _by_number(positions, wanted)
    free = list(range(len(stored)))
    found: dict[int, int] = {}
    for alike in (lambda name: name, _kind):
        for number, name in enumerate(wanted):
            place = next((p for p in free if number not in found and alike(stored[p]) == alike(name)), None)
            if place is not None:
                found[number] = place
                free.remove(place)
    matches = tuple(SourceMatch(name, found.get(number)) for number, name in enumerate(wanted))
    return SourcePlan(matches, tuple(f"{p} ({stored[p]})" for p in free if stored[p] != TICKS))


def _by_number(positions: int, wanted: Sequence[str]) -> SourcePlan:
    count = len(wanted)
    ticks = bool(wanted) and wanted[-1] == TICKS
    if positions not in (0, count, count - 1 if ticks else count + 1):  # the ticks may be new, or gone
        raise IncompatibleStateError(
            f"the snapshot has positions of {positions} source(s) and does not say what they read; the job has "
            f"{count}. Read as many as before: a stream that feeds two branches counts twice.",
            stored=positions,
        )
    return SourcePlan(tuple(SourceMatch(n, i if i < positions else None) for i, n in enumerate(wanted)))


def _kind(name: str) -> str:
    return name.partition("[")[0]


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


def copy_sources(sources: str, target: str, offsets: str, plan: SourcePlan | None, interval: int) -> None:
    """The sources' own logs as they were at the positions of an entry, numbered as the plan says, if there is one."""
    positions = positions_of(offsets)
    pairs = (
        [(number, number) for number in range(len(positions))]
        if plan is None
        else [(number, match.stored) for number, match in enumerate(plan.matches) if match.stored is not None]
    )
    for number, stored in pairs:
        folder = os.path.join(sources, str(stored))
        position = positions[stored] if stored < len(positions) else None
        if os.path.isdir(folder):
            copy_source(folder, os.path.join(target, str(number)), position, interval)
        elif is_file_position(position):
            raise CorruptFileError(
                f"{sources}/{stored} is missing: without it nobody knows which files were read before the checkpoint, "
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
    version, entries = _file_log(folder)
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


def _file_log(folder: str) -> tuple[str, dict[int, dict[str, str]]]:
    """All that a file source has logged: the lines of each batch by the path that they name."""
    for attempt in range(4):
        entries: dict[int, dict[str, str]] = {}
        version = "v1"
        try:
            for name in os.listdir(folder):
                if not re.fullmatch(r"\d+(\.compact)?", name):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    version, *lines = file.read().split("\n")
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


def lost_files(sources: str, offsets: str) -> list[str]:
    """Files that a file source has read after these positions, by its log, and that are not there any more.

    Going back to the positions would read them again; without them their rows would be missing in silence.
    """
    lost = []
    for number, position in enumerate(positions_of(offsets)):
        folder = os.path.join(sources, str(number))
        if not is_file_position(position) or not os.path.isdir(folder):
            continue
        _, entries = _file_log(folder)
        later = [path for batch, files in entries.items() if batch > int(position["logOffset"]) for path in files]
        lost += [path for path in later if _is_gone(path)]
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
    watermark: int,
    sources: str,
    stored_offsets: str,
    plan: SourcePlan | None,
    interval: int,
) -> None:
    """Logs that end with the restored epoch, committed, and the range in flight, not committed; a fresh query id.

    `offsets` and `in_flight` are for the job's sources; `stored_offsets` is the last entry as the snapshot has it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    copy_sources(sources, os.path.join(folder, "sources"), stored_offsets, plan, interval)
    known = watermark if watermark != NO_WATERMARK else 0
    written = {
        "metadata": msgspec.json.encode({"id": str(uuid.uuid4())}),
        f"offsets/{epoch}": offsets.encode(),
        f"commits/{epoch}": b"v1\n" + msgspec.json.encode({"nextBatchWatermarkMs": max(0, known)}),
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
    for place, _, names in os.walk(folder):
        for name in names:
            sync(os.path.join(place, name))
        sync(place)
    sync(os.path.dirname(folder))
