"""The state file: typed columns of changed or whole state, ordered by key group, checksummed section by section.

Layout (all integers little-endian)::

    "CAIRNST1"                      magic and format version
    section, section, ...           each an Arrow IPC stream, starting at a multiple of 64 bytes
    owner                           the place that the file was written for (`storage/state_owner.py`)
    footer                          MessagePack: list of section records
    length of footer  (4 bytes)
    xxh3-64 of footer (8 bytes)
    "ETATS\\0\\0\\1"                 end marker

Every section record holds the section's own checksum, and the handle in the manifest holds the footer's, so the
manifest vouches for every byte that is read while a reader touches only the sections it needs.

Columns of a section: `key` (two bytes of key group, big-endian, then the encoded key), `entry` (map key, list
segment or timer time; only in such sections), `value` (null: removed; a null `entry` with a null `value`: all
entries of the key removed before the rest applies) and `time` (last access in ms, only with TTL). Rows are ordered by
key group; in sections with entries, and in snapshots, also by key and entry.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import xxhash

from cairn.errors import CorruptFileError, EpochFailedError, StorageError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import StateHandle
from cairn.model.types import Storage
from cairn.storage import regular_files, state_owner
from cairn.storage.state_owner import Place, StateOwner

MAGIC = b"CAIRNST1"
END = b"ETATS\x00\x00\x01"
_TAIL = 4 + 8 + len(END)
_ALIGN = 64
_MAX_FOOTER = 64 << 20
_MAX_SURPLUS = 1 << 32
"""How much larger than expected a file may be for its owner to be looked up in it."""
MAX_COLUMN_BYTES = 2000 << 20
_FEW_KEYS = 64
_IPC = pa.ipc.IpcWriteOptions()
_WRONG_FOOTER = "its footer does not match its checksum"

ARROW_STORAGE = {
    Storage.INT: pa.int64(),
    Storage.FLOAT: pa.float64(),
    Storage.TEXT: pa.string(),
    Storage.BYTES: pa.binary(),
}


class SectionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the footer says of one section."""

    table: str
    kind: str
    storage: str
    offset: int
    length: int
    checksum: str
    rows: int
    ttl: bool = False
    group: int = -1
    """The one key group in the section, or -1 when it holds several."""


_decode_sections = msgspec.msgpack.Decoder(list[SectionInfo]).decode


@dataclass(frozen=True, slots=True)
class Section:
    """One table's rows: `data` has the columns named in the module's docstring, in the order told there."""

    table: str
    kind: str
    storage: Storage
    ttl: bool
    data: pa.Table
    group: int = -1

    @property
    def has_entries(self) -> bool:
        return "entry" in self.data.column_names


def encode(sections: Iterable[Section], owner: StateOwner | None = None) -> tuple[bytes, str]:
    """The bytes of a state file and the checksum that its handle carries. The checksum does not cover the owner."""
    sink = pa.BufferOutputStream()
    sink.write(MAGIC)
    infos = []
    for section in sections:
        sink.write(b"\0" * (-sink.tell() % _ALIGN))
        offset = sink.tell()
        body_sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(body_sink, section.data.schema, options=_IPC) as writer:
            writer.write_table(section.data)
        body = body_sink.getvalue()
        sink.write(body)
        infos.append(
            SectionInfo(
                table=section.table,
                kind=section.kind,
                storage=section.storage.value,
                offset=offset,
                length=body.size,
                checksum=xxhash.xxh3_64_hexdigest(body),
                rows=section.data.num_rows,
                ttl=section.ttl,
                group=section.group,
            )
        )
    footer = msgspec.msgpack.encode(infos)
    if owner is not None:
        sink.write(state_owner.seal(owner, footer))
    digest = xxhash.xxh3_64(footer)
    sink.write(footer)
    sink.write(len(footer).to_bytes(4, "little"))
    sink.write(digest.digest())
    sink.write(END)
    return sink.getvalue().to_pybytes(), digest.hexdigest()


def handed_over(data: bytes, name: str, handle: StateHandle, owner: StateOwner) -> bytes:
    """A state file with another owner. What it holds, and the checksum of that, stay as they are."""
    StateFile(data, name, handle.checksum, handle.size)
    footer_at = len(data) - _TAIL - int.from_bytes(data[-_TAIL : -_TAIL + 4], "little")
    footer = data[footer_at : len(data) - _TAIL]
    sections_end = footer_at - state_owner.length(data[:footer_at])
    return data[:sections_end] + state_owner.seal(owner, footer) + data[footer_at:]


