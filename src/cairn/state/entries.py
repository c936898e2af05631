"""Map and list state: many entries per key, stored one by one, so that a call costs what it touches.

Methods and meanings are PyFlink's. Neither holds None, and iterating sees the entries as they were when it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from cairn.errors import InternalError
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.types import Storage
from cairn.state import codec
from cairn.state.slots import no_current_key
from cairn.state.table import StateTable
from cairn.storage.statefile import Section, sorted_table

_MISSING: Any = object()
_MEMO = 65_536


class EntryTable(StateTable):
    """Base of map and list tables: many entries per slot, stored one by one."""

    kind: str

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cleared: set[int] = set()

    def slot(self) -> int:
        slot = self.slots.current[0]
        if slot is None:
            raise no_current_key()
        return int(slot)

    def prefix(self, slot: int) -> bytes:
        return codec.entry_prefix(self.slots.keys[slot])

    def stored(self, slot: int) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of a slot: entry bytes and value bytes."""
        prefix = self.prefix(slot)
        cut = len(prefix)
        for key, raw in self.store.scan(self.name, prefix):
            yield key[cut:], raw

    def split(self, raw: bytes) -> tuple[int | None, bytes]:
        if self.ttl is None:
            return None, raw
        return int.from_bytes(raw[:8], "little", signed=True), raw[8:]

    def section(self, keys: list[bytes], entries: list[Any], values: pa.Array, times: list[Any]) -> Section:
        columns: dict[str, Any] = {
            "key": pa.array(keys, pa.binary()),
            "entry": pa.array(entries, pa.binary()),
            "value": values,
        }
        if self.ttl is not None:
            columns["time"] = pa.array(times, pa.int64())
        return Section(self.name, self.kind, self.type.storage, self.ttl is not None, sorted_table(columns))


class MapTable(EntryTable):
    """`known` holds, per slot, what was read or written; `touched` which of it was written."""

    kind = "map"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        descriptor = self.descriptor
        if not isinstance(descriptor, MapStateDescriptor) or descriptor.key_type is None:
            raise InternalError(f"state '{self.name}' is no map")
        self.key_type = descriptor.key_type
        self.read = self.store.getter(self.name)
        self.decode = codec.value_decoder(self.type.storage)
        self._prefixes: dict[int, bytes] = {}
        self.known: dict[int, dict[bytes, Any]] = {}
        self.times: dict[int, dict[bytes, int | None]] = {}
        self.touched: dict[int, set[bytes]] = {}

    def prefix(self, slot: int) -> bytes:
        try:
            return self._prefixes[slot]
        except KeyError:
            made = self._prefixes[slot] = super().prefix(slot)
            return made

    def drain(self) -> Section | None:
        keys: list[bytes] = []
        entries: list[Any] = []
        values: list[Any] = []
        times: list[Any] = []
        ttl = self.ttl is not None
        for slot in self.cleared:
            keys.append(self.slots.keys[slot])
            entries.append(None)
            values.append(None)
            times.append(None)
        for slot, touched in self.touched.items():
            known = self.known[slot]
            keys.extend([self.slots.keys[slot]] * len(touched))
            entries.extend(touched)
            values.extend([known[entry] for entry in touched])
            if ttl:
                stamps = self.times[slot]
                times.extend([stamps.get(entry) for entry in touched])
        if not keys:
            return None
        return self.section(keys, entries, self.column(values), times)


