"""What user code touches: value, list, map, reducing and aggregating state of the current key.

Each handle keeps the epoch's reads and writes in memory, over the committed state in the working store, and is
drained once into a section of the epoch's delta. Every mutation goes through the handle's own table, which is also
what writes the delta, so none can be forgotten. Methods and meanings are PyFlink's.

Values of plain types (numbers, text, bytes) are kept as they are. All others are kept encoded and decoded anew at
each read: changing an object that came from state has no effect until it is written back, on any backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from cairn.errors import InternalError, StateMisuseError, StateTypeError
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
)
from cairn.model.types import DataType, Storage
from cairn.state import codec
from cairn.state.slots import KeySlots, no_current_key
from cairn.state.store import WorkingStore
from cairn.storage.statefile import ARROW_STORAGE, Section, sorted_table

_MISSING: Any = object()
_NO_SLOT = (IndexError, TypeError)


class Ttl:
    """Expiry as all handles see it: one clock per epoch, the batch time that the driver set."""

    __slots__ = ("clock", "length", "on_read", "show_expired")

    def __init__(self, config: StateTtlConfig, clock: int) -> None:
        self.length = config.milliseconds
        self.clock = clock
        self.on_read = config.update_type is UpdateType.OnReadAndWrite
        self.show_expired = config.visibility is StateVisibility.ReturnExpiredIfNotCleanedUp

    def expired(self, time: int | None) -> bool:
        return time is not None and time + self.length <= self.clock


class StateTable(ABC):
    """One registered state of a task: its declaration and its changes in this epoch."""

    def __init__(
        self, operator: str, descriptor: StateDescriptor, slots: KeySlots, store: WorkingStore, clock: int
    ) -> None:
        self.operator = operator
        self.descriptor = descriptor
        self.name = descriptor.name
        self.type: DataType = descriptor.value_type
        self.slots = slots
        self.store = store
        self.ttl = Ttl(descriptor.ttl, clock) if descriptor.ttl is not None else None

    def fit(self, value: Any, dtype: DataType | None = None) -> Any:
        """The stored form of a value, or an error that names operator, state and value."""
        dtype = dtype or self.type
        if value is None:
            raise StateTypeError(
                f"operator '{self.operator}', state '{self.name}': None is no value here; use clear() or remove() to "
                "take something out",
                state=self.name,
            )
        try:
            return dtype.to_storage(value)
        except StateTypeError as error:
            raise StateTypeError(
                f"operator '{self.operator}', state '{self.name}': {error.message}", state=self.name, **error.facts
            ) from None

    def column(self, values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, ARROW_STORAGE[self.type.storage])
        except UnicodeEncodeError:
            for value in values:
                if value is not None:
                    self.fit(value)
            raise

    @abstractmethod
    def drain(self) -> Section | None:
        """The changes of this epoch, sorted; None if there are none."""


class ValueTable(StateTable):
    """One value per slot. Slots are read in bulk, all that are pending, when the first of them is touched."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.values: list[Any] = []
        self.times: list[Any] = []
        self.dirty = bytearray()

    def load(self) -> None:
        first = len(self.values)
        if self.slots.current[0] is None:
            raise no_current_key()
        keys = self.slots.from_slot(first)
        if len(keys) == 0:
            raise StateMisuseError(f"operator '{self.operator}', state '{self.name}': the key has no slot")
        values, times = self.store.read(self.name, keys, self.type.storage, self.ttl is not None)
        self.values.extend(values.to_pylist())
        self.dirty.extend(bytes(len(keys)))
        if times is not None:
            self.times.extend(times.to_pylist())

    def drain(self) -> Section | None:
        changed = np.flatnonzero(np.frombuffer(self.dirty, np.uint8))
        if len(changed) == 0:
            return None
        keys = self.slots.all_keys()
        values = self.values
        if len(changed) == len(keys) == len(values):
            columns = {"key": keys, "value": self.column(values)}
            times = self.times
        else:
            picked = changed.tolist()
            columns = {"key": keys.take(pa.array(changed)), "value": self.column([values[i] for i in picked])}
            times = [self.times[i] for i in picked] if self.ttl is not None else []
        if self.ttl is not None:
            columns["time"] = pa.array(times, pa.int64())
        return Section(self.name, "value", self.type.storage, self.ttl is not None, sorted_table(columns))


