"""Reads Spark's own offset log: source positions, watermark and batch time of an epoch, the same at every replay."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Protocol

from cairn.errors import CorruptFileError
from cairn.model.manifest import NO_WATERMARK
from cairn.storage import layout, regular_files
from cairn.storage.filesystem import sync

MAX_ENTRY = 256 << 20
"""Of Spark's offset log. A source says in it where it is; positions of many partitions take some megabytes."""


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    text: str
    watermark: int
    time_ms: int


class Offsets(Protocol):
    def read(self, epoch: int) -> OffsetEntry: ...


def parse_entry(text: str, where: str) -> OffsetEntry:
    """An entry of the log: a version line, a line of metadata, a line per source."""
    lines = text.split("\n")
    try:
        metadata = json.loads(lines[1])
        watermark = int(metadata["batchWatermarkMs"])
        return OffsetEntry(text, watermark if watermark > 0 else NO_WATERMARK, int(metadata["batchTimestampMs"]))
    except (IndexError, KeyError, ValueError) as error:
        raise CorruptFileError(f"{where} is not an entry of Spark's offset log: {error}", path=where) from error


class LocalOffsets:
    """The log of a query whose checkpointLocation is a local folder.

    Threads: used by the epoch loop's thread only.

    Reading an entry also forces it to disk, with what it points to: the newest entry of each source's own log and the
    query's identity. A manifest must never outlive the positions that it was made for.
    """

    def __init__(self, spark_folder: str) -> None:
        self._root = spark_folder
        self._folder = os.path.join(spark_folder, layout.OFFSETS)
        self._synced: set[str] = set()

    def read(self, epoch: int) -> OffsetEntry:
        path = os.path.join(self._folder, str(epoch))
        try:
            text = regular_files.read(path, MAX_ENTRY).decode()
        except FileNotFoundError:
            raise CorruptFileError(f"Spark's offset log has no entry {path}", path=path) from None
        self._sync(path)
        self._sync_sources()
        return parse_entry(text, path)

    def _sync_sources(self) -> None:
        """Force what is new in the sources' logs, and once the query's identity, to disk."""
        paths = [os.path.join(self._root, layout.QUERY_ID)]
        sources = os.path.join(self._root, layout.SOURCES)
        if os.path.isdir(sources):
            for source in os.scandir(sources):
                entries = [entry.path for entry in os.scandir(source.path) if not entry.name.startswith(".")]
                paths += sorted(entries, key=os.path.getmtime)[-2:]
        for path in paths:
            if path not in self._synced and os.path.isfile(path):
                self._sync(path)
                self._synced.add(path)

    def _sync(self, path: str) -> None:
        """Force a file and the folders between it and the job's directory to disk."""
        descriptors = [path]
        while os.path.dirname(descriptors[-1]).startswith(self._root):
            descriptors.append(os.path.dirname(descriptors[-1]))
        if os.path.dirname(path) in self._synced:
            descriptors = descriptors[:2]
        self._synced.add(os.path.dirname(path))
        for name in descriptors:
            sync(name)
