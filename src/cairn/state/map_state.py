"""Map state: entries are read one by one, or all at once where a map is small. Meanings are PyFlink's.

A map holds no None, and iterating sees the entries as they were when it began, in the order of their encoded keys:
ascending, but decimals by their text, and negative floats after all others, from zero down.

In a task every touched map is a Python dict from the stored form of a map key to the stored form of its value. It has
the entries that are there and nothing else, so that iterating costs what it yields; entries that are known to be absent
are kept apart. Stored forms sort like the bytes of the entries. Floating-point keys are kept as those bytes, because
equal floats are not always the same key and one float is not even equal to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, repeat, takewhile
from operator import is_not
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InternalError
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.types import DataType, Storage
from cairn.state import codec
from cairn.state.drafts import Draft
from cairn.state.entry_table import EntryTable
from cairn.state.key_slots import NO_SLOT, no_current_key
from cairn.storage.state_file import Section, ordered_table

SMALL = 16
"""A map of at most so many entries is read whole when a second entry of it is asked for."""

EAGER_ROWS = 4
"""With so many rows a key, a second entry will be asked for: the map is read whole for the first."""

_D = TypeVar("_D", bound=Draft)
_MISSING: Any = object()
_NOTHING: dict[Any, Any] = {}
_UNREAD, _ASKED, _WHOLE, _LARGE = range(4)


class MapTable(EntryTable):
    """The maps of an operator's keys as far as they are known, by slot.

    `maps` has the entries that are there, `_before` the stored ones as they were read: what differs has changed. A
    stored entry that was written before it was read stands in `_before` as `_MISSING`, which differs from any value.
    `_absent` has the entries that are known not to be there, unless the function put them since, which `maps` shows.
    It says of each whether the delta must remove it, because it is stored or may be stored. Once a map is known as a
    whole, an entry that is in none of the three does not exist.
    """

    kind = "map"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        descriptor = self.descriptor
        if not isinstance(descriptor, MapStateDescriptor) or descriptor.key_type is None:
            raise InternalError(f"state '{self.name}' is no map")
        self.key_type = descriptor.key_type
        self.key_class = descriptor.key_type.exact if descriptor.key_type.storage is not Storage.FLOAT else None
        self.maps: list[dict[Any, Any]] = []
        self.times: dict[int, dict[Any, int | None]] = {}
        self._before: list[dict[Any, Any]] = []
        self._absent: dict[int, dict[Any, bool]] = {}
        self._holes: dict[int, int] = {}
        """How many entries were taken out of a slot's dict, which is as slow to iterate as if they were still in it."""
        self._progress = bytearray()
        self._read = self.store.getter(self.name)
        self._eager = False
        self._removing = False
        """Some entry was removed in this epoch."""
        self.drafted = False
        """Some values are drafts."""

    # Keys of entries.

    def stored_key(self, key: Any) -> Any:
        """The stored form of a map key, or an error that names it."""
        stored = self.fit(key, self.key_type)
        return codec.entry_key(self.key_type, stored) if self.key_type.storage is Storage.FLOAT else stored

    def user_key(self, stored: Any) -> Any:
        if self.key_type.storage is Storage.FLOAT:
            return codec.entry_value(self.key_type, stored)
        return self.key_type.from_storage(stored)

    def _entry_of(self, key: Any) -> bytes:
        return key if self.key_type.storage is Storage.FLOAT else codec.entry_key(self.key_type, key)

    # Reading.

    def map_of(self, slot: int) -> dict[Any, Any]:
        """What is known of a slot's map."""
        missing = len(self.slots) - len(self.maps)
        if missing > 0:
            self.maps.extend([{} for _ in range(missing)])
            self._before.extend([_NOTHING] * missing)
            self._progress.extend(bytes(missing))
            self._eager = self.slots.rows >= EAGER_ROWS * len(self.slots)
        return self.maps[slot]

    def find(self, slot: int, key: Any) -> Any:
        """The stored form of an entry, or None; `key` is in its stored form."""
        known = self.map_of(slot)
        if key in known:
            return known[key]
        progress = self._progress[slot]
        if progress == _WHOLE or key in self._absent.get(slot, _NOTHING):
            return None
        if progress == _ASKED or (progress == _UNREAD and self._eager):
            self._learn(slot, self.store.first(self.name, self.prefix(slot), SMALL + 1))
            known = self.maps[slot]
            if key in known:
                return known[key]
            progress = self._progress[slot]
            if progress == _WHOLE:
                return None
        backend_key = self.prefix(slot) + self._entry_of(key)
        raw = self._read(backend_key)
        if progress == _UNREAD:
            self._progress[slot] = _ASKED
        if raw is None:
            self._absent.setdefault(slot, {})[key] = False
            return None
        self._learn(slot, [(backend_key, raw)], whole=None)
        return self.maps[slot][key]

    def read_whole(self, slot: int) -> dict[Any, Any]:
        """All entries of a slot's map."""
        known = self.map_of(slot)
        if self._progress[slot] != _WHOLE:
            self._learn(slot, list(self.store.scan(self.name, self.prefix(slot))), whole=True)
            return self.maps[slot]
        if self._holes.get(slot, 0) > len(known):
            self.maps[slot] = known = known.copy()
            del self._holes[slot]
        return known

    def is_empty(self, slot: int) -> bool:
        """Whether a map has no entries. Reads no more of it than it must."""
        if self.map_of(slot):
            return False
        if self._progress[slot] in (_UNREAD, _ASKED):
            self._learn(slot, self.store.first(self.name, self.prefix(slot), SMALL + 1))
        return not (self.maps[slot] or self.read_whole(slot))

    def _learn(self, slot: int, pairs: list[tuple[bytes, bytes]], whole: bool | None = False) -> None:
        """Add stored entries to the known ones; an entry that was written or removed here stays as it is.

        `whole` says that these are all entries; None, that nothing is known about that.
        """
        cut = len(self.prefix(slot))
        keys = codec.stored_entries(self.key_type.storage, [name[cut:] for name, _ in pairs])
        values = [raw for _, raw in pairs]
        if self.ttl is not None:
            times = self.times.setdefault(slot, {})
            for at, key in enumerate(keys):
                time, values[at] = self.split(values[at])
                times.setdefault(key, time)
        read = dict(zip(keys, codec.stored_values(self.type.storage, values), strict=True))
        if whole is not None:
            self._progress[slot] = _WHOLE if whole or len(pairs) <= SMALL else _LARGE
        known, absent = self.maps[slot], self._absent.get(slot)
        if not known and not absent:
            self.maps[slot] = read
            self._before[slot] = read.copy()
            return
        before = self._before[slot]
        if before is _NOTHING:
            before = self._before[slot] = {}
        for key, value in read.items():
            if key in known or (absent and key in absent):
                before.setdefault(key, _MISSING)
            else:
                known[key] = before[key] = value
        if absent and self.ttl is None and self._progress[slot] == _WHOLE:
            self._absent[slot] = {key: True for key in absent if key in before}

    # Writing.

    def write(self, slot: int, key: Any, value: Any) -> None:
        """Set an entry; with TTL, at the epoch's time."""
        self.map_of(slot)[key] = value
        if self.ttl is not None:
            self._stamp(slot, key)

    def remove(self, slot: int, key: Any) -> None:
        """Take an entry out. The delta removes it unless it is known not to be stored.

        With TTL it does so in any case: a snapshot may have left out an expired entry that another copy still has.
        """
        self._removing = True
        if self.map_of(slot).pop(key, None) is not None:
            self._holes[slot] = self._holes.get(slot, 0) + 1
        if self.ttl is not None:
            self._stamp(slot, key)
            if slot not in self.cleared:
                self._absent.setdefault(slot, {})[key] = True
        elif self._progress[slot] != _WHOLE:
            self._absent.setdefault(slot, {}).setdefault(key, True)
        elif key in self._before[slot]:
            self._absent.setdefault(slot, {})[key] = True

    def _stamp(self, slot: int, key: Any) -> None:
        assert self.ttl is not None
        self.times.setdefault(slot, {})[key] = self.ttl.clock
        if key in self._before[slot]:
            self._before[slot][key] = _MISSING  # written, even if the value is the same

    def clear(self, slot: int) -> None:
        self.map_of(slot)
        self.maps[slot] = {}
        self._before[slot] = _NOTHING
        self._absent.pop(slot, None)
        self._holes.pop(slot, None)
        self._progress[slot] = _WHOLE
        self.cleared.add(slot)
        self.times.pop(slot, None)

    def drain(self) -> Section | None:
        """Changes in the order of keys and entries, so that nothing needs to be sorted as a whole."""
        cleared = self.cleared
        absent = self._absent if self._removing else _NOTHING
        touched = np.array(
            [slot for slot, known in enumerate(self.maps) if known or slot in cleared or slot in absent], dtype=np.int64
        )
        if len(touched) == 0:
            return None
        names = self.slots.all_keys().take(pa.array(touched))
        ordered = touched[np.asarray(pc.array_sort_indices(names))]
        counts: list[int] = []
        entries: list[Any] = []
        values: list[Any] = []
        earlier: list[Any] = []
        for slot in ordered.tolist():
            known, before = self.maps[slot], self._before[slot]
            removed = [key for key, stored in absent[slot].items() if stored] if slot in absent else None
            if removed:
                known = dict.fromkeys(removed) | known
            keys = sorted(known)
            counts.append(len(keys))
            if slot in cleared:
                counts[-1] += 1
                entries.append(None)
                values.append(None)
                earlier.append(_MISSING)
            entries += keys
            values += map(known.__getitem__, keys)
            earlier += map(before.get, keys, repeat(_MISSING))
        if self.drafted:
            values = [value.stored() if isinstance(value, Draft) else value for value in values]
        changed = np.fromiter(map(is_not, values, earlier), bool, len(values))
        slots = np.repeat(ordered, counts)
        if not changed.all():
            slots = slots[changed]
            entries = list(compress(entries, changed))
            values = list(compress(values, changed))
        if len(slots) == 0:
            return None
        rows = slots.tolist()
        columns = {
            "key": self.slots.all_keys().take(pa.array(slots)),
            "entry": self._entry_column(entries, rows),
            "value": self.column(values, rows),
        }
        if self.ttl is not None:
            empty: dict[Any, int | None] = {}
            stamps = [self.times.get(slot, empty).get(key) for slot, key in zip(rows, entries, strict=True)]
            columns["time"] = pa.array(stamps, pa.int64())
        return Section(self.name, self.kind, self.type.storage, self.ttl is not None, ordered_table(columns))

    def decode(self, stored: Any) -> Any:
        """A value as users see it."""
        return self.type.from_storage(stored.stored() if isinstance(stored, Draft) else stored)

    def _entry_column(self, keys: list[Any], slots: Sequence[int]) -> pa.Array:
        """Entry bytes of map keys, null where there is none; what the fast paths let through is checked here."""
        storage = self.key_type.storage
        try:
            if storage is not Storage.INT:
                return pa.array(keys, pa.string() if storage is Storage.TEXT else pa.binary()).cast(pa.binary())
            numbers = pa.array(keys, pa.int64())
            if self.in_range(numbers, self.key_type):
                ordered = codec.group_order(np.asarray(numbers.fill_null(0)))
                return pc.if_else(numbers.is_valid(), ordered, None) if numbers.null_count else ordered
        except (UnicodeEncodeError, OverflowError):
            pass
        for slot, key in zip(slots, keys, strict=True):
            self.slots.current[0] = slot
            if key is not None:
                self.fit(self.user_key(key), self.key_type)
        raise InternalError(f"operator '{self.operator}', state '{self.name}': a map key cannot be stored")


