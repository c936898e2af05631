"""The rows of snapshots as DataFrames, and DataFrames as tables of a savepoint: the Spark half of the offline API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ByteType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)
from pyspark.sql.types import DataType as SparkType

from cairn.errors import InternalError, InvalidInputError
from cairn.model.ddl import parse_keys
from cairn.model.manifest import StateSpec
from cairn.model.savepoint_records import Columns
from cairn.snapshots.snapshot import FileRows, Snapshot, SnapshotOperator, SnapshotState, ranges
from cairn.snapshots.table_tasks import WrittenPart
from cairn.state.typed_tables import table_schema, to_section, to_table
from cairn.storage.filesystem import as_url, open_filesystem
from cairn.storage.savepoint_parquet import TableWriter

PIECES = 4
"""Tasks for each core. Short tasks keep a slow one from delaying the others."""
_DRIVER_BYTES = 256 << 20
_CHUNK_ROWS = 128 * 1024
_GROUP = "cairn_group"
_MISFIT = "cairn_misfit"
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True)
class FrameRows:
    """The rows of a state that was edited and is not written yet."""

    frame: DataFrame


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)


def frame_of(spark: SparkSession, snapshot: Snapshot, operator: SnapshotOperator, state: SnapshotState) -> DataFrame:
    """The rows of a state in the columns of its table."""
    origin = state.origin
    schema = spark_schema(state.schema)
    if isinstance(origin, FrameRows):
        fitted = fit(origin.frame, operator, state, snapshot.metadata.max_parallelism)
        return fitted.select(
            *[F.col(f"`{_GROUP if n == state.columns.key_group else n}`").alias(n) for n in schema.names]
        )
    if isinstance(origin, FileRows):
        if not origin.table.files:
            return spark.createDataFrame([], schema)
        verify_files(spark, origin)
        paths = [_literal(as_url(f"{origin.root}/{file.path}")) for file in origin.table.files]
        return spark.read.schema(schema).parquet(*paths)
    pieces = ranges(snapshot, PIECES * spark.sparkContext.defaultParallelism)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for table in origin.rows(pieces[number]):
                    yield from table.to_batches(max_chunksize=65536)

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(read, schema)


def _literal(path: str) -> str:
    """A path in which Hadoop sees no patterns."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


def verify_files(spark: SparkSession, origin: FileRows) -> None:
    """Compare the files of a table with their checksums: here if they are small, else by Spark tasks."""
    table = origin.table
    if table.size <= _DRIVER_BYTES:
        origin.verify()
        return
    work = [FileRows(origin.root, origin.operator, _only(table, [file])) for file in table.files]
    spark.sparkContext.parallelize(work, len(work)).foreach(FileRows.verify)


def _only(table: Any, files: list[Any]) -> Any:
    return msgspec.structs.replace(table, files=files)


# From a DataFrame to rows of a table.


def fit(frame: DataFrame, operator: SnapshotOperator, state: SnapshotState, max_parallelism: int) -> DataFrame:
    """The rows with the columns of the table, the key group of their keys, and whether something does not fit."""
    columns = state.columns
    wanted = [field for field in spark_schema(state.schema) if field.name != columns.key_group]
    picked: list[Column] = []
    misfits: list[Column] = []
    for field in wanted:
        here = _field(frame, field.name)
        if here is None:
            if field.name == columns.last_access:
                picked.append(F.lit(None).cast(field.dataType).alias(field.name))
                continue
            raise InvalidInputError(
                f"operator '{operator.uid}', state '{state.name}': the rows have no column '{field.name}' "
                f"({field.dataType.simpleString()}); they have {', '.join(frame.columns)}"
            )
        column = F.col(f"`{here.name}`")
        if here.dataType.simpleString() == field.dataType.simpleString():
            picked.append(column.alias(field.name))
            continue
        if not _castable(here.dataType, field.dataType):
            raise InvalidInputError(
                f"operator '{operator.uid}', state '{state.name}': column '{field.name}' has type "
                f"{here.dataType.simpleString()}, and the state has {field.dataType.simpleString()}; cast it"
            )
        cast = column.try_cast(field.dataType)
        misfits.append(column.isNotNull() & ~cast.try_cast(here.dataType).eqNullSafe(column))
        picked.append(cast.alias(field.name))
    misfit = F.lit(False)
    for one in misfits:
        misfit = misfit | one
    rows = frame.select(*picked, misfit.alias(_MISFIT))
    group = F.pmod(F.hash(*[F.col(f"`{name}`") for name in columns.keys]), F.lit(max_parallelism)).cast("int")
    return rows.withColumn(_GROUP, group)


def _field(frame: DataFrame, name: str) -> StructField | None:
    fields = {field.name: field for field in frame.schema.fields}
    return fields.get(name) or next((f for f in fields.values() if f.name.lower() == name.lower()), None)