class PlainValueState:
    """`ValueState` of a type that is stored as it is, without TTL: the fast path.

    Its methods are closures over the table's lists, because they are called for every row: this spares each call the
    look-up of five attributes.
    """

    __slots__ = ("clear", "update", "value")

    def __init__(self, table: ValueTable) -> None:
        values, dirty, current = table.values, table.dirty, table.slots.current
        exact, low, high = table.type.exact, table.type.low, table.type.high
        load, fit = table.load, table.fit

        def value() -> Any:
            try:
                return values[current[0]]
            except _NO_SLOT:
                load()
                return values[current[0]]

        def update(value: Any) -> None:
            if value.__class__ is not exact and value is not None:
                value = fit(value)
            slot = current[0]
            try:
                values[slot] = value
            except _NO_SLOT:
                load()
                values[slot] = value
            dirty[slot] = 1

        def update_int(value: Any) -> None:
            if value.__class__ is not int or not low <= value <= high:
                value = None if value is None else fit(value)
            slot = current[0]
            try:
                values[slot] = value
            except _NO_SLOT:
                load()
                values[slot] = value
            dirty[slot] = 1

        self.value: Callable[[], Any] = value
        self.update: Callable[[Any], None] = update_int if exact is int else update
        self.clear: Callable[[], None] = partial(self.update, None)


class CodedValueState:
    """`ValueState` of any type, with or without TTL."""

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._from_storage = table.type.from_storage

    def _slot(self) -> int:
        table = self._table
        slot = table.slots.current[0]
        if slot is None or slot >= len(table.values):
            table.load()
        return int(slot)

    def value(self) -> Any:
        slot = self._slot()
        table = self._table
        stored = table.values[slot]
        if stored is None:
            return None
        ttl = table.ttl
        if ttl is not None:
            if ttl.expired(table.times[slot]):
                self._set(slot, None)
                if not ttl.show_expired:
                    return None
            elif ttl.on_read:
                self._set(slot, stored)
        return self._from_storage(stored)

    def update(self, value: Any) -> None:
        stored = None if value is None else self._table.fit(value)
        self._set(self._slot(), stored)

    def clear(self) -> None:
        self._set(self._slot(), None)

    def _set(self, slot: int, stored: Any) -> None:
        table = self._table
        table.values[slot] = stored
        table.dirty[slot] = 1
        if table.ttl is not None:
            table.times[slot] = table.ttl.clock


def value_state(table: ValueTable) -> PlainValueState | CodedValueState:
    if table.ttl is not None or not table.type.plain:
        return CodedValueState(table)
    return PlainValueState(table)


class ReducingState:
    """`ReducingState`: the first value is stored itself, later ones are combined with what is there."""

    def __init__(self, table: ValueTable, descriptor: ReducingStateDescriptor) -> None:
        self._state = value_state(table)
        self._reduce = descriptor.reduce

    def get(self) -> Any:
        return self._state.value()

    def add(self, value: Any) -> None:
        if value is None:
            self._state.clear()
            return
        before = self._state.value()
        self._state.update(value if before is None else self._reduce(before, value))

    def clear(self) -> None:
        self._state.clear()


class AggregatingState:
    """`AggregatingState`: what is stored is the accumulator."""

    def __init__(self, table: ValueTable, descriptor: AggregatingStateDescriptor) -> None:
        self._state = value_state(table)
        self._function = descriptor.aggregate

    def get(self) -> Any:
        accumulator = self._state.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        if value is None:
            self._state.clear()
            return
        accumulator = self._state.value()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._state.update(self._function.add(value, accumulator))

    def clear(self) -> None:
        self._state.clear()


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
        self.known: dict[int, dict[bytes, Any]] = {}
        self.times: dict[int, dict[bytes, int | None]] = {}
        self.touched: dict[int, set[bytes]] = {}

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
        key_type = table.key_type
        self._key_exact = key_type.exact
        self._from_storage = table.type.from_storage
        self._plain = table.type.plain

    def _entry(self, key: Any) -> bytes:
        dtype = self._table.key_type
        return codec.entry_key(dtype, self._table.fit(key, dtype))

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
            raw = table.store.get(table.name, table.prefix(slot) + entry)
            if raw is not None:
                time, raw = table.split(raw)
                found = codec.python_value(raw, table.type.storage)
                if table.ttl is not None:
                    table.times.setdefault(slot, {})[entry] = time
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
                    known[entry] = codec.python_value(raw, table.type.storage)
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

    def drain(self) -> Section | None:
        keys = [self.slots.keys[slot] for slot in self.cleared]
        entries: list[Any] = [None] * len(keys)
        values: list[Any] = [None] * len(keys)
        times: list[Any] = [None] * len(keys)
        for slot, added in self.added.items():
            if added:
                keys.append(self.slots.keys[slot])
                entries.append(self.segment)
                values.append(_pack(added))
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
