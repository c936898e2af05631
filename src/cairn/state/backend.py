"""The contract of a state backend: bulk reads and atomic bulk writes of bytes, grouped in tables.

A backend holds the working copy of one subtask's state on one host. It is a cache with a version: everything in it
can be rebuilt from durable files, and it may be thrown away at any time. It knows nothing of epochs, key groups,
types or files; `state/working_store.py` brings it to the right version, `cairn.testing.conformance` tests it.

A third party provides a backend as a class behind an entry point of the group `cairn.state_backends`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import ClassVar

from cairn.errors import CairnError, NotFoundError

Put = tuple[bytes, bytes]
GROUP = "cairn.state_backends"


class DamagedStoreError(CairnError):
    """The working copy cannot be used; throw it away and rebuild it."""

    code = "damaged-store"


class TableChanges:
    """Changes of one table, applied in this order: `clears` (every key with the prefix goes), `deletes`, `puts`."""

    __slots__ = ("clears", "deletes", "puts", "table")

    def __init__(
        self, table: str, puts: Sequence[Put] = (), deletes: Sequence[bytes] = (), clears: Sequence[bytes] = ()
    ) -> None:
        self.table = table
        self.puts = puts
        self.deletes = deletes
        self.clears = clears


class StateBackend(ABC):
    """One subtask's working copy. Opened, used and closed inside one process; calls never overlap.

    `shared` says whether several processes of a host may have the same folder open at once. `resident` says that
    the contents live in this process only, so that an instance is worth keeping between epochs. `ordered_reads` says
    that `get_many` is quicker for keys in ascending order.
    """

    shared: ClassVar[bool] = False
    resident: ClassVar[bool] = False
    ordered_reads: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, folder: str) -> None:
        """Open the copy in `folder` (created by the caller); raise `DamagedStoreError` if it cannot be read."""

    @abstractmethod
    def version(self) -> str | None:
        """The version given to the last `apply`, or None for a copy that never got one."""

    @abstractmethod
    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of the keys, in their order; None where there is none."""

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        """A function that reads one key, good until the next `apply`. Worth overriding where that is cheap."""
        return lambda key: self.get_many(table, (key,))[0]

    @abstractmethod
    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Put]:
        """All pairs whose key begins with `prefix` and is not below `start`, in ascending key order.

        The result is that of one moment. It is read to its end, or dropped, before the next `apply`.
        """

    def first(self, table: str, prefix: bytes, limit: int) -> list[Put]:
        """The first pairs that `scan` gives, at most `limit`. Called for many prefixes; worth a quick version."""
        return list(islice(self.scan(table, prefix), limit))

    @abstractmethod
    def apply(self, changes: Iterable[TableChanges], version: str | None) -> None:
        """Apply all changes and set the version, atomically. Versions are opaque.

        With None the version becomes unset, which marks a copy that is being built.
        """

    @abstractmethod
    def size_bytes(self) -> int:
        """Roughly the space taken on disk or in memory."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. No call follows but perhaps another `close`, which does nothing."""

    def count(self, table: str) -> int:
        """Number of pairs in a table."""
        return sum(1 for _ in self.scan(table))


_BUILT_IN = {
    "lmdb": "cairn.state.lmdb_backend:LmdbBackend",
    "hashmap": "cairn.state.memory_backend:MemoryBackend",
    "rocksdb": "cairn.state.rocksdb_backend:RocksDBBackend",
}
_INSTALL = {
    "lmdb": "Run: pip install --force-reinstall lmdb",
    "rocksdb": "Run: pip install 'cairn-streaming[rocksdb]'",
}


@lru_cache(maxsize=16)
def load_backend(name: str) -> type[StateBackend]:
    """The backend class of this name: a built-in one, or one that an entry point provides."""
    points = {point: EntryPoint(point, value, GROUP) for point, value in _BUILT_IN.items()}
    if name not in points:
        points |= {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise NotFoundError(
            f"there is no state backend '{name}'; there are {', '.join(sorted(points))}. "
            "A package that provides another one must be installed where the Spark workers run.",
            backend=name,
        )
    try:
        kind = points[name].load()
    except ImportError as error:
        advice = _INSTALL.get(name, "Install the package that provides it")
        raise NotFoundError(
            f"state backend '{name}' needs a module that cannot be imported ({error}). "
            f"{advice}, on the driver and on every host of the Spark workers.",
            backend=name,
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, StateBackend)):
        raise NotFoundError(f"state backend '{name}' is {kind!r}, which is no StateBackend", backend=name)
    return kind
