"""Map state as functions hold it. Meanings are PyFlink's.

A map holds no None, and iterating sees the entries as they were when it began, in the order of their encoded keys:
ascending, but decimals by their text, and negative floats after all others, from zero down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Any, TypeVar

from cairn.model.types import DataType
from cairn.state.drafts import Draft
from cairn.state.key_slots import NO_SLOT, no_current_key
from cairn.state.map_table import MISSING, NOTHING, MapTable

_D = TypeVar("_D", bound=Draft)


class MapSyntax:
    """`state[key]`, `key in state` and iterating, in terms of PyFlink's methods."""

    __slots__ = ()

    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    remove: Callable[[Any], None]
    contains: Callable[[Any], bool]
    keys: Callable[[], Iterator[Any]]

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


class MapStateHandle(MapSyntax):
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
        times = table.times[slot] if known else NOTHING
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
            found = self._maps[self._current[0]].get(key, MISSING)
        except NO_SLOT:
            return self._fetch(key)
        return self._fetch(key) if found is MISSING else found

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
