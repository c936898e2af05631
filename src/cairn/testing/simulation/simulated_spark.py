"""Spark as a simulated job sees it: a source whose rows follow from their positions, logs, workers, tasks, a writer.

Positions are numbers, and a row is a pure function of its number, so a replay sees the same rows. A query plans a
batch, runs it and commits it as Spark's micro-batch execution does; its logs refuse a second writer as Spark's do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from cairn.errors import EpochFailedError
from cairn.model import keygroups
from cairn.model.manifest import EpochContext
from cairn.runtime.batches import GROUP_COLUMN
from cairn.runtime.task import run_task
from cairn.storage.filesystem import FileSystem
from cairn.testing.local_cluster import arrow_schema, outputs_of
from cairn.testing.simulation.disk import Disk
from cairn.testing.simulation.scheduler import Process, ProcessEnded, Scheduler
from cairn.testing.simulation.totals import GROUPS, INPUT, Row, operator

SOURCE = "simulated-source"
encode_rows = msgspec.json.Encoder().encode_lines
decode_rows = msgspec.json.Decoder(Row).decode_lines

_SCHEMA = arrow_schema(INPUT).append(pa.field(GROUP_COLUMN, pa.int32()))


@functools.cache
def _group(key: str) -> int:
    return keygroups.key_group((key,), ["string"], GROUPS)


def _batches(rows: Sequence[Row], parallelism: int) -> list[list[pa.RecordBatch]]:
    """The batches of each subtask: its rows, and the one row that every subtask gets in every epoch."""
    parts: list[list[tuple[str | None, int | None, int]]] = [[] for _ in range(parallelism)]
    for key, n in rows:
        group = _group(key)
        parts[keygroups.subtask_of(group, parallelism, GROUPS)].append((key, n, group))
    return [[*([_batch(part)] if part else []), _sentinel(subtask)] for subtask, part in enumerate(parts)]


def _batch(rows: Sequence[tuple[str | None, int | None, int]]) -> pa.RecordBatch:
    keys, numbers, groups = zip(*rows, strict=True)
    columns = [pa.array(keys, pa.string()), pa.array(numbers, pa.int64()), pa.array(groups, pa.int32())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


@functools.cache
def _sentinel(subtask: int) -> pa.RecordBatch:
    return _batch([(None, None, -subtask - 1)])


class Worker:
    """A Python worker: it runs a task at a time, and what it holds in memory goes with it."""

    def __init__(self) -> None:
        self.stores: dict[str, Any] = {}
        self.manifests: dict[str, Any] = {}
        self.busy = False


class Memory:
    """A dict that lives in the worker which runs the current task. Stands for module globals of a worker process."""

    scheduler: Scheduler

    def __init__(self, name: str) -> None:
        self._name = name

    def _mine(self) -> dict[str, Any]:
        actor = self.scheduler.current
        if actor is None or actor.worker is None:
            return {}
        mine: dict[str, Any] = getattr(actor.worker, self._name)
        return mine

    def get(self, key: str) -> Any:
        return self._mine().get(key)

    def pop(self, key: str, default: Any = None) -> Any:
        return self._mine().pop(key, default)

    def clear(self) -> None:
        self._mine().clear()

    def __setitem__(self, key: str, value: Any) -> None:
        self._mine()[key] = value


class Conflict(Exception):
    """Spark's "Concurrent update to the log. Multiple streaming jobs detected"."""


