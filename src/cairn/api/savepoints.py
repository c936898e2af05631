"""Writes savepoints of a running job: Spark tasks in the background pool, many short ones, while the stream goes on.

While an epoch runs, tasks take at most half of Spark's slots, so that the stream always finds free ones; while the
stream rests, they take all.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import msgspec
import xxhash
from pyspark.sql import SparkSession

from cairn.api.sources import copy_sources
from cairn.api.spark import POOL
from cairn.coordinator.parties import JobFacts, WrittenSavepoint
from cairn.coordinator.pending import SavepointOrder
from cairn.errors import CheckpointFailedError, InvalidInputError, from_traceback
from cairn.model.keygroups import key_group_range
from cairn.model.manifest import Manifest, OperatorState
from cairn.model.savepoint import SavepointMetadata, SourceFile
from cairn.runtime.savepoint import TableWork, assembled, write_tables
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem, local_root, sync
from cairn.storage.savepoints import SavepointFolder, dispose, named_files, read_savepoint

PIECES = 16
"""Most tasks for each subtask of an operator: short ones, so that the stream gets its turns."""
PIECE_ROWS = 200_000
"""Rows that are worth a task of their own."""
_PAUSE = 0.01


def target_directory(given: str | None, configured: str) -> str:
    """Where a savepoint goes: the directory that was named, or the configured one."""
    directory = given or configured
    if not directory:
        raise InvalidInputError(
            "no directory for the savepoint: name one, or set execution.checkpointing.savepoint-dir "
            "(env.set_default_savepoint_directory) for all savepoints of the job",
            option="execution.checkpointing.savepoint-dir",
        )
    return local_root(directory)


def savepoint_path(directory: str, job_id: str, request: str) -> str:
    """The folder of the savepoint that a request makes: the same for the same request."""
    return os.path.join(local_root(directory), layout.savepoint_name(job_id, _token(request)))


def _token(request: str) -> str:
    return hashlib.blake2b(request.encode(), digest_size=6).hexdigest()


@dataclass
class _Writing:
    """A savepoint on its way."""

    folder: SavepointFolder
    parts: int
    done: int = 0
    metadata: SavepointMetadata | None = None
    given_up: bool = False


class SparkSavepoints:
    """`SavepointRunner` on Spark."""

    def __init__(
        self,
        spark: SparkSession,
        files: LocalFileSystem,
        facts: JobFacts,
        compact_interval: int,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`busy` says whether an epoch is running now."""
        self._busy = busy
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
        return WrittenSavepoint(path, _size(path, metadata), metadata.epoch)

    def start(
        self, number: int, manifest: Manifest, order: SavepointOrder, done: Callable[[Exception | None], None]
    ) -> None:
        def work() -> None:
            try:
                self._write(number, manifest, order)
            except Exception as error:  # noqa: BLE001 - told to the coordinator
                done(from_traceback(str(error)) or error)
                return
            done(None)

        threading.Thread(target=work, name=f"cairn-savepoint-{number}", daemon=True).start()

    def _write(self, number: int, manifest: Manifest, order: SavepointOrder) -> None:
        folder = self._begin(order)
        chains = [operator for operator in manifest.operators if operator.chain]
        pieces = {op.uid: _pieces(op, manifest.max_parallelism) for op in chains}
        writing = self._writing[number] = _Writing(folder, sum(pieces.values()))
        operators = []
        for operator in manifest.operators:
            work = _work(self._files.root, manifest, operator, pieces.get(operator.uid, 0), folder.path)
            operators.append(assembled(operator, self._tables(number, writing, work)))
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
            version=version("cairn"),
        )

    def _begin(self, order: SavepointOrder) -> SavepointFolder:
        """A folder for the savepoint. What an earlier attempt at the same request left, in a run that died, goes."""
        token = _token(order.request)
        left = os.path.join(local_root(order.directory), layout.savepoint_progress(token))
        if os.path.isdir(left):
            dispose(left)
        return SavepointFolder.begin(order.directory, token)

    def _tables(self, number: int, writing: _Writing, work: Sequence[TableWork]) -> list[bytes]:
        """Run the tasks, each as a Spark job of its own. Returns all that they wrote."""
        todo = list(reversed(work))
        written: list[bytes] = []
        errors: list[Exception] = []

        def run(eager: bool) -> None:
            context = self._spark.sparkContext
            context.setJobGroup(self._group(number), f"cairn savepoint {number}", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", POOL)
            while todo and not errors and not writing.given_up:
                if not eager and self._busy():
                    time.sleep(_PAUSE)
                    continue
                try:
                    task = todo.pop()
                except IndexError:  # another thread has taken the last one
                    return
                try:
                    written.extend(context.parallelize([task], 1).flatMap(write_tables).collect())
                    writing.done += 1
                except Exception as error:  # noqa: BLE001 - raised below
                    errors.append(error)

        count = max(1, min(len(work), self._spark.sparkContext.defaultParallelism))
        threads = [threading.Thread(target=run, args=(n < max(1, count // 2),), daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if writing.given_up:
            raise CheckpointFailedError(f"savepoint {number} was given up", checkpoint=number)
        if errors:
            raise errors[0]
        return written

    def _sources(self, manifest: Manifest, target: str) -> list[SourceFile]:
        """Copy what the sources had noted at the savepoint's positions."""
        logs = os.path.join(self._files.root, manifest.spark, layout.SOURCES)
        root = os.path.join(target, layout.SOURCES)
        copy_sources(logs, root, manifest.offsets, None, self._interval)
        found = []
        for place, _, names in os.walk(root):
            for name in sorted(names):
                full = os.path.join(place, name)
                with open(full, "rb") as file:
                    data = file.read()
                sync(full)
                relative = os.path.relpath(full, target).replace(os.sep, "/")
                found.append(SourceFile(relative, len(data), xxhash.xxh3_64_hexdigest(data)))
        return sorted(found, key=lambda file: file.path)

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
            path = writing.folder.complete(writing.metadata)
        except BaseException:
            writing.folder.abort()
            raise
        return WrittenSavepoint(path, _size(path, writing.metadata), writing.metadata.epoch)

    def cancel(self, number: int) -> None:
        self._spark.sparkContext.cancelJobGroup(self._group(number))
        writing = self._writing.get(number)
        if writing is not None:
            writing.given_up = True
            writing.folder.abort()


def _pieces(operator: OperatorState, groups: int) -> int:
    rows = sum(handle.rows for handle in operator.chain)
    return min(groups, PIECES * operator.parallelism, max(operator.parallelism, rows // PIECE_ROWS))


def _work(job_dir: str, manifest: Manifest, operator: OperatorState, pieces: int, target: str) -> list[TableWork]:
    """The tasks that write the tables of an operator: a range of key groups each."""
    told = msgspec.msgpack.encode(operator)
    made = []
    for index in range(pieces):
        groups = key_group_range(index, pieces, manifest.max_parallelism)
        made.append(TableWork(job_dir, told, groups.start, groups.end, manifest.time_ms, target))
    return made


def _size(path: str, metadata: SavepointMetadata) -> int:
    named = sum(file.size for file in named_files(metadata))
    return named + os.path.getsize(os.path.join(path, layout.METADATA))
