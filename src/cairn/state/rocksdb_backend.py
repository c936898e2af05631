"""State in RocksDB: for state far larger than memory. The only import of rocksdict.

RocksDB lets one process in at a time and Spark's workers rotate, so the copy is opened and closed within each task. A
task that only reads opens it for reading: that starts no compaction, which the end of the task would cut off to be
begun again by the next one. One that writes waits until RocksDB has put its levels in order.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from cairn.errors import StorageError
from cairn.state.backend import DamagedStoreError, Put, StateBackend, TableChanges

_VERSION = b"\x00version"
_CACHE_BYTES = 64 << 20
_BUFFER_BYTES = 64 << 20
_SETTLE_SECONDS = 60.0


class RocksDBBackend(StateBackend):
    """One database per subtask; a table is a key prefix: its length, its name, then the key."""

    shared = False
    ordered_reads = True

    def __init__(self, folder: str) -> None:
        self._path = folder
        self._closed = False
        self._writable = not os.path.exists(os.path.join(folder, "rocksdb", "CURRENT"))
        self._db = self._open(self._writable)
        self._write = WriteOptions()
        # `apply` flushes: what it wrote is there as a whole, or not at all. (A property, whatever its stubs say.)
        setattr(self._write, "disable_wal", True)  # noqa: B010

    def _open(self, writable: bool) -> Rdict:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_BUFFER_BYTES)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1 << 20)
        options.set_compression_type(DBCompressionType.none())  # the block cache is cold in every task:
        options.set_allow_mmap_reads(True)  # blocks are read where the operating system has them
        blocks = BlockBasedOptions()
        blocks.set_block_cache(Cache(_CACHE_BYTES))
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        access = AccessType.read_write() if writable else AccessType.read_only(False)
        try:
            return Rdict(os.path.join(self._path, "rocksdb"), options=options, access_type=access)
        except Exception as error:
            text = str(error)
            if "lock" in text.lower():
                raise StorageError(
                    f"another process has the RocksDB working store {self._path} open: {text}"
                ) from error
            raise DamagedStoreError(f"the RocksDB working store in {self._path} cannot be opened: {text}") from error

    @staticmethod
    def _prefix(table: str) -> bytes:
        name = table.encode()
        return bytes([len(name)]) + name

    def version(self) -> str | None:
        try:
            found = self._db.get(_VERSION)
        except Exception as error:
            raise DamagedStoreError(f"the RocksDB working store {self._path} is damaged: {error}") from error
        return found.decode() if found is not None else None

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = self._prefix(table)
        try:
            found: list[bytes | None] = self._db.get([prefix + key for key in keys])  # type: ignore[assignment]
            return found
        except Exception as error:
            raise DamagedStoreError(f"the RocksDB working store {self._path} is damaged: {error}") from error

    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Put]:
        head = self._prefix(table)
        full = head + prefix
        cut = len(head)
        iterator = self._db.iter(ReadOptions())
        iterator.seek(head + max(prefix, start))
        while iterator.valid():
            key = iterator.key()
            if not key.startswith(full):
                break
            yield key[cut:], iterator.value()
            iterator.next()
        try:
            iterator.status()  # an iterator that meets damage just ends
        except Exception as error:
            raise DamagedStoreError(f"the RocksDB working store {self._path} is damaged: {error}") from error

    def apply(self, changes: Iterable[TableChanges], version: str | None) -> None:
        batch = WriteBatch(raw_mode=True)
        for change in changes:
            head = self._prefix(change.table)
            for prefix in change.clears:
                batch.delete_range(head + prefix, _after(head + prefix))
            for key in change.deletes:
                batch.delete(head + key)
            for key, value in change.puts:
                batch.put(head + key, value)
        if version is None:
            batch.delete(_VERSION)
        else:
            batch.put(_VERSION, version.encode())
        if not self._writable:
            self._db.close()
            self._db = self._open(writable=True)
            self._writable = True
        try:
            self._db.write(batch, self._write)
            if version is not None:
                self._db.flush()
                self._settle()
        except Exception as error:
            raise StorageError(
                f"cannot write the working store {self._path}: {error}; free room on that disk or move the store "
                "with the option execution.checkpointing.local-backup.dirs",
                path=self._path,
            ) from error

    def _settle(self) -> None:
        """Wait for the compactions that the flush brought about, so that the end of the task does not cut them off."""
        until = time.monotonic() + _SETTLE_SECONDS
        busy = ("rocksdb.compaction-pending", "rocksdb.num-running-compactions")
        while any(self._db.property_int_value(name) for name in busy) and time.monotonic() < until:
            time.sleep(0.005)

    def size_bytes(self) -> int:
        total = 0
        for folder, _, names in os.walk(self._path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.path.getsize(os.path.join(folder, name))
        return total

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._db.close()


def _after(prefix: bytes) -> bytes:
    """The first key that does not begin with the prefix. A table's head begins with a length below 255."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])