def _castable(here: SparkType, wanted: SparkType) -> bool:
    """Whether values may fit the type of a state, which is checked for each. Only numbers are cast."""
    if isinstance(wanted, (*_INTEGERS, DecimalType)):
        return isinstance(here, (*_INTEGERS, DecimalType))
    return isinstance(wanted, DoubleType) and isinstance(here, (FloatType, ByteType, ShortType, IntegerType))


class WriteReport(msgspec.Struct):
    """The result of a task that wrote rows of a DataFrame."""

    parts: list[WrittenPart] = []
    null_keys: int = 0
    nulls: int = 0
    misfits: int = 0
    duplicates: int = 0


@dataclass(frozen=True)
class WriteRows:
    """The function of a task that writes rows, which come ordered by key group, as Parquet parts."""

    target: str
    uid: str
    key_type: str
    spec: StateSpec
    max_parallelism: int
    now_ms: int
    names: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = parse_keys(self.key_type)
        columns, schema = table_schema(keys, self.spec)
        writer = TableWriter(open_filesystem(self.target), self.uid, self.spec.name, schema, columns.key_group)
        report = WriteReport()
        for rows in _whole_groups(batches, self.names):
            kept = self._clean(rows, columns, report)
            try:
                section = to_section(kept, columns, keys, self.spec, self.max_parallelism, self.now_ms)
            except InvalidInputError as error:
                if "duplicates" not in error.facts:
                    raise
                report.duplicates += error.facts["duplicates"]
                continue
            table = to_table(section, keys, self.spec)
            groups = table.column(columns.key_group)
            if table.num_rows and pc.min_max(groups) != pc.min_max(kept.column(_GROUP)):
                raise InternalError(f"operator '{self.uid}': Spark and cairn disagree about key groups")
            if not report.duplicates:
                writer.add(table)
        report.parts = [WrittenPart(self.spec.name, file) for file in writer.close()]
        yield pa.RecordBatch.from_pydict({"report": pa.array([msgspec.msgpack.encode(report)], pa.binary())})

    def _clean(self, rows: pa.Table, columns: Columns, report: WriteReport) -> pa.Table:
        """The rows that can be state; the others are counted."""
        bad = np.asarray(rows.column(_MISFIT)).astype(bool)
        report.misfits += int(bad.sum())
        for name in rows.column_names:
            if name in (_MISFIT, _GROUP, columns.last_access) or rows.column(name).null_count == 0:
                continue
            nulls = np.asarray(pc.is_null(rows.column(name))) & ~bad
            if name in columns.keys:
                report.null_keys += int(nulls.sum())
            else:
                report.nulls += int(nulls.sum())
            bad |= nulls
        return rows.filter(pa.array(~bad)) if bad.any() else rows


def _whole_groups(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.Table]:
    """Rows that are ordered by key group, in portions that end where a key group ends."""
    waiting: list[pa.Table] = []
    count = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        rows = pa.Table.from_batches([batch]).rename_columns(list(names))
        waiting.append(rows)
        count += rows.num_rows
        if count < _CHUNK_ROWS:
            continue
        together = pa.concat_tables(waiting)
        groups = np.asarray(together.column(_GROUP))
        last = int(np.searchsorted(groups, groups[-1]))
        if last:
            yield together.slice(0, last)
            waiting = [together.slice(last)]
            count = together.num_rows - last
    if count:
        yield pa.concat_tables(waiting)


def write_frame(
    frame: DataFrame,
    snapshot: Snapshot,
    operator: SnapshotOperator,
    state: SnapshotState,
    target: str,
    now_ms: int,
) -> list[WrittenPart]:
    """Write the rows of a DataFrame as the table of a state. Rows that cannot be state are refused, with counts."""
    groups = snapshot.metadata.max_parallelism
    rows = fit(frame, operator, state, groups)
    names = rows.columns
    pieces = min(groups, PIECES * frame.sparkSession.sparkContext.defaultParallelism)
    numbered = rows.toDF(*[f"c{i}" for i in range(len(names))])  # mapInArrow takes plain names only
    group = f"c{names.index(_GROUP)}"
    shuffled = numbered.repartitionById(pieces, F.expr(f"int({group} * {pieces} DIV {groups})"))
    task = WriteRows(target, operator.uid, operator.key_type, state.spec, groups, now_ms, names)
    made = shuffled.sortWithinPartitions(group).mapInArrow(task, "report binary").collect()
    reports = [msgspec.msgpack.decode(row.report, type=WriteReport) for row in made]
    problems = {
        "rows have a null in a key column": sum(report.null_keys for report in reports),
        "rows have a null in another column": sum(report.nulls for report in reports),
        "rows have a number that does not fit its type": sum(report.misfits for report in reports),
        "rows have the key of another row": sum(report.duplicates for report in reports),
    }
    refused = [f"{count} {what}" for what, count in problems.items() if count]
    if refused:
        raise InvalidInputError(
            f"operator '{operator.uid}', state '{state.name}': {'; '.join(refused)}. Filter them out, cast, or keep "
            "one row for each key; nothing was written.",
            **dict(zip(("null_keys", "nulls", "misfits", "duplicates"), problems.values(), strict=True)),
        )
    return [part for report in reports for part in report.parts]
