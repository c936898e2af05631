"""Writes savepoints of a running job: Spark tasks in the background, while the stream continues."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import xxhash
from pyspark.sql import SparkSession

from cairn import __version__
from cairn.coordinator.checkpoint_statistics import by_subtask
from cairn.coordinator.compactor import ranges_of
from cairn.coordinator.pending_checkpoint import SavepointOrder
from cairn.coordinator.ports import JobFacts, WrittenSavepoint
from cairn.errors import CairnError, CheckpointFailedError, InvalidInputError, from_traceback
from cairn.logs import get_logger
from cairn.model.keygroups import subtask_of
from cairn.model.manifest import Manifest, OperatorState
from cairn.model.savepoint_records import SavepointMetadata, SourceFile
from cairn.restore.snapshot_origin import note_taken
from cairn.restore.source_logs import StoredSources, copy_sources
from cairn.restore.spark_logs import MAX_LOG
from cairn.snapshots.table_tasks import TableWork, assembled, write_tables
from cairn.spark.background_tasks import Background
from cairn.storage import layout, regular_files
from cairn.storage.filesystem import LocalFileSystem, local_root, sync
from cairn.storage.manifest_store import load_identity
from cairn.storage.savepoint_folder import SavepointFolder, dispose, named_files, read_savepoint
from cairn.storage.savepoint_target import request_token, savepoint_path

_log = get_logger("cairn.api")


@dataclass
class _Writing:
    """A savepoint that is being written."""

    folder: SavepointFolder
    name: str
    parts: int
    done: int = 0
    metadata: SavepointMetadata | None = None
    given_up: bool = False
    since: float = field(default_factory=time.monotonic)
    ended: dict[str, dict[int, float]] = field(default_factory=dict)
    """By operator and key group: the milliseconds until its tables were written."""

    def spent(self, metadata: SavepointMetadata) -> dict[tuple[str, int], float]:
        durations: dict[tuple[str, int], float] = {}
        for op in metadata.operators:
            durations |= by_subtask(self.ended.get(op.uid, {}), op.uid, op.parallelism, metadata.max_parallelism)
        return durations


class SparkSavepoints:
    """`SavepointRunner` on Spark."""

    def __init__(
        self,
        spark: SparkSession,
        files: LocalFileSystem,
        facts: JobFacts,
        compact_interval: int,
        background: Background,
    ) -> None:
        self._background = background
        self._spark = spark
        self._files = files
        self._facts = facts
        self._interval = compact_interval
        self._token = f"{facts.run}-{uuid.uuid4().hex[:8]}"
        self._writing: dict[int, _Writing] = {}

    def _group(self, number: int) -> str:
        return f"cairn-savepoint-{self._token}-{number}"

    def find(self, order: SavepointOrder) -> WrittenSavepoint | None:
        path = savepoint_path(order.directory, self._facts.job_id, order.request)
        if not os.path.lexists(os.path.join(path, layout.METADATA)):
            return None
        metadata = read_savepoint(path)
        mine = load_identity(self._files)
        if mine is not None and metadata.incarnation not in ("", mine.incarnation):
            raise InvalidInputError(
                f"{path} was made with request id '{order.request}' by another job of the id '{self._facts.job_id}', "
                "or by one that was removed since; take another request id, or another directory for the savepoint",
                path=path,
            )
        return WrittenSavepoint(path, _size(path, metadata), metadata.epoch, metadata.drained, _sizes(metadata))

    def start(
        self, number: int, manifest: Manifest, order: SavepointOrder, done: Callable[[Exception | None], None]
    ) -> None:
        def work() -> None:
            try:
                self._write(number, manifest, order)
            except Exception as error:  # noqa: BLE001 - the coordinator reports it
                done(from_traceback(str(error)) or error)
                return
            done(None)

        threading.Thread(target=work, name=f"cairn-savepoint-{number}", daemon=True).start()

    def _write(self, number: int, manifest: Manifest, order: SavepointOrder) -> None:
        folder = self._begin(order)
        work = [_work(self._files.root, manifest, operator, folder.path) for operator in manifest.operators]
        name = layout.savepoint_name(self._facts.job_id, request_token(order.request))
        writing = self._writing[number] = _Writing(folder, name, sum(map(len, work)))
        operators = [
            assembled(operator, self._tables(number, writing, operator.uid, portion))
            for operator, portion in zip(manifest.operators, work, strict=True)
        ]
        writing.metadata = SavepointMetadata(
            id=number,
            job_id=self._facts.job_id,
            name=self._facts.name,
            created_ms=time.time_ns() // 1_000_000,
            max_parallelism=manifest.max_parallelism,
            operators=operators,
            epoch=manifest.epoch,
            offsets=manifest.offsets,
            watermark=manifest.watermark,
            time_ms=manifest.time_ms,
            sources=self._sources(manifest, folder.path),
            source_names=list(manifest.source_names),
            incarnation=manifest.incarnation,
            drained=order.drained,
            version=__version__,
        )

    def _begin(self, order: SavepointOrder) -> SavepointFolder:
        """A folder for the savepoint. Folders that earlier attempts at the same request left are removed.

        Other jobs may write into the same directory, with the same request ids: the folder is this job's alone. And
        each attempt has its own: a task of one that was given up may still write, and must not into the savepoint.
        """
        token = request_token(self._files.root, self._facts.job_id, order.request)
        target = local_root(order.directory)
        with contextlib.suppress(CairnError, OSError):  # what stays is hidden, and swept when it is a day old
            for name in os.listdir(target):
                if layout.is_attempt(name, token):
                    dispose(os.path.join(target, name))
        return SavepointFolder.begin(order.directory, f"{token}-{uuid.uuid4().hex[:8]}")

    def _tables(self, number: int, writing: _Writing, uid: str, work: Sequence[TableWork]) -> list[bytes]:
        """Run the tasks. Returns the encoded parts that they wrote."""
        ended = writing.ended.setdefault(uid, {})

        def finished(piece: int) -> None:
            groups = range(work[piece].first_group, work[piece].last_group + 1)
            ended.update(dict.fromkeys(groups, (time.monotonic() - writing.since) * 1000))
            writing.done += 1

        written = self._background.run(
            write_tables, work, self._group(number), f"cairn savepoint {number}", finished, lambda: writing.given_up
        )
        if writing.given_up:
            raise CheckpointFailedError(f"savepoint {number} was given up", checkpoint=number)
        return [raw for portion in written for raw in portion]

    def _sources(self, manifest: Manifest, target: str) -> list[SourceFile]:
        """Copy the logs of the sources up to the positions of the savepoint."""
        logs = os.path.join(self._files.root, manifest.spark, layout.SOURCES)
        root = os.path.join(target, layout.SOURCES)
        copy_sources(StoredSources(logs, manifest.offsets, manifest.source_names), root, None, self._interval)
        copies = []
        for place, _, names in os.walk(root):
            for name in sorted(names):
                full = os.path.join(place, name)
                data = regular_files.read(full, MAX_LOG)
                sync(full)
                relative = os.path.relpath(full, target).replace(os.sep, "/")
                copies.append(SourceFile(relative, len(data), xxhash.xxh3_64_hexdigest(data)))
        return sorted(copies, key=lambda file: file.path)

    def progress(self, number: int) -> tuple[int, int]:
        writing = self._writing.get(number)
        if writing is None:
            return 0, 0
        return writing.done, writing.parts

    def complete(self, number: int) -> WrittenSavepoint:
        writing = self._writing.pop(number, None)
        if writing is None or writing.metadata is None:
            raise CheckpointFailedError(f"savepoint {number} was given up", checkpoint=number)
        try:
            note_taken(self._files, writing.metadata)
            path = writing.folder.complete(writing.metadata, writing.name)
        except BaseException:
            writing.folder.abort()
            raise
        metadata = writing.metadata
        return WrittenSavepoint(
            path,
            _size(path, metadata),
            metadata.epoch,
            metadata.drained,
            _sizes(metadata),
            writing.spent(metadata),
        )

    def cancel(self, number: int) -> None:
        writing = self._writing.get(number)
        if writing is not None:
            writing.given_up = True
        try:
            self._spark.sparkContext.cancelJobGroup(self._group(number))
        except Exception as error:  # noqa: BLE001 - the JVM is gone, and its tasks with it; the folder must go all the same
            _log.debug("the tasks of savepoint %d could not be cancelled: %s", number, error)
        if writing is not None:
            writing.folder.abort()


def _work(job_dir: str, manifest: Manifest, operator: OperatorState, target: str) -> list[TableWork]:
    """The tasks that write the tables of an operator: a range of key groups each."""
    if not operator.chain:
        return []
    encoded = msgspec.msgpack.encode(operator)
    ranges = ranges_of(operator, manifest.max_parallelism)
    return [TableWork(job_dir, encoded, groups.start, groups.end, manifest.time_ms, target) for groups in ranges]


def _sizes(metadata: SavepointMetadata) -> dict[tuple[str, int], int]:
    """Bytes of the tables by operator and subtask: a file counts for the subtask of its first key group."""
    sizes: dict[tuple[str, int], int] = {}
    for operator in metadata.operators:
        for file in (file for table in operator.tables for file in table.files):
            place = operator.uid, subtask_of(file.first_group, operator.parallelism, metadata.max_parallelism)
            sizes[place] = sizes.get(place, 0) + file.size
    return sizes


def _size(path: str, metadata: SavepointMetadata) -> int:
    named = sum(file.size for file in named_files(metadata))
    return named + os.path.getsize(os.path.join(path, layout.METADATA))
