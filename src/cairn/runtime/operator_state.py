"""Operator state of one subtask: lists and broadcast maps that belong to no key. See docs/design/0004-streams.md.

Each is stored as the state of one key that stands for the subtask: the two bytes of its first key group. A subtask
reads its own from the working store. Where the parallelism changed, and for union lists after a restart, it reads
those of all subtasks from the files, takes its share, and writes that under its own key.

A union list that a subtask does not ask for in the first epoch of a run *waits*: the subtask keeps its own list as it
was, and the union under a second key, which has a byte more. It gets the union when it asks, in whichever epoch that
is; until then only its own list counts for those who come together after the next restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InvalidInputError
from cairn.model.ddl import parse_type
from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from cairn.model.manifest import BROADCAST, LIST, OPERATOR_KINDS, UNION, StateSpec
from cairn.runtime.broadcast_maps import Gate, GuardedMap
from cairn.runtime.state_registry import StateRegistry
from cairn.runtime.subtask_shares import History, OwnList, SubtaskShares, stored_elements
from cairn.state.key_slots import KeySlots
from cairn.state.list_state import ListStateHandle
from cairn.state.map_state import map_state
from cairn.state.map_table import MapTable
from cairn.storage.state_file import Section


class TaskOperatorStateStore:
    """`OperatorStateStore` of one subtask."""

    def __init__(self, registry: StateRegistry, history: History) -> None:
        self._registry = registry
        self._history = history
        self._slots = KeySlots()
        self._slots.add(pa.array([history.own_key], pa.binary()))
        self._slots.current[0] = 0
        self._shares = SubtaskShares(registry, history, self._slots)
        self._handles: dict[str, Any] = {}
        self.gate = Gate()
        """Open while the function may change broadcast state."""
        stored = history.operator.states if history.operator is not None else []
        self._stored = {spec.name: spec for spec in stored if spec.kind in OPERATOR_KINDS}
        self._to_unite = {spec.name for spec in self._stored.values() if spec.kind == UNION and history.deals}
        if history.rescaled:
            self._take_shares()

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> Any:
        return self._handle(state_descriptor, LIST)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> Any:
        return self._handle(state_descriptor, UNION)

    def get_raw_state(self, name: str) -> Any:
        return self._handle(ListStateDescriptor(name, "binary"), LIST)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        found = self.broadcast_map(state_descriptor)
        return GuardedMap(state_descriptor.name, found, self.gate)

    def broadcast_map(self, descriptor: MapStateDescriptor) -> Any:
        """The map itself, without a guard; the caller guards it."""
        return self._handle(descriptor, BROADCAST)

    def stored_handle(self, name: str) -> Any:
        """The handle of a state by its name alone; None if nothing is stored under it."""
        spec = self._stored.get(name)
        if spec is None:
            return None
        return self._handle(_descriptor_of(spec), spec.kind)

    def _handle(self, descriptor: Any, kind: str) -> Any:
        spec = spec_of_operator_state(self._registry.uid, descriptor, kind)
        self._registry.check(spec)
        found = self._handles.get(descriptor.name)
        if found is None:
            found = self._make(descriptor, spec)
            if kind == UNION and spec.name in self._stored:
                self._take_union(spec)
        return found

    def _make(self, descriptor: StateDescriptor, spec: StateSpec) -> Any:
        registry = self._registry
        arguments = (registry.uid, descriptor, self._slots, registry.store, 0)
        handle: Any
        if spec.kind == BROADCAST:
            of_map = MapTable(*arguments)
            handle = map_state(of_map)
            registry.add(spec, of_map)
        else:
            of_list = OwnList(*arguments, epoch=registry.epoch)
            handle = ListStateHandle(of_list)
            registry.add(spec, of_list)
        self._handles[spec.name] = handle
        return handle

    # Redistribution: the first epoch after a change of the parallelism, and union lists in the first epoch of a run.

    def _take_shares(self) -> None:
        """Redistribute all stored lists and maps, including those that the function does not request in this epoch."""
        history = self._history
        old = history.operator.parallelism if history.operator is not None else 0
        lists = {name: spec for name, spec in sorted(self._stored.items()) if spec.kind == LIST}
        elements = {name: self._shares.everything(spec) for name, spec in lists.items()}
        shares = even_split({name: len(found) for name, found in elements.items()}, history.parallelism)
        for name, spec in lists.items():
            start, end = shares[name][history.subtask]
            self._make(_descriptor_of(spec), spec)
            self._shares.give_list(spec, elements[name][start:end])
        for spec in self._stored.values():
            if spec.kind == BROADCAST:
                self._make(_descriptor_of(spec), spec)
                copies = self._shares.rows_of_all(spec)
                self._shares.give_map(spec, copies.get(history.old_key(history.subtask % old), []), copies)

    def _take_union(self, spec: StateSpec) -> None:
        """The function asks for a union list: give it what waits, or has yet to be united."""
        if spec.name in self._to_unite:
            self._to_unite.remove(spec.name)
            self._shares.give_list(spec, self._shares.everything(spec))
            return
        table, slot = self._shares.list_of(spec), self._shares.waiting_slot()
        waiting = stored_elements(table, slot)
        if waiting:
            table.given = True
            table.cleared.update((0, slot))
            table.added[0] = waiting

    def settle(self) -> None:
        """Before the changes of the epoch are drained: unions that the function has not asked for wait for it."""
        history = self._history
        for name in sorted(self._to_unite):
            spec = self._stored[name]
            self._make(_descriptor_of(spec), spec)
            table, slot = self._shares.list_of(spec), self._shares.waiting_slot()
            union = self._shares.everything(spec)
            own = stored_elements(table, 0)
            if history.rescaled:  # no list is that of a subtask any more: each keeps a share, so that all are kept once
                start, end = even_split({name: len(union)}, history.parallelism)[name][history.subtask]
                own = union[start:end]
                self._shares.give_list(spec, own)
            if union == own:
                union = []
            if union != stored_elements(table, slot) or slot in table.cleared:
                table.cleared.add(slot)
                table.added[slot] = union
        self._to_unite.clear()


def without_waiting(section: Section, spec: StateSpec) -> Section:
    """The rows of a state that count, for readers: unions that wait are copies of what other rows say."""
    if spec.kind != UNION:
        return section
    lengths = pc.binary_length(section.data.column("key"))
    return replace(section, data=section.data.filter(pc.equal(lengths, 2)))


def spec_of_operator_state(uid: str, descriptor: Any, kind: str) -> StateSpec:
    """What a descriptor declares as a state of this kind; an error if it is of another class or has a TTL."""
    wanted: type[StateDescriptor] = MapStateDescriptor if kind == BROADCAST else ListStateDescriptor
    if not isinstance(descriptor, wanted):
        raise InvalidInputError(f"operator '{uid}': expected a {wanted.__name__}, got {type(descriptor).__name__}")
    if descriptor.ttl is not None:
        where = "process_broadcast_element" if kind == BROADCAST else "snapshot_state"
        raise InvalidInputError(
            f"operator '{uid}', state '{descriptor.name}': operator and broadcast state have no time to live; "
            f"remove what is old in {where}"
        )
    return StateSpec(
        name=descriptor.name,
        kind=kind,
        value_type=descriptor.value_type.ddl,
        key_type=descriptor.key_type.ddl if descriptor.key_type is not None else "",
    )


def _descriptor_of(spec: StateSpec) -> StateDescriptor:
    if spec.kind == BROADCAST:
        return MapStateDescriptor(spec.name, parse_type(spec.key_type), parse_type(spec.value_type))
    return ListStateDescriptor(spec.name, parse_type(spec.value_type))


def even_split(totals: Mapping[str, int], parallelism: int) -> dict[str, list[tuple[int, int]]]:
    """Which elements (from, to) of each list go to each receiver.

    A list is dealt out in contiguous runs, the first receivers getting one element more where it does not divide
    evenly; the next list begins at the receiver where those stopped, so that small lists do not all go to the first.
    """
    shares = {}
    first = 0
    for name, total in totals.items():
        base, odd = divmod(total, parallelism)
        runs = [(0, 0)] * parallelism
        at = 0
        for turn in range(parallelism):
            length = base + (1 if turn < odd else 0)
            runs[(first + turn) % parallelism] = (at, at + length)
            at += length
        first = (first + odd) % parallelism
        shares[name] = runs
    return shares


class InitializationContext:
    """`FunctionInitializationContext`."""

    def __init__(self, states: TaskOperatorStateStore, history: History, keyed: Any) -> None:
        self._states = states
        self._history = history
        self._keyed = keyed

    def is_restored(self) -> bool:
        return self._history.operator is not None

    def get_restored_checkpoint_id(self) -> int | None:
        return self._history.epoch if self._history.operator is not None else None

    def get_operator_state_store(self) -> TaskOperatorStateStore:
        return self._states

    def get_keyed_state_store(self) -> Any:
        return self._keyed


class SnapshotContext:
    """`FunctionSnapshotContext`."""

    def __init__(self, epoch: int, time_ms: int) -> None:
        self._epoch = epoch
        self._time_ms = time_ms

    def get_checkpoint_id(self) -> int:
        return self._epoch

    def get_checkpoint_timestamp(self) -> int:
        return self._time_ms
