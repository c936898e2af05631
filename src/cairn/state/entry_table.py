"""What map and list state share: many entries per key, stored one by one, so that a call costs what it touches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cairn.state import codec
from cairn.state.key_slots import no_current_key
from cairn.state.state_table import TaskTable


class EntryTable(TaskTable):
    """Base of map and list tables: many entries per slot, stored one by one."""

    kind: str

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cleared: set[int] = set()

    def slot(self) -> int:
        slot = self.slots.current[0]
        if slot is None:
            raise no_current_key()
        return int(slot)

    def prefix(self, slot: int) -> bytes:
        return codec.entry_prefix(self.slots.keys[slot])

    def stored(self, slot: int) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of a slot: entry bytes and value bytes."""
        prefix = self.prefix(slot)
        cut = len(prefix)
        for key, raw in self.store.scan(self.name, prefix):
            yield key[cut:], raw

    def split(self, raw: bytes) -> tuple[int | None, bytes]:
        if self.ttl is None:
            return None, raw
        return int.from_bytes(raw[:8], "little", signed=True), raw[8:]
