"""`cairn plan-memory`: how much memory and disk a job's state will take on each host, from a snapshot or from numbers.

The estimate is simple on purpose and says what it is made of. Working stores hold every key once; a subtask holds the
keys and values that an epoch touches as Python objects while it runs; a compaction
or savepoint holds a key group at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.errors import InvalidInputError
from cairn.quantities import count, size

OBJECT_BYTES = 150
"""What one key or value costs as a Python object besides its own bytes."""
STORE_FACTOR = {"lmdb": 1.6, "rocksdb": 1.2, "hashmap": 1.0}
"""Bytes on disk (in memory for hashmap) of a stored byte: half-full pages, old versions that are not merged yet."""
WORKER_BYTES = 120 << 20
"""A Python worker with pyarrow and cairn before it holds any state."""


@dataclass(frozen=True)
class Plan:
    """Bytes for one subtask and for a host that runs `slots` of them."""

    keys: int
    state_bytes: int
    store_bytes: int
    epoch_bytes: int
    worker_bytes: int
    host_memory: int
    host_disk: int
    delta_bytes: int


def plan_memory(
    keys: int, entry_bytes: int, touched: int, parallelism: int, slots: int, backend: str, max_parallelism: int
) -> Plan:
    """An estimate. `touched` is the number of distinct keys of an epoch over all subtasks."""
    if backend not in STORE_FACTOR:
        raise InvalidInputError(
            f"there is no estimate for backend {backend!r}; use one of {', '.join(sorted(STORE_FACTOR))}"
        )
    share = -(-keys // parallelism)
    state = share * entry_bytes
    store = int(state * STORE_FACTOR[backend]) + (share * OBJECT_BYTES if backend == "hashmap" else 0)
    mine = -(-min(touched, keys) // parallelism)
    epoch = mine * (entry_bytes + 2 * OBJECT_BYTES)
    group = -(-keys // max_parallelism) * (entry_bytes + OBJECT_BYTES)
    worker = WORKER_BYTES + max(epoch, group) + (store if backend == "hashmap" else 0)
    disk = 0 if backend == "hashmap" else store * slots
    return Plan(keys, keys * entry_bytes, store, epoch, worker, worker * slots, disk, min(touched, keys) * entry_bytes)


def show_plan(
    path: str | None, keys: int | None, entry_bytes: int | None, touched: int | None, parallelism: int, slots: int,
    backend: str, out: Output,
) -> int:  # fmt: skip
    groups = 128
    if path is not None:
        measured_keys, measured_bytes, groups = _measured(path)
        keys = keys if keys is not None else measured_keys
        entry_bytes = entry_bytes if entry_bytes is not None else max(1, measured_bytes // max(1, measured_keys))
    if keys is None or entry_bytes is None:
        raise InvalidInputError(
            "pass a snapshot to measure, or both --keys and --entry-bytes",
            remedy="For example: cairn plan-memory chk-7",
        )
    made = plan_memory(keys, entry_bytes, touched or keys, parallelism, slots, backend, max(groups, parallelism))
    out.document({"version": 1, **{name: getattr(made, name) for name in Plan.__dataclass_fields__}})
    out.line(f"{count(keys)} keys of {size(entry_bytes)}, {size(made.state_bytes)} in total; backend {backend}")
    out.line(f"  each of {parallelism} subtasks   store {size(made.store_bytes)}, per epoch {size(made.epoch_bytes)}")
    out.line(f"  each Python worker    {size(made.worker_bytes)}  (spark.executor.pyspark.memory)")
    out.line(f"  a host with {slots} slots    {size(made.host_memory)} of memory, {size(made.host_disk)} of local disk")
    out.line(f"  written each epoch    up to {size(made.delta_bytes)}")
    out.line("This is an estimate from averages. Allow for skew, and measure with cairn state ls.")
    return ExitCode.OK


def _measured(path: str) -> tuple[int, int, int]:
    """Keys, bytes and key groups of a snapshot."""
    from cairn.snapshots.resolver import open_snapshot
    from cairn.view.state_browser import Masks, summaries

    snapshot = open_snapshot(path)
    found = [entry for uid in snapshot.operators for entry in summaries(snapshot, uid, Masks())]
    if not all(entry.counted for entry in found):
        raise InvalidInputError(f"{path} has too many rows to measure; pass --keys and --entry-bytes", path=path)
    return max((e.keys for e in found), default=0), sum(e.bytes for e in found), snapshot.metadata.max_parallelism
