"""Merging a chain of state files into snapshots: key group by key group, so memory follows the largest group.

The result holds what a reader of the whole chain would see, and nothing of what was removed or overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import StateHandle, StateSpec
from cairn.model.types import Storage
from cairn.storage import statefile
from cairn.storage.filesystem import FileSystem
from cairn.storage.statefile import Section, SectionInfo, StateFile, sorted_table

FILE_BYTES = 64 << 20


class _OpenSection:
    """A section whose rows can be asked for by key group."""

    def __init__(self, file: StateFile, info: SectionInfo) -> None:
        self.info = info
        self._file = file
        self._data: pa.Table | None = None
        self._groups: np.ndarray[Any, Any] = np.zeros(0, dtype=np.int64)

    def rows(self, group: int) -> pa.Table | None:
        if self.info.group >= 0:
            return self._file.read(self.info).data if self.info.group == group else None
        if self._data is None:
            self._data = self._file.read(self.info).data.combine_chunks()
            self._groups = groups_of(self._data)
        first, last = np.searchsorted(self._groups, [group, group + 1])
        return self._data.slice(first, last - first) if last > first else None


def groups_of(data: pa.Table) -> np.ndarray[Any, Any]:
    """The key group of every row."""
    if data.num_rows == 0:
        return np.zeros(0, dtype=np.int64)
    keys = data.column("key").combine_chunks()
    keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
    numbers: np.ndarray[Any, Any] = statefile.group_numbers(keys).astype(np.int64)
    return numbers


def merged(tables: Sequence[pa.Table], entries: bool) -> pa.Table:
    """The rows that survive, oldest table first: newest value per key (and entry), removals applied and dropped."""
    if len(tables) == 1 and _is_merged(tables[0], entries):
        return tables[0]
    together = pa.concat_tables(tables).combine_chunks()
    age = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    keys = _codes(together.column("key"))
    alive = np.ones(together.num_rows, dtype=bool)
    if entries:
        entry = together.column("entry")
        clears = np.asarray(pc.is_null(entry))
        if clears.any():
            cleared_at = np.full(int(keys.max()) + 1, -1)
            np.maximum.at(cleared_at, keys[clears], age[clears])
            alive &= (age >= cleared_at[keys]) & ~clears
        codes = _codes(pc.fill_null(entry, b""))
        keys = keys * (int(codes.max(initial=0)) + 1) + codes
    newest = np.zeros(together.num_rows, dtype=bool)
    places = np.flatnonzero(alive)
    if len(places):
        _, at = np.unique(keys[places][::-1], return_index=True)
        newest[places[len(places) - 1 - at]] = True
    newest &= np.asarray(pc.is_valid(together.column("value")))
    kept = together.filter(pa.array(newest))
    return sorted_table({name: kept.column(name) for name in kept.column_names})


def _is_merged(table: pa.Table, entries: bool) -> bool:
    """Whether a table holds no removals and is in the order of snapshots, as the sections of a snapshot are."""
    if table.column("value").null_count or (entries and table.column("entry").null_count):
        return False
    if entries or table.num_rows < 2:
        return True  # sections with entries are sorted in deltas, too
    keys = table.column("key").combine_chunks()
    keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
    return bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py())


def _codes(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = encoded.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices).astype(np.int64)


def compact(
    open_file: Callable[[StateHandle], StateFile],
    handles: Sequence[StateHandle],
    groups: KeyGroupRange,
    specs: Mapping[str, StateSpec],
    now_ms: int,
    states: Sequence[str] | None = None,
) -> Iterator[tuple[KeyGroupRange, list[Section]]]:
    """The merged sections of a range, in portions of about `FILE_BYTES`, each with the groups that it covers.

    `states` names the states that are wanted; without it all are.
    """
    opened: dict[tuple[str, str, str, bool], list[_OpenSection]] = {}
    for handle in handles:
        file = open_file(handle)
        for info in file.sections:
            if states is not None and info.table not in states:
                continue
            identity = (info.table, info.kind, info.storage, info.ttl)
            opened.setdefault(identity, []).append(_OpenSection(file, info))
    portion: list[Section] = []
    size = 0
    start = groups.start
    for group in range(groups.start, groups.end + 1):
        for (table, kind, storage, ttl), sections in opened.items():
            rows = [found for found in (section.rows(group) for section in sections) if found is not None]
            if not rows:
                continue
            data = merged(rows, entries="entry" in rows[0].column_names)
            spec = specs.get(table)
            if ttl and spec is not None and spec.cleanup_at_snapshot and spec.ttl_ms:
                data = data.filter(pc.greater(data.column("time"), now_ms - spec.ttl_ms))
            if data.num_rows:
                portion.append(Section(table, kind, Storage(storage), ttl, data, group))
                size += data.nbytes
        if size >= FILE_BYTES or group == groups.end:
            yield KeyGroupRange(start, group), portion
            portion, size, start = [], 0, group + 1


def write_snapshot(
    files: FileSystem, path: str, epoch: int, groups: KeyGroupRange, sections: Sequence[Section]
) -> StateHandle:
    """A snapshot file and its handle. It is written even when empty: it says that the range has no older state."""
    data, checksum = statefile.encode(sections)
    files.create(path, data)
    rows = sum(section.data.num_rows for section in sections)
    return StateHandle(epoch, groups.start, groups.end, len(data), checksum, path, snapshot=True, rows=rows)
