"""From one job to another by way of a snapshot, without Spark: what is refused, others' pickles, faults on the way."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.evolving_job import ROWS, Old, Pickled, check_same, model, run_old
from tests.support.restore_lab import checkpoint_of, harness, newest, restored, savepoint_of, shape_of

from cairn.errors import CorruptFileError, IncompatibleStateError, InvalidInputError, NotFoundError, StorageError
from cairn.model.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from cairn.restore.restore_plan import JobShape
from cairn.restore.state_move import LocalMover
from cairn.runtime.declared_states import Declared
from cairn.snapshots.verification import verify_savepoint
from cairn.storage import regular_files
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.savepoint_folder import encode_savepoint, is_savepoint, read_savepoint
from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem, flip_bit
from cairn.testing.keyed_harness import UID, KeyedProcessHarness


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    run_old(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")

    def refused(function: Any, match: str, error: Any = IncompatibleStateError, **more: Any) -> None:
        settings = more.pop("settings", {})
        with harness(function, tmp_path / "shape", more.pop("parallelism", 2), **more) as job:
            shape = shape_of(job, groups=settings.pop("groups", 0))
        with pytest.raises(error, match=match):
            restored(path, tmp_path / "b", shape, **settings)
        assert not (tmp_path / "b").exists()
        shutil.rmtree(tmp_path / "shape")

    class Narrow(Old):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_state(ValueStateDescriptor("total", "smallint"))

    class Kind(Old):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_list_state(ListStateDescriptor("total", "int"))

    class Keys(Old):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_map_state(MapStateDescriptor("days", "int", "float"))

    refused(Narrow(), "int cannot become smallint: it is narrower")
    refused(Kind(), "cannot become a list state")
    refused(Keys(), "map keys are string, and cannot become int")
    refused(Old(), r"keyed by \(key string\), the job keys by \(n bigint\)", key_by="n")  # G5
    refused(Old(), "128 key groups, this job requests 64", settings={"groups": 64})  # J3
    refused(Old(), "renames: the savepoint has no operator or state 'x'", settings={"renames": {"x": "y"}})
    refused(Old(), "which the job does not have", settings={"renames": {UID: "y"}})
    refused(Old(), "another state of the same operator", settings={"renames": {f"{UID}.total": "y.z"}})
    refused(Old(), "both 'least' and 'total'|both 'total' and 'least'",
            settings={"renames": {f"{UID}.least": f"{UID}.total"}})  # fmt: skip
    part = next(p for p in Path(path).rglob("*.parquet"))
    whole = part.read_bytes()
    flip_bit(str(part), len(whole) // 2)
    refused(Old(), "does not match its checksum", CorruptFileError)
    part.unlink()
    refused(Old(), "is missing", CorruptFileError)
    with pytest.raises(NotFoundError, match="not a savepoint, a checkpoint or a job"):
        restored(str(tmp_path), tmp_path / "b", shape_of(harness(Old(), tmp_path / "shape")))


def test_a_savepoint_that_cannot_be_read_right_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_old(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(Old(), tmp_path / "shape") as job:
        shape = shape_of(job)
    opened = regular_files.open_file

    def cut_off(name: str, *more: Any) -> int:
        if name.endswith(".parquet"):
            raise ConnectionResetError(errno.ECONNRESET, "the connection was cut")
        return opened(name, *more)

    with monkeypatch.context() as patch:
        patch.setattr(regular_files, "open_file", cut_off)
        with pytest.raises(StorageError, match=r"cannot read .*: the connection was cut"):
            restored(path, tmp_path / "b", shape)
        assert all(problem.unread for problem in verify_savepoint(path))
    assert not (tmp_path / "b").exists()
    restored(path, tmp_path / "b", shape)


def test_functions_that_cannot_be_asked(tmp_path: Path) -> None:
    run_old(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")

    class Shy(Old):
        def open(self, runtime_context: Any) -> None:
            raise OSError("no database here")

    with harness(Shy(), tmp_path / "shape") as job:
        shape = shape_of(job)
    assert shape.declared[UID].failure == "open() raised OSError"
    restored(path, tmp_path / "b", shape)
    with harness(Old(), tmp_path / "b") as job:
        check_same(job)


def test_pickles_of_another_job_are_opened_by_name_only(tmp_path: Path) -> None:
    with harness(Pickled(), tmp_path / "a") as job:
        job.push(("k", 1))
        job.run_epoch()
        shape = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with pytest.raises(IncompatibleStateError, match=f"cairn.restore.allow-pickled={UID}.any"):
        restored(path, tmp_path / "b", shape)
    restored(path, tmp_path / "b", shape, allow_pickled=(f"{UID}.any",))
    restored(path, tmp_path / "a", shape)  # its own
    with harness(Pickled(), tmp_path / "b") as job:
        assert job.state("any", "k") == {"n": 1}


def test_what_a_snapshot_says_of_itself_does_not_make_its_pickles_the_jobs_own(tmp_path: Path) -> None:
    with harness(Pickled(), tmp_path / "a") as job:
        job.push(("k", 1))
        job.run_epoch()
        shape = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    stored = read_savepoint(path)
    edited = tmp_path / "sp" / "edited"
    shutil.copytree(path, edited)
    changed = msgspec.structs.replace(stored, created_ms=stored.created_ms + 1)
    (edited / "_metadata").write_bytes(encode_savepoint(changed))
    assert read_savepoint(str(edited)).incarnation == newest(tmp_path / "a").incarnation
    refused = f"state '{UID}.any' is pickled, and this job did not make the savepoint as it is"
    with pytest.raises(IncompatibleStateError, match=refused):
        restored(str(edited), tmp_path / "a", shape)
    moved = tmp_path / "moved"
    os.rename(path, moved)
    restored(str(moved), tmp_path / "a", shape)  # the job's own, wherever it lies now
    with harness(Pickled(), tmp_path / "a") as job:
        assert job.state("any", "k") == {"n": 1}


def test_pickles_of_a_foreign_checkpoint_and_of_states_that_nobody_declares(tmp_path: Path) -> None:
    with harness(Pickled(), tmp_path / "a") as job:
        job.push(("k", 1))
        job.run_epoch()
        shape = shape_of(job)
    checkpoint = checkpoint_of(tmp_path / "a")
    with pytest.raises(IncompatibleStateError, match=f"did not make the checkpoint .*allow-pickled={UID}.any"):
        restored(checkpoint, tmp_path / "b", shape)
    assert not (tmp_path / "b").exists()
    silent = JobShape(shape.operators, {UID: Declared(UID, [])}, shape.parallelism, 0)  # a later version may declare it
    for path in (checkpoint, savepoint_of(tmp_path / "a", tmp_path / "sp")):
        with pytest.raises(IncompatibleStateError, match=f"allow-pickled={UID}.any"):
            restored(path, tmp_path / "b", silent)
    restored(checkpoint, tmp_path / "b", shape, allow_pickled=(f"{UID}.any",))
    with harness(Pickled(), tmp_path / "b") as job:
        assert job.state("any", "k") == {"n": 1}
    restored(checkpoint, tmp_path / "a", shape)  # its own


def test_a_crash_at_every_step_of_a_restore(tmp_path: Path) -> None:
    """J5: the snapshot stays as it was, and starting again succeeds."""
    run_old(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(Old(), tmp_path / "shape", 5) as job:
        shape = shape_of(job)
    call = 0
    while True:
        call += 1
        target = tmp_path / f"b{call}"
        files: Any = FaultyFileSystem(LocalFileSystem(str(target)), FaultPlan([Fault("crash", call=call)]))
        try:
            restored(path, target, shape, files=files)
        except Crash:
            assert verify_savepoint(path) == []
        else:
            break
        restored(path, target, shape)
        if call % 5 == 0:
            with harness(Old(), target, 5) as job:
                check_same(job)
        shutil.rmtree(target)
    assert call > 10


def test_a_mover_that_fails_leaves_the_running_job_alone(tmp_path: Path) -> None:
    run_old(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(Old(), tmp_path / "shape", 5) as job:
        shape = shape_of(job)

    class Broken(LocalMover):
        def move(self, plan: Any, operator: Any, target: Any) -> Any:
            super().move(plan, operator, target)
            raise StorageError("no room")

    runs = sorted(p.name for p in (tmp_path / "a" / "runs").iterdir())
    with pytest.raises(StorageError, match="no room"):
        restored(path, tmp_path / "a", shape, mover=Broken())
    assert sorted(p.name for p in (tmp_path / "a" / "runs").iterdir()) == runs, "nobody was fenced"
    assert newest(tmp_path / "a").epoch == 2
    restored(path, tmp_path / "a", shape)
    with harness(Old(), tmp_path / "a", 5) as job:
        check_same(job)


def test_a_crash_at_every_step_of_a_savepoint(tmp_path: Path) -> None:
    """C10, C14: no folder that looks like a savepoint, the job untouched, the same request succeeds later."""
    run_old(tmp_path / "a")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*") if p.is_file()}
    call = 0
    while True:
        call += 1
        target = tmp_path / f"sp{call}"
        target.mkdir()
        files: Any = FaultyFileSystem(LocalFileSystem(str(target)), FaultPlan([Fault("crash", call=call)]))
        try:
            savepoint_of(tmp_path / "a", target, files, token="t")
        except Crash:
            for found in target.iterdir():
                assert not is_savepoint(str(found)) or verify_savepoint(str(found)) == []
                assert not is_savepoint(str(found)) or not found.name.startswith(".")
        else:
            break
    assert call > 3
    assert {
        p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*") if p.is_file() and p.parent.name != "taken"
    } == before


def test_a_crash_at_every_storage_call_of_a_job_with_a_savepoint_and_a_clean_up(tmp_path: Path) -> None:
    """C14: three epochs, a savepoint after the second, old epochs expire; whatever call is the last one of the run."""

    def batches(job: KeyedProcessHarness, target: Path) -> None:
        for number in range(job.epoch + 1, 3):
            job.push(*ROWS[40 * number : 40 * number + 40])
            job.run_epoch()
            if number == 1:
                savepoint_of(target.parent / "job", target)

    with harness(Old(), tmp_path / "shape", 3) as job:
        shape = shape_of(job)
    call = 0
    while True:
        call += 1
        folder = tmp_path / str(call)
        files: Any = FaultyFileSystem(LocalFileSystem(str(folder / "job")), FaultPlan([Fault("crash", call=call)]))
        try:
            with harness(Old(), folder / "job", files=files, epochs_retained=2, inline_threshold=0) as job:
                batches(job, folder / "sp")
        except Crash:
            pass
        else:
            break
        with harness(Old(), folder / "job", epochs_retained=2, inline_threshold=0) as job:
            batches(job, folder / "sp")
            assert job.epoch == 2
            assert job.state("seen", "k1") == model()["k1"]["seen"]
        for path in (folder / "sp").glob("savepoint-*"):
            assert verify_savepoint(str(path)) == []
            if call % 7 == 0:
                restored(str(path), folder / "b", shape)
                with harness(Old(), folder / "b", 3) as job:
                    job.push(*ROWS[80:])
                    job.run_epoch()
                    check_same(job)
                shutil.rmtree(folder / "b")
        shutil.rmtree(folder)
    assert call > 15


def test_back_to_an_older_point_reads_nothing_of_what_was_given_up(tmp_path: Path) -> None:
    """J7: after a roll-back, the files of the epochs in between can go."""
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS[:40])
        job.run_epoch()
        path = savepoint_of(tmp_path / "a", tmp_path / "sp")
        old = newest(tmp_path / "a").files()
        for start in (40, 80):
            job.push(*ROWS[start : start + 40])
            job.run_epoch()
        shape = shape_of(job)
    made = restored(path, tmp_path / "a", shape)
    assert made.manifest is not None
    assert made.manifest.abandoned == [(0, 3)]
    for gone in {str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a" / "shared").rglob("*.state")}:
        if gone not in made.manifest.files():
            (tmp_path / "a" / gone).unlink()
    for epoch in (0, 1, 2):
        (tmp_path / "a" / "epochs" / f"{epoch:020d}").unlink()
    assert not old & made.manifest.files(), "a savepoint's state is the job's own copy"
    with harness(Old(), tmp_path / "a") as job:
        assert job.epoch == 3
        for start in (40, 80):
            job.push(*ROWS[start : start + 40])
            job.run_epoch()
        check_same(job)


def test_a_directory_that_another_job_uses(tmp_path: Path) -> None:
    run_old(tmp_path / "a")
    run_old(tmp_path / "b")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(Old(), tmp_path / "shape") as job:
        shape = shape_of(job)
    made = restored(path, tmp_path / "b", shape)  # a job of the same id: its own state is given up
    assert made.manifest is not None
    assert made.manifest.abandoned == [(-1, 3)]
    foreign = checkpoint_of(tmp_path / "a")
    with pytest.raises(InvalidInputError, match="holds a job already"):
        restored(foreign, tmp_path / "b", shape)
