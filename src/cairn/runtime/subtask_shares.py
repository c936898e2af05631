"""What the subtasks of an operator have stored of its operator state, and dealing it out anew.

Operator state is stored under a key for each subtask (`runtime/operator_state.py`). After a change of the parallelism,
and for union lists after a restart, a subtask reads what all of them have stored and takes its share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import OPERATOR_KINDS, UNION, OperatorState, StateSpec
from cairn.runtime.state_registry import StateRegistry
from cairn.state import codec
from cairn.state.key_slots import KeySlots
from cairn.state.list_state import ListTable, segment_elements
from cairn.state.map_table import MapTable
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
        if self.cleared == {0} and not self.given and stored_elements(self, 0) == self.added.get(0, []):
            return None
        return super().drain()


class SubtaskShares:
    """Reads the parts of all subtasks, and writes the share of one into its tables."""

    def __init__(self, registry: StateRegistry, history: History, slots: KeySlots) -> None:
        self._registry = registry
        self._history = history
        self._slots = slots

    def waiting_slot(self) -> int:
        return int(self._slots.add(pa.array([self._history.own_key + WAITING], pa.binary()))[0])

    def list_of(self, spec: StateSpec) -> OwnList:
        table = self._registry.table(spec.name)
        assert isinstance(table, OwnList)
        return table

    def give_list(self, spec: StateSpec, elements: Sequence[Any]) -> None:
        table = self.list_of(spec)
        table.given = True
        table.cleared.add(0)
        table.cleared.update(self._stale(self.rows_of_all(spec)))
        table.added[0] = list(elements)

    def give_map(self, spec: StateSpec, rows: Sequence[tuple[bytes, Any]], copies: Mapping[bytes, Any]) -> None:
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

    def everything(self, spec: StateSpec) -> list[Any]:
        """The elements of every subtask's list, in the order of subtasks. What waits is a copy of those."""
        parts = [rows for key, rows in self.rows_of_all(spec).items() if not is_waiting(key)]
        return [element for rows in parts for _, body in rows for element in segment_elements(body)]

    def rows_of_all(self, spec: StateSpec) -> dict[bytes, list[tuple[bytes, Any]]]:
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


def is_waiting(key: bytes) -> bool:
    """Whether a stored key of operator state is that of a union that waits."""
    return key[2:] == WAITING


def stored_elements(table: OwnList, slot: int) -> list[Any]:
    return [element for _, raw in table.stored(slot) for element in segment_elements(table.split(raw)[1])]


def _group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")
