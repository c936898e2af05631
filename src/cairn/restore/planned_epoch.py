"""Completes the plan of an epoch that a crash cut off: Spark's file source had logged its files, Spark not its offsets.

A file source writes the files of the next epoch to its own log (`sources/<n>/<m>`) before Spark writes the entry of the
offset log (`offsets/<epoch>`). After a crash between the two, Spark would plan the epoch anew from where the source's
log ends and give it the files of both entries: twice as many as `files_per_epoch` allows. The entry that is missing is
therefore written here, as Spark would have written it.

The entry is created, never replaced: if an older run that still lives writes it first, that one counts; if it comes
later, it fails to create it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from cairn.errors import CorruptFileError
from cairn.logs import get_logger
from cairn.restore.source_logs import is_file_position, positions_of
from cairn.restore.source_matching import FILES, folders
from cairn.restore.spark_logs import ENTRY, VERSION, batches, read_text
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem

_log = get_logger("cairn.job")


def complete_plan(folder: str, names: Sequence[str], now_ms: int) -> int | None:
    """Write the missing entry of the offset log; returns its epoch, or None if no plan was cut off.

    `folder` is the query's checkpointLocation, `names` are its sources in the order of the positions that Spark logs.
    Called by a run that owns the job, before its query starts.
    """
    planned = batches(os.path.join(folder, layout.OFFSETS))
    newest = planned[-1] if planned else -1
    if newest != max(batches(os.path.join(folder, layout.COMMITS)), default=-1):
        return None  # the newest entry was not processed: Spark begins with that one
    head, positions = _last_entry(folder, newest, len(names))
    if head is None or len(positions) != len(names):
        return None  # Spark refuses another number of sources
    moved = False
    for number, source in enumerate(folders(names, len(names))):
        last = _last_position(os.path.join(folder, layout.SOURCES, str(source)), names[number], positions[number])
        if last is not None:
            positions[number] = {"logOffset": last + 1}
            moved = True
    if not moved:
        return None
    metadata = {
        **head,
        "batchWatermarkMs": max(head["batchWatermarkMs"], _next_watermark(folder, newest)),
        "batchTimestampMs": max(head["batchTimestampMs"], now_ms),
    }
    lines = [VERSION, _compact(metadata), *("-" if position is None else _compact(position) for position in positions)]
    try:
        LocalFileSystem(folder).create(f"{layout.OFFSETS}/{newest + 1}", "\n".join(lines).encode())
    except FileExistsError:
        return None
    _log.info("the plan of epoch %d was cut off by a crash and is completed from the logs of its sources", newest + 1)
    return newest + 1


def _last_entry(folder: str, newest: int, sources: int) -> tuple[dict[str, Any] | None, list[Any]]:
    """Metadata and positions of the newest entry; before the first one, those that a query begins with."""
    if newest < 0:
        return {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}, [None] * sources
    path = os.path.join(folder, layout.OFFSETS, str(newest))
    text = read_text(path)
    version, metadata = [*text.split("\n"), ""][:2]
    if version != VERSION:
        return None, []
    try:
        head = json.loads(metadata)
        head = {**head, **{name: int(head[name]) for name in ("batchWatermarkMs", "batchTimestampMs")}}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{path} is not an entry of Spark's offset log: {error}", path=path) from error
    return head, positions_of(text)


def _last_position(folder: str, name: str, position: Any) -> int | None:
    """The last batch of a file source's log that has an offset, if the log goes on after it; None otherwise."""
    if not (is_file_position(position) or (position is None and name.startswith(f"{FILES}["))):
        return None
    last = -1 if position is None else int(position["logOffset"])
    entries = os.listdir(folder) if os.path.isdir(folder) else []
    logged = [int(entry.removesuffix(".compact")) for entry in entries if ENTRY.fullmatch(entry)]
    return last if max(logged, default=-1) > last else None


def _next_watermark(folder: str, newest: int) -> int:
    """The watermark that the newest committed batch has set for the one after it."""
    if newest < 0:
        return 0
    path = os.path.join(folder, layout.COMMITS, str(newest))
    try:
        return int(json.loads(read_text(path).split("\n")[1])["nextBatchWatermarkMs"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptFileError(f"{path} is not an entry of Spark's commit log: {error}", path=path) from error


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))
