"""Merging a chain of state files into snapshots: key group by key group, so memory follows the largest group.

The result holds what a reader of the whole chain would see, and nothing of what was removed or overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import StateHandle, StateSpec
from cairn.model.types import Storage
from cairn.storage import state_file
from cairn.storage.filesystem import FileSystem
from cairn.storage.state_file import Section, SectionInfo, StateFile, ordered_table, sorted_table
from cairn.storage.state_owner import Writer

FILE_BYTES = 64 << 20
_FEW_ROWS = 1000
_FEW_BYTES = 4 << 20


class _Grouped:
    """Rows that are ordered by key group, to be asked for by it."""

    def __init__(self, data: pa.Table, places: Mapping[int, tuple[int, int]], merged: bool) -> None:
        self.merged = merged
        """Sorted, each key (and entry) once, nothing removed."""
        self._data = data
        self._places = places

    def rows(self, group: int) -> pa.Table | None:
        first, end = self._places.get(group, (0, 0))
        return self._data.slice(first, end - first) if end else None


class _OpenSection:
    """A section whose rows can be asked for by key group."""

    def __init__(self, file: StateFile, info: SectionInfo) -> None:
        self.info = info
        self.merged = info.group >= 0
        """Of a snapshot: sorted, each key (and entry) once, nothing removed."""
        self._file = file
        self._grouped: _Grouped | None = None

    def rows(self, group: int) -> pa.Table | None:
        if self.merged:
            return self._file.read(self.info).data if self.info.group == group else None
        if self._grouped is None:
            data = self._file.read(self.info).data.combine_chunks()
            self._grouped = _Grouped(data, _places_of(groups_of(data)), merged=False)
        return self._grouped.rows(group)

    def within(self, groups: KeyGroupRange) -> pa.Table | None:
        """All rows of a range of key groups."""
        if self.merged and not groups.contains(self.info.group):
            return None
        data = self._file.read(self.info, groups).data
        return data if data.num_rows else None


def _few_at_once(sections: Sequence[_OpenSection], groups: KeyGroupRange) -> Sequence[_OpenSection | _Grouped]:
    """The same rows, merged already if they are few: then the calls of a merge cost more than its rows."""
    rows = sum(section.info.rows for section in sections)
    size = sum(section.info.length for section in sections)
    if rows > _FEW_ROWS or size > _FEW_BYTES or all(section.merged for section in sections):
        return sections
    tables = [table for section in sections if (table := section.within(groups)) is not None]
    if not tables:
        return ()
    return [_merged_few(tables)]


def _places_of(numbers: np.ndarray[Any, Any]) -> dict[int, tuple[int, int]]:
    """Where the rows of each key group begin and end, in rows that are ordered by it."""
    edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    return {int(numbers[first]): (first, end) for first, end in pairwise(edges) if end}


def _merged_few(tables: Sequence[pa.Table]) -> _Grouped:
    """What `merged` makes of them, with plain dicts."""
    together = pa.concat_tables(tables).combine_chunks()
    keys = together.column("key").to_pylist()
    has_entries = "entry" in together.column_names
    entries = together.column("entry").to_pylist() if has_entries else [b""] * len(keys)
    newest: dict[bytes, dict[bytes, int]] = {}
    end = 0
    for table in tables:
        rows = range(end, end := end + table.num_rows)
        for row in rows:
            if entries[row] is None:  # all older entries of the key go, before the rest of the table applies
                newest.pop(keys[row], None)
        for row in rows:
            if entries[row] is not None:
                newest.setdefault(keys[row], {})[entries[row]] = row
    kept = [row for key in sorted(newest) for _, row in sorted(newest[key].items())]
    value = together.column("value")
    if value.null_count:
        present = value.is_valid().to_pylist()
        kept = [row for row in kept if present[row]]
    taken = together.take(pa.array(kept, pa.int64()))
    places: dict[int, tuple[int, int]] = {}
    for place, row in enumerate(kept):
        group = int.from_bytes(keys[row][:2], "big")
        places[group] = (places.get(group, (place, 0))[0], place + 1)
    return _Grouped(ordered_table({name: taken.column(name) for name in taken.column_names}), places, merged=True)


def groups_of(data: pa.Table) -> np.ndarray[Any, Any]:
    """The key group of every row."""
    if data.num_rows == 0:
        return np.zeros(0, dtype=np.int64)
    keys = data.column("key").combine_chunks()
    keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
    numbers: np.ndarray[Any, Any] = state_file.group_numbers(keys).astype(np.int64)
    return numbers


def merged(tables: Sequence[pa.Table], entries: bool) -> pa.Table:
    """The rows that survive, oldest table first: newest value per key (and entry), removals applied and dropped."""
    if len(tables) == 1 and not entries:  # a file has each key once
        kept = tables[0]
        if kept.column("value").null_count:
            kept = kept.filter(pc.is_valid(kept.column("value")))
        return sorted_table({name: kept.column(name) for name in kept.column_names})
    together = pa.concat_tables(tables).combine_chunks()
    keys = _codes(together.column("key"))
    places = np.arange(together.num_rows)
    if entries:
        age = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
        entry = together.column("entry")
        clears = np.asarray(pc.is_null(entry))
        alive = ~clears
        if clears.any():
            cleared_at = np.full(int(keys.max()) + 1, -1)
            np.maximum.at(cleared_at, keys[clears], age[clears])
            alive &= age >= cleared_at[keys]
        codes = _codes(pc.fill_null(entry, b""))
        keys = _codes(pa.array(keys * (int(codes.max(initial=0)) + 1) + codes))
        places = np.flatnonzero(alive)
    newest = np.full(int(keys.max(initial=-1)) + 1, -1)
    newest[keys[places]] = places  # of several rows the last one stays
    kept = np.sort(newest[newest >= 0])
    value = together.column("value")
    if value.null_count:
        kept = kept[np.asarray(pc.is_valid(value))[kept]]
    kept = together.take(pa.array(kept))
    return sorted_table({name: kept.column(name) for name in kept.column_names})


def _codes(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    """The same number for equal values, from 0 on."""
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
    wanted: Callable[[SectionInfo], bool] = lambda info: True,
) -> Iterator[tuple[KeyGroupRange, list[Section]]]:
    """The merged sections of a range, in portions of about `FILE_BYTES`, each with the groups that it covers.

    Values come out in the order of their keys over all portions. `wanted` chooses among the sections of the files.
    """
    opened: dict[tuple[str, str, str, bool], list[_OpenSection]] = {}
    for handle in handles:
        file = open_file(handle)
        for info in filter(wanted, file.sections):
            identity = (info.table, info.kind, info.storage, info.ttl)
            opened.setdefault(identity, []).append(_OpenSection(file, info))
    portion: list[Section] = []
    size = 0
    start = groups.start
    sources = [(identity, _few_at_once(sections, groups)) for identity, sections in opened.items()]
    for group in range(groups.start, groups.end + 1):
        for (table, kind, storage, ttl), sections in sources:
            rows = [(section, found) for section in sections if (found := section.rows(group)) is not None]
            if not rows:
                continue
            if len(rows) == 1 and rows[0][0].merged:
                data = rows[0][1]
            else:
                data = merged([found for _, found in rows], entries="entry" in rows[0][1].column_names)
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
    files: FileSystem,
    path: str,
    epoch: int,
    groups: KeyGroupRange,
    sections: Sequence[Section],
    writer: Writer | None = None,
) -> StateHandle:
    """A snapshot file and its handle. It is written even when empty: it says that the range has no older state."""
    owner = writer.owner(path, epoch, groups, snapshot=True) if writer is not None else None
    data, checksum = state_file.encode(sections, owner)
    files.create(path, data)
    rows = sum(section.data.num_rows for section in sections)
    return StateHandle(epoch, groups.start, groups.end, len(data), checksum, path, snapshot=True, rows=rows)
