"""Value, reducing and aggregating state: one value per key, read in bulk, written in bulk. Meanings are PyFlink's."""

from __future__ import annotations

from operator import is_not
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import StateMisuseError
from cairn.model.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from cairn.model.functions import none_returned
from cairn.state.key_slots import NO_SLOT, no_current_key
from cairn.state.state_table import TaskTable
from cairn.storage.state_file import Section, grouped_table


class ValueTable(TaskTable):
    """One value per slot. Slots are read in bulk, all that are pending, when the first of them is touched.

    A slot has changed if its value is another object than the one that was read, or if it is marked as dirty.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.values: list[Any] = []
        self.times: list[Any] = []
        self.dirty = bytearray()
        self._before: list[Any] = []

    def load(self) -> None:
        first = len(self.values)
        if self.slots.current[0] is None:
            raise no_current_key()
        keys = self.slots.from_slot(first)
        if len(keys) == 0:
            raise StateMisuseError(f"operator '{self.operator}', state '{self.name}': the key has no slot")
        values, times = self.store.read(self.name, keys, self.type.storage, self.ttl is not None)
        read = values.to_pylist()
        self.values.extend(read)
        self._before.extend(read)
        self.dirty.extend(bytes(len(keys)))
        if times is not None:
            self.times.extend(times.to_pylist())

    def drain(self) -> Section | None:
        replaced = np.fromiter(map(is_not, self.values, self._before), bool, len(self.values))
        changed = np.flatnonzero(replaced | np.frombuffer(self.dirty, bool))
        if len(changed) == 0:
            return None
        keys = self.slots.all_keys()
        values = self.values
        picked = changed.tolist()
        if len(changed) == len(keys) == len(values):
            times = self.times
        else:
            keys = keys.take(pa.array(changed))
            values = [values[i] for i in picked]
            times = [self.times[i] for i in picked] if self.ttl is not None else []
        columns = {"key": keys, "value": self.column(values, picked)}
        if self.ttl is not None:
            columns["time"] = pa.array(times, pa.int64())
        return Section(self.name, "value", self.type.storage, self.ttl is not None, grouped_table(columns))


class PlainValueState:
    """`ValueState` of a type that is stored as it is, without TTL: the fast path.

    Its methods are called for every row. They do as little as they can: which values are new, and whether a number is
    in the range of its type, is left to the drain, which sees all of them at once.
    """

    __slots__ = ("_current", "_exact", "_table", "_values")

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._values = table.values
        self._current = table.slots.current
        self._exact = table.type.exact

    def value(self) -> Any:
        try:
            return self._values[self._current[0]]
        except NO_SLOT:
            self._table.load()
            return self._values[self._current[0]]

    def update(self, value: Any) -> None:
        if type(value) is not self._exact and value is not None:
            value = self._table.fit(value)
        try:
            self._values[self._current[0]] = value
        except NO_SLOT:
            self._table.load()
            self._values[self._current[0]] = value

    def clear(self) -> None:
        self.update(None)


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


class ReducingStateHandle:
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


class AggregatingStateHandle:
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
        added = self._function.add(value, accumulator)
        if added is None:
            raise none_returned(f"{type(self._function).__name__}.add()", "the accumulator")
        self._state.update(added)

    def clear(self) -> None:
        self._state.clear()
