"""Rows that wait for their commit: Parquet files in the job's directory, written by Spark's tasks.

A sink whose target has no hidden place of its own stages an epoch here in `prepare` and reads it back in `commit`, any
number of times, always the same rows in the same order.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cairn.errors import CorruptFileError
from cairn.storage import layout
from cairn.storage.filesystem import FileInfo, LocalFileSystem, as_url, sync
from cairn.storage.manifest_store import load_identity

_ROWS = 16_384


def sink_token(job_dir: str, uid: str) -> str:
    """Names one sink of one life of a job: a directory that was deleted and made anew has another one."""
    identity = load_identity(LocalFileSystem(job_dir))
    life = identity.incarnation if identity is not None else ""
    return hashlib.blake2b(f"{os.path.abspath(job_dir)}\0{life}\0{uid}".encode(), digest_size=8).hexdigest()


class Parts(list[FileInfo]):
    """Files with rows, and how many rows these are; None where the format does not tell."""

    rows: int | None = None


def durable_parts(files: LocalFileSystem, stage: str, format: str) -> Parts:  # noqa: A002 - Spark's word
    """The files with rows that Spark wrote to a folder, in order, forced to disk together with the folders above."""
    import pyarrow.parquet as pq  # workers import this module and read no Parquet

    found = Parts()
    for info in files.list(stage):
        full = os.path.join(files.root, *info.path.split("/"))
        if not info.path.rsplit("/", 1)[-1].startswith("part-"):
            continue
        rows = pq.ParquetFile(full).metadata.num_rows if format == "parquet" and info.size else None
        if info.size == 0 or rows == 0:
            continue
        if rows is not None:
            found.rows = (found.rows or 0) + rows
        sync(full)
        found.append(info)
    if format == "parquet":
        found.rows = found.rows or 0
    if found:  # the folders on the way down may be new: without them a synced file can be lost
        for depth in range(len(stage.split("/")) + 1):
            sync(os.path.join(files.root, *stage.split("/")[:depth]))
    return found


class Staging:
    """The staged epochs of one sink. Made in the sink's `start`."""

    def __init__(self, job_dir: str, uid: str) -> None:
        self._files = LocalFileSystem(job_dir)
        self._uid = uid
        self.rows: int | None = None
        """How many the newest staged epoch has."""

    def write(self, frame: Any, attempt: str) -> list[dict[str, Any]]:
        """Run the epoch and keep its rows. What is returned belongs into the manifest."""
        stage = layout.staging_folder(self._uid, attempt)
        target = os.path.join(self._files.root, *stage.split("/"))
        frame.write.mode("error").parquet(as_url(target))
        parts = durable_parts(self._files, stage, "parquet")
        self.rows = parts.rows
        return [{"path": info.path, "size": info.size} for info in parts]

    def batches(
        self,
        staged: Sequence[Mapping[str, Any]],
        schema: pa.Schema | None = None,
        rows: int = _ROWS,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of an epoch, a portion at a time; in the given schema, or as Spark wrote them."""
        import pyarrow.parquet as pq

        for part in staged:
            full = os.path.join(self._files.root, *part["path"].split("/"))
            try:
                size = os.path.getsize(full)
            except OSError:
                size = -1
            if size != part["size"]:
                raise CorruptFileError(
                    f"sink '{self._uid}': the staged file {full} is {'gone' if size < 0 else 'damaged'}, and its epoch "
                    "is committed. Restore it from a backup; its rows are nowhere else.",
                    path=full,
                )
            with pq.ParquetFile(full, coerce_int96_timestamp_unit="us") as file:
                for batch in file.iter_batches(batch_size=rows, columns=None if columns is None else list(columns)):
                    yield batch if schema is None else _cast(batch, schema)

    def forget_until(self, epoch: int) -> None:
        """Remove what is staged of published epochs, and of attempts at them that were abandoned."""
        folder = os.path.join(self._files.root, *layout.staging_folder(self._uid, "x").split("/")[:-1])
        try:
            attempts = os.listdir(folder)
        except FileNotFoundError:
            return
        for attempt in attempts:
            number = attempt.split("-", 1)[0]
            if number.isdigit() and int(number) <= epoch:
                shutil.rmtree(os.path.join(folder, attempt), ignore_errors=True)


def arrow_schema(schema: str) -> pa.Schema:
    """Arrow's types for a Spark schema, which is given as the JSON that manifests keep."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    struct = StructType.fromJson(json.loads(schema))
    try:
        return to_arrow_schema(struct, timezone="UTC")
    except TypeError:  # Spark 4.1 and 4.2 take UTC by themselves
        return to_arrow_schema(struct)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow.compute as pc

    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        if pa.types.is_timestamp(field.type) and field.type.tz and column.type.tz is None:
            column = pc.assume_timezone(column, "UTC")  # Spark's INT96 times are UTC and do not say so
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