class StateFile:
    """A state file opened for reading. Nothing is returned before its checksum has been compared."""

    def __init__(
        self, data: bytes | mmap.mmap, name: str, checksum: str, size: int, place: Place | None = None
    ) -> None:
        self._data = data
        self.name = name
        total = len(data)
        try:
            end = end_of(data)
        except ValueError as error:
            raise self._damaged(str(error)) from None
        right = end.checksum == checksum
        if place is not None:  # the file may be whole and belong elsewhere: its owner tells
            place.check(end.owner, name, copied=right and total == size)
        if total != size:
            raise self._damaged(f"it has {total} bytes instead of {size}")
        if not right:
            raise self._damaged(end.why or _WRONG_FOOTER)
        self.owner = end.owner
        """The place that the file was written for; None in files of earlier versions."""
        try:
            self.sections = _decode_sections(end.footer)
        except msgspec.MsgspecError as error:
            raise self._damaged(f"its footer cannot be read ({error})") from error

    @classmethod
    def open(cls, path: str, checksum: str, size: int, place: Place | None = None) -> StateFile:
        """Memory-map a file of this host."""
        try:
            with open(regular_files.open_file(path), "rb") as file:
                actual = os.fstat(file.fileno()).st_size
                if actual > size + _MAX_SURPLUS:  # a vast file is not even mapped
                    raise CorruptFileError(
                        f"state file {path} is damaged: it has {actual} bytes instead of {size}", path=path
                    )
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise CorruptFileError(f"state file {path} is missing", path=path) from None
        except ValueError:
            raise CorruptFileError(f"state file {path} is damaged: it is empty", path=path) from None
        except OSError as error:
            raise StorageError(
                f"cannot read state file {path}: {error.strerror or error}", path=path, errno=error.errno
            ) from error
        return cls(mapped, path, checksum, size, place)

    def _damaged(self, why: str) -> CorruptFileError:
        return CorruptFileError(f"state file {self.name} is damaged: {why}", path=self.name)

    def read(self, info: SectionInfo, groups: KeyGroupRange | None = None) -> Section:
        """The rows of a section, or of the key groups in a range of it."""
        try:
            data = table_of(self._data, info.offset, info.length, info.checksum, groups)
        except ChecksumError as error:
            raise self._damaged(f"the section of state '{info.table}' {error}") from None
        return Section(info.table, info.kind, Storage(info.storage), info.ttl, data, info.group)

    def verify(self, groups: KeyGroupRange) -> None:
        """Read every byte, and compare the key groups in it with those that its handle names: a reader who asks for
        others does not look into this file."""
        for info in self.sections:
            try:
                keys = self.read(info).data.column("key")
                if not len(keys):
                    continue
                first, last = (int.from_bytes(key.as_py()[:2], "big") for key in (keys[0], keys[-1]))
            except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
                raise self._damaged(f"the section of state '{info.table}' cannot be read ({error})") from error
            if first < groups.start or last > groups.end:
                raise self._damaged(
                    f"state '{info.table}' has key groups {first} to {last}, and {groups.start} to {groups.end} are "
                    "told of it"
                )


class ChecksumError(Exception):
    """Bytes are not those that a record tells of."""


class FileEnd(msgspec.Struct, frozen=True):
    """What stands behind the sections of a state file."""

    footer: bytes = b""
    checksum: str = ""
    owner: StateOwner | None = None
    why: str = ""
    """Why there is no footer."""


def end_of(data: bytes | mmap.mmap) -> FileEnd:
    """The end of a state file. Raises ValueError if the record of its owner is damaged."""
    total = len(data)
    if total < len(MAGIC) + _TAIL or data[: len(MAGIC)] != MAGIC:
        return FileEnd(why="it does not begin like a state file")
    tail = data[total - _TAIL :]
    if not tail.endswith(END):
        return FileEnd(why="its end marker is missing")
    length = int.from_bytes(tail[:4], "little")
    if length > min(_MAX_FOOTER, total - _TAIL - len(MAGIC)):
        return FileEnd(why="its footer length is impossible")
    at = total - _TAIL - length
    footer = data[at : at + length]
    if xxhash.xxh3_64_digest(footer) != tail[4:12]:
        return FileEnd(why=_WRONG_FOOTER)
    owner = state_owner.unseal(data[max(len(MAGIC), at - state_owner.MAX_BYTES) : at], footer)
    return FileEnd(footer, xxhash.xxh3_64_hexdigest(footer), owner)


