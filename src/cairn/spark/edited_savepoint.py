"""Writes an edited snapshot as a new savepoint: edited tables by Spark, all others copied or merged as they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash
from pyspark.sql import SparkSession

from cairn import __version__
from cairn.errors import CairnError, InvalidInputError, from_traceback
from cairn.model.savepoint_records import SavepointOperator, SourceFile, StateTable, TableFile
from cairn.restore.source_logs import COMPACT_INTERVAL, COMPACT_SETTING, StoredSources, copy_sources
from cairn.snapshots.snapshot import ChainRows, FileRows, Snapshot, SnapshotOperator, SnapshotState, ranges, reading
from cairn.snapshots.table_tasks import TableWork, WrittenPart, file_order, write_tables
from cairn.spark.snapshot_frames import PIECES, FrameRows, write_frame
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.savepoint_folder import SavepointFolder, mapped

_COPIED_HERE = 8
"""With more files, Spark tasks copy them."""


def write_edited(snapshot: Snapshot, path: str, session: Callable[[], SparkSession]) -> str:
    """Write a savepoint to a folder that does not exist yet. Returns its path.

    `session` is called only where Spark is needed. If anything is refused or fails, nothing is left behind.
    """
    root = local_root(path)
    parent, name = os.path.split(root)
    if os.path.lexists(root) and not (os.path.isdir(root) and not os.listdir(root)):
        raise InvalidInputError(f"{root} exists already; a savepoint overwrites nothing", path=root)
    if layout.is_savepoint_progress(name) or layout.checkpoint_number(name) is not None:
        raise InvalidInputError(f"'{name}' cannot be the name of a savepoint; take another one", path=root)
    with reading(snapshot):
        folder = SavepointFolder.begin(parent)
        try:
            return _Edited(snapshot, folder.path, session).complete(folder, name)
        except BaseException as error:
            folder.abort()
            cause = None if isinstance(error, CairnError) else from_traceback(str(error))
            if cause is not None:
                raise cause from error
            raise


@dataclass(frozen=True)
class _Edited:
    """The savepoint on its way into the hidden folder `target`."""

    snapshot: Snapshot
    target: str
    session: Callable[[], SparkSession]

    def complete(self, folder: SavepointFolder, name: str) -> str:
        now_ms = int(time.time() * 1000)
        operators = [self._operator(operator, now_ms) for operator in self.snapshot.operators.values()]
        metadata = msgspec.structs.replace(
            self.snapshot.metadata,
            id=0,
            created_ms=now_ms,
            operators=operators,
            sources=self._sources(),
            version=__version__,
        )
        return folder.complete(metadata, name)

    def _operator(self, operator: SnapshotOperator, now_ms: int) -> SavepointOperator:
        tables = []
        for state in operator.states.values():
            if isinstance(state.origin, FileRows):
                files = self._copied(operator.uid, state, state.origin)
            elif isinstance(state.origin, FrameRows):
                parts = write_frame(state.origin.frame, self.snapshot, operator, state, self.target, now_ms)
                files = [part.file for part in parts]
            else:
                files = self._merged(operator.uid, state.origin)
            tables.append(StateTable(state.spec, state.columns, sorted(files, key=file_order)))
        return SavepointOperator(operator.uid, operator.name, operator.parallelism, operator.key_type, tables)

    def _copied(self, uid: str, state: SnapshotState, origin: FileRows) -> list[TableFile]:
        """The files of a table that was not edited, verified on their way, under the operator's present uid."""
        folder = layout.table_folder(uid, state.spec.name)
        pairs = [
            (file, msgspec.structs.replace(file, path=f"{folder}/{file.path.rpartition('/')[2]}"))
            for file in origin.table.files
        ]
        work = [(origin.root, old, self.target, new.path) for old, new in pairs]
        if len(work) > _COPIED_HERE:
            self.session().sparkContext.parallelize(work, len(work)).foreach(_copy_file)
        else:
            for one in work:
                _copy_file(one)
        return [new for _, new in pairs]

    def _merged(self, uid: str, origin: ChainRows) -> list[TableFile]:
        """The table of a state in a checkpoint, written by tasks that merge its chain."""
        context = self.session().sparkContext
        encoded = msgspec.msgpack.encode(origin.operator)
        work = [
            (
                uid,
                TableWork(
                    origin.job_dir, encoded, groups.start, groups.end, origin.time_ms, self.target, origin.checkpoint,
                    (origin.spec.name,),
                ),
            )
            for groups in ranges(self.snapshot, PIECES * context.defaultParallelism)
        ]  # fmt: skip
        written = context.parallelize(work, len(work)).map(_merge_range).collect()
        parts = [msgspec.msgpack.decode(raw, type=WrittenPart) for portion in written for raw in portion]
        return [part.file for part in parts]

    def _sources(self) -> list[SourceFile]:
        """The logs of Spark's sources: copied from a savepoint, or as they were at the position of a checkpoint."""
        snapshot = self.snapshot
        if snapshot.checkpoint is None:
            for file in snapshot.metadata.sources:
                _copy_file((snapshot.path, file, self.target, file.path))
            return snapshot.metadata.sources
        copy_sources(
            StoredSources(snapshot.sources, snapshot.offsets, snapshot.source_names),
            os.path.join(self.target, layout.SOURCES),
            None,
            int(self.session().conf.get(COMPACT_SETTING, None) or COMPACT_INTERVAL),
        )
        files = LocalFileSystem(self.target)
        return [
            SourceFile(info.path, info.size, xxhash.xxh3_64_hexdigest(files.read(info.path)))
            for info in sorted(files.walk(layout.SOURCES), key=lambda info: info.path)
        ]


def _copy_file(work: tuple[str, Any, str, str]) -> None:
    root, file, target, path = work
    LocalFileSystem(target).create(path, memoryview(mapped(root, file)))


def _merge_range(work: tuple[str, TableWork]) -> list[bytes]:
    """Write the tables of a range; an operator that was renamed has them under its new uid."""
    uid, table_work = work
    return write_tables(table_work, uid)
