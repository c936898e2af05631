"""The choices of `env.set_state_backend(...)`, under Flink's names."""

from __future__ import annotations

from cairn.model.pyflink_names import PyFlinkNames


class LmdbStateBackend:
    """Memory-mapped local files, shared by all Python workers of a host. The default."""

    name = "lmdb"


class HashMapStateBackend:
    """Dicts in the worker processes: for small state."""

    name = "hashmap"


class EmbeddedRocksDBStateBackend(PyFlinkNames):
    """RocksDB on local disk: for state far larger than memory. Needs `cairn-streaming[rocksdb]`."""

    name = "rocksdb"


BackendChoice = LmdbStateBackend | HashMapStateBackend | EmbeddedRocksDBStateBackend | str
