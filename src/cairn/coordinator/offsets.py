"""Reads Spark's own offset log: source positions, watermark and batch time of an epoch, the same at every replay."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Protocol

from cairn.errors import CorruptFileError
from cairn.model.manifest import NO_WATERMARK


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
        raise CorruptFileError(f"{where} is no entry of Spark's offset log: {error}", path=where) from error


class LocalOffsets:
    """The log of a query whose checkpointLocation is a local folder.

    Reading an entry also forces it to disk: a manifest must never outlive the positions that it was made for.
    """

    def __init__(self, spark_folder: str) -> None:
        self._folder = os.path.join(spark_folder, "offsets")

    def read(self, epoch: int) -> OffsetEntry:
        path = os.path.join(self._folder, str(epoch))
        try:
            with open(path, "rb") as file:
                text = file.read().decode()
                os.fsync(file.fileno())
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileNotFoundError:
            raise CorruptFileError(f"Spark's offset log has no entry {path}", path=path) from None
        return parse_entry(text, path)
