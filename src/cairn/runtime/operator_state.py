"""Operator state of one subtask: lists and broadcast maps that belong to no key. See docs/design/0004-streams.md.

Each is stored as the state of one key that stands for the subtask: the two bytes of its first key group. A subtask
reads its own from the working store. Where the parallelism changed, and for union lists after a restart, it reads
those of all subtasks from the files, takes its share, and writes that under its own key.

A union list that a subtask does not ask for in the first epoch of a run *waits*: the subtask keeps its own list as it
was, and the union under a second key, which has a byte more. It gets the union when it asks, in whichever epoch that
is; until then only its own list counts for those who come together after the next restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InvalidInputError
from cairn.model.ddl import parse_type
from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import BROADCAST, LIST, OPERATOR_KINDS, UNION, OperatorState, StateSpec
from cairn.runtime.broadcast_maps import Gate, GuardedMap
from cairn.runtime.state_registry import StateRegistry
from cairn.state import codec
from cairn.state.key_slots import KeySlots
from cairn.state.list_state import ListStateHandle, ListTable, segment_elements
from cairn.state.map_state import MapTable, map_state
from cairn.state.section_changes import ChainFiles
from cairn.storage.chain_merge import merged
from cairn.storage.state_file import Section

WAITING = b"\x00"
"""What follows the key of a subtask where a union lies that waits for it."""


@dataclass(frozen=True, slots=True)
class History:
    """What a task starts from: the operator as it is stored, and where its files are."""

    operator: OperatorState | None
    files: ChainFiles
    subtask: int
    parallelism: int
    max_parallelism: int
    restarted: bool
    """The stored epoch was committed by another run than this one, or made by a restore."""
    epoch: int

    @property
    def rescaled(self) -> bool:
        return self.operator is not None and self.operator.parallelism != self.parallelism

    @property
    def groups(self) -> KeyGroupRange:
        return key_group_range(self.subtask, self.parallelism, self.max_parallelism)

    @property
    def deals(self) -> bool:
        """This epoch deals out what is stored, whether the function asks for it or not."""
        kinds = {spec.kind for spec in self.operator.states} if self.operator is not None else set()
        return (self.rescaled and not kinds.isdisjoint(OPERATOR_KINDS)) or (self.restarted and UNION in kinds)

    @property
    def own_key(self) -> bytes:
        return self.groups.start.to_bytes(2, "big")

    def old_key(self, old_subtask: int) -> bytes:
        """The key that stood for a subtask at the stored parallelism."""
        assert self.operator is not None
        return key_group_range(old_subtask, self.operator.parallelism, self.max_parallelism).start.to_bytes(2, "big")


class OwnList(ListTable):
    """A list of a subtask. Most functions write the whole list at the end of every epoch: only a change is stored."""

    given = False
    """The list came from other subtasks and must be stored under this one's key."""

    def drain(self) -> Section | None:
        if self.cleared == {0} and not self.given and _stored_elements(self, 0) == self.added.get(0, []):
            return None
        return super().drain()