class MapStateHandle:
    """`MapState` of any type, with or without TTL."""

    __slots__ = ("_decode", "_table")

    def __init__(self, table: MapTable) -> None:
        self._table = table
        self._decode: Callable[[Any], Any] = table.decode

    def _visible(self, slot: int, key: Any, stored: Any) -> Any:
        """Apply TTL to an entry that is there: its stored form, or None once it has expired."""
        table = self._table
        ttl = table.ttl
        if ttl is None or stored is None:
            return stored
        if ttl.expired(table.times[slot].get(key)):
            table.remove(slot, key)
            return stored if ttl.show_expired else None
        if ttl.on_read:
            table.write(slot, key, stored)
        return stored

    def _look_up(self, key: Any) -> Any:
        table = self._table
        slot = table.slot()
        key = table.stored_key(key)
        return self._visible(slot, key, table.find(slot, key))

    def get(self, key: Any) -> Any:
        stored = self._look_up(key)
        return None if stored is None else self._decode(stored)

    def put(self, key: Any, value: Any) -> None:
        table = self._table
        table.write(table.slot(), table.stored_key(key), table.fit(value))

    def put_all(self, entries: Any) -> None:
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            self.put(key, value)

    def remove(self, key: Any) -> None:
        table = self._table
        table.remove(table.slot(), table.stored_key(key))

    def contains(self, key: Any) -> bool:
        return self._look_up(key) is not None

    def _all(self) -> list[tuple[Any, Any]]:
        """Stored key and value of all visible entries, in the order of the entries."""
        table = self._table
        slot = table.slot()
        known = table.read_whole(slot)
        if table.ttl is None:
            return [(key, known[key]) for key in sorted(known)]
        pairs = [(key, self._visible(slot, key, known[key])) for key in sorted(known)]
        return [pair for pair in pairs if pair[1] is not None]

    def items(self) -> Iterator[tuple[Any, Any]]:
        user_key, decode = self._table.user_key, self._decode
        return iter([(user_key(key), decode(stored)) for key, stored in self._all()])

    def keys(self) -> Iterator[Any]:
        user_key = self._table.user_key
        return iter([user_key(key) for key, _ in self._all()])

    def values(self) -> Iterator[Any]:
        decode = self._decode
        return iter([decode(stored) for _, stored in self._all()])

    def is_empty(self) -> bool:
        """Whether no entry is visible. This is no read in the sense of TTL: it renews no time."""
        table = self._table
        slot = table.slot()
        ttl = table.ttl
        if ttl is None or ttl.show_expired:
            return table.is_empty(slot)
        known = table.read_whole(slot)
        times = table.times[slot] if known else _NOTHING
        for key in list(takewhile(lambda key: ttl.expired(times.get(key)), known)):
            table.remove(slot, key)
        return not known

    def clear(self) -> None:
        self._table.clear(self._table.slot())

    # For operators of cairn's own.

    def slot(self) -> int:
        """A number that stands for the current key until the epoch ends."""
        return self._table.slot()

    def fit(self, value: Any, dtype: DataType) -> Any:
        """The stored form of a part of a value, or an error that names operator, state and part."""
        return self._table.fit(value, dtype)

    def draft(self, key: Any, kind: Callable[[bytes | None], _D]) -> _D:
        """The value of an entry as a draft, an empty one where there is none. `keep` writes it."""
        table = self._table
        slot = table.slot()
        key = table.stored_key(key)
        stored = self._visible(slot, key, table.find(slot, key))
        if isinstance(stored, Draft):
            return stored  # type: ignore[return-value]
        draft = kind(stored)
        if key in table.maps[slot]:
            table.drafted = True
            table.maps[slot][key] = draft
        return draft

    def keep(self, key: Any, draft: Draft) -> None:
        """Write a draft that has changed."""
        draft.changed = True
        self._table.drafted = True
        self._table.write(self._table.slot(), self._table.stored_key(key), draft)

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


