"""The snapshot of a start is chosen once, and held."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.restore_lab import checkpoint_of, harness, planned, restored, shape_of
from tests.support.web_job import UID, Totals

from cairn.config import Settings
from cairn.errors import NotFoundError
from cairn.restore import pinned_snapshot
from cairn.restore.pinned_snapshot import pinned
from cairn.restore.recovery import recover
from cairn.restore.start_request import StartRequest
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import Snapshot
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem


def request(folder: Path, **settings: Any) -> StartRequest:
    return StartRequest(LocalFileSystem(str(folder)), "harness", "harness", Settings(**settings), 2, 128, [UID])


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
    with pinned(request(new)) as start:
        assert start.settings.restore_path == ""
        assert store.readers(1) == []
    for reference in (f"{folder}/chk-2", str(tmp_path / "nothing")):
        with pytest.raises(NotFoundError), pinned(request(new, restore_path=reference)):
            pass
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


@pytest.mark.parametrize("reference", ["{jobs}/other", "{jobs}/other/chk-1", "other", "Other", "other/chk-1"])
@pytest.mark.parametrize("lost", ["checkpoints", "directory"])
def test_a_job_goes_on_when_what_it_was_started_from_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, lost: str
) -> None:
    monkeypatch.chdir(tmp_path)
    other, folder = tmp_path / "cairn-data" / "other", tmp_path / "job"
    path = run(other, 1)
    identity = json.loads((other / "job.json").read_text())
    (other / "job.json").write_text(json.dumps({**identity, "job_id": "other", "name": "Other"}))
    with harness(Totals(), tmp_path / "shape") as job:
        shape = shape_of(job)
    stood = restored(path, folder, shape, allow_pickled=(f"{UID}.seen", f"{UID}.total")).manifest
    if lost == "checkpoints":
        shutil.rmtree(path)
    else:
        shutil.rmtree(other)
    reference = reference.format(jobs=other.parent)
    with pinned(request(folder, restore_path=reference, restore_again=False)) as start:
        assert recover(start, now_ms=9000).manifest == stood
    with pytest.raises(NotFoundError), pinned(request(folder, restore_path=reference, restore_again=True)):
        pass


def test_another_checkpoint_at_the_path_of_the_earlier_one_is_restored(tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "job"
    path = run(other, 1)
    with harness(Totals(), tmp_path / "shape") as job:
        shape = shape_of(job)
    restored(path, folder, shape, allow_pickled=(f"{UID}.seen", f"{UID}.total"))
    shutil.rmtree(other)
    run(other, 1)
    newer = run(other, 2)
    with pinned(request(folder, restore_path=str(other), restore_again=False)) as start:
        assert start.settings.restore_path == newer


@pytest.mark.parametrize("by_number", [False, True])
def test_a_newer_checkpoint_is_taken_if_the_newest_is_discarded_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_number: bool
) -> None:
    folder, new = tmp_path / "job", tmp_path / "new"
    first = run(folder, 1)
    made: list[Any] = []

    def replaced(reference: str, exact: bool = False) -> Snapshot:
        """The job completes another checkpoint, and discards the one that was opened, before it is held."""
        snapshot = open_snapshot(reference)
        if not made:
            made.append(run(folder, 2))
            shutil.rmtree(first)
        return snapshot

    monkeypatch.setattr(pinned_snapshot, "open_snapshot", replaced)
    reference = first if by_number else str(folder)
    if by_number:
        with pytest.raises(NotFoundError, match="discarded just now"), pinned(request(new, restore_path=reference)):
            pass
        return
    with pinned(request(new, restore_path=reference)) as start:
        assert start.settings.restore_path == made[0]
        assert len(CheckpointStore(LocalFileSystem(str(folder))).readers(2)) == 1


def test_a_job_that_discards_every_checkpoint_at_once_is_refused_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"
    run(folder, 1)
    stale = open_snapshot(str(folder))
    shutil.rmtree(folder / "chk-1")
    monkeypatch.setattr(pinned_snapshot, "open_snapshot", lambda reference, exact: stale)
    with pytest.raises(NotFoundError), pinned(request(tmp_path / "new", restore_path=str(folder))):
        pass


def test_a_plan_means_the_same_snapshot_as_the_start(tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "job"
    first = run(other, 1)
    with harness(Totals(), tmp_path / "shape") as job:
        shape = shape_of(job)
    allowed = (f"{UID}.seen", f"{UID}.total")
    restored(first, folder, shape, allow_pickled=allowed)
    second = run(other, 2)
    assert planned(str(other), folder, shape, allow_pickled=allowed, restore_again=True).snapshot.path == second
    plan = planned(str(other), folder, shape, allow_pickled=allowed, restore_again=False)
    assert plan.snapshot.path == first
    assert "would continue from its newest epoch" in plan.notes[0]
    shutil.rmtree(first)
    with pytest.raises(NotFoundError, match="no restore to plan: the job was already started from this snapshot"):
        planned(str(other), folder, shape, restore_again=False)
