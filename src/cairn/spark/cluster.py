"""The Spark side of the coordinator: the local session, the settings a query is started with, tasks, compactions."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cairn.connectors.sink_base import BaseSink
from cairn.coordinator.checkpoint_statistics import by_subtask
from cairn.coordinator.compactor import ranges_of
from cairn.errors import CheckpointFailedError, EpochFailedError, InvalidInputError
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import EpochContext, Manifest, OperatorState, StateHandle, TaskAck
from cairn.restore.source_matching import FILES, again, source_name
from cairn.runtime.keyed_operator import OperatorSpec
from cairn.runtime.map_functions import SimpleSpec, run_simple
from cairn.runtime.task import run_task
from cairn.snapshots.compact_task import compact_range
from cairn.spark.arrow_batches import LIMITED_ROWS, ROWS
from cairn.spark.background_tasks import Background
from cairn.spark.stream_graph import FUNCTION_PREFIX

PROPERTY = "cairn.epoch"
SINK_COLUMN = "__cairn_sink"
_QUERY_CONF = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.exchange.reuse": "true",  # an operator runs once for all its readers
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    ROWS: LIMITED_ROWS,
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Set while a query starts (it takes a copy then), and put back: other queries of the user keep their own."""


def local_session(settings: Mapping[str, str]) -> SparkSession:
    """The active session, or a local one with settings that suit short epochs."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("cairn")
    defaults = {
        "spark.master": "local[*,4]",
        "spark.scheduler.mode": "FAIR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
    }
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def query_settings(spark: SparkSession) -> Iterator[None]:
    """Spark settings as the query needs them while it starts."""
    before: dict[str, str | None] = {key: spark.conf.get(key, None) for key in _QUERY_CONF}
    try:
        for key, value in _QUERY_CONF.items():
            if key != ROWS or before[key] is None:  # that number is the user's to choose
                spark.conf.set(key, value)
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


class _Collected(AccumulatorParam[list[bytes]]):
    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:
        value1.extend(value2)
        return value1


def collector(context: SparkContext) -> Accumulator[list[bytes]]:
    return context.accumulator([], _Collected())


class OperatorTask:
    """What Spark calls in a worker: `mapInArrow`'s function. Pickled with the operator's specification."""

    def __init__(self, spec: OperatorSpec, acks: Accumulator[list[bytes]]) -> None:
        self.spec = spec
        self.acks = acks
        self.__name__ = FUNCTION_PREFIX + spec.uid  # what Spark's plans call it

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, context = _told(self.spec.uid)

        def acknowledge(ack: TaskAck) -> None:
            metrics = msgspec.structs.replace(ack.metrics, stage=task.stageId())
            self.acks.add([msgspec.msgpack.encode(msgspec.structs.replace(ack, metrics=metrics))])

        yield from run_task(self.spec, batches, context, task.taskAttemptId(), acknowledge)


class SimpleTask:
    """What Spark calls in a worker for `map`, `filter` and `flat_map` on a plain stream."""

    def __init__(self, spec: SimpleSpec) -> None:
        self.spec = spec
        self.__name__ = FUNCTION_PREFIX + spec.uid

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, context = _told(self.spec.uid)
        yield from run_simple(self.spec, batches, context, task.partitionId(), task.taskAttemptId())


def _told(uid: str) -> tuple[TaskContext, EpochContext]:
    """The running task, and what the driver tells the tasks of this epoch."""
    task = TaskContext.get()
    told = task.getLocalProperty(PROPERTY) if task is not None else None
    if task is None or told is None:
        raise EpochFailedError(
            f"operator '{uid}' was run outside of a cairn job: its output can be read only by the sinks of a job that "
            "env.execute() started"
        )
    return task, msgspec.msgpack.decode(bytes.fromhex(told), type=EpochContext)


Reader = Callable[[DataFrame], DataFrame]
"""Takes the rows of one sink out of those of the epoch."""


class SparkCluster:
    """`Cluster` of the epoch loop."""

    def __init__(self, spark: SparkSession, acks: Accumulator[list[bytes]], readers: Mapping[str, Reader]) -> None:
        self._spark = spark
        self._acks = acks
        self._readers = readers

    def announce(self, context: bytes) -> None:
        self._acks.value = []
        self._spark.sparkContext.setLocalProperty(PROPERTY, context.hex())

    def acknowledgements(self) -> list[bytes]:
        return list(self._acks.value)

    def frames(self, frame: DataFrame, sinks: Sequence[Any]) -> SparkFrames:
        return SparkFrames(frame, sinks, self._readers)


class SparkFrames:
    """The rows of each sink. With several readers the rows are computed once and kept until the epoch ends."""

    def __init__(self, frame: DataFrame, sinks: Sequence[BaseSink], readers: Mapping[str, Reader]) -> None:
        self._frame = frame
        self._readers = readers
        self._kept = len(sinks) > 1 or any(sink.materialised for sink in sinks)
        if self._kept:
            self._frame = frame.persist()
            try:
                self._frame.write.format("noop").mode("overwrite").save()
            except BaseException:
                self.release()
                raise

    def of(self, sink: Any) -> DataFrame:
        reader = self._readers.get(sink.uid)
        return self._frame if reader is None else reader(self._frame)

    def release(self) -> None:
        if self._kept:
            self._frame.unpersist()


def tagged_union(frames: Sequence[DataFrame]) -> DataFrame:
    """Several streams as one: a tag, and a struct column for each of them that is null in the rows of the others."""
    parts = []
    for mine, frame in enumerate(frames):
        columns = [F.lit(mine).alias(SINK_COLUMN)]
        for other, foreign in enumerate(frames):
            if other == mine:
                columns.append(F.struct(*[F.col(f"`{name}`") for name in frame.columns]).alias(f"sink{other}"))
            else:
                columns.append(F.lit(None).cast(foreign.schema).alias(f"sink{other}"))
        parts.append(frame.select(*columns))
    united = parts[0]
    for part in parts[1:]:
        united = united.unionByName(part)
    return united


def sink_reader(tag: int) -> Reader:
    """Takes one stream out of a tagged union."""
    return lambda frame: frame.filter(F.col(SINK_COLUMN) == tag).select(f"sink{tag}.*")


def source_names(frame: DataFrame) -> list[str]:
    """What the sources of a stream read, in the order of the positions that Spark logs. A relation that is used twice
    in the same form is one source with two positions (`restore/source_matching.py`)."""
    found: list[tuple[Any, int]] = []
    names: list[str] = []
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        node = todo.pop()
        children = node.children()
        if children.isEmpty() and node.isStreaming():
            first = next((number for known, number in found if node.equals(known)), None)
            if first is None:
                found.append((node, len(names)))
            named = node.getClass().getSimpleName().startswith("StreamingRelation")
            name = _source_name(node) if named else str(node.nodeName())
            names.append(name if first is None else again(first))
        todo.extend(children.apply(i) for i in reversed(range(children.size())))
    return names


def _source_name(node: Any) -> str:
    if node.getClass().getSimpleName() == "StreamingRelation":
        entries = node.dataSource().options().iterator()
        options = {}
        while entries.hasNext():
            entry = entries.next()
            options[str(entry._1())] = str(entry._2())
    else:
        entries = node.extraOptions().asCaseSensitiveMap().entrySet().toArray()  # py4j ends an iterator by an error
        places = [entries[place] for place in range(len(entries))]
        options = {str(entry.getKey()): str(entry.getValue()) for entry in places}
    name = str(node.sourceName())
    path = name.removeprefix(f"{FILES}[").removesuffix("]")
    if name.startswith(f"{FILES}[") and not path.startswith("/") and ":" not in path:
        name = f"{FILES}[{os.path.abspath(path)}]"  # from another working directory it would be another place
    return source_name(name, options)


def refuse_native_state(frame: DataFrame) -> None:
    """Spark's own stateful operators keep state that cairn neither commits nor restores: refuse them by name."""
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        node = todo.pop()
        name = node.nodeName().replace(" ", "")  # Spark writes "Except All"
        if name in _NATIVE and _keeps_state(node):
            raise InvalidInputError(
                f"the plan has Spark's own stateful operator {name}, whose state would not be covered by cairn's "
                f"epochs; {_NATIVE[name]}",
                operator=name,
            )
        children = node.children()
        todo.extend(children.apply(i) for i in range(children.size()))