class PlainMapState(MapStateHandle):
    """`MapState` without TTL whose values are stored as they are: the fast path. See `PlainValueState`."""

    __slots__ = ("_current", "_key_class", "_maps", "_value_class")

    def __init__(self, table: MapTable) -> None:
        super().__init__(table)
        self._decode = table.type.from_storage  # plain values are never drafts
        self._maps = table.maps
        self._current = table.slots.current
        self._key_class = table.key_class
        self._value_class = table.type.exact

    def get(self, key: Any) -> Any:
        if type(key) is not self._key_class:
            key = self._table.stored_key(key)
        try:
            found = self._maps[self._current[0]].get(key, _MISSING)
        except NO_SLOT:
            return self._fetch(key)
        return self._fetch(key) if found is _MISSING else found

    def _fetch(self, key: Any) -> Any:
        table = self._table
        if type(key) is table.key_class:
            table.fit(key, table.key_type)
        slot = self._current[0]
        if slot is None:
            raise no_current_key()
        return table.find(slot, key)

    def put(self, key: Any, value: Any) -> None:
        if type(key) is not self._key_class:
            key = self._table.stored_key(key)
        if type(value) is not self._value_class:
            value = self._table.fit(value)
        try:
            self._maps[self._current[0]][key] = value
        except NO_SLOT:
            self._table.map_of(self._table.slot())[key] = value


def map_state(table: MapTable) -> MapStateHandle:
    if table.ttl is not None or not table.type.plain:
        return MapStateHandle(table)
    return PlainMapState(table)
