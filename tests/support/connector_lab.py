"""A sink outside of a job: epochs are prepared and committed by hand, from rows that a test gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StringType, StructType

from cairn import BaseSink
from cairn.connectors.staging import arrow_schema
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import create_identity

running: list[BaseSink] = []
"""Sinks to be closed at the end of a test."""
COUNTS = StructType().add("word", StringType()).add("n", LongType())


class Frame:
    """As much of a DataFrame as staging needs: the rows of one epoch, a file for each part."""

    def __init__(self, parts: Sequence[pa.Table]) -> None:
        self._parts = parts

    @property
    def write(self) -> Frame:
        return self

    def select(self, *columns: Any) -> Frame:
        return self

    def mode(self, mode: str) -> Frame:
        assert mode == "error"
        return self

    def parquet(self, url: str) -> None:
        folder = Path(url.removeprefix("file://"))
        folder.mkdir(parents=True)
        for number, part in enumerate(self._parts):
            pq.write_table(part, folder / f"part-{number:05d}.parquet")


def frame(rows: Sequence[Sequence[Any]], schema: StructType = COUNTS, parts: int = 1) -> Frame:
    arrow = arrow_schema(schema.json())
    tables = []
    for part in range(parts):
        mine = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
        columns = list(zip(*mine, strict=True)) if mine else [()] * len(arrow)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, arrow, strict=True)]
        tables.append(pa.Table.from_arrays(arrays, schema=arrow))
    return Frame(tables)


def job(folder: Path, name: str = "job") -> str:
    """The directory of a job that has been started once."""
    path = folder / name
    create_identity(LocalFileSystem(str(path)), name, name, 16, "")
    return str(path)


def started(sink: BaseSink, job_dir: str, schema: StructType = COUNTS, uid: str = "out") -> Any:
    """A sink as a new run of the job has it."""
    sink.uid = uid
    running.append(sink)
    sink.start(None, job_dir, schema)
    return sink


def attempt(epoch: int, run: int = 1) -> str:
    return f"{epoch}-{run}-{epoch:08x}"