def _keeps_state(node: Any) -> bool:
    """A join with a static table keeps nothing; any other operator of the list does once its input is a stream."""
    if node.nodeName() == "Sort":
        return bool(node.isStreaming() and getattr(node, "global")())
    if node.nodeName() != "Join":
        return bool(node.isStreaming())
    return bool(node.left().isStreaming() and node.right().isStreaming())


_KEYED = "use stream.key_by(...) with sum, min, max, count, reduce or process instead of groupBy().agg()"
_DEDUP = "use stream.key_by(...).process(...) with a ValueState that remembers what was seen (see examples/dedup.py)"
_PROCESS = "use stream.key_by(...).process(...) instead"
_NATIVE = {
    "Aggregate": _KEYED,
    "Distinct": _DEDUP,
    "Deduplicate": _DEDUP,
    "DeduplicateWithinWatermark": _DEDUP,
    "Join": "join a static table, or key both streams alike and keep one side in state",
    "GlobalLimit": "a limit over a stream is state; filter by a column instead",
    "Offset": "an offset into a stream is state; filter by a column instead",
    "Tail": "a stream has no end; filter by a column instead",
    "Window": "a window function would begin anew in every epoch; " + _PROCESS,
    "Sort": "a stream has no order as a whole; sort what a sink has written, or use sortWithinPartitions()",
    "Sample": "a sample would differ when an epoch is repeated; filter by a hash of a column instead",
    "Except": _DEDUP,
    "ExceptAll": _DEDUP,
    "Intersect": _DEDUP,
    "IntersectAll": _DEDUP,
    "FlatMapGroupsWithState": _PROCESS,
    "FlatMapGroupsInPandasWithState": _PROCESS,
    "TransformWithState": _PROCESS,
    "TransformWithStateInPySpark": _PROCESS,
    "TransformWithStateInPandas": _PROCESS,
}


