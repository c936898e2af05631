"""Savepoints and restores without Spark: a harness runs the job, tasks run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cairn.config import Settings
from cairn.coordinator.ports import JobFacts
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.ddl import key_ddl
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import Manifest
from cairn.model.savepoint_records import SavepointMetadata
from cairn.restore.recovery import Recovered, plan_restore, recover
from cairn.restore.restore_plan import JobShape, RestorePlan
from cairn.restore.snapshot_origin import note_taken
from cairn.restore.start_request import Restorer, StartRequest
from cairn.restore.state_move import LocalMover, Mover
from cairn.runtime.declared_states import declared_states
from cairn.snapshots.table_tasks import TableWork, assembled, write_tables
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_records import Runs
from cairn.storage.savepoint_folder import SavepointFolder
from cairn.testing.keyed_harness import UID, KeyedProcessHarness

FACTS = JobFacts("harness", "harness", 1)
COLUMNS = "key string, n bigint"
OUTPUT = "key string, out string"


def harness(function: Any, folder: Path, parallelism: int = 2, **more: Any) -> KeyedProcessHarness:
    columns = more.pop("columns", COLUMNS)
    return KeyedProcessHarness(
        function, more.pop("key_by", "key"), columns, OUTPUT, parallelism=parallelism, state_dir=folder,
        max_parallelism=more.pop("max_parallelism", 128), inline_threshold=more.pop("inline_threshold", 200), **more,
    )  # fmt: skip


def savepoint_of(job_dir: Path, target: Path, files: Any = None, token: str = "", **more: Any) -> str:
    """A savepoint of the newest epoch."""
    store = ManifestStore(LocalFileSystem(str(job_dir)))
    manifest = store.load(store.epochs()[-1])
    folder = SavepointFolder.begin(str(target), token, files)
    operators = []
    for operator in manifest.operators:
        told = msgspec.msgpack.encode(operator)
        written: list[bytes] = []
        for groups in (KeyGroupRange(0, 4), KeyGroupRange(5, manifest.max_parallelism - 1)):
            written += write_tables(
                TableWork(str(job_dir), told, groups.start, groups.end, manifest.time_ms, folder.path)
            )
        operators.append(assembled(operator, written))
    metadata = SavepointMetadata(
        1, manifest.job_id, "harness", 1, manifest.max_parallelism, operators, epoch=manifest.epoch,
        offsets=manifest.offsets, watermark=manifest.watermark, time_ms=manifest.time_ms,
        incarnation=manifest.incarnation, **more,
    )  # fmt: skip
    note_taken(LocalFileSystem(str(job_dir)), metadata)
    return folder.complete(metadata)


def checkpoint_of(job_dir: Path, number: int = 1, retained: list[int] | None = None) -> str:
    """An incremental checkpoint of the newest epoch, taken by the newest run."""
    files = LocalFileSystem(str(job_dir))
    run = Runs(files).newest()
    store = ManifestStore(files)
    manifest = store.load(store.epochs()[-1])
    inlined = {e: store.load(e).inlined for e in manifest.inline_epochs() - {manifest.epoch}}
    info = CheckpointInfo(number, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
    CheckpointStore(files).complete(
        Checkpoint(number, "harness", "harness", run, manifest, info, inlined=inlined, retained=retained)
    )
    return str(job_dir / f"chk-{number}")


def shape_of(made: KeyedProcessHarness, uid: str = UID, groups: int = 0) -> JobShape:
    spec = made.spec
    keys = key_ddl(spec.key_types)
    told = declared_states(spec, {})
    return JobShape({uid: keys}, {uid: msgspec.structs.replace(told, uid=uid)}, spec.parallelism, groups)


def restored(
    path: str,
    folder: Path,
    shape: JobShape,
    files: Any = None,
    mover: Mover | None = None,
    now_ms: int = 5000,
    groups: int = 128,
    **settings: Any,
) -> Recovered:
    """What a start from a snapshot does before its first epoch."""
    start = StartRequest(
        files or LocalFileSystem(str(folder)), "harness", "harness", Settings(restore_path=path, **settings),
        shape.parallelism, groups, list(shape.operators), restorer=Restorer(lambda: shape, mover or LocalMover()),
    )  # fmt: skip
    return recover(start, now_ms)


def planned(path: str, folder: Path, shape: JobShape, name: str = "harness", **settings: Any) -> RestorePlan:
    """What a start from a snapshot would do."""
    start = StartRequest(
        LocalFileSystem(str(folder)), name, name, Settings(restore_path=path, **settings), shape.parallelism, 128,
        list(shape.operators), restorer=Restorer(lambda: shape, LocalMover()),
    )  # fmt: skip
    return plan_restore(start)


def newest(folder: Path) -> Manifest:
    store = ManifestStore(LocalFileSystem(str(folder)))
    return store.load(store.epochs()[-1])