class MapStateHandle:
    """`MapState`. A map holds no None values; iteration sees the entries as they were when it began."""

    def __init__(self, table: MapTable) -> None:
        self._table = table
        self._current = table.slots.current
        self._known = table.known
        self._from_storage = table.type.from_storage
        self._plain = table.type.plain
        self._memo: dict[Any, bytes] = {}
        if table.ttl is None:
            self._without_ttl()

    def _without_ttl(self) -> None:
        """Closures in place of `get` and `put`, which are called for every row: see `PlainValueState`."""
        table, current, known, touched = self._table, self._current, self._known, self._table.touched
        memo, encode, fetch, fit = self._memo.get, self._entry, self._fetch, table.fit
        key_class, value_class = table.key_type.exact, table.type.exact
        low, high = table.type.low, table.type.high
        bounded, plain = low <= high, table.type.plain
        decode = table.type.from_storage

        def get(key: Any) -> Any:
            entry = memo(key) if key.__class__ is key_class else None
            if entry is None:
                entry = encode(key)
            slot = current[0]
            try:
                found = known[slot].get(entry, _MISSING)
            except KeyError:
                known[table.slot()] = {}
                found = _MISSING
            if found is _MISSING:
                found = fetch(slot, entry)
            return found if plain or found is None else decode(found)

        def put(key: Any, value: Any) -> None:
            entry = memo(key) if key.__class__ is key_class else None
            if entry is None:
                entry = encode(key)
            if value.__class__ is not value_class or (bounded and not low <= value <= high):  # type: ignore[operator]
                value = fit(value)
            slot = current[0]
            try:
                known[slot][entry] = value
                touched[slot].add(entry)
            except KeyError:
                known.setdefault(table.slot(), {})[entry] = value
                touched.setdefault(slot, set()).add(entry)

        self.get = get  # type: ignore[method-assign]
        self.put = put  # type: ignore[method-assign]

    def _entry(self, key: Any) -> bytes:
        dtype = self._table.key_type
        entry = codec.entry_key(dtype, self._table.fit(key, dtype))
        if key.__class__ is dtype.exact and len(self._memo) < _MEMO:
            self._memo[key] = entry
        return entry

    def _find(self, slot: int, entry: bytes) -> Any:
        """The stored form of an entry, or None."""
        try:
            found = self._known[slot].get(entry, _MISSING)
        except KeyError:
            self._known[slot] = {}
            found = _MISSING
        if found is _MISSING:
            found = self._fetch(slot, entry)
        return found

    def _fetch(self, slot: int, entry: bytes) -> Any:
        table = self._table
        found = None
        if slot not in table.cleared:
            raw = table.read(table.prefix(slot) + entry)
            if raw is not None:
                if table.ttl is not None:
                    time, raw = table.split(raw)
                    table.times.setdefault(slot, {})[entry] = time
                found = table.decode(raw)
        self._known[slot][entry] = found
        return found

    def _write(self, slot: int, entry: bytes, stored: Any) -> None:
        table = self._table
        try:
            self._known[slot][entry] = stored
        except KeyError:
            self._known[slot] = {entry: stored}
        try:
            table.touched[slot].add(entry)
        except KeyError:
            table.touched[slot] = {entry}
        if table.ttl is not None:
            table.times.setdefault(slot, {})[entry] = table.ttl.clock

    def _visible(self, slot: int, entry: bytes, stored: Any) -> Any:
        """Apply TTL to an entry that is there: its stored form, or None once it has expired."""
        ttl = self._table.ttl
        if ttl is None or stored is None:
            return stored
        if ttl.expired(self._table.times[slot].get(entry)):
            self._write(slot, entry, None)
            return stored if ttl.show_expired else None
        if ttl.on_read:
            self._write(slot, entry, stored)
        return stored

    def get(self, key: Any) -> Any:
        slot = self._current[0]
        if slot is None:
            raise no_current_key()
        entry = self._entry(key)
        stored = self._visible(slot, entry, self._find(slot, entry))
        return stored if self._plain or stored is None else self._from_storage(stored)

    def put(self, key: Any, value: Any) -> None:
        slot = self._current[0]
        if slot is None:
            raise no_current_key()
        self._write(slot, self._entry(key), self._table.fit(value))

    def put_all(self, entries: Any) -> None:
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self._write(self._table.slot(), self._entry(key), None)

    def contains(self, key: Any) -> bool:
        slot = self._table.slot()
        entry = self._entry(key)
        return self._visible(slot, entry, self._find(slot, entry)) is not None

    def _all(self) -> list[tuple[bytes, Any]]:
        """Entry bytes and stored form of all visible entries, in the order of the entry bytes."""
        table = self._table
        slot = table.slot()
        merged: dict[bytes, Any] = {}
        known = self._known.setdefault(slot, {})
        if slot not in table.cleared:
            for entry, raw in table.stored(slot):
                if entry not in known:
                    time, raw = table.split(raw)
                    known[entry] = table.decode(raw)
                    if table.ttl is not None:
                        table.times.setdefault(slot, {})[entry] = time
        for entry, stored in list(known.items()):
            visible = self._visible(slot, entry, stored)
            if visible is not None:
                merged[entry] = visible
        return sorted(merged.items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        dtype = self._table.key_type
        decode = self._from_storage
        return iter([(codec.entry_value(dtype, entry), decode(stored)) for entry, stored in self._all()])

    def keys(self) -> Iterator[Any]:
        dtype = self._table.key_type
        return iter([codec.entry_value(dtype, entry) for entry, _ in self._all()])

    def values(self) -> Iterator[Any]:
        decode = self._from_storage
        return iter([decode(stored) for _, stored in self._all()])

    def is_empty(self) -> bool:
        return not self._all()

    def clear(self) -> None:
        table = self._table
        slot = table.slot()
        table.cleared.add(slot)
        self._known[slot] = {}
        table.touched.pop(slot, None)
        table.times.pop(slot, None)

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list).decode


_Segment = tuple[bytes, "int | None", list[Any]]


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
        found = self._before.get(slot)
        if found is None:
            found = []
            for entry, raw in self.stored(slot):
                time, body = self.split(raw)
                found.append((entry, time, _unpack(body)))
            self._before[slot] = found
        return [segment for segment in found if (slot, segment[0]) not in self.dropped]

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
        return self.section(keys, entries, pa.array(values, pa.binary()), times)

    def section(self, keys: list[bytes], entries: list[Any], values: pa.Array, times: list[Any]) -> Section:
        made = super().section(keys, entries, values, times)
        return Section(made.table, made.kind, Storage.BYTES, made.ttl, made.data)


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
        for entry, time, segment in table.before(slot):
            if ttl is not None and ttl.expired(time):
                table.dropped.add((slot, entry))
                shown += segment if ttl.show_expired else ()
            else:
                alive += segment
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
