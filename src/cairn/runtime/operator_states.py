"""Operator state of one subtask: lists and broadcast maps that belong to no key. See docs/design/0004-streams.md.

Each is stored as the state of one key that stands for the subtask: the two bytes of its first key group. A subtask
reads its own from the working store. Where the parallelism changed, and for union lists after a restart, it reads
those of all subtasks from the files, takes its share, and writes that under its own key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cairn.errors import InvalidInputError
from cairn.model.ddl import parse_type
from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import BROADCAST, OPERATOR_KINDS, OperatorState, StateSpec
from cairn.runtime.registry import StateRegistry
from cairn.state import codec
from cairn.state.files import StateFiles
from cairn.state.lists import ListStateHandle, ListTable, segment_elements
from cairn.state.maps import MapTable, map_state
from cairn.state.slots import KeySlots
from cairn.storage.compaction import merged
from cairn.storage.statefile import Section

LIST = "operator-list"
UNION = "operator-union"


@dataclass(frozen=True, slots=True)
class History:
    """What a task starts from: the operator as it is stored, and where its files are."""

    operator: OperatorState | None
    files: StateFiles
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

    def first_group(self, old_subtask: int) -> int:
        """The group that stood for a subtask at the stored parallelism."""
        assert self.operator is not None
        return key_group_range(old_subtask, self.operator.parallelism, self.max_parallelism).start


class OwnList(ListTable):
    """A list of a subtask. Most functions write the whole list at the end of every epoch: only a change is stored."""

    given = False
    """The list came from other subtasks and must be stored under this one's key."""

    def drain(self) -> Section | None:
        if self.cleared == {0} and not self.given:
            stored = [element for _, raw in self.stored(0) for element in segment_elements(self.split(raw)[1])]
            if stored == self.added.get(0, []):
                return None
        return super().drain()


class OperatorStates:
    """`OperatorStateStore` of one subtask."""

    def __init__(self, registry: StateRegistry, history: History) -> None:
        self._registry = registry
        self._history = history
        self._slots = KeySlots()
        own = history.groups.start.to_bytes(2, "big")
        self._slots.add(pa.array([own], pa.binary()))
        self._slots.current[0] = 0
        self._handles: dict[str, Any] = {}
        stored = history.operator.states if history.operator is not None else []
        self._stored = {spec.name: spec for spec in stored if spec.kind in OPERATOR_KINDS}
        if history.rescaled:
            self._take_shares()

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> Any:
        return self._handle(state_descriptor, LIST)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> Any:
        return self._handle(state_descriptor, UNION)

    def get_raw_state(self, name: str) -> Any:
        return self._handle(ListStateDescriptor(name, "binary"), LIST)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        return self._handle(state_descriptor, BROADCAST)

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
            if kind == UNION and self._history.restarted and spec.name in self._stored:
                self._give_list(spec, [element for part in self._lists_of_all(spec).values() for element in part])
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
        """Deal out all that is stored, also what the function does not ask for in this epoch."""
        history = self._history
        old = history.operator.parallelism if history.operator is not None else 0
        lists = {name: spec for name, spec in sorted(self._stored.items()) if spec.kind == LIST}
        elements = {
            name: [element for part in self._lists_of_all(spec).values() for element in part]
            for name, spec in lists.items()
        }
        shares = even_split({name: len(found) for name, found in elements.items()}, history.parallelism)
        for name, spec in sorted(self._stored.items()):
            if spec.kind == BROADCAST:
                self._make(_descriptor_of(spec), spec)
                copies = self._rows_of_all(spec)
                self._give_map(spec, copies.get(history.first_group(history.subtask % old), []), copies)
                continue
            if spec.kind == LIST:
                start, end = shares[name][history.subtask]
                mine = elements[name][start:end]
            else:
                mine = [element for part in self._lists_of_all(spec).values() for element in part]
            self._make(_descriptor_of(spec), spec)
            self._give_list(spec, mine)

    def _give_list(self, spec: StateSpec, elements: Sequence[Any]) -> None:
        table = self._registry.table(spec.name)
        assert isinstance(table, OwnList)
        table.given = True
        table.cleared.add(0)
        table.cleared.update(self._stale(self._rows_of_all(spec)))
        table.added[0] = list(elements)

    def _give_map(self, spec: StateSpec, rows: Sequence[tuple[bytes, Any]], copies: Mapping[int, Any]) -> None:
        table = self._registry.table(spec.name)
        assert isinstance(table, MapTable)
        for slot in (0, *self._stale(copies)):
            table.clear(slot)
        keys = codec.stored_entries(table.key_type.storage, [entry for entry, _ in rows])
        for key, (_, value) in zip(keys, rows, strict=True):
            table.write(0, key, value)

    def _stale(self, parts: Mapping[int, Any]) -> list[int]:
        """Slots of what is stored under other groups of this subtask's range, and must go."""
        mine = self._history.groups
        stale = [group.to_bytes(2, "big") for group in parts if mine.contains(group) and group != mine.start]
        return [int(slot) for slot in self._slots.add(pa.array(stale, pa.binary()))] if stale else []

    def _lists_of_all(self, spec: StateSpec) -> dict[int, list[Any]]:
        """The elements of every subtask's list, by first group, in the order of subtasks."""
        return {
            group: [element for _, body in rows for element in segment_elements(body)]
            for group, rows in self._rows_of_all(spec).items()
        }

    def _rows_of_all(self, spec: StateSpec) -> dict[int, list[tuple[bytes, Any]]]:
        """Entry and value of everything that is stored of a state, by first group, in the order of subtasks."""
        operator = self._history.operator
        tables = []
        for handle in operator.chain if operator is not None else ():
            file = self._history.files.open(self._registry.uid, handle)
            tables += [file.read(info).data for info in file.sections if info.table == spec.name]
        parts: dict[int, list[tuple[bytes, Any]]] = {}
        if tables:
            rows = merged(tables, entries=True)
            columns = (rows.column(name).to_pylist() for name in ("key", "entry", "value"))
            for key, entry, value in zip(*columns, strict=True):
                parts.setdefault(int.from_bytes(key[:2], "big"), []).append((entry, value))
        return parts


def spec_of_operator_state(uid: str, descriptor: Any, kind: str) -> StateSpec:
    """What a descriptor declares as a state of this kind; an error if it is of another class or has a TTL."""
    wanted: type[StateDescriptor] = MapStateDescriptor if kind == BROADCAST else ListStateDescriptor
    if not isinstance(descriptor, wanted):
        raise InvalidInputError(f"operator '{uid}': expected a {wanted.__name__}, got {type(descriptor).__name__}")
    if descriptor.ttl is not None:
        raise InvalidInputError(
            f"operator '{uid}', state '{descriptor.name}': operator and broadcast state have no time to live; "
            "remove what is old in snapshot_state or process_broadcast_element"
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

    def __init__(self, states: OperatorStates, history: History, keyed: Any) -> None:
        self._states = states
        self._history = history
        self._keyed = keyed

    def is_restored(self) -> bool:
        return self._history.operator is not None

    def get_restored_checkpoint_id(self) -> int | None:
        return self._history.epoch if self._history.operator is not None else None

    def get_operator_state_store(self) -> OperatorStates:
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