class TaskOperatorStateStore:
    """`OperatorStateStore` of one subtask."""

    def __init__(self, registry: StateRegistry, history: History) -> None:
        self._registry = registry
        self._history = history
        self._slots = KeySlots()
        self._slots.add(pa.array([history.own_key], pa.binary()))
        self._slots.current[0] = 0
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
        """The map itself, for who guards it."""
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
        """Deal out all lists and maps that are stored, also what the function does not ask for in this epoch."""
        history = self._history
        old = history.operator.parallelism if history.operator is not None else 0
        lists = {name: spec for name, spec in sorted(self._stored.items()) if spec.kind == LIST}
        elements = {name: self._everything(spec) for name, spec in lists.items()}
        shares = even_split({name: len(found) for name, found in elements.items()}, history.parallelism)
        for name, spec in lists.items():
            start, end = shares[name][history.subtask]
            self._make(_descriptor_of(spec), spec)
            self._give_list(spec, elements[name][start:end])
        for spec in self._stored.values():
            if spec.kind == BROADCAST:
                self._make(_descriptor_of(spec), spec)
                copies = self._rows_of_all(spec)
                self._give_map(spec, copies.get(history.old_key(history.subtask % old), []), copies)

    def _take_union(self, spec: StateSpec) -> None:
        """The function asks for a union list: give it what waits, or has yet to be united."""
        if spec.name in self._to_unite:
            self._to_unite.remove(spec.name)
            self._give_list(spec, self._everything(spec))
            return
        table, slot = self._list(spec), self._waiting_slot()
        waiting = _stored_elements(table, slot)
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
            table, slot = self._list(spec), self._waiting_slot()
            union = self._everything(spec)
            own = _stored_elements(table, 0)
            if history.rescaled:  # no list is that of a subtask any more: each keeps a share, so that all are kept once
                start, end = even_split({name: len(union)}, history.parallelism)[name][history.subtask]
                own = union[start:end]
                self._give_list(spec, own)
            if union == own:
                union = []
            if union != _stored_elements(table, slot) or slot in table.cleared:
                table.cleared.add(slot)
                table.added[slot] = union
        self._to_unite.clear()

    def _waiting_slot(self) -> int:
        return int(self._slots.add(pa.array([self._history.own_key + WAITING], pa.binary()))[0])

    def _list(self, spec: StateSpec) -> OwnList:
        table = self._registry.table(spec.name)
        assert isinstance(table, OwnList)
        return table

    def _give_list(self, spec: StateSpec, elements: Sequence[Any]) -> None:
        table = self._list(spec)
        table.given = True
        table.cleared.add(0)
        table.cleared.update(self._stale(self._rows_of_all(spec)))
        table.added[0] = list(elements)

    def _give_map(self, spec: StateSpec, rows: Sequence[tuple[bytes, Any]], copies: Mapping[bytes, Any]) -> None:
        table = self._registry.table(spec.name)
        assert isinstance(table, MapTable)
        for slot in (0, *self._stale(copies)):
            table.clear(slot)
        keys = codec.stored_entries(table.key_type.storage, [entry for entry, _ in rows])
        for key, (_, value) in zip(keys, rows, strict=True):
            table.write(0, key, value)

    def _stale(self, parts: Mapping[bytes, Any]) -> list[int]:
        """Slots of what is stored under other keys of this subtask's range, and must go."""
        mine = self._history.groups
        stale = [key for key in parts if mine.contains(_group(key)) and key != self._history.own_key]
        return [int(slot) for slot in self._slots.add(pa.array(stale, pa.binary()))] if stale else []

    def _everything(self, spec: StateSpec) -> list[Any]:
        """The elements of every subtask's list, in the order of subtasks. What waits is a copy of those."""
        parts = [rows for key, rows in self._rows_of_all(spec).items() if not is_waiting(key)]
        return [element for rows in parts for _, body in rows for element in segment_elements(body)]

    def _rows_of_all(self, spec: StateSpec) -> dict[bytes, list[tuple[bytes, Any]]]:
        """Entry and value of everything that is stored of a state, by key, in the order of subtasks."""
        operator = self._history.operator
        tables = []
        for handle in operator.chain if operator is not None else ():
            file = self._history.files.open(self._registry.uid, handle)
            tables += [file.read(info).data for info in file.sections if info.table == spec.name]
        parts: dict[bytes, list[tuple[bytes, Any]]] = {}
        if tables:
            rows = merged(tables, entries=True)
            columns = (rows.column(name).to_pylist() for name in ("key", "entry", "value"))
            for key, entry, value in zip(*columns, strict=True):
                parts.setdefault(key, []).append((entry, value))
        return parts


def _group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")


def is_waiting(key: bytes) -> bool:
    """Whether a stored key of operator state is that of a union that waits."""
    return key[2:] == WAITING


def without_waiting(section: Section, spec: StateSpec) -> Section:
    """The rows of a state that count, for readers: unions that wait are copies of what other rows say."""
    if spec.kind != UNION:
        return section
    lengths = pc.binary_length(section.data.column("key"))
    return replace(section, data=section.data.filter(pc.equal(lengths, 2)))


def _stored_elements(table: OwnList, slot: int) -> list[Any]:
    return [element for _, raw in table.stored(slot) for element in segment_elements(table.split(raw)[1])]


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
