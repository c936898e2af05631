"""Writes and reads the Parquet files of a savepoint's tables. Row groups follow key groups, so that readers can prune.

A file is built in memory and created whole, so a part is at most about `PART_BYTES` and one row group more. Reading
believes nothing: the file is verified as a whole, its footer is compared with what the savepoint says of it, and limits
are looked at before a page is decoded.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from cairn.errors import CorruptFileError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.savepoint_records import TableFile
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem
from cairn.storage.savepoint_folder import mapped

ROW_GROUP_ROWS = 128 * 1024
PART_BYTES = 64 << 20
COMPRESSION = "zstd"
_LEVEL = 1
_MAX_ROW_GROUP_ROWS = 64 * ROW_GROUP_ROWS
_MAX_ROW_GROUP_BYTES = 2 << 30
_BYTE_ARRAYS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


class _OpenPart:
    """A part while rows are added to it."""

    def __init__(self, schema: pa.Schema, dictionary: list[str], first_group: int) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=COMPRESSION,
            compression_level=_LEVEL if COMPRESSION == "zstd" else None,
            use_dictionary=dictionary,
            write_statistics=True,
        )
        self.first_group = self.last_group = first_group
        self.rows = 0

    def add(self, rows: pa.Table, last_group: int) -> None:
        """Add a row group."""
        self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        self.rows += rows.num_rows
        self.last_group = last_group

    @property
    def full(self) -> bool:
        return bool(self._sink.tell() >= PART_BYTES)

    def close(self) -> pa.Buffer:
        """The bytes of the file."""
        self._writer.close()
        return self._sink.getvalue()


class TableWriter:
    """Writes the rows of one state, which come in the order of their key groups, into parts.

    A row group holds at most `ROW_GROUP_ROWS` rows; key groups that are smaller share one, and a larger one has row
    groups to itself.
    """

    def __init__(self, files: FileSystem, uid: str, state: str, schema: pa.Schema, group_column: str) -> None:
        self._files = files
        self._uid = uid
        self._state = state
        self._schema = schema
        self._group_column = group_column
        flat = {group_column, *(field.name for field in schema if pa.types.is_timestamp(field.type))}
        self._dictionary = [name for name in schema.names if name in flat]
        self._part: _OpenPart | None = None
        self._waiting: list[pa.Table] = []
        self._count = 0
        self._made: list[TableFile] = []

    def add(self, table: pa.Table) -> None:
        """Add the rows of whole key groups. Key groups come in ascending order."""
        if table.num_rows == 0:
            return
        groups = np.asarray(table.column(self._group_column).combine_chunks())
        edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), table.num_rows]
        for start, end in itertools.pairwise(edges):
            if self._count and self._count + end - start > ROW_GROUP_ROWS:
                self._flush()
            self._waiting.append(table.slice(start, end - start))
            self._count += end - start
            if self._count >= ROW_GROUP_ROWS:
                self._flush()

    def _flush(self) -> None:
        if not self._count:
            return
        rows = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._count = [], 0
        groups = rows.column(self._group_column)
        for start in range(0, rows.num_rows, ROW_GROUP_ROWS):
            piece = rows.slice(start, ROW_GROUP_ROWS)
            if self._part is None:
                self._part = _OpenPart(self._schema, self._dictionary, int(groups[start].as_py()))
            self._part.add(piece, int(groups[start + piece.num_rows - 1].as_py()))
            if self._part.full:
                self._finish()

    def _finish(self) -> None:
        part, self._part = self._part, None
        if part is None:
            return
        data = part.close()
        path = layout.table_part(self._uid, self._state, part.first_group, uuid.uuid4().hex[:12])
        self._files.create(path, memoryview(data))
        checksum = xxhash.xxh3_64_hexdigest(data)
        self._made.append(TableFile(path, data.size, checksum, part.rows, part.first_group, part.last_group))

    def close(self) -> list[TableFile]:
        """Write the remaining rows. Returns the files in the order of their key groups."""
        self._flush()
        self._finish()
        return self._made


class TablePart:
    """One Parquet file of a table, whose bytes and footer were compared with the metadata of the savepoint."""

    def __init__(self, root: str, file: TableFile, schema: pa.Schema, group_column: str) -> None:
        self.file = file
        self._name = f"{root}/{file.path}"
        self._group_column = group_column
        buffer = mapped(root, file)
        try:
            self._parquet = pq.ParquetFile(pa.BufferReader(buffer))
            columns = self._parquet.schema_arrow.remove_metadata()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._wrong(f"it is no Parquet file ({error})") from error
        if not columns.equals(schema.remove_metadata()):
            raise self._wrong(f"its columns are ({_shown(columns)}) instead of ({_shown(schema)})")
        footer = self._parquet.metadata
        if footer.num_rows != file.rows:
            raise self._wrong(f"it has {footer.num_rows} rows instead of {file.rows}")
        self.ranges = [self._range(footer.row_group(i)) for i in range(footer.num_row_groups)]
        self.sizes = [int(footer.row_group(i).total_byte_size) for i in range(footer.num_row_groups)]

    def _wrong(self, why: str) -> CorruptFileError:
        return CorruptFileError(f"{self._name} is refused: {why}", path=self._name)

    def _range(self, row_group: Any) -> tuple[int, int]:
        if (
            not 0 < row_group.num_rows <= _MAX_ROW_GROUP_ROWS
            or not 0 <= row_group.total_byte_size <= _MAX_ROW_GROUP_BYTES
        ):
            raise self._wrong(
                f"a row group of {row_group.num_rows} rows and {row_group.total_byte_size} bytes is out of bounds"
            )
        statistics = None
        for at in range(row_group.num_columns):
            column = row_group.column(at)
            if column.physical_type in _BYTE_ARRAYS and any("DICTIONARY" in name for name in column.encodings):
                raise self._wrong(f"column {column.path_in_schema} is dictionary encoded, which could hide any size")
            if column.path_in_schema == self._group_column:
                statistics = column.statistics
        if statistics is None or not statistics.has_min_max:
            raise self._wrong("a row group does not tell its key groups")
        first, last = int(statistics.min), int(statistics.max)
        if not self.file.first_group <= first <= last <= self.file.last_group:
            raise self._wrong(f"a row group claims the key groups {first} to {last}")
        return first, last

    def row_groups(self, groups: KeyGroupRange) -> list[int]:
        """The row groups that may hold rows of these key groups."""
        return [i for i, (first, last) in enumerate(self.ranges) if first <= groups.end and last >= groups.start]

    def statistics(self, row_group: int, column: str) -> Any:
        """The statistics of a flat column in a row group, or None."""
        metadata = self._parquet.metadata.row_group(row_group)
        for at in range(metadata.num_columns):
            if metadata.column(at).path_in_schema == column:
                return metadata.column(at).statistics
        return None

    def read(self, row_group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a row group. `columns` must include that of the key group."""
        try:
            rows = self._parquet.read_row_group(row_group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise self._wrong(f"row group {row_group} cannot be decoded ({error})") from error
        numbers = rows.column(self._group_column)
        first, last = (part.as_py() for part in pc.min_max(numbers).values())
        if (first, last) != self.ranges[row_group] or numbers.null_count:
            raise self._wrong(f"row group {row_group} holds the key groups {first} to {last}, not those that it claims")
        return rows

    def within(self, rows: pa.Table, groups: KeyGroupRange) -> pa.Table:
        """The rows of some key groups."""
        numbers = rows.column(self._group_column)
        first, last = (part.as_py() for part in pc.min_max(numbers).values())
        if first is None or (groups.start <= first and last <= groups.end):
            return rows
        return rows.filter(pc.and_(pc.greater_equal(numbers, groups.start), pc.less_equal(numbers, groups.end)))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def open_parts(
    root: str, files: Sequence[TableFile], schema: pa.Schema, group_column: str, groups: KeyGroupRange
) -> Iterator[TablePart]:
    """The files of a table that may hold rows of these key groups, in their order."""
    for file in files:
        if file.first_group <= groups.end and file.last_group >= groups.start:
            yield TablePart(root, file, schema, group_column)