def compaction_job(background: Background, job_dir: str, run: int) -> Any:
    """The function by which a `Compactor` merges chains: Spark tasks in the background, a range of key groups each."""

    def job(manifest: Manifest, operator: OperatorState, ranges: Sequence[KeyGroupRange]) -> list[StateHandle]:
        work = _merges(job_dir, manifest, operator, ranges, run, 0)
        found = background.run(compact_range, work, f"cairn-compaction-{run}", f"cairn compaction of {operator.uid}")
        return [msgspec.msgpack.decode(raw, type=StateHandle) for portion in found for raw in portion]

    return job


_Merge = tuple[str, int, int, bytes, int, int, int, int]


def _merges(
    job_dir: str, manifest: Manifest, operator: OperatorState, ranges: Sequence[KeyGroupRange], run: int, number: int
) -> list[_Merge]:
    """What `compact_range` is told, for each range; with the number of a checkpoint for snapshots of its own."""
    told = msgspec.msgpack.encode(operator)
    return [(job_dir, manifest.epoch, manifest.time_ms, told, r.start, r.end, run, number) for r in ranges]


def _groups(operator: OperatorState, index: int, manifest: Manifest) -> set[int]:
    owned = key_group_range(index, operator.parallelism, manifest.max_parallelism)
    return set(range(owned.start, owned.end + 1))


class SparkSnapshots:
    """Writes the snapshots of full checkpoints in the background, on a thread and in a job group of its own."""

    def __init__(self, spark: SparkSession, background: Background, job_dir: str, run: int) -> None:
        self._spark = spark
        self._background = background
        self._job_dir = job_dir
        self._run = run
        self._token = f"{run}-{uuid.uuid4().hex[:8]}"
        self._under_way: dict[int, _Snapshot] = {}
        self._spent: dict[int, dict[tuple[str, int], float]] = {}

    def _group(self, number: int) -> str:
        return f"cairn-checkpoint-{self._token}-{number}"

    def start(
        self, number: int, manifest: Manifest, done: Callable[[dict[str, list[StateHandle]] | Exception], None]
    ) -> None:
        snapshot = self._under_way[number] = _Snapshot(manifest)

        def work() -> None:
            try:
                made = {operator.uid: self._merged(number, snapshot, operator) for operator in manifest.operators}
                if snapshot.given_up:
                    raise CheckpointFailedError(f"checkpoint {number} was given up", checkpoint=number)
            except Exception as error:  # noqa: BLE001 - told to the coordinator
                done(error)
            else:
                self._spent[number] = snapshot.spent()
                done(made)
            finally:
                self._under_way.pop(number, None)

        threading.Thread(target=work, name=f"cairn-snapshot-{number}", daemon=True).start()

    def _merged(self, number: int, snapshot: _Snapshot, operator: OperatorState) -> list[StateHandle]:
        if not operator.chain:
            return []
        manifest = snapshot.manifest
        ranges = ranges_of(operator, manifest.max_parallelism)

        def finished(piece: int) -> None:
            ended = (time.monotonic() - snapshot.since) * 1000
            covered = snapshot.covered.setdefault(operator.uid, {})
            covered.update(dict.fromkeys(range(ranges[piece].start, ranges[piece].end + 1), ended))

        work = _merges(self._job_dir, manifest, operator, ranges, self._run, number)
        group, what = self._group(number), f"cairn checkpoint {number}"
        found = self._background.run(compact_range, work, group, what, finished, lambda: snapshot.given_up)
        return [msgspec.msgpack.decode(raw, type=StateHandle) for portion in found for raw in portion]

    def written(self, number: int) -> list[tuple[str, int]]:
        """The operators and subtasks all of whose key groups the snapshots cover so far."""
        snapshot = self._under_way.get(number)
        if snapshot is None:
            return []
        manifest = snapshot.manifest
        return [
            (operator.uid, index)
            for operator in manifest.operators
            for index in range(operator.parallelism)
            if not operator.chain or _groups(operator, index, manifest) <= snapshot.covered.get(operator.uid, {}).keys()
        ]

    def spent(self, number: int) -> dict[tuple[str, int], float]:
        """By operator and subtask, the milliseconds until its part of a checkpoint was durable. Told once."""
        return self._spent.pop(number, {})

    def cancel(self, number: int) -> None:
        snapshot = self._under_way.get(number)
        if snapshot is not None:
            snapshot.given_up = True
        self._spent.pop(number, None)
        self._spark.sparkContext.cancelJobGroup(self._group(number))


@dataclass
class _Snapshot:
    """A full checkpoint on its way."""

    manifest: Manifest
    covered: dict[str, dict[int, float]] = field(default_factory=dict)
    """The key groups of each operator that are written, and after how many milliseconds they were."""
    given_up: bool = False
    since: float = field(default_factory=time.monotonic)

    def spent(self) -> dict[tuple[str, int], float]:
        groups = self.manifest.max_parallelism
        found: dict[tuple[str, int], float] = {}
        for operator in self.manifest.operators:
            found |= by_subtask(self.covered.get(operator.uid, {}), operator.uid, operator.parallelism, groups)
        return found
