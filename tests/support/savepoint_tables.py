"""A savepoint with a table for each kind of state, written, loaded and changed by hand."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cairn.model.ddl import parse_columns
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import OperatorState, StateHandle, StateSpec
from cairn.model.savepoint_records import SavepointMetadata
from cairn.snapshots.table_tasks import (
    LoadWork,
    TableWork,
    assembled,
    load_tables,
    write_tables,
)
from cairn.state.typed_tables import table_schema, to_section
from cairn.storage import savepoint_folder
from cairn.storage.chain_merge import groups_of, write_snapshot
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import create_identity
from cairn.storage.savepoint_folder import SavepointFolder

KEYS = parse_columns("user string, shop int")
SPECS = [
    StateSpec("total", "value", "bigint"),
    StateSpec("profile", "value", "struct<name:string,tags:array<string>>", ttl_ms=60_000),
    StateSpec("visits", "list", "timestamp"),
    StateSpec("by page", "map", "double", "string"),
    StateSpec("_timers.event", "timer", "binary"),
    StateSpec("empty", "value", "pickle"),
]


def rows_of(spec: StateSpec, count: int, offset: int = 0) -> pa.Table:
    """Some rows of each state: `count` keys, several entries per key."""
    per_key = 3 if spec.has_entries else 1
    ids = np.repeat(np.arange(count), per_key)
    columns: dict[str, Any] = {
        "user": pa.array([f"u{i}" for i in ids.tolist()]),
        "shop": pa.array((ids % 7).astype(np.int32)),
        "key_group": pa.array(np.zeros(len(ids), np.int32)),
    }
    at = np.tile(np.arange(per_key), count)
    if spec.name == "total":
        columns["value"] = pa.array(ids * 10 + offset)
    elif spec.name == "profile":
        kind = pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string()))])
        columns["value"] = pa.array([{"name": f"n{i}", "tags": ["a", None]} for i in ids.tolist()], kind)
        columns["last_access"] = pa.array(ids * 1_000_000, pa.timestamp("us", "UTC"))
    elif spec.name == "visits":
        columns["position"] = pa.array(at)
        columns["value"] = pa.array(ids * 1000 + at, pa.timestamp("us", "UTC"))
    elif spec.name == "by page":
        columns["map_key"] = pa.array([f"/{i}" for i in at.tolist()])
        columns["value"] = pa.array(ids + at / 4)
    elif spec.kind == "timer":
        columns["timestamp"] = pa.array(ids * 100 + at)
    else:
        return table_schema(KEYS, spec)[1].empty_table()
    return pa.table(columns)


def make_job(folder: Path, count: int = 300, max_parallelism: int = 16) -> OperatorState:
    """A job's directory with the state of one operator in two snapshots, and one delta on top."""
    files = LocalFileSystem(str(folder))
    sections = {
        spec.name: to_section(rows_of(spec, count), table_schema(KEYS, spec)[0], KEYS, spec, max_parallelism)
        for spec in SPECS
    }
    chain = []
    for groups in (KeyGroupRange(0, 5), KeyGroupRange(6, max_parallelism - 1)):
        parts = []
        for section in sections.values():
            numbers = groups_of(section.data)
            inside = (numbers >= groups.start) & (numbers <= groups.end)
            parts.append(replace(section, data=section.data.filter(pa.array(inside)).combine_chunks()))
        chain.append(write_snapshot(files, f"shared/op/{groups.start}.state", 3, groups, parts))
    spec = SPECS[0]
    delta = to_section(rows_of(spec, 5, offset=1), table_schema(KEYS, spec)[0], KEYS, spec, max_parallelism)
    handle = write_snapshot(files, "shared/op/delta.state", 4, KeyGroupRange(0, max_parallelism - 1), [delta])
    chain.append(msgspec.structs.replace(handle, snapshot=False))
    return OperatorState("op", "Operator", 2, "user string, shop int", SPECS, chain)


def make_savepoint(folder: Path, operator: OperatorState, target: Path, pieces: int = 3, groups: int = 16) -> str:
    progress = SavepointFolder.begin(str(target))
    written: list[bytes] = []
    edges = [groups * i // pieces for i in range(pieces + 1)]
    for first, end in itertools.pairwise(edges):
        told = msgspec.msgpack.encode(operator)
        written += write_tables(TableWork(str(folder), told, first, end - 1, 10**12, progress.path))
    metadata = SavepointMetadata(1, "job", "Job", 1000, groups, [assembled(operator, written)], epoch=4)
    return progress.complete(metadata)


def load(path: str, job: Path, ranges: Any = ((0, 6), (7, 15)), specs: Any = None, **more: Any) -> list[StateHandle]:
    metadata = savepoint_folder.read_savepoint(path)
    operator = metadata.operators[0]
    create_identity(LocalFileSystem(str(job)), "other", "other", metadata.max_parallelism)
    made = []
    for first, last in ranges:
        states = specs if specs is not None else {table.spec.name: table.spec for table in operator.tables}
        work = LoadWork(
            savepoint=path, operator=msgspec.msgpack.encode(operator), max_parallelism=metadata.max_parallelism,
            first_group=first, last_group=last, job_dir=str(job), uid="new-uid", epoch=9, run=1, now_ms=77,
            states=states, **more,
        )  # fmt: skip
        made += [msgspec.msgpack.decode(raw, type=StateHandle) for raw in load_tables(work)]
    return made


def rewrite(path: str, state: str, change: Any) -> str:
    """A savepoint whose files of one state were changed by hand, with metadata that vouches for them."""
    metadata = savepoint_folder.read_savepoint(path)
    operator = metadata.operators[0]
    made = []
    for table in operator.tables:
        files = []
        for file in table.files:
            full = os.path.join(path, file.path)
            if table.spec.name == state:
                changed = change(pq.read_table(full))
                pq.write_table(changed, full, use_dictionary=["key_group"], row_group_size=50)
                data = Path(full).read_bytes()
                file = msgspec.structs.replace(
                    file, size=len(data), checksum=xxhash.xxh3_64_hexdigest(data), rows=changed.num_rows
                )
            files.append(file)
        made.append(msgspec.structs.replace(table, files=files))
    vouch(path, msgspec.structs.replace(metadata, operators=[msgspec.structs.replace(operator, tables=made)]))
    return path


def vouch(path: str, metadata: SavepointMetadata) -> None:
    Path(path, "_metadata").write_bytes(savepoint_folder.encode_savepoint(metadata))
