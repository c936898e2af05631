"""What Spark does for a job, done in this process: the shuffle, the tasks one after the other, compactions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InvalidInputError
from cairn.model import keygroups
from cairn.model.ddl import parse_columns
from cairn.model.manifest import EpochContext, Manifest, OperatorState, StateHandle
from cairn.model.output_tags import TAG_COLUMN, OutputTag, output_column, row_columns_of
from cairn.model.rows import row_class
from cairn.model.types import DataType
from cairn.runtime.batches import GROUP_COLUMN
from cairn.runtime.exact_values import exact_array
from cairn.runtime.keyed_operator import OperatorSpec
from cairn.runtime.row_values import python_values
from cairn.runtime.tagged_outputs import SideSpec
from cairn.runtime.task import run_task
from cairn.snapshots.compact_task import compact_range
from cairn.state.codec import ARROW_SCALARS
from cairn.storage.filesystem import FileSystem


def arrow_type(dtype: DataType) -> pa.DataType:
    """The Arrow type in which Spark hands a column of this type to a task."""
    if dtype.ddl in ARROW_SCALARS:
        return ARROW_SCALARS[dtype.ddl]
    if dtype.ddl.startswith("decimal("):
        precision, scale = dtype.ddl[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    if dtype.fields:
        return pa.struct([pa.field(name, arrow_type(inner)) for name, inner in dtype.fields])
    if dtype.ddl.startswith("array<"):
        return pa.list_(arrow_type(dtype.items[0]))
    if dtype.ddl.startswith("map<"):
        return pa.map_(arrow_type(dtype.items[0]), arrow_type(dtype.items[1]))
    raise InvalidInputError(f"a column cannot have type {dtype.ddl}")


def arrow_schema(ddl: str) -> pa.Schema:
    """The Arrow schema of a row type such as `"user string, total bigint"`."""
    return pa.schema([pa.field(name, arrow_type(dtype)) for name, dtype in parse_columns(ddl)])


class Shuffle:
    """Rows to the batches of each subtask, as the plan of a keyed stream does it."""

    def __init__(self, schema: pa.Schema, key_columns: Sequence[int], key_types: Sequence[str]) -> None:
        self.schema = schema
        self._key_columns = key_columns
        self._key_types = key_types
        self._full = schema.append(pa.field(GROUP_COLUMN, pa.int32()))

    def row(self, given: Any) -> tuple[Any, ...]:
        """A row as a tuple of all columns, from a tuple, a mapping, or the bare value of a single column."""
        names = self.schema.names
        if isinstance(given, Mapping):
            unknown = [name for name in given if name not in names]
            if unknown:
                raise InvalidInputError(f"the input has no column '{unknown[0]}'; it has {', '.join(names)}")
            return tuple(given.get(name) for name in names)
        if not isinstance(given, (tuple, list)):
            given = (given,)
        if len(given) != len(names):
            raise InvalidInputError(f"{given!r} has {len(given)} values; the input has the columns {', '.join(names)}")
        return tuple(given)

    def batch(self, rows: Sequence[tuple[Any, ...]], max_parallelism: int) -> pa.RecordBatch:
        """All rows in one batch, with the key group of each as the last column."""
        columns = []
        for place, field in enumerate(self.schema):
            try:
                columns.append(exact_array([row[place] for row in rows], field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidInputError(f"column '{field.name}' is {field.type}: {error}") from None
        keys = zip(*[columns[place].to_pylist() for place in self._key_columns], strict=True)
        groups = [keygroups.key_group(key, self._key_types, max_parallelism) for key in keys]
        return pa.RecordBatch.from_arrays([*columns, pa.array(groups, pa.int32())], schema=self._full)

    def split(self, batch: pa.RecordBatch, parallelism: int, max_parallelism: int) -> list[list[pa.RecordBatch]]:
        """The batches of each subtask: its rows, and the one row that every subtask gets in every epoch."""
        groups = batch.column(batch.num_columns - 1).to_pylist()
        rows_of: list[list[int]] = [[] for _ in range(parallelism)]
        for place, group in enumerate(groups):
            rows_of[keygroups.subtask_of(group, parallelism, max_parallelism)].append(place)
        parts = []
        for subtask, places in enumerate(rows_of):
            sentinel = [pa.nulls(1, field.type) for field in self.schema] + [pa.array([-subtask - 1], pa.int32())]
            mine = batch.take(pa.array(places, pa.int64()))
            parts.append([mine, pa.RecordBatch.from_arrays(sentinel, schema=self._full)])
        return parts


class LocalCluster:
    """What the epoch loop asks of Spark, done in this process: tasks run one after the other."""

    def __init__(self, spec: OperatorSpec, shuffle: Shuffle, files: FileSystem) -> None:
        self.spec = spec
        self.shuffle = shuffle
        self.files = files
        self.context: EpochContext | None = None
        self.acks: list[bytes] = []
        self.attempts = 0

    def announce(self, context: bytes) -> None:
        self.acks = []
        self.context = msgspec.msgpack.decode(context, type=EpochContext)

    def acknowledgements(self) -> list[bytes]:
        return list(self.acks)

    def frames(self, frame: Any, sinks: Sequence[Any]) -> LocalFrames:
        return LocalFrames(self, frame)

    def run(self, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run all subtasks of the announced epoch; their outputs as named tuples."""
        spec = self.spec
        batch = self.shuffle.batch(rows, spec.max_parallelism)
        outputs: list[Any] = []
        for subtask, batches in enumerate(self.shuffle.split(batch, spec.parallelism, spec.max_parallelism)):
            outputs += self.run_subtask(subtask, batches)
        return outputs

    def run_subtask(self, subtask: int, batches: Sequence[pa.RecordBatch]) -> list[Any]:
        assert self.context is not None
        self.attempts += 1
        made: list[Any] = []
        for output in run_task(
            fresh(self.spec), batches, self.context, self.attempts,
            lambda ack: self.acks.append(msgspec.msgpack.encode(ack)), self.files,
        ):  # fmt: skip
            made += outputs_of(self.spec, output)
        return made