class QueryLog:
    """The offset and commit log of a query, below its checkpointLocation."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def numbers(self, log: str) -> list[int]:
        self._disk.enter("spark-list", f"{self._folder}/{log}")
        return sorted(int(name) for name in self._disk.children.get(f"{self._folder}/{log}", ()) if name.isdigit())

    def read(self, log: str, number: int) -> str:
        path = f"{self._folder}/{log}/{number}"
        self._disk.enter("spark-read", path)
        if path not in self._disk.files:
            raise Conflict(f"{path} is gone")
        return self._disk.files[path].data.decode()

    def add(self, log: str, number: int, text: str) -> None:
        path = f"{self._folder}/{log}/{number}"
        self._disk.enter("spark-write", path)
        if path in self._disk.files:
            raise Conflict(f"{path} is there already")
        self._disk.put(path, text.encode())


def entry(position: int, time_ms: int) -> str:
    return f'v1\n{{"batchWatermarkMs": 0, "batchTimestampMs": {time_ms}, "conf": {{}}}}\n{position}'


def position_of(text: str) -> int:
    line = text.split("\n")[2]
    return 0 if line == "-" else int(line)


def batch_time_of(text: str) -> int:
    time_ms: int = msgspec.json.decode(text.split("\n")[1])["batchTimestampMs"]
    return time_ms


class SimulatedCluster:
    """What the epoch loop asks of Spark. Tasks run in the actor that asks; duplicates and stragglers in their own."""

    def __init__(self, world: Any, driver: Any, files: FileSystem, parallelism: int) -> None:
        self._world = world
        self._driver = driver
        self._files = files
        self._parallelism = parallelism
        self._acks: list[bytes] = []
        self.context: EpochContext | None = None

    def announce(self, context: bytes) -> None:
        self._acks = []
        self.context = msgspec.msgpack.decode(context, type=EpochContext)

    def acknowledgements(self) -> list[bytes]:
        return list(self._acks)

    def frames(self, frame: Any, sinks: Sequence[Any]) -> EpochOutput:
        return EpochOutput(self, tuple(frame), self._world.disk)

    def run(self, rows: tuple[Row, ...]) -> list[list[Row]]:
        """The output of each subtask."""
        context = self.context
        if context is None:
            raise EpochFailedError("no epoch was announced")
        made = []
        for subtask, batches in enumerate(_batches(rows, self._parallelism)):
            name = f"{self._driver.name} epoch {context.epoch} subtask {subtask}"
            twice = self._world.choices.number(f"{name}/twice", (0.9, 0.05, 0.05))
            if twice == 1:  # a stage that ran again: both acknowledge
                self._world.counters.add("tasks run twice")
                self._attempt(name, batches, context)
            elif twice == 2:  # a straggler: it goes on by itself, whatever becomes of its driver
                self._world.counters.add("stragglers")
                self._straggle(name, batches, context)
            made.append(self._attempt(name, batches, context))
        return made

    def _straggle(self, name: str, batches: Sequence[pa.RecordBatch], context: EpochContext) -> None:
        def work() -> None:
            try:
                self._attempt(f"{name} straggler", batches, context)
            except Exception as error:  # noqa: BLE001 - nobody waits for it
                self._world.straggler_failed(context, error)

        delay = self._world.choices.one_of(f"{name}/delay", (0, 15, 40, 300))
        self._world.scheduler.spawn(f"{name} straggler", Process(f"{name} straggler"), work, delay)

    def _attempt(self, name: str, batches: Sequence[pa.RecordBatch], context: EpochContext) -> list[Row]:
        actor = self._world.scheduler.current
        worker = self._world.worker(f"{name}/worker")
        before, actor.worker = actor.worker, worker
        worker.busy = True
        try:
            made: list[Row] = []
            spec = operator(self._parallelism, self._world.source.timed)
            spec = replace(spec, function=type(spec.function)())
            for output in run_task(
                spec, batches, context, self._world.next_attempt(),
                lambda ack: self._acks.append(msgspec.msgpack.encode(ack)), self._files,
            ):  # fmt: skip
                made += [(row.key, row.total) for row in outputs_of(spec, output)]
            return made
        except ProcessEnded:
            self._world.lose(worker)
            raise
        finally:
            worker.busy = False
            actor.worker = before


class EpochOutput:
    """The output of an epoch: computed when a sink writes it."""

    def __init__(self, cluster: SimulatedCluster, rows: tuple[Row, ...], disk: Disk) -> None:
        self._cluster = cluster
        self._rows = rows
        self._disk = disk

    def of(self, sink: Any) -> SimulatedFrame:
        return SimulatedFrame(self._cluster, self._rows, self._disk)

    def release(self) -> None:
        return None


class SimulatedFrame:
    """A DataFrame as far as `FileSink` uses it: `frame.write.format(...).options(...).mode(...).save(url)`."""

    def __init__(self, cluster: SimulatedCluster, rows: tuple[Row, ...], disk: Disk) -> None:
        self._cluster = cluster
        self._rows = rows
        self._disk = disk

    @property
    def write(self) -> SimulatedFrame:
        return self

    def format(self, name: str) -> SimulatedFrame:
        return self

    def options(self, **options: Any) -> SimulatedFrame:
        return self

    def mode(self, name: str) -> SimulatedFrame:
        return self

    def save(self, url: str) -> None:
        folder = url.removeprefix("file://")
        for number, rows in enumerate(self._cluster.run(self._rows)):
            path = f"{folder}/part-{number:05d}.json"
            self._disk.enter("spark-write", path)
            self._disk.put(path, encode_rows(rows))
