"""The fault injection itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cairn.errors import InvalidInputError, StorageError
from cairn.storage.filesystem import LocalFileSystem
from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem, flip_bit, truncate


def faulty(folder: Path, *faults: Fault, list_lag: int = 0) -> FaultyFileSystem:
    return FaultyFileSystem(LocalFileSystem(str(folder)), FaultPlan(faults, list_lag))


def test_calls_are_counted_and_passed_on(tmp_path: Path) -> None:
    files = faulty(tmp_path)
    files.create("a/b", b"x")
    assert files.read("a/b") == b"x"
    assert files.exists("a/b")
    assert [info.path for info in files.list("a")] == [info.path for info in files.walk("")] == ["a/b"]
    files.move("a/b", "a/c")
    files.delete("a/c")
    assert files.calls == 7
    assert files.log[0] == (1, "create", "a/b")
    assert files.root == str(tmp_path)
    assert files.local_path("a/b") is None


def test_the_kth_call_fails_once(tmp_path: Path) -> None:
    files = faulty(tmp_path, Fault("error", call=2))
    files.create("a", b"")
    with pytest.raises(StorageError):
        files.create("b", b"")
    files.create("b", b"")


def test_a_full_disk_by_pattern(tmp_path: Path) -> None:
    files = faulty(tmp_path, Fault("full", operation="create", pattern="shared/*", times=2))
    files.create("other", b"")
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            files.create("shared/op/x", b"")
        assert caught.value.facts["errno"] == errno.ENOSPC
    files.create("shared/op/x", b"")


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_ends_everything(tmp_path: Path, after: bool) -> None:
    files = faulty(tmp_path, Fault("crash", operation="create", after=after))
    with pytest.raises(Crash):
        files.create("a", b"x")
    with pytest.raises(Crash):
        files.exists("a")
    assert (tmp_path / "a").exists() == after
    assert not issubclass(Crash, Exception)


def test_a_torn_write(tmp_path: Path) -> None:
    files = faulty(tmp_path, Fault("torn", pattern="m*", keep=3))
    files.create("a", b"whole")
    with pytest.raises(Crash):
        files.create("m", b"whole")
    assert (tmp_path / "m").read_bytes() == b"who"


def test_lagging_listings(tmp_path: Path) -> None:
    files = faulty(tmp_path, list_lag=3)
    files.create("a/x", b"")
    assert files.list("a") == []
    files.exists("a/x")
    assert [info.path for info in files.list("a")] == ["a/x"]
    files.delete("a/x")
    assert not files.exists("a/x")
    assert [info.path for info in files.list("a")] == ["a/x"]
    assert [info.path for info in files.walk("")] == []


def test_wrong_faults_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        Fault("explode")
    with pytest.raises(InvalidInputError):
        Fault("error", operation="append")


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\x00\x00\x00")
    flip_bit(path, 1, 7)
    flip_bit(path, -1)
    assert path.read_bytes() == b"\x00\x80\x01"
    truncate(path, -1)
    assert path.read_bytes() == b"\x00\x80"
    truncate(path, 0)
    with pytest.raises(InvalidInputError):
        flip_bit(path, 0)


def test_the_example_in_the_harness_runs() -> None:
    import doctest

    from cairn.testing import keyed_harness

    found = doctest.testmod(keyed_harness)
    assert found.attempted >= 3
    assert found.failed == 0


def test_neither_spark_nor_a_test_runner_is_needed() -> None:
    import subprocess
    import sys

    code = (
        "import sys, cairn.testing, cairn.testing.conformance\n"
        "assert not {'pyspark', 'pytest', 'py4j'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