def table_of(
    data: bytes | mmap.mmap, offset: int, length: int, checksum: str, groups: KeyGroupRange | None
) -> pa.Table:
    """The rows of the section in these bytes of a file, or of the key groups in a range of it."""
    if min(offset, length) < 0 or offset + length > len(data):
        raise ChecksumError("lies outside of it")
    body = pa.py_buffer(data).slice(offset, length)
    if xxhash.xxh3_64_hexdigest(body) != checksum:
        raise ChecksumError("does not match its checksum")
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    return table if groups is None else rows_of(table, groups)


def rows_of(data: pa.Table, groups: KeyGroupRange) -> pa.Table:
    """The rows whose key group lies in the range. `data` is ordered by key group, so they are neighbours."""
    keys = data.column("key")

    def group(row: int) -> int:
        return int.from_bytes(keys[row].as_py()[:2], "big")

    rows = range(data.num_rows)
    if not rows or (group(0) >= groups.start and group(-1) <= groups.end):
        return data
    first = bisect_left(rows, groups.start, key=group)
    end = bisect_right(rows, groups.end, lo=first, key=group)
    return data.slice(first, end - first)


def ordered_table(columns: dict[str, pa.Array]) -> pa.Table:
    """A section's table from columns that are in the order that state files promise: nulls of `entry` first."""
    table = pa.table(columns)
    if table.get_total_buffer_size() >= MAX_COLUMN_BYTES <= max(column.nbytes for column in table.columns):
        raise EpochFailedError(
            f"one epoch changed more than {MAX_COLUMN_BYTES >> 20} MiB of one state in one subtask; raise the "
            "parallelism, or let fewer rows into an epoch (maxFilesPerTrigger, maxOffsetsPerTrigger)"
        )
    return table.combine_chunks()


def group_numbers(keys: pa.Array) -> np.ndarray[Any, Any]:
    """The key group of each stored key: its first two bytes."""
    if len(keys) == 0:
        return np.zeros(0, dtype=np.uint16)
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys)]
    data = np.frombuffer(keys.buffers()[2], np.uint8)
    numbers: np.ndarray[Any, Any] = data[offsets].astype(np.uint16) * 256 + data[offsets + 1]
    return numbers


def grouped_table(columns: dict[str, pa.Array]) -> pa.Table:
    """A section's table from unsorted columns, by key group alone: all that a delta of values needs, and cheaper."""
    table = ordered_table(columns)
    if table.num_rows < 2:
        return table
    numbers = group_numbers(table.column("key").chunk(0))
    if (numbers[:-1] <= numbers[1:]).all():
        return table
    return table.take(pa.array(np.argsort(numbers, kind="stable"))).combine_chunks()


def sorted_table(columns: dict[str, pa.Array]) -> pa.Table:
    """A section's table from unsorted columns."""
    table = ordered_table(columns)
    if table.num_rows < 2:
        return table
    if "entry" in columns:
        keys = [("key", "ascending", "at_end"), ("entry", "ascending", "at_start")]
        return table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()
    return table.take(key_order(table.column("key").chunk(0))).combine_chunks()


def _common(one: bytes, other: bytes) -> int:
    """How many bytes two keys begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def key_order(keys: pa.Array) -> pa.Array:
    """The places of these stored keys in ascending order.

    Comparing bytes is slow, comparing integers is not: what all keys begin with is left out, the next eight bytes are
    sorted as numbers, and only keys that agree in these, too, are compared in full.
    """
    if len(keys) < _FEW_KEYS:
        return pc.array_sort_indices(keys)
    ends = pc.min_max(keys)
    skipped = _common(ends["min"].as_py(), ends["max"].as_py())
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(keys.buffers()[2], np.uint8)
    numbers = np.zeros(len(keys), dtype=np.uint64)
    last = len(data) - 1
    for place in range(skipped, skipped + 8):
        at = offsets[:-1] + place
        numbers = (numbers << np.uint64(8)) | np.where(at < offsets[1:], data[np.minimum(at, last)], 0).astype(
            np.uint64
        )
    order = np.argsort(numbers)
    ordered = numbers[order]
    equal = ordered[1:] == ordered[:-1]
    if not equal.any():
        return pa.array(order)
    tied = np.flatnonzero(np.concatenate(([False], equal)) | np.concatenate((equal, [False])))
    if len(tied) * 4 > len(keys):
        return pc.array_sort_indices(keys)
    # Ties stand together and between their neighbours, so sorting all of them at once leaves each run in its place.
    places = order[tied]
    order[tied] = places[np.asarray(pc.array_sort_indices(keys.take(pa.array(places))))]
    return pa.array(order)
