"""State in RocksDB: for state far larger than memory. The only import of rocksdict.

RocksDB lets one process in at a time and Spark's workers rotate, so the copy is opened and closed within each task.
"""

from __future__ import annotations

import contextlib
import os
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


class RocksDBBackend(StateBackend):
    """One database per subtask; a table is a key prefix: its length, its name, then the key."""

    shared = False
    ordered_reads = True

    def __init__(self, folder: str) -> None:
        self._path = folder
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(64 << 20)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1 << 20)
        options.set_compression_type(DBCompressionType.none())  # the block cache is cold in every task:
        options.set_allow_mmap_reads(True)  # blocks are read where the operating system has them
        blocks = BlockBasedOptions()
        blocks.set_block_cache(Cache(_CACHE_BYTES))
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        try:
            self._db = Rdict(os.path.join(folder, "rocksdb"), options=options, access_type=AccessType.read_write())
        except Exception as error:
            text = str(error)
            if "lock" in text.lower():
                raise StorageError(f"another process has the RocksDB working store {folder} open: {text}") from error
            raise DamagedStoreError(f"the RocksDB working store in {folder} cannot be opened: {text}") from error
        self._write = WriteOptions()
        self._closed = False

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
        try:
            self._db.write(batch, self._write)
        except Exception as error:
            raise StorageError(
                f"cannot write the working store {self._path}: {error}; free room on that disk or move the store "
                "with the option execution.checkpointing.local-backup.dirs",
                path=self._path,
            ) from error

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
