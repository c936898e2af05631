"""The states of one operator instance: made on demand, checked against what is stored, drained into the delta."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import IncompatibleStateError, InvalidInputError
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
)
from cairn.model.functions import TimeDomain
from cairn.model.manifest import EpochContext, StateSpec
from cairn.model.state_names import EVENT_TIMERS, PROCESSING_TIMERS
from cairn.model.types import DataType
from cairn.state.key_slots import KeySlots
from cairn.state.list_state import ListStateHandle, ListTable
from cairn.state.map_state import map_state
from cairn.state.map_table import MapTable
from cairn.state.state_table import TaskTable
from cairn.state.timer_table import TimerTable
from cairn.state.value_state import AggregatingStateHandle, ReducingStateHandle, ValueTable, value_state
from cairn.state.working_store import WorkingStore
from cairn.storage.state_file import ARROW_STORAGE, Section, grouped_table


class StateRegistry:
    """The states of one operator instance: made on demand, checked against what is stored, drained at the end."""

    def __init__(
        self, uid: str, slots: KeySlots, store: WorkingStore, stored: Iterable[StateSpec], context: EpochContext
    ) -> None:
        self.uid = uid
        self.epoch = context.epoch
        self.slots = slots
        self.store = store
        self._context = context
        self._stored = {spec.name: spec for spec in stored}
        self._tables: dict[str, TaskTable | VectorTable] = {}
        self._handles: dict[str, Any] = {}
        self.specs: dict[str, StateSpec] = dict(self._stored)
        self.timers = {
            TimeDomain.EVENT_TIME: TimerTable(EVENT_TIMERS, slots, store),
            TimeDomain.PROCESSING_TIME: TimerTable(PROCESSING_TIMERS, slots, store),
        }

    def handle(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state. The same name gives the same handle; another kind or type under it is an error."""
        spec = spec_of(descriptor)
        self.check(spec)
        if descriptor.name in self._handles:
            return self._handles[descriptor.name]
        arguments = (self.uid, descriptor, self.slots, self.store, self._context.time_ms)
        handle: Any
        if isinstance(descriptor, ListStateDescriptor):
            of_list = ListTable(*arguments, epoch=self._context.epoch)
            table: TaskTable = of_list
            handle = ListStateHandle(of_list)
        elif isinstance(descriptor, MapStateDescriptor):
            table = of_map = MapTable(*arguments)
            handle = map_state(of_map)
        else:
            table = of_value = ValueTable(*arguments)
            if isinstance(descriptor, ReducingStateDescriptor):
                handle = ReducingStateHandle(of_value, descriptor)
            elif isinstance(descriptor, AggregatingStateDescriptor):
                handle = AggregatingStateHandle(of_value, descriptor)
            else:
                handle = value_state(of_value)
        if table.ttl is not None and self._context.time_reset_ms:
            table.ttl.reset = self._context.time_reset_ms
        self._tables[descriptor.name] = table
        self._handles[descriptor.name] = handle
        self.specs[spec.name] = spec
        return handle

    def vector(self, name: str, dtype: DataType) -> VectorTable:
        """The columnar table of a value state, for vectorised functions."""
        table = self._tables.get(name)
        if isinstance(table, VectorTable):
            return table
        spec = StateSpec(name, StateKind.VALUE.value, dtype.ddl)
        self.check(spec)
        self.specs[name] = spec
        table = self._tables[name] = VectorTable(name, dtype, self.slots, self.store)
        return table

    def add(self, spec: StateSpec, table: TaskTable) -> None:
        """Take in a table that was made elsewhere: its changes are drained with all others."""
        self._tables[spec.name] = table
        self.specs[spec.name] = spec

    def table(self, name: str) -> TaskTable | VectorTable:
        return self._tables[name]

    def check(self, spec: StateSpec) -> None:
        """Refuse another kind or type under a name that is known."""
        known = self.specs.get(spec.name)
        if known is None or known.signature == spec.signature:
            return
        if spec.name in self._tables:
            raise InvalidInputError(
                f"operator '{self.uid}': state name '{spec.name}' is already in use for a {known.signature}; "
                f"it cannot also be a {spec.signature}",
                state=spec.name,
            )
        raise IncompatibleStateError(
            f"operator '{self.uid}', state '{spec.name}': stored is a {known.signature}, declared is a "
            f"{spec.signature}. Declare it as it was, give the new state another name, or stop the job with its old "
            "code by `cairn stop JOB --savepoint-dir DIR` and start the new code by `cairn run JOB.py -s SAVEPOINT`, "
            "which converts the state where that can be done; the stored state is intact.",
            state=spec.name,
            stored=known.signature,
            declared=spec.signature,
        )

    def drain(self) -> list[Section]:
        tables: list[TaskTable | VectorTable | TimerTable] = [*self._tables.values(), *self.timers.values()]
        sections = [section for section in (table.drain() for table in tables) if section is not None]
        for section in sections:
            if section.kind == "timer":
                self.specs[section.table] = StateSpec(section.table, "timer", "binary")
        return sections


def spec_of(descriptor: StateDescriptor) -> StateSpec:
    ttl = descriptor.ttl
    return StateSpec(
        name=descriptor.name,
        kind=descriptor.kind.value,
        value_type=descriptor.value_type.ddl,
        key_type=descriptor.key_type.ddl if descriptor.key_type is not None else "",
        ttl_ms=ttl.milliseconds if ttl is not None else 0,
        cleanup_at_snapshot=ttl is not None and ttl.cleanup_at_snapshot,
    )


class VectorTable:
    """A value state in columns: one place per slot, for functions that work on whole batches."""

    def __init__(self, name: str, dtype: DataType, slots: KeySlots, store: WorkingStore) -> None:
        self.name = name
        self.dtype = dtype
        self._slots = slots
        self._store = store
        self._values: pa.Array = pa.array([], ARROW_STORAGE[dtype.storage])
        self._dirty = np.zeros(0, dtype=bool)

    def get(self, key_slots: np.ndarray[Any, Any]) -> pa.Array:
        self._load()
        if len(key_slots) == len(self._values) and _is_range(key_slots):
            return self._values
        return self._values.take(pa.array(key_slots))

    def put(self, key_slots: np.ndarray[Any, Any], values: pa.Array) -> None:
        self._load()
        total = len(self._values)
        if len(key_slots) == total and _is_range(key_slots):
            self._values = values
            self._dirty[:] = True
            return
        places = np.arange(total)
        places[key_slots] = total + np.arange(len(values))
        self._values = pa.concat_arrays([self._values, values]).take(pa.array(places))
        self._dirty[key_slots] = True

    def _load(self) -> None:
        missing = len(self._slots) - len(self._values)
        if missing:
            values, _ = self._store.read(self.name, self._slots.from_slot(len(self._values)), self.dtype.storage, False)
            self._values = values if not len(self._values) else pa.concat_arrays([self._values, values])
            self._dirty = np.concatenate([self._dirty, np.zeros(missing, dtype=bool)])

    def drain(self) -> Section | None:
        if not self._dirty.any():
            return None
        keys = self._slots.all_keys()[: len(self._values)]
        values = self._values
        if not self._dirty.all():
            changed = pa.array(self._dirty)
            keys, values = keys.filter(changed), values.filter(changed)
        return Section(self.name, "value", self.dtype.storage, False, grouped_table({"key": keys, "value": values}))


def _is_range(slots: np.ndarray[Any, Any]) -> bool:
    return len(slots) == 0 or (slots[0] == 0 and slots[-1] == len(slots) - 1 and bool((np.diff(slots) == 1).all()))
