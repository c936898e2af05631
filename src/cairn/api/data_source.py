"""`spark.read.format("cairn")`: the state in savepoints and checkpoints as a data source.

Options: `uid` and `state` (each may be left out where there is only one), and on a job's directory `checkpoints=all`,
which reads all retained checkpoints and adds the column `checkpoint`: the same key at different times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from cairn.errors import IncompatibleStateError, InvalidInputError, NotFoundError
from cairn.model.keygroups import KeyGroupRange
from cairn.snapshots.resolver import open_snapshot, retained
from cairn.snapshots.snapshot import FileRows, Snapshot, SnapshotState, ranges
from cairn.spark.snapshot_frames import spark_schema

_PIECES = 16
_OPTIONS = ("path", "uid", "state", "checkpoints")


@dataclass(frozen=True)
class Piece(InputPartition):
    """One range of key groups of one snapshot."""

    origin: Any
    groups: KeyGroupRange
    checkpoint: int = -1

    @property
    def value(self) -> Any:
        return (self.origin, self.groups, self.checkpoint)


class CairnDataSource(DataSource):
    """The data source `cairn`."""

    @classmethod
    def name(cls) -> str:
        return "cairn"

    def schema(self) -> StructType:
        return _Opened(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return CairnReader(dict(self.options))


class CairnReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        return _Opened(self._options).pieces()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Piece):
            raise InvalidInputError("the partition is none of cairn's")
        for table in partition.origin.rows(partition.groups):
            rows = table
            if partition.checkpoint >= 0:
                numbers = pa.array([partition.checkpoint] * rows.num_rows, pa.int64())
                rows = rows.add_column(0, pa.field("checkpoint", pa.int64()), numbers)
            yield from rows.to_batches(max_chunksize=65536)


class _Opened:
    """What the options name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        chosen = {key.lower(): value for key, value in options.items()}
        unknown = sorted(set(chosen) - set(_OPTIONS))
        if unknown:
            raise InvalidInputError(
                f"format 'cairn' has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS[1:])}"
            )
        if "path" not in chosen:
            raise InvalidInputError("format 'cairn' needs a path: spark.read.format('cairn').load(path)")
        self._all = chosen.get("checkpoints", "")
        if self._all not in ("", "all", "newest"):
            raise InvalidInputError(f"option checkpoints is 'all' or 'newest', not {self._all!r}")
        snapshots = retained(chosen["path"]) if self._all == "all" else [open_snapshot(chosen["path"])]
        if not snapshots:
            raise NotFoundError(f"the job in {chosen['path']} has no completed checkpoint", path=chosen["path"])
        uid, state = chosen.get("uid"), chosen.get("state")
        newest = snapshots[-1].operator(uid).state(state)
        self._newest = newest
        uid = snapshots[-1].operator(uid).uid
        self._states: list[tuple[Snapshot, SnapshotState]] = []
        for snapshot in snapshots:
            operator = snapshot.operators.get(uid)
            stored = operator.states.get(newest.spec.name) if operator is not None else None
            if stored is not None:
                self._states.append((snapshot, stored))
        others = [(snapshot, stored) for snapshot, stored in self._states if not stored.schema.equals(newest.schema)]
        if others:
            differing = ", ".join(
                f"chk-{snapshot.checkpoint_number} ({stored.spec.signature})" for snapshot, stored in others
            )
            raise IncompatibleStateError(
                f"operator '{uid}', state '{newest.name}' is a {newest.spec.signature} in "
                f"chk-{snapshots[-1].checkpoint_number} and has other columns in {differing}: they do not fit into one "
                f"table. Read each checkpoint by its own path, as in load('{others[0][0].path}'), cast, and put them "
                "together with unionByName.",
                checkpoints=[snapshot.checkpoint_number for snapshot, _ in others],
            )

    @property
    def schema(self) -> StructType:
        made = spark_schema(self._newest.schema)
        return StructType([StructField("checkpoint", LongType()), *made.fields]) if self._all == "all" else made

    def pieces(self) -> list[Piece]:
        made = []
        for snapshot, state in self._states:
            number = snapshot.checkpoint_number if self._all == "all" else -1
            if isinstance(state.origin, FileRows) and not state.origin.table.files:
                continue
            count = _PIECES if self._all != "all" else max(1, _PIECES // len(self._states))
            made += [Piece(state.origin, groups, number) for groups in ranges(snapshot, count)]
        return made


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("cairn")` known to a session. Environments do it on their own."""
    spark.dataSource.register(CairnDataSource)
