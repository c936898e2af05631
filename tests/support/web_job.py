"""A small job's directory with everything that pages show: epochs, checkpoints, a savepoint, failures and restores."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.support.restore_lab import checkpoint_of, harness, savepoint_of

from cairn.model.checkpoint_records import (
    CheckpointInfo,
    CheckpointStatus,
    CheckpointType,
    FailureReason,
    OperatorStats,
    SubtaskStats,
)
from cairn.model.descriptors import MapStateDescriptor, ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.run_records import RunRecord
from cairn.view.journal import Chunk, EpochStats, Journal, SubtaskLoad

JOB = "harness"
UID = "tested"
EVIL = "<script>alert(1)</script>"
START = 1_790_000_000_000
CONFIG = {
    "interval": 10_000, "mode": "EXACTLY_ONCE", "timeout": 600_000, "min_pause": 0, "max_concurrent": 1,
    "tolerable_failures": 3, "retention": "RETAIN_ON_CANCELLATION", "num_retained": 2, "unaligned": False,
    "aligned_timeout": 0, "incremental": True, "storage": "filesystem", "savepoint_dir": "", "backend": "lmdb",
}  # fmt: skip

GRAPH: list[dict[str, Any]] = [
    {"id": "source-0", "kind": "source", "name": "FileStreamSource[/data/orders]"},
    {"id": "source-1", "kind": "source", "name": f"FileStreamSource[/data/{EVIL}]"},
    {"id": "clean", "kind": "function", "name": "clean", "inputs": [{"id": "source-0"}]},
    {"id": UID, "kind": "operator", "name": "Totals", "inputs": [
        {"id": "clean", "ship": "HASH"}, {"id": "source-1", "ship": "BROADCAST"}]},
    {"id": "out", "kind": "sink", "name": "files", "inputs": [{"id": UID}]},
    {"id": "late-out", "kind": "sink", "name": "files", "inputs": [{"id": UID, "side": "late"}]},
]  # fmt: skip


class Totals(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", "bigint", "string"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        self.seen.put(value.n, EVIL)
        yield (value.key, "")


def info(number: int, trigger_ms: int, **more: Any) -> CheckpointInfo:
    """A completed checkpoint unless told otherwise."""
    stats = [
        SubtaskStats(index, trigger_ms + 20 + index, 1.5, 2.5, 3.5, 0.0, 1000 + number, 50_000 + 1000 * number, 10)
        for index in range(2)
    ]
    values: dict[str, Any] = {
        "status": CheckpointStatus.COMPLETED, "type": CheckpointType.CHECKPOINT, "epoch": number,
        "end_ms": trigger_ms + 30 + number % 7, "path": f"/jobs/harness/chk-{number}",
        "operators": [OperatorStats(UID, "Totals", stats)],
    }  # fmt: skip
    return CheckpointInfo(number, trigger_ms=trigger_ms, **{**values, **more})


def make_job(root: Path, *, ended: str = "finished", pid: int | None = None, savepoint_dir: str = "") -> Path:
    """The job in `root/harness`. Without an end its run is that of the process `pid`."""
    folder = root / JOB
    with harness(Totals(), folder) as job:
        for number in range(5):
            job.push(*[(f"user-{n % 7}", n) for n in range(number * 20, number * 20 + 20)])
            job.run_epoch()
            if number in (2, 4):
                checkpoint_of(folder, number)
    savepoint = savepoint_of(folder, root / "savepoints")
    files = LocalFileSystem(str(folder))
    run = 7
    record = RunRecord(run, socket.gethostname(), os.getpid() if pid is None else pid, int(time.time() * 1000), 2)
    files.create(layout.run_path(run), msgspec.json.encode(record))
    store = CheckpointStore(files)
    for number in (1, 2, 4):
        store.remember(info(number, START + number * 10_000))
    failed = CheckpointStatus.FAILED
    store.remember(info(3, START + 30_000, status=failed, path="", failure=EVIL, reason=FailureReason.EXPIRED))
    saved = {"type": CheckpointType.SAVEPOINT, "path": savepoint, "request": "first", "savepoint_bytes": 12_345}
    store.remember(info(5, START + 45_000, full=True, **saved))
    journal = Journal(files)
    config = {**CONFIG, "savepoint_dir": savepoint_dir}
    sinks = [{"uid": "out", "kind": "files"}]
    journal.add(6, "started", config=config, parallelism=4, sinks=sinks, **{"from": "start"})
    journal.add(6, "restarting", f"the function said {EVIL}", code="user-function")
    origin: dict[str, Any] = {"from": "savepoint", "path": savepoint, "checkpoint": 5, "epoch": 3}
    journal.add(run, "started", config=config, parallelism=2, sinks=sinks, graph=GRAPH, **origin)
    loads = [SubtaskLoad(30, 30, 5, 1, 400.0, 100.0), SubtaskLoad(10, 10, 2, 0, 100.0, 0.0)]
    epochs = [
        EpochStats(
            n,
            run,
            START + n * 1000,
            500.0 + n,
            40,
            40,
            7,
            2048,
            START - 5000,
            START + n * 1000,
            {UID: loads},
            {"source-0": 40, "out": 38},
        )
        for n in range(60)
    ]
    totals = {UID: [SubtaskLoad(1800, 1800, 5, 60, 0, 0), SubtaskLoad(600, 600, 2, 0, 0, 0)]}
    journal.add_chunk(Chunk(run, epochs, totals, {"source-0": 2400, "out": 2280}))
    if ended:
        journal.add(run, ended, "it is over" if ended == "failed" else "")
    return folder
