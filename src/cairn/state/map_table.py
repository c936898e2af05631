"""The maps of an operator's keys in one task, as far as they are known, and what of them has changed.

Every touched map is a Python dict from the stored form of a map key to the stored form of its value. It has the
entries that are there and nothing else, so that iterating costs what it yields; entries that are known to be absent
are kept apart. Stored forms sort like the bytes of the entries. Floating-point keys are kept as those bytes, because
equal floats are not always the same key and one float is not even equal to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, repeat
from operator import is_not
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InternalError
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.types import Storage
from cairn.state import codec
from cairn.state.drafts import Draft
from cairn.state.entry_table import EntryTable
from cairn.storage.state_file import Section, ordered_table

SMALL = 16
"""A map of at most this many entries is read as a whole when a second entry is requested."""

EAGER_ROWS = 4
"""With this many rows per key, a second entry is likely: the map is read as a whole for the first."""

MISSING: Any = object()
NOTHING: dict[Any, Any] = {}
_UNREAD, _ASKED, _WHOLE, _LARGE = range(4)


class MapTable(EntryTable):
    """The maps of an operator's keys as far as they are known, by slot.

    `maps` has the entries that are there, `_before` the stored ones as they were read: what differs has changed. A
    stored entry that was written before it was read stands in `_before` as `MISSING`, which differs from any value.
    `_absent` has the entries that are known not to be there, unless the function put them since, which `maps` shows.
    It says of each whether the delta must remove it, because it is stored or may be stored. Once a map is known as a
    whole, an entry that is in none of the three does not exist.
    """

    kind = "map"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        descriptor = self.descriptor
        if not isinstance(descriptor, MapStateDescriptor) or descriptor.key_type is None:
            raise InternalError(f"state '{self.name}' is not a map")
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
            self._before.extend([NOTHING] * missing)
            self._progress.extend(bytes(missing))
            self._eager = self.slots.rows >= EAGER_ROWS * len(self.slots)
        return self.maps[slot]

    def find(self, slot: int, key: Any) -> Any:
        """The stored form of an entry, or None; `key` is in its stored form."""
        known = self.map_of(slot)
        if key in known:
            return known[key]
        progress = self._progress[slot]
        if progress == _WHOLE or key in self._absent.get(slot, NOTHING):
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
        if before is NOTHING:
            before = self._before[slot] = {}
        for key, value in read.items():
            if key in known or (absent and key in absent):
                before.setdefault(key, MISSING)
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
            self._before[slot][key] = MISSING  # written, even if the value is the same

    def clear(self, slot: int) -> None:
        self.map_of(slot)
        self.maps[slot] = {}
        self._before[slot] = NOTHING
        self._absent.pop(slot, None)
        self._holes.pop(slot, None)
        self._progress[slot] = _WHOLE
        self.cleared.add(slot)
        self.times.pop(slot, None)

    def drain(self) -> Section | None:
        """Changes in the order of keys and entries, so that nothing needs to be sorted as a whole."""
        cleared = self.cleared
        absent = self._absent if self._removing else NOTHING
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
                earlier.append(MISSING)
            entries += keys
            values += map(known.__getitem__, keys)
            earlier += map(before.get, keys, repeat(MISSING))
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
