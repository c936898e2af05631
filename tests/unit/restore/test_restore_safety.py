"""What a restore must never do in silence: delete what is not its own, mix sources up, repeat or leave out input."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.evolving_job import ROWS, Old
from tests.support.restore_lab import checkpoint_of, harness, newest, planned, restored, savepoint_of, shape_of

from cairn.config import Settings
from cairn.coordinator.ports import SystemClock
from cairn.coordinator.retained_checkpoints import RetainedCheckpoints
from cairn.errors import CorruptFileError, IncompatibleStateError, NotFoundError
from cairn.restore.claims import claim, release_claims
from cairn.restore.recovery import Recovered, recover
from cairn.restore.restore_plan import JobShape
from cairn.restore.restored_epoch import next_epoch
from cairn.restore.start_request import StartRequest
from cairn.restore.state_move import LocalMover
from cairn.snapshots.resolver import open_snapshot, retained
from cairn.snapshots.verification import verify_savepoint
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import load_identity
from cairn.storage.run_records import Runs
from cairn.storage.savepoint_folder import encode_savepoint, read_savepoint
from cairn.testing.keyed_harness import UID


def claimed_and_cut_off(tmp_path: Path) -> tuple[str, JobShape, LocalFileSystem]:
    """A savepoint, claimed by a restore into a job that died before it was published."""
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
        shape = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    restored(path, tmp_path / "b", shape)
    files = LocalFileSystem(str(tmp_path / "b"))
    identity = load_identity(files)
    assert identity is not None
    snapshot = open_snapshot(path)
    claim(snapshot, identity, files, next_epoch(snapshot, files), Runs(files).take(2, 0).run)
    assert (Path(path) / "_claimed").exists()
    return path, shape, files


def plain_start(files: LocalFileSystem, shape: JobShape) -> Recovered:
    uids = list(shape.operators)
    start = StartRequest(files, "harness", "harness", Settings(), shape.parallelism, 128, uids)
    return recover(start, now_ms=9000)


def test_a_claim_of_a_restore_that_never_happened_deletes_nothing(tmp_path: Path) -> None:
    path, _, files = claimed_and_cut_off(tmp_path)
    with harness(Old(), tmp_path / "b") as job:  # an ordinary epoch gets the number of the restore
        job.push(*ROWS[:10])
        job.run_epoch()
    checkpoint_of(tmp_path / "b", 1)
    assert release_claims(files, 1) == []
    assert verify_savepoint(path) == []


def test_the_next_start_gives_a_savepoint_back_that_was_claimed_in_vain(tmp_path: Path) -> None:
    path, shape, files = claimed_and_cut_off(tmp_path)
    plain_start(files, shape)
    assert files.list("claims") == []
    assert not (Path(path) / "_claimed").exists()
    restored(path, tmp_path / "c", shape)  # anybody can start from it again


def test_a_claim_that_counts_outlives_a_start(tmp_path: Path) -> None:
    path, shape, files = claimed_and_cut_off(tmp_path)
    restored(path, tmp_path / "b", shape, claim_mode="CLAIM", restore_again=True)
    plain_start(files, shape)
    assert (Path(path) / "_claimed").exists()
    checkpoint_of(tmp_path / "b", 1)
    assert release_claims(files, 1) == [path]
    assert not Path(path).exists()


def test_another_savepoint_at_the_path_of_a_claimed_one_stays(tmp_path: Path) -> None:
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
        shape = shape_of(job)
    path = Path(savepoint_of(tmp_path / "a", tmp_path / "sp"))
    restored(str(path), tmp_path / "b", shape, claim_mode="CLAIM")
    path.rename(tmp_path / "archived")
    Path(savepoint_of(tmp_path / "a", tmp_path / "other")).rename(path)
    files = LocalFileSystem(str(tmp_path / "b"))
    checkpoint_of(tmp_path / "b", 1)
    assert release_claims(files, 1) == []
    assert verify_savepoint(str(path)) == []
    assert files.list("claims") == [], "the job owns nothing there any more"


def a_job(tmp_path: Path) -> tuple[str, JobShape, LocalFileSystem]:
    """A savepoint, and a job that was started from it and has moved on by an epoch."""
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
        shape = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    restored(path, tmp_path / "b", shape)
    with harness(Old(), tmp_path / "b") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
    manifest = newest(tmp_path / "b")
    for log, text in (("offsets", manifest.offsets), ("commits", "v1\n{}")):  # what Spark would have logged
        (tmp_path / "b" / manifest.spark / log / str(manifest.epoch)).write_text(text)
    return path, shape, LocalFileSystem(str(tmp_path / "b"))


def test_the_same_restore_given_again_goes_on_where_that_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, shape, _ = a_job(tmp_path)
    stood = newest(tmp_path / "b")
    again = restored(path, tmp_path / "b", shape, restore_again=False)
    assert again.manifest is not None
    assert again.manifest.commit_id == stood.commit_id
    assert "continues from its newest epoch. To restore it again, leave out" in caplog.text
    plan = planned(path, tmp_path / "b", shape, restore_again=False)
    assert "would continue from its newest epoch" in plan.notes[0]
    shutil.rmtree(path)  # a claimed savepoint is gone some day
    assert restored(f"{path}/_metadata", tmp_path / "b", shape, restore_again=False).manifest == stood
    with pytest.raises(NotFoundError):
        restored(path, tmp_path / "b", shape, restore_again=True)
    with pytest.raises(NotFoundError):
        restored(path, tmp_path / "new", shape)


def test_the_same_restore_can_be_asked_for_again(tmp_path: Path) -> None:
    path, shape, _ = a_job(tmp_path)
    stood = newest(tmp_path / "b")
    restored(path, tmp_path / "b", shape, restore_again=True)
    assert newest(tmp_path / "b").epoch == stood.epoch + 1
    assert newest(tmp_path / "b").restored > 0


def test_another_snapshot_at_the_same_path_is_another_restore(tmp_path: Path) -> None:
    path, shape, _ = a_job(tmp_path)
    shutil.rmtree(path)
    Path(savepoint_of(tmp_path / "b", tmp_path / "sp2")).rename(path)
    stood = newest(tmp_path / "b")
    restored(path, tmp_path / "b", shape)
    assert newest(tmp_path / "b").epoch == stood.epoch + 1


def test_a_restore_that_lacks_a_log_of_its_sources_leaves_the_running_job_alone(tmp_path: Path) -> None:
    _, shape, files = a_job(tmp_path)
    newer = Path(savepoint_of(tmp_path / "b", tmp_path / "sp2"))
    metadata = read_savepoint(str(newer))
    entry = "v1\n{}\n" + json.dumps({"logOffset": 3})  # a position of a file source, whose log is not there
    changed = msgspec.structs.replace(metadata, offsets=entry, source_names=["FileSource[/in]"])
    (newer / "_metadata").write_bytes(encode_savepoint(changed))
    reading = replace(shape, sources=["FileSource[/in]"])
    run, there = Runs(files).newest(), sorted(tmp_path.rglob("*"))
    with pytest.raises(CorruptFileError, match="it is unknown which files were read"):
        restored(str(newer), tmp_path / "b", reading)
    assert Runs(files).newest() == run, "nobody took the job over"
    assert sorted(tmp_path.rglob("*")) == there
    plan = planned(str(newer), tmp_path / "b", reading)
    assert "it is unknown which files were read" in plan.problems[0]


def test_a_plan_says_all_that_a_start_would_refuse(tmp_path: Path) -> None:
    path, shape, _ = a_job(tmp_path)

    def problems(folder: str, name: str = "harness", **settings: Any) -> list[str]:
        plan = planned(path, tmp_path / folder, shape, name, **settings)
        assert plan.document()["possible"] == (not plan.problems)
        return list(plan.problems)

    assert problems("free") == []
    assert not (tmp_path / "free").exists(), "nothing is created"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    assert "holds no cairn job" in problems("taken")[0]
    assert "belongs to the job 'harness', not to 'other'" in problems("b", name="other")[0]
    chk = checkpoint_of(tmp_path / "b", 1)
    plan = planned(chk, tmp_path / "a", shape, claim_mode="CLAIM")
    assert "cannot be claimed" in plan.problems[0]
    assert "holds a job already" in plan.problems[1]
    restored(path, tmp_path / "owner", shape, claim_mode="CLAIM")
    assert "was claimed by job 'harness'" in problems("free")[0]
    table = next(Path(path).rglob("*.parquet"))
    table.write_bytes(table.read_bytes()[:-1])
    assert "cannot be restored" in problems("owner")[0]


def test_a_key_column_with_another_name(tmp_path: Path) -> None:
    path, shape, _ = a_job(tmp_path)
    for key, remedy in (
        ("user string", r"rename them before key_by .* df.withColumnRenamed\('user', 'key'\), or give"),
        ("key bigint", "type of a key never changes"),
        ("key string, n bigint", "type of a key never changes"),
        ("", r"the job keys by \(nothing\). The type of a key never changes"),
    ):
        other = replace(shape, operators={UID: key})
        with pytest.raises(IncompatibleStateError, match=remedy):
            restored(path, tmp_path / "c", other)
    assert not (tmp_path / "c").exists()


def test_checkpoints_that_were_given_up_are_not_current_and_go_first(tmp_path: Path) -> None:
    with harness(Old(), tmp_path / "a") as job:
        shape = shape_of(job)
        paths = []
        for number in (1, 2, 3):
            job.push(*ROWS[:10])
            job.run_epoch()
            paths.append(checkpoint_of(tmp_path / "a", number))
    job_dir = str(tmp_path / "a")
    assert open_snapshot(job_dir).checkpoint_number == 3
    restored(paths[0], tmp_path / "a", shape)  # back to the first: 2 and 3 are given up
    store = CheckpointStore(LocalFileSystem(job_dir))
    assert [checkpoint.id for checkpoint in store.current()] == [1]
    assert open_snapshot(job_dir).checkpoint_number == 1
    assert open_snapshot(paths[2]).checkpoint_number == 3, "by name it can still be read"
    assert [snapshot.checkpoint_number for snapshot in retained(job_dir)] == [1]
    kept = RetainedCheckpoints(store, Runs(store.files).newest(), 2, SystemClock())
    assert kept.newest_epoch == store.load(1).manifest.epoch
    checkpoint_of(tmp_path / "a", 4, kept.with_added(4))
    kept.add(store.load(4))
    kept.delete_doomed()
    assert store.numbers() == [1, 4], "what the job went back to outlives what it gave up"
    restored(savepoint_of(tmp_path / "a", tmp_path / "sp"), tmp_path / "a", shape)
    for number in (1, 4):
        store.discard(number)
    with pytest.raises(NotFoundError, match="no completed checkpoint"):
        open_snapshot(job_dir)


def test_a_restore_whose_run_number_another_run_takes_writes_its_files_again_under_its_own(tmp_path: Path) -> None:
    """Clean-up goes by the run in the names of files: those under another run's number may be deleted by it."""
    with harness(Old(), tmp_path / "a") as job:
        shape = shape_of(job)
        job.push(*ROWS[:10])
        job.run_epoch()
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    runs = Runs(LocalFileSystem(str(tmp_path / "b")))

    class Overtaken(LocalMover):
        def move(self, plan: Any, operator: Any, target: Any) -> Any:
            if runs.newest() == 0:
                runs.take(1, 0)
            return super().move(plan, operator, target)

    made = restored(path, tmp_path / "b", shape, mover=Overtaken())
    assert made.run.run == 2
    assert {layout.made_by(name) for name in newest(tmp_path / "b").files()} == {
        (handle.epoch, 2, handle.snapshot) for operator in newest(tmp_path / "b").operators for handle in operator.chain
    }
