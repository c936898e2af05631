"""The conformance suite over the backends that come with cairn, and what is special about each of them."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from cairn.errors import NotFoundError
from cairn.state import lmdb_backend
from cairn.state.backend import DamagedStoreError, StateBackend, TableChanges, load_backend
from cairn.state.lmdb_backend import LmdbBackend
from cairn.state.memory_backend import MemoryBackend
from cairn.testing.conformance import StateBackendConformance
from cairn.testing.faults import flip_bit, truncate


class TestMemoryBackend(StateBackendConformance):
    def make_backend(self, folder: str) -> StateBackend:
        return MemoryBackend(folder)


class TestRocksDBBackend(StateBackendConformance):
    def make_backend(self, folder: str) -> StateBackend:
        return load_backend("rocksdb")(folder)


class TestLmdbBackend(StateBackendConformance):
    def make_backend(self, folder: str) -> StateBackend:
        return LmdbBackend(folder)

    def raw_keys(self, backend: StateBackend) -> list[bytes]:
        return [lmdb_backend._short(b"q" * 700), lmdb_backend._short(b"q" * 400 + b"r" * 300)]


class TestLmdbGrows(StateBackendConformance):
    """The same with a memory map that is too small at first."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lmdb_backend, "_INITIAL_MAP", 64 * 1024)

    def make_backend(self, folder: str) -> StateBackend:
        return LmdbBackend(folder)


def test_a_reader_of_lmdb_follows_a_writer_that_adds_thousands_of_tables(tmp_path: Path) -> None:
    """Two workers of a host have the store open: what one adds must be readable in the other, which opened it when it
    was empty. LMDB refuses to open a folder twice in one process, so the writer is a process of its own."""
    reader = LmdbBackend(str(tmp_path))
    assert reader.version() is None
    reader.apply([], "0")
    writer = multiprocessing.get_context("spawn").Process(target=_add_tables, args=(str(tmp_path), 3000))
    writer.start()
    writer.join(60)
    assert writer.exitcode == 0
    reader.apply([], "2")
    assert [reader.count(f"t{number}") for number in range(3000)] == [1] * 3000
    reader.close()


def _add_tables(folder: str, count: int) -> None:
    backend = LmdbBackend(folder)
    backend.apply([TableChanges(f"t{number}", puts=[(b"k", b"v")]) for number in range(count)], "1")
    backend.close()


def filled(folder: Path, name: str, rows: int = 2000) -> None:
    backend = load_backend(name)(str(folder))
    backend.apply([TableChanges("t", puts=[(b"%06d" % n, b"value %d" % n) for n in range(rows)])], "1")
    backend.close()


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 8192, 20_000, -4096, -1])
def test_a_truncated_lmdb_file_is_damage(tmp_path: Path, size: int) -> None:
    filled(tmp_path, "lmdb")
    truncate(tmp_path / "data.mdb", size)
    with pytest.raises(DamagedStoreError, match="LMDB working store"):
        LmdbBackend(str(tmp_path))


def test_a_wrong_magic_is_damage(tmp_path: Path) -> None:
    filled(tmp_path, "lmdb")
    for page in (0, 1):
        for offset in range(4):
            flip_bit(tmp_path / "data.mdb", page * 4096 + 16 + offset)
    with pytest.raises(DamagedStoreError):
        LmdbBackend(str(tmp_path))


def test_garbage_instead_of_a_store_is_damage(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(os.urandom(40_000))
    with pytest.raises(DamagedStoreError):
        LmdbBackend(str(tmp_path))


def test_a_damaged_lmdb_store_can_be_replaced_at_once(tmp_path: Path) -> None:
    """The failed opening holds nothing that keeps the folder from being opened again."""
    filled(tmp_path, "lmdb")
    truncate(tmp_path / "data.mdb", 20_000)
    try:
        LmdbBackend(str(tmp_path))
    except DamagedStoreError:
        for name in ("data.mdb", "lock.mdb"):
            (tmp_path / name).unlink()
        backend = LmdbBackend(str(tmp_path))
        assert backend.version() is None
        backend.close()
    else:
        raise AssertionError("the damage was not seen")


def read_in_child(folder: str, expected: int) -> None:
    backend = LmdbBackend(folder)
    assert backend.count("t") == expected
    backend.close()


def test_lmdb_is_shared_between_processes(tmp_path: Path) -> None:
    filled(tmp_path, "lmdb", 100)
    backend = LmdbBackend(str(tmp_path))
    assert backend.count("t") == 100
    child = multiprocessing.get_context("spawn").Process(target=read_in_child, args=(str(tmp_path), 100))
    child.start()
    child.join()
    assert child.exitcode == 0
    backend.close()


def test_a_reader_keeps_its_moment_while_another_process_writes(tmp_path: Path) -> None:
    filled(tmp_path, "lmdb", 100)
    backend = LmdbBackend(str(tmp_path))
    assert backend.version() == "1"
    child = multiprocessing.get_context("spawn").Process(target=filled, args=(tmp_path, "lmdb", 200))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert backend.count("t") == 100
    backend.close()


def sst_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.sst"))


def test_damage_in_a_rocksdb_file_is_never_read_over(tmp_path: Path) -> None:
    kind = load_backend("rocksdb")
    backend = kind(str(tmp_path))
    backend.apply([TableChanges("t", puts=[(b"%06d" % n, os.urandom(100)) for n in range(2000)])], "1")
    backend._db.flush()  # type: ignore[attr-defined]
    backend.close()
    (file,) = sst_files(tmp_path)
    flip_bit(file, 5000)

    def use() -> None:
        opened = kind(str(tmp_path))
        try:
            assert len(list(opened.scan("t"))) == 2000
        finally:
            opened.close()

    with pytest.raises(DamagedStoreError):
        use()


@pytest.mark.parametrize("victim", ["CURRENT", "MANIFEST", "sst"])
def test_a_rocksdb_store_with_a_missing_or_empty_file_is_damage(tmp_path: Path, victim: str) -> None:
    kind = load_backend("rocksdb")
    backend = kind(str(tmp_path))
    backend.apply([TableChanges("t", puts=[(b"%06d" % n, os.urandom(100)) for n in range(2000)])], "1")
    backend._db.flush()  # type: ignore[attr-defined]
    backend.close()
    for file in tmp_path.rglob("*"):
        if victim in file.name:
            truncate(file, 0)

    def use() -> None:
        opened = kind(str(tmp_path))
        try:
            assert opened.version() == "1"
            assert len(list(opened.scan("t"))) == 2000
        finally:
            opened.close()

    with pytest.raises(DamagedStoreError):
        use()


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(NotFoundError, match="no state backend 'nope'; there are hashmap, lmdb, rocksdb"):
        load_backend("nope")
