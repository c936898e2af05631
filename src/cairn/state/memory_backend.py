"""State in plain dicts of the worker process: for small state, and the reference for behaviour."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from cairn.state.backend import Put, StateBackend, TableChanges


class MemoryBackend(StateBackend):
    """Gone with the process. Sorted order is made on demand and kept until the table gains or loses a key."""

    resident = True

    def __init__(self, folder: str) -> None:
        self._tables: dict[str, dict[bytes, bytes]] = {}
        self._order: dict[str, list[bytes]] = {}
        self._version: str | None = None

    def version(self) -> str | None:
        return self._version

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._tables.get(table)
        return [None] * len(keys) if not rows else list(map(rows.get, keys))

    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Put]:
        rows = self._tables.get(table)
        if not rows:
            return
        order = self._sorted(table)
        found = []
        for at in range(bisect_left(order, max(prefix, start)), len(order)):
            key = order[at]
            if not key.startswith(prefix):
                break
            found.append((key, rows[key]))
        yield from found

    def _sorted(self, table: str) -> list[bytes]:
        order = self._order.get(table)
        if order is None:
            order = self._order[table] = sorted(self._tables[table])
        return order

    def apply(self, changes: Iterable[TableChanges], version: str | None) -> None:
        for change in changes:
            rows = self._tables.setdefault(change.table, {})
            before = len(rows)
            gone = 0
            for prefix in change.clears:
                for key, _ in list(self.scan(change.table, prefix)):
                    del rows[key]
                    gone += 1
                if gone:
                    self._order.pop(change.table, None)
            for key in change.deletes:
                if rows.pop(key, None) is not None:
                    gone += 1
            rows.update(change.puts)
            if gone or len(rows) != before:
                self._order.pop(change.table, None)
        self._version = version

    def size_bytes(self) -> int:
        return sum(len(k) + len(v) + 100 for rows in self._tables.values() for k, v in rows.items())

    def count(self, table: str) -> int:
        return len(self._tables.get(table, ()))

    def close(self) -> None:
        self._tables = {}
        self._order = {}
