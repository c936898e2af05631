"""What all kinds of state share inside a task: the declaration, fitting values to their type, draining changes.

Every mutation goes through a handle's own table, which is also what writes the delta, so none can be forgotten.
`state/value_state.py` has one value per key, `state/map_state.py` and `state/list_state.py` many entries per key.

Values of plain types (numbers, text, bytes) are kept as they are. All others are kept encoded and decoded anew at
each read: changing an object that came from state has no effect until it is written back, on any backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import InternalError, StateTypeError
from cairn.model.descriptors import StateDescriptor
from cairn.model.types import DataType
from cairn.state.expiry import Ttl
from cairn.state.key_slots import KeySlots
from cairn.state.working_store import WorkingStore
from cairn.storage.state_file import ARROW_STORAGE, Section


class TaskTable(ABC):
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
                f"operator '{self.operator}', state '{self.name}': None is not allowed as a value; use clear() or "
                "remove() to delete state",
                state=self.name,
            )
        try:
            return dtype.to_storage(value)
        except StateTypeError as error:
            raise StateTypeError(
                f"operator '{self.operator}', state '{self.name}': {error.message}", state=self.name, **error.facts
            ) from None

    def column(self, values: list[Any], slots: Sequence[int] = ()) -> pa.Array:
        """Stored values as an Arrow column. What the fast paths let through is checked here, for all values at once;
        `slots` tells whose values they are, for the error.
        """
        try:
            column = pa.array(values, ARROW_STORAGE[self.type.storage])
            if self.in_range(column, self.type):
                return column
        except (UnicodeEncodeError, OverflowError):
            pass
        for at, value in enumerate(values):
            if slots:
                self.slots.current[0] = slots[at]
            if value is not None:
                self.fit(value)
        raise InternalError(f"operator '{self.operator}', state '{self.name}': a value cannot be stored")

    @staticmethod
    def in_range(column: pa.Array, dtype: DataType) -> bool:
        """Whether all numbers of a column are in the range of an integer type."""
        if dtype.exact is not int or dtype.ddl == "bigint":
            return True
        low, high = (part.as_py() for part in pc.min_max(column).values())
        return low is None or (low >= dtype.low and high <= dtype.high)

    @abstractmethod
    def drain(self) -> Section | None:
        """The changes of this epoch, sorted; None if there are none."""
