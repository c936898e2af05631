"""Where the savepoint of a request is written, with several jobs that use one directory and the same request ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.coordinator_lab import manifest

from cairn.coordinator.pending_checkpoint import SavepointOrder
from cairn.coordinator.ports import JobFacts
from cairn.errors import InvalidInputError
from cairn.model.savepoint_records import SavepointMetadata
from cairn.spark.savepoint_writer import SparkSavepoints
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import create_identity
from cairn.storage.savepoint_folder import SavepointFolder, read_savepoint
from cairn.storage.savepoint_target import savepoint_path


def writer(folder: Path, job_id: str) -> SparkSavepoints:
    nothing: Any = None  # no Spark: only what comes before and after the tasks is called
    return SparkSavepoints(nothing, LocalFileSystem(str(folder)), JobFacts(job_id, job_id, 1), 10, nothing)


def test_jobs_that_share_a_directory_and_a_request_id_write_apart(tmp_path: Path) -> None:
    order = SavepointOrder(str(tmp_path / "sp"), "deploy-42")
    jobs = [("x", "a"), ("x", "b"), ("y", "a")]
    folders = []
    for place, job_id in jobs:
        folders.append(writer(tmp_path / place, job_id)._begin(order).path)
        LocalFileSystem(folders[-1]).create("tables/u/s/part.parquet", b"1")
    assert len(set(folders)) == 3
    assert all((Path(folder) / "tables/u/s/part.parquet").exists() for folder in folders), "nobody removed another's"
    again = writer(tmp_path / "x", "a")._begin(order)
    assert not Path(folders[0]).exists(), "what the same job left at the same request goes"
    assert all(Path(folder).exists() for folder in folders[1:])
    assert list(Path(again.path).rglob("*")) == []
    old = tmp_path / "sp" / f".savepoint-{Path(again.path).name[11:23]}.inprogress"  # as older releases named it
    old.mkdir()
    writer(tmp_path / "x", "a")._begin(order)
    assert not old.exists()


def test_a_task_of_an_attempt_that_was_given_up_writes_nothing_into_the_next_one(tmp_path: Path) -> None:
    order = SavepointOrder(str(tmp_path / "sp"), "deploy-42")
    cut = msgspec.structs.replace(manifest(3), job_id="a", operators=[], offsets="")
    given_up = writer(tmp_path / "x", "a")._begin(order)
    given_up.abort()
    made = writer(tmp_path / "x", "a")
    made._write(1, cut, order)
    LocalFileSystem(given_up.path).create("tables/u/s/late.parquet", b"1")
    inside = [path.name for path in (tmp_path / "sp").iterdir()]
    assert len(inside) == 2
    written = made.complete(1)
    assert [path.name for path in Path(written.path).rglob("*") if path.is_file()] == ["_metadata"]
    assert read_savepoint(written.path).epoch == 3


def test_a_savepoint_is_found_again_by_the_job_that_made_it_only(tmp_path: Path) -> None:
    order = SavepointOrder(str(tmp_path / "sp"), "deploy-42", drained=True)
    mine = create_identity(LocalFileSystem(str(tmp_path / "x" / "a")), "a", "a", 16)
    path = savepoint_path(order.directory, "a", order.request)
    folder = SavepointFolder.begin(order.directory, "t")
    made = SavepointMetadata(1, "a", "a", 1, 16, [], epoch=3, incarnation=mine.incarnation, drained=True)
    assert folder.complete(made, Path(path).name) == path
    found = writer(tmp_path / "x" / "a", "a").find(order)
    assert found is not None
    assert (found.path, found.epoch, found.drained) == (path, 3, True)
    assert writer(tmp_path / "x" / "b", "b").find(order) is None
    create_identity(LocalFileSystem(str(tmp_path / "y" / "a")), "a", "a", 16)
    with pytest.raises(InvalidInputError, match=r"by another job of the id 'a'.*take another request id"):
        writer(tmp_path / "y" / "a", "a").find(order)
    assert read_savepoint(path).epoch == 3


def test_a_savepoint_gets_the_name_that_its_request_is_found_by(tmp_path: Path) -> None:
    order = SavepointOrder(str(tmp_path / "sp"), "deploy-42")
    made = writer(tmp_path / "x", "a")
    cut = msgspec.structs.replace(manifest(3), job_id="a", operators=[], offsets="")
    made._write(1, cut, order)
    written = made.complete(1)
    assert written.path == savepoint_path(order.directory, "a", order.request)
    found = made.find(order)
    assert found == written
