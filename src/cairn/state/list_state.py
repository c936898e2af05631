"""List state: elements added in an epoch form one segment, so appending reads nothing. Meanings are PyFlink's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from cairn.model.types import Storage
from cairn.state import codec
from cairn.state.entry_table import EntryTable
from cairn.state.key_slots import no_current_key
from cairn.storage.state_file import Section, sorted_table

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list).decode


_Segment = tuple[bytes, "int | None", list[Any]]


def segment_elements(body: bytes) -> list[Any]:
    """The stored forms of the elements in one stored segment (without time)."""
    return list(_unpack(body))


class ListTable(EntryTable):
    """Elements added in an epoch form one segment under the epoch's number, so appending reads nothing."""

    kind = "list"

    def __init__(self, *args: Any, epoch: int) -> None:
        super().__init__(*args)
        self.segment = codec.time_bytes(epoch)
        self.added: dict[int, list[Any]] = {}
        self.dropped: set[tuple[int, bytes]] = set()
        self._before: dict[int, list[_Segment]] = {}

    def before(self, slot: int) -> list[_Segment]:
        """The committed segments of a slot that still count: entry, time and elements."""
        if slot in self.cleared:
            return []
        segments = self._before.get(slot)
        if segments is None:
            segments = []
            for entry, raw in self.stored(slot):
                time, body = self.split(raw)
                segments.append((entry, time, _unpack(body)))
            self._before[slot] = segments
        return segments

    def drop(self, slot: int, expired: set[bytes]) -> None:
        """Let segments go whose time is over."""
        self.dropped.update((slot, entry) for entry in expired)
        self._before[slot] = [segment for segment in self._before[slot] if segment[0] not in expired]

    def _packed(self, added: list[Any]) -> bytes:
        try:
            return _pack(added)
        except UnicodeEncodeError:
            for stored in added:
                self.fit(stored)
            raise

    def drain(self) -> Section | None:
        keys = [self.slots.keys[slot] for slot in self.cleared]
        entries: list[Any] = [None] * len(keys)
        values: list[Any] = [None] * len(keys)
        times: list[Any] = [None] * len(keys)
        for slot, added in self.added.items():
            if added:
                keys.append(self.slots.keys[slot])
                entries.append(self.segment)
                values.append(self._packed(added))
                times.append(self.ttl.clock if self.ttl is not None else None)
        for slot, entry in self.dropped:
            if slot not in self.cleared:
                keys.append(self.slots.keys[slot])
                entries.append(entry)
                values.append(None)
                times.append(None)
        if not keys:
            return None
        columns: dict[str, Any] = {
            "key": pa.array(keys, pa.binary()),
            "entry": pa.array(entries, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
        if self.ttl is not None:
            columns["time"] = pa.array(times, pa.int64())
        return Section(self.name, self.kind, Storage.BYTES, self.ttl is not None, sorted_table(columns))


class ListStateHandle:
    """`ListState`. Elements are never None; reading sees the list as it is at that moment."""

    def __init__(self, table: ListTable) -> None:
        self._table = table
        self._current = table.slots.current
        self._added = table.added
        self._exact = table.type.exact if table.type.exact is not int else None

    def add(self, value: Any) -> None:
        slot = self._current[0]
        if slot is None:
            raise no_current_key()
        stored = value if value.__class__ is self._exact else self._table.fit(value)
        try:
            self._added[slot].append(stored)
        except KeyError:
            self._added[slot] = [stored]

    def add_all(self, values: Iterable[Any]) -> None:
        for stored in [self._table.fit(value) for value in values]:
            self._added.setdefault(self._table.slot(), []).append(stored)

    def get(self) -> Iterator[Any]:
        table = self._table
        slot = table.slot()
        ttl = table.ttl
        alive: list[Any] = []
        shown: list[Any] = []
        expired: set[bytes] = set()
        for entry, time, segment in table.before(slot):
            if ttl is not None and ttl.expired(time):
                expired.add(entry)
                shown += segment if ttl.show_expired else ()
            else:
                alive += segment
        if expired:
            table.drop(slot, expired)
        alive += self._added.get(slot, ())
        if ttl is not None and ttl.on_read and alive:
            self._replace(slot, alive)
        elements = shown + alive
        decode = table.type.from_storage
        return iter([decode(stored) for stored in elements])

    def __iter__(self) -> Iterator[Any]:
        return self.get()

    def update(self, values: Iterable[Any]) -> None:
        self._replace(self._table.slot(), [self._table.fit(value) for value in values])

    def clear(self) -> None:
        self._replace(self._table.slot(), [])

    def _replace(self, slot: int, stored: list[Any]) -> None:
        self._table.cleared.add(slot)
        self._added[slot] = list(stored)
