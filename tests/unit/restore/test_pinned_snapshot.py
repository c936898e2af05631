"""The snapshot of a start is chosen once, and held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.restore_lab import checkpoint_of, harness, restored, shape_of
from tests.support.web_job import Totals

from cairn.config import Settings
from cairn.restore.pinned_snapshot import pinned
from cairn.restore.start_request import StartRequest
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem


def request(folder: Path, **settings: Any) -> StartRequest:
    return StartRequest(LocalFileSystem(str(folder)), "harness", "harness", Settings(**settings), 2, 128, [])


def run(folder: Path, number: int) -> str:
    with harness(Totals(), folder) as job:
        job.push(("a", number))
        job.run_epoch()
    return checkpoint_of(folder, number)


def test_a_checkpoint_is_held_however_it_is_named(tmp_path: Path) -> None:
    folder, new = tmp_path / "job", tmp_path / "new"
    path = run(folder, 1)
    store = CheckpointStore(LocalFileSystem(str(folder)))
    for reference in (path, f"{path}/_metadata", f"file://{path}", str(folder)):
        with pinned(request(new, restore_path=reference)) as start:
            assert start.settings.restore_path == path
            assert len(store.readers(1)) == 1
    for reference in ("", f"{folder}/chk-2", str(tmp_path / "nothing")):
        with pinned(request(new, restore_path=reference)) as start:
            assert start.settings.restore_path == reference
            assert store.readers(1) == []
    assert not (folder / "chk-2").exists()


def test_a_job_that_is_named_again_goes_on_if_that_is_configured(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    first = run(folder, 1)
    with harness(Totals(), tmp_path / "shape") as job:
        shape = shape_of(job)
    restored(first, folder, shape)
    second = run(folder, 2)
    for again, path in ((True, second), (False, first)):
        with pinned(request(folder, restore_path=str(folder), restore_again=again)) as start:
            assert start.settings.restore_path == path, "the checkpoint that it was started from before means: go on"
