"""The keys of one epoch: every key that a task touches gets a slot, a small number that all tables index by.

Working with slots instead of keys is what makes state cheap: rows carry the slot of their key, and a state's values
are a list with one place per slot, read from the store for many keys at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import StateMisuseError

NO_SLOT = (IndexError, TypeError)
"""What indexing by `current[0]` raises if that slot has no place yet, or is None."""


class KeySlots:
    """Slots of an epoch, in the order in which keys were first seen. `current[0]` is the slot that is being processed.

    Outside of the processing of a row or timer `current[0]` is None, so that any use of state fails there.
    """

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.current: list[Any] = [None]
        self.rows = 0
        """Rows whose keys were added, to tell whether keys come back within an epoch."""
        self._index: dict[bytes, int] | None = None
        self._parts: list[pa.Array] = []

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: pa.Array) -> np.ndarray[Any, Any]:
        """Slots of these distinct keys (key group and key); new ones are appended."""
        names = keys.to_pylist()
        first = len(self.keys)
        if first == 0:
            self.keys = names
            self._parts = [keys]
            return np.arange(len(names))
        index = self._index
        if index is None:  # most epochs have one chunk, and never come here
            index = self._index = dict(zip(self.keys, range(first), strict=True))
        get = index.get
        found = [get(name) for name in names]
        new = [at for at, slot in enumerate(found) if slot is None]
        if new:
            for slot, at in enumerate(new, first):
                name = names[at]
                found[at] = index[name] = slot
                self.keys.append(name)
            self._parts.append(keys.take(pa.array(new)))
        return np.array(found, dtype=np.int64)

    def from_slot(self, first: int) -> pa.Array:
        """The keys of all slots from `first` on, as one array."""
        return self.all_keys()[first:]

    def all_keys(self) -> pa.Array:
        if len(self._parts) != 1:
            self._parts = [pa.concat_arrays(self._parts) if self._parts else pa.array([], pa.binary())]
        return self._parts[0]

    def key(self) -> bytes:
        """The current key with its group; an error outside of a row or timer."""
        slot = self.current[0]
        if slot is None:
            raise no_current_key()
        return self.keys[int(slot)]


def no_current_key() -> StateMisuseError:
    return StateMisuseError(
        "there is no current key here: keyed state and timers can be used in process_element and on_timer only, "
        "not in open(), close(), other threads or after the epoch"
    )