class LocalFrames:
    """The output of an epoch. Computed when a sink first asks for it."""

    def __init__(self, cluster: LocalCluster, rows: Sequence[tuple[Any, ...]]) -> None:
        self._cluster = cluster
        self._rows = rows
        self._outputs: list[Any] | None = None

    def of(self, sink: Any) -> list[Any]:
        if self._outputs is None:
            self._outputs = self._cluster.run(self._rows)
        return self._outputs

    def release(self) -> None:
        return None


def fresh(spec: OperatorSpec) -> OperatorSpec:
    """A specification with a copy of the function, as every task gets one."""
    return replace(spec, function=copy.deepcopy(spec.function))


class Aside(NamedTuple):
    """A value that went to a side output."""

    tag: str
    value: Any


def outputs_of(spec: OperatorSpec, batch: pa.RecordBatch) -> list[Any]:
    """What an operator put out: rows or bare values, and for side outputs each with the name of its tag."""
    if not spec.tagged:
        return _bare(rows_of(batch), spec.bare_out)
    made: list[Any] = []
    outputs = [("", spec.bare_out), *[(side.tag, side.bare) for side in spec.sides]]
    for number, (tag, bare) in enumerate(outputs):
        mine = batch.filter(pc.equal(batch.column(TAG_COLUMN), number)).column(output_column(number))
        names = [mine.type.field(place).name for place in range(mine.type.num_fields)]
        values = _bare(rows_of(pa.RecordBatch.from_arrays(mine.flatten(), names=names)), bare)
        made += [Aside(tag, value) for value in values] if tag else values
    return made


def _bare(rows: list[Any], bare: bool) -> list[Any]:
    return [row[0] for row in rows] if bare else rows


def output_of(declared: str | DataType) -> tuple[pa.Schema, bool]:
    """The Arrow schema of an output type, and whether it is one of bare values."""
    columns, bare = row_columns_of(declared, "output type")
    return pa.schema([pa.field(name, arrow_type(dtype)) for name, dtype in columns]), bare


def sides_of(tags: Sequence[OutputTag]) -> tuple[SideSpec, ...]:
    return tuple(SideSpec(tag.tag_id, *output_of(tag.type_info)) for tag in tags)


def rows_of(batch: pa.RecordBatch) -> list[Any]:
    """The rows of a batch as named tuples."""
    row = row_class(tuple(batch.schema.names))
    return list(map(row, zip(*map(python_values, batch.columns), strict=True)))


def local_compaction(job_dir: str, run: int) -> Any:
    """A compaction job for `Compactor` that works in this process."""

    def job(
        manifest: Manifest, operator: OperatorState, ranges: Sequence[keygroups.KeyGroupRange], checkpoint: int = 0
    ) -> list[StateHandle]:
        found: list[StateHandle] = []
        told = msgspec.msgpack.encode(operator)
        for groups in ranges:
            work = (job_dir, manifest.epoch, manifest.time_ms, told, groups.start, groups.end, run, checkpoint)
            found += [msgspec.msgpack.decode(raw, type=StateHandle) for raw in compact_range(work)]
        return found

    return job
