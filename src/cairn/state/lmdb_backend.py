"""State in LMDB: memory-mapped, readable by all workers of a host at once. The only import of lmdb.

LMDB keys end at 511 bytes. A longer key is stored under its first bytes and a digest of all of it, with the whole
key kept in front of the value and compared at every read, so two keys never share an entry. A key that happens to
look like such a stored form is stored in the same way.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import lmdb

from cairn.errors import StorageError
from cairn.state.backend import DamagedStoreError, Put, StateBackend, TableChanges

_META = b"_meta"
_VERSION = b"version"
_LONG_MARK = b"\xff\x00long\x00\xff"
_KEY = itemgetter(0)
_HEAD = 400
_DIGEST = 32
_SHORTENED = _HEAD + len(_LONG_MARK) + _DIGEST
_INITIAL_MAP = 1 << 30
_INITIAL_TABLES = 1024
_GROW = 2

_damage = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.PanicError)


def _short(key: bytes) -> bytes:
    return key[:_HEAD] + _LONG_MARK + hashlib.blake2b(key, digest_size=_DIGEST).digest()


class LmdbBackend(StateBackend):
    """One LMDB environment per subtask, one named database per table.

    Writes are not forced to disk: after a crash of the process the operating system still has them, and after a
    crash of the host `state/working_store.py` discards the copy.
    """

    shared = True

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, "data.mdb")
        self._open(_INITIAL_TABLES)

    def _open(self, max_tables: int) -> None:
        """Open the environment with room for the handles of so many tables, which LMDB fixes when it is opened."""
        folder = self._folder
        self._max_tables = max_tables
        self._tables: dict[str, Any] = {}
        self._txn: Any = None
        self._cursors: dict[str, Any] = {}
        try:
            self._check_size()
            self._env = lmdb.open(
                folder,
                map_size=max(_INITIAL_MAP, self._file_size() * _GROW),
                max_dbs=max_tables,
                sync=False,
                metasync=False,
                readahead=False,
                max_spare_txns=2,
                mode=0o600,
            )
            self._check_pages()
            self._env.reader_check()
            self._max_key = self._env.max_key_size()
            self._meta = self._env.open_db(_META)
        except _damage as error:
            raise DamagedStoreError(f"the LMDB working store in {folder} cannot be opened: {error}") from error
        except lmdb.Error as error:
            raise StorageError(f"cannot open the LMDB working store in {folder}: {error}", path=folder) from error

    def _file_size(self) -> int:
        try:
            return os.path.getsize(self._path)
        except FileNotFoundError:
            return 0

    def _check_size(self) -> None:
        """A file shorter than its pages would end the process on the first read beyond it."""
        if 0 < self._file_size() < 4096 * 2:
            raise DamagedStoreError(f"the LMDB working store {self._path} is cut short")

    def _check_pages(self) -> None:
        needed = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        if self._file_size() and needed > max(self._file_size(), 2 * self._env.stat()["psize"]):
            raise DamagedStoreError(f"the LMDB working store {self._path} is cut short")

    def _reader(self) -> Any:
        """The read transaction that serves all reads until the next `apply`."""
        if self._txn is None:
            self._txn = self._begin()
            tables = self._env.stat()["entries"]
            if tables > self._max_tables:  # written by a process that had more room
                self._reopen(tables * _GROW)
                self._txn = self._begin()
        return self._txn

    def _begin(self) -> Any:
        try:
            return self._env.begin()
        except lmdb.MapResizedError:
            self._env.set_mapsize(0)
            return self._env.begin()

    def _reopen(self, max_tables: int) -> None:
        self.close()
        self._open(max_tables)

    def _end_reader(self) -> None:
        if self._txn is not None:
            for cursor in self._cursors.values():
                cursor.close()
            self._cursors = {}
            self._txn.abort()
            self._txn = None
            self._tables = {}  # the handles of tables that were opened in it are gone with it

    def _table(self, name: str) -> Any:
        """The handle of a table, or None while nothing was ever written to it."""
        table = self._tables.get(name)
        if table is None:
            txn = self._reader()  # this may open the environment anew
            with contextlib.suppress(lmdb.NotFoundError, lmdb.ReadonlyError):
                table = self._tables[name] = self._env.open_db(name.encode(), txn=txn, create=False)
        return table

    def version(self) -> str | None:
        try:
            found = self._reader().get(_VERSION, db=self._meta)
        except _damage as error:
            raise DamagedStoreError(f"the LMDB working store {self._path} is damaged: {error}") from error
        return found.decode() if found is not None else None

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        handle = self._table(table)
        if handle is None:
            return [None] * len(keys)
        txn = self._reader()
        try:
            if max(map(len, keys), default=0) < _SHORTENED:
                cursor = txn.cursor(handle)
                get = cursor.get
                return [get(key) for key in keys]
            return [self._get(txn, handle, key) for key in keys]
        except _damage as error:
            raise DamagedStoreError(f"the LMDB working store {self._path} is damaged: {error}") from error

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        handle = self._table(table)
        if handle is None:
            return lambda key: None
        find = self._reader().get

        def get(key: bytes) -> bytes | None:
            if len(key) >= _SHORTENED:
                return self.get_many(table, (key,))[0]
            try:
                found: bytes | None = find(key, None, handle)
                return found
            except _damage as error:
                raise DamagedStoreError(f"the LMDB working store {self._path} is damaged: {error}") from error

        return get

    def _fits(self, key: bytes) -> bool:
        return len(key) <= self._max_key and not _is_long(key)

    def _get(self, txn: Any, handle: Any, key: bytes) -> bytes | None:
        if self._fits(key):
            found: bytes | None = txn.get(key, db=handle)
            return found
        found = txn.get(_short(key), db=handle)
        if found is None:
            return None
        whole, value = _split(found)
        if whole != key:
            raise DamagedStoreError(f"two keys of {len(key)} bytes have the same digest in {self._path}")
        return value

    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Put]:
        handle = self._table(table)
        if handle is None:
            return
        txn = self._reader()
        lowest = max(prefix, start)
        head = prefix[:_HEAD]
        alike: list[Put] = []  # neighbours that share their first _HEAD bytes, where long keys are out of order
        with txn.cursor(handle) as cursor:
            if not cursor.set_range(lowest[:_HEAD]):
                return
            for pair in cursor:
                stored_key = pair[0]
                if not stored_key.startswith(head):
                    break
                if _is_long(stored_key):
                    pair = _split(pair[1])
                if alike and pair[0][:_HEAD] != alike[0][0][:_HEAD]:
                    yield from sorted(alike)
                    alike = []
                if len(stored_key) < _HEAD:
                    if stored_key >= lowest:
                        yield pair
                elif pair[0].startswith(prefix) and pair[0] >= lowest:
                    alike.append(pair)
        yield from sorted(alike)

    def first(self, table: str, prefix: bytes, limit: int) -> list[Put]:
        handle = self._table(table)
        if handle is None:
            return []
        cursor = self._cursors.get(table)
        if cursor is None:
            cursor = self._cursors[table] = self._reader().cursor(handle)
        found = list(islice(cursor, limit)) if cursor.set_range(prefix[:_HEAD]) else []
        while found and not found[-1][0].startswith(prefix[:_HEAD]):
            found.pop()
        if found and max([len(key) for key, _ in found]) >= _HEAD:
            return super().first(table, prefix, limit)
        return found

    def apply(self, changes: Iterable[TableChanges], version: str | None) -> None:
        changes = list(changes)
        while True:
            self._end_reader()
            try:
                self._write(changes, version)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(self._env.info()["map_size"] * _GROW)
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)
            except lmdb.DbsFullError:
                self._reopen(self._max_tables * _GROW)
            except _damage as error:
                raise DamagedStoreError(f"the LMDB working store {self._path} is damaged: {error}") from error
            except lmdb.Error as error:
                raise StorageError(
                    f"cannot write the working store {self._path}: {error}; free room on that disk or move the store "
                    "with the option execution.checkpointing.local-backup.dirs",
                    path=self._path,
                ) from error

    def _write(self, changes: Sequence[TableChanges], version: str | None) -> None:
        opened = {}
        with self._env.begin(write=True) as txn:
            for change in changes:
                handle = self._tables.get(change.table)
                if handle is None:
                    handle = opened[change.table] = self._env.open_db(change.table.encode(), txn=txn)
                cursor = txn.cursor(handle)
                for prefix in change.clears:
                    self._clear(cursor, prefix)
                for key in change.deletes:
                    txn.delete(key if self._fits(key) else _short(key), db=handle)
                if change.puts:
                    keys = list(map(_KEY, change.puts))
                    if max(map(len, keys)) >= _SHORTENED:
                        puts = [p if self._fits(p[0]) else (_short(p[0]), _joined(*p)) for p in change.puts]
                        cursor.putmulti(puts)
                    else:
                        beyond = not cursor.last() or cursor.key() < keys[0]
                        append = beyond and keys == sorted(keys)
                        _, added = cursor.putmulti(change.puts, append=append)
                        if append and added < len(keys):  # a key came twice, and appending kept its first value
                            cursor.putmulti(change.puts)
            if version is None:
                txn.delete(_VERSION, db=self._meta)
            else:
                txn.put(_VERSION, version.encode(), db=self._meta)
        self._tables.update(opened)

    def _clear(self, cursor: Any, prefix: bytes) -> None:
        head = prefix[:_HEAD]
        more = cursor.set_range(head)
        while more and cursor.key().startswith(head):
            key = cursor.key()
            if _is_long(key):
                key, _ = _split(cursor.value())
            if key.startswith(prefix):
                cursor.delete()
                more = bool(cursor.key())
            else:
                more = cursor.next()

    def size_bytes(self) -> int:
        return self._file_size()

    def count(self, table: str) -> int:
        handle = self._table(table)
        return 0 if handle is None else int(self._reader().stat(handle)["entries"])

    def close(self) -> None:
        self._end_reader()
        self._env.close()


def _is_long(key: bytes) -> bool:
    return len(key) == _SHORTENED and key.startswith(_LONG_MARK, _HEAD)


def _joined(key: bytes, value: bytes) -> bytes:
    return len(key).to_bytes(4, "big") + key + value


def _split(stored: bytes) -> Put:
    length = int.from_bytes(stored[:4], "big")
    return stored[4 : 4 + length], stored[4 + length :]
