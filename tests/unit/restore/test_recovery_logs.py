"""A start never passes over what is lost or damaged: sources out of order, lost manifests, torn or flipped logs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.recovery_lab import HEAD, Sum, run, start, tell_spark, total
from tests.support.restore_lab import checkpoint_of, harness, newest, restored, savepoint_of, shape_of

import cairn.restore.restored_epoch as restoring
from cairn.coordinator.ports import SystemClock
from cairn.coordinator.retained_checkpoints import RetainedCheckpoints
from cairn.errors import CorruptFileError, FencedError, IncompatibleStateError, InvalidInputError, StorageError
from cairn.job.failure_policy import note_damage
from cairn.model.manifest import gave_up
from cairn.restore.recovery import Recovered
from cairn.restore.restore_plan import JobShape
from cairn.restore.source_logs import RestoredLogs, StoredSources, build_spark_folder
from cairn.restore.source_matching import TICKS, again, moved_sources
from cairn.restore.spark_logs import read_log, sealed
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.verification import verify_savepoint
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore, create_identity
from cairn.storage.run_records import Runs
from cairn.storage.savepoint_folder import read_savepoint
from cairn.testing.faults import Fault, FaultPlan, FaultyFileSystem


def lose(folder: Path, *epochs: int) -> None:
    for epoch in epochs:
        (folder / layout.epoch_path(epoch)).unlink()


# The order of the sources.


@pytest.mark.parametrize(
    ("stored", "wanted", "fits"),
    [
        (["rate{1}", "rate{10}"], ["rate{1}", "rate{10}"], True),
        (["rate{1}", "rate{10}"], ["rate{10}", "rate{1}"], False),
        (["rate{1}", "rate{10}"], ["rate{1}", "rate{20}"], True),
        (["rate{1}", "rate{10}"], ["rate{2}", "rate{20}"], False),
        (["rate{1}"], ["rate{2}"], True),
        (["FileSource[/a]{x}", "FileSource[/b]{x}"], ["FileSource[/a]{y}", "FileSource[/b]{y}"], True),
        (["FileSource[/a]", "FileSource[/b]"], ["FileSource[/b]", "FileSource[/a]"], False),
        (["FileSource[/a]"], ["FileSource[/moved]"], False),
        (["rate", "kafka", TICKS], ["rate", "kafka", TICKS], True),
        (["rate", "kafka"], ["rate", TICKS], False),
        (["rate", again(0), "kafka"], ["rate", again(0), "kafka"], True),
        (["rate", again(0), "kafka"], ["rate", "kafka", again(1)], False),
        (["rate"], ["rate", TICKS], True),  # another number is left to Spark
        ([], ["rate"], True),
    ],
)
def test_positions_by_number_fit_only_the_same_sources(stored: list[str], wanted: list[str], fits: bool) -> None:
    assert (moved_sources(stored, max(1, len(stored)), wanted) == "") == fits


def test_a_plain_start_with_sources_in_another_order_is_refused(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1)
    names = ["rate{one}", "rate{ten}"]
    tell_spark(tmp_path / "a", offsets=f"{HEAD}\n3\n30", source_names=names)
    runs = Runs(LocalFileSystem(str(tmp_path / "a")))
    before = runs.newest()
    with pytest.raises(IncompatibleStateError, match=r"0: rate\{one\}; 1: rate\{ten\}.*0: rate\{ten\}.* -s SAVEPOINT"):
        start(tmp_path / "a", shape, names[::-1])
    assert runs.newest() == before, "a run that works is not stopped by it"
    assert start(tmp_path / "a", shape, names).manifest is not None
    checkpoint_of(tmp_path / "a")
    lose(tmp_path / "a", 0)
    with pytest.raises(IncompatibleStateError, match="position of another"):
        start(tmp_path / "a", shape, names[::-1])  # nor is it fallen back to


def test_a_source_that_stands_twice_in_the_plan_is_restored(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1)
    names = ["FileSource[/in]", again(0), "FileSource[/other]"]
    position = json.dumps({"logOffset": 0})
    for number, name in enumerate(("in", "other")):
        log = tmp_path / "a" / "spark" / "sources" / str(number) / "0"
        log.parent.mkdir(parents=True)
        log.write_text("v1\n" + json.dumps({"path": f"file:///{name}/0", "timestamp": 1, "batchId": 0}))
    tell_spark(tmp_path / "a", offsets="\n".join([HEAD, *3 * [position]]), source_names=names)
    path = checkpoint_of(tmp_path / "a")
    asked = JobShape(shape.operators, shape.declared, 2, 0, sources=names)
    for target in ("b", "a"):
        made = restored(path, tmp_path / target, asked).manifest
        assert made is not None
        copied = tmp_path / target / made.spark / "sources"
        assert sorted(log.name for log in copied.iterdir()) == ["0", "1"]
    lose(tmp_path / "a", 1)
    assert start(tmp_path / "a", shape, names).manifest is not None, "falling back works, too"


# Lost manifests.


def test_lost_manifests_and_logs_never_mean_empty_state(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1, 10)
    checkpoint_of(tmp_path / "a")
    for folder in ("epochs", "spark"):
        shutil.rmtree(tmp_path / "a" / folder)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    made = start(tmp_path / "a", shape).manifest
    assert made is not None
    assert made.restored == 1
    assert made.epoch > 1
    assert total(tmp_path / "a") == 11
    shutil.rmtree(tmp_path / "b" / "chk-1")
    with pytest.raises(CorruptFileError, match=r"no manifest, but the state file .*must not be lost silently"):
        start(tmp_path / "b", shape)
    assert Runs(LocalFileSystem(str(tmp_path / "b"))).newest() == 1


def test_a_job_that_died_in_its_first_epoch_starts_empty(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1)
    lose(tmp_path / "a", 0)
    (tmp_path / "a" / "spark" / "commits" / "0").unlink()
    assert list((tmp_path / "a" / "shared").rglob("*.state"))
    assert start(tmp_path / "a", shape).manifest is None


def rolled_back(tmp_path: Path) -> tuple[JobShape, Recovered]:
    """Two checkpoints of 1 and 667; the job went back to the first as epoch 2."""
    shape = run(tmp_path / "a", 1)
    first = checkpoint_of(tmp_path / "a", 1)
    run(tmp_path / "a", 666)
    checkpoint_of(tmp_path / "a", 2)
    made = restored(first, tmp_path / "a", shape)
    assert made.manifest is not None
    assert made.manifest.epoch == 2
    return shape, made


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("lost", [(2,), (0, 1, 2)])
def test_losing_the_manifests_since_a_restore_does_not_bring_back_what_it_gave_up(
    tmp_path: Path, lost: tuple[int, ...], swept: bool
) -> None:
    shape, _ = rolled_back(tmp_path)
    lose(tmp_path / "a", *lost)
    if swept:
        shutil.rmtree(tmp_path / "a" / "spark")
    made = start(tmp_path / "a", shape).manifest
    assert made is not None
    assert (made.restored, made.spark) == (1, "spark-3-4"), "the checkpoint that it went back to, not the newest one"
    assert made.abandoned == [(0, 2), (0, 3)]
    assert total(tmp_path / "a") == 1


def test_without_the_note_of_a_lost_restore_nothing_is_chosen(tmp_path: Path) -> None:
    shape, _ = rolled_back(tmp_path)
    lose(tmp_path / "a", 2)
    (tmp_path / "a" / "spark-2-3" / layout.RESTORES).unlink()
    with pytest.raises(CorruptFileError, match="spark-2-3 has committed batch 2"):
        start(tmp_path / "a", shape)
    again_there = restored(str(tmp_path / "a" / "chk-2"), tmp_path / "a", shape)  # by name it can be chosen
    assert again_there.manifest is not None
    assert total(tmp_path / "a") == 667


def test_a_restore_that_was_never_published_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = run(tmp_path / "a", 1, 10)
    path = checkpoint_of(tmp_path / "a")

    def die(*_: Any) -> None:
        raise StorageError("the host is gone")

    with monkeypatch.context() as patch:
        patch.setattr(ManifestStore, "publish", die)
        with pytest.raises(StorageError):
            restored(path, tmp_path / "a", shape)
    assert len(list((tmp_path / "a").glob("spark-2-*/offsets/2"))) == 1
    made = start(tmp_path / "a", shape).manifest
    assert made is not None
    assert made.epoch == 1
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "finish", die)
        with pytest.raises(StorageError):
            restored(path, tmp_path / "a", shape)
    made = start(tmp_path / "a", shape).manifest
    assert made is not None
    assert made.restored, "published: Spark is told by the next start"
    assert (tmp_path / "a" / made.spark / "commits" / str(made.epoch)).exists()


def test_a_forked_job_that_lost_its_manifests_is_not_begun_anew(tmp_path: Path) -> None:
    run(tmp_path / "a", 1)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(Sum(), tmp_path / "shape") as job:
        shape = shape_of(job)
    made = restored(path, tmp_path / "b", shape).manifest
    assert made is not None
    shutil.rmtree(tmp_path / "b" / "epochs")
    with pytest.raises(CorruptFileError, match="the newest manifest is missing"):
        start(tmp_path / "b", shape)
    create_identity(LocalFileSystem(str(tmp_path / "c")), "harness", "harness", 128, path)
    with pytest.raises(InvalidInputError, match="but never was"):
        start(tmp_path / "c", shape)


# Restores in place, one after the other.


@pytest.mark.parametrize(
    ("restores", "current"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        ([(0, 2)], [0, 2, 3, 4, 5, 6]),
        ([(0, 2), (1, 4)], [0, 1, 4, 5, 6]),
        ([(0, 2), (3, 5)], [0, 2, 3, 5, 6]),
        ([(2, 3), (0, 4), (3, 6)], [0, 1, 2, 3, 6]),
        ([(1, 3), (-1, 5)], [5, 6]),
    ],
)
def test_the_history_is_walked_back(restores: list[tuple[int, int]], current: list[int]) -> None:
    assert [epoch for epoch in range(7) if not gave_up(restores, epoch)] == current


def test_going_back_to_what_was_given_up_takes_it_up_again(tmp_path: Path) -> None:
    shape, _ = rolled_back(tmp_path)
    run(tmp_path / "a", 5)
    checkpoint_of(tmp_path / "a", 3)
    restored(str(tmp_path / "a" / "chk-2"), tmp_path / "a", shape)
    store = CheckpointStore(LocalFileSystem(str(tmp_path / "a")))
    assert [checkpoint.id for checkpoint in store.current()] == [1, 2]
    assert open_snapshot(str(tmp_path / "a")).checkpoint_number == 2
    kept = RetainedCheckpoints(store, Runs(store.files).newest(), 2, SystemClock())
    checkpoint_of(tmp_path / "a", 4, kept.with_added(4))
    kept.add(store.load(4))
    kept.delete_doomed()
    assert 2 in store.numbers(), "it goes on from that one"
    assert 3 not in store.numbers()


# Two runs, full disks.


def test_a_restoring_run_that_was_overtaken_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = run(tmp_path / "a", 1, 10)
    path = checkpoint_of(tmp_path / "a")
    newer: list[Recovered] = []

    def overtaken(*args: Any) -> None:
        monkeypatch.setattr(restoring, "build_spark_folder", build_spark_folder)
        newer.append(start(tmp_path / "a", shape))
        build_spark_folder(*args)

    monkeypatch.setattr(restoring, "build_spark_folder", overtaken)
    with pytest.raises(FencedError):
        restored(path, tmp_path / "a", shape)
    assert newer[0].manifest is not None
    assert newer[0].manifest.epoch == 1
    assert newest(tmp_path / "a").epoch == 1


def test_a_full_disk_while_state_is_copied_stops_no_run_that_works(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1, inline_threshold=20_000)  # inlined bytes become files in a restore
    path = checkpoint_of(tmp_path / "a")
    runs = Runs(LocalFileSystem(str(tmp_path / "a")))
    before = runs.newest()
    plan = FaultPlan([Fault("full", operation="create", pattern="shared/*")])
    with pytest.raises(StorageError):
        restored(path, tmp_path / "a", shape, files=FaultyFileSystem(LocalFileSystem(str(tmp_path / "a")), plan))
    assert runs.newest() == before


# Spark's own files.


def with_file_log(folder: Path) -> tuple[JobShape, Path]:
    """A job that has read two files; its source's log as Spark and Hadoop write it."""
    shape = run(folder, 1, 10)
    log = folder / "spark" / "sources" / "0"
    log.mkdir(parents=True)
    for number in range(2):
        data = b"v1\n" + json.dumps({"path": f"file:///in/{number}", "timestamp": 1, "batchId": number}).encode()
        (log / str(number)).write_bytes(data)
        (log / f".{number}.crc").write_bytes(sealed(data))
    tell_spark(folder, offsets=f'{HEAD}\n{{"logOffset":1}}', source_names=["FileSource[/in]"])
    return shape, log


def test_checksums_are_those_of_hadoop() -> None:
    assert sealed(b"123456789") == b"crc\0" + bytes.fromhex("00000200") + bytes.fromhex("cbf43926")
    assert len(sealed(b"x" * 1025)) == 8 + 3 * 4


def test_one_bit_in_the_log_of_a_file_source_is_noticed(tmp_path: Path) -> None:
    shape, log = with_file_log(tmp_path / "a")
    assert start(tmp_path / "a", shape).manifest is not None
    checkpoint_of(tmp_path / "a")
    data = bytearray((log / "0").read_bytes())
    data[20] ^= 1
    (log / "0").write_bytes(data)
    runs = Runs(LocalFileSystem(str(tmp_path / "a"))).newest()
    with pytest.raises(CorruptFileError, match=r"sources/0/0 does not match its checksums.*state of epoch 1 is intact"):
        start(tmp_path / "a", shape)
    asked = JobShape(shape.operators, shape.declared, 2, 0, sources=["FileSource[/in]"])
    with pytest.raises(CorruptFileError, match="sources/0/0 does not match its checksums"):
        restored(str(tmp_path / "a" / "chk-1"), tmp_path / "b", asked)
    assert Runs(LocalFileSystem(str(tmp_path / "a"))).newest() == runs
    (log / ".0.crc").write_bytes(b"")  # never written whole: nothing to compare with
    assert read_log(str(log / "0")) == data


def test_logs_that_a_restore_wrote_are_checked_as_well(tmp_path: Path) -> None:
    shape, _ = with_file_log(tmp_path / "a")
    asked = JobShape(shape.operators, shape.declared, 2, 0, sources=["FileSource[/in]"])
    made = restored(checkpoint_of(tmp_path / "a"), tmp_path / "b", asked).manifest
    assert made is not None
    path = tmp_path / "b" / made.spark / "sources" / "0" / "1"
    path.write_bytes(path.read_bytes().replace(b"/in/1", b"/in/3"))
    with pytest.raises(CorruptFileError, match="does not match its checksums"):
        start(tmp_path / "b", shape)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("offsets/2", "", "no epoch was committed for it, so it can be moved away"),
        ("commits/1", "v1", "its epoch has a manifest, so it can be moved away"),
        ("commits/0", "", "rolled forward"),
        ("sources/0/1", 'v1\n{"path":', "-s .*/chk-1"),
        ("sources/0/1", "", "-s .*/chk-1"),
    ],
)
def test_a_torn_file_of_spark_is_named_with_the_remedy(tmp_path: Path, name: str, text: str, told: str) -> None:
    shape, log = with_file_log(tmp_path / "a")
    checkpoint_of(tmp_path / "a")
    for crc in log.glob(".*.crc"):
        crc.unlink()
    torn = tmp_path / "a" / "spark" / name
    torn.write_text(text)
    with pytest.raises(
        CorruptFileError, match=f"spark/{name}.*truncated or damaged.*state of epoch 1 is intact"
    ) as got:
        start(tmp_path / "a", shape)
    assert got.match(told)
    if not name.startswith("sources"):
        os.rename(torn, torn.with_name("aside"))
        assert start(tmp_path / "a", shape).manifest is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id":""}', '{"id":7}', "\0" * 45])
def test_an_empty_or_damaged_identity_of_the_query_is_refused_with_the_remedy(tmp_path: Path, text: str) -> None:
    shape = run(tmp_path / "a", 1)
    identity = tmp_path / "a" / "spark" / "metadata"
    identity.write_text(text)
    runs = Runs(LocalFileSystem(str(tmp_path / "a"))).newest()
    with pytest.raises(
        CorruptFileError, match=r"spark/metadata.*id of Spark's query.*state of epoch 0 is intact"
    ) as got:
        start(tmp_path / "a", shape)
    assert Runs(LocalFileSystem(str(tmp_path / "a"))).newest() == runs
    command = str(got.value).partition("`")[2].partition("`")[0]
    subprocess.run(["sh", "-c", command], check=True)
    assert json.loads(identity.read_text())["id"]
    assert start(tmp_path / "a", shape).manifest is not None


def test_a_log_that_a_savepoint_does_not_name_is_refused(tmp_path: Path) -> None:
    shape, _ = with_file_log(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    assert read_savepoint(path).sources == []
    stray = Path(path) / "sources" / "0" / "77"
    stray.parent.mkdir(parents=True)
    (stray.parent / ".DS_Store").write_text("")
    assert not any(problem.damage for problem in verify_savepoint(path))
    stray.write_text("v1\n" + json.dumps({"path": "file:///in/0", "timestamp": 1, "batchId": 0}))
    assert [problem.path for problem in verify_savepoint(path) if problem.damage] == ["sources/0/77"]
    with pytest.raises(CorruptFileError, match=r"sources/0/77 is not part of the savepoint.*move it away"):
        restored(path, tmp_path / "b", shape)


# Manifests of another job.


def test_a_manifest_of_another_job_is_named_as_what_it_is(tmp_path: Path) -> None:
    """It names files that this job does not have; they are not missing, they were never here."""
    shape = run(tmp_path / "a", 1, 2, inline_threshold=0)
    checkpoint_of(tmp_path / "a")
    run(tmp_path / "b", 10, 20, 30, inline_threshold=0)
    foreign = newest(tmp_path / "b")
    shutil.copy(tmp_path / "b" / layout.epoch_path(2), tmp_path / "a" / layout.epoch_path(2))
    before = Runs(LocalFileSystem(str(tmp_path / "a"))).newest()
    with pytest.raises(CorruptFileError, match="is the manifest of another job") as got:
        start(tmp_path / "a", shape)
    told = str(got.value)
    assert layout.epoch_path(2) in told
    assert foreign.incarnation in told
    assert newest(tmp_path / "a").incarnation in told
    assert "missing" not in told
    assert "Move the file away" in told
    assert Runs(LocalFileSystem(str(tmp_path / "a"))).newest() == before
    (tmp_path / "a" / layout.epoch_path(2)).unlink()
    recovered = start(tmp_path / "a", shape).manifest
    assert recovered is not None
    assert recovered.epoch == 1


def test_an_older_manifest_of_another_job_is_left_alone(tmp_path: Path) -> None:
    """Retention must not delete what a foreign manifest names: it may name a file of this job."""
    run(tmp_path / "a", 1, 2, inline_threshold=0)
    kept = newest(tmp_path / "a")
    run(tmp_path / "b", 10, inline_threshold=0)
    foreign = msgspec.structs.replace(newest(tmp_path / "b"), operators=kept.operators)
    store = ManifestStore(LocalFileSystem(str(tmp_path / "a")))
    store.delete(0)
    store.publish(msgspec.structs.replace(foreign, epoch=0))
    with harness(Sum(), tmp_path / "a", inline_threshold=0, epochs_retained=1) as job:
        for _ in range(4):
            job.push(("a", 1))
            job.run_epoch()
        assert job.state("sum", "a") == 7
    assert store.exists(0)
    assert store.load(0).incarnation == foreign.incarnation


# A damaged state file that a task has met.


def test_a_damaged_state_file_makes_the_next_start_thorough(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1, inline_threshold=0)
    checkpoint_of(tmp_path / "a")
    run(tmp_path / "a", 10, inline_threshold=0)
    files = LocalFileSystem(str(tmp_path / "a"))
    handles = [handle for operator in newest(tmp_path / "a").operators for handle in operator.chain if handle.path]
    path = tmp_path / "a" / max(handles, key=lambda handle: handle.epoch).path
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)
    made = start(tmp_path / "a", shape).manifest
    assert made is not None
    assert made.epoch == 1, "only sizes are looked at"
    told = note_damage(files, CorruptFileError(f"state file {path} is damaged"))
    assert f"cairn run JOB.py -s {tmp_path}/a/chk-1" in told.message
    assert files.exists(layout.DAMAGED)
    note_damage(files, told)  # a mark that is there already is fine
    made = start(tmp_path / "a", shape).manifest
    assert made is not None
    assert made.restored == 1
    assert not files.exists(layout.DAMAGED)
    assert total(tmp_path / "a") == 1
    needed = next(iter(CheckpointStore(files).load(1).files()))
    assert "no checkpoint without that file" in note_damage(files, CorruptFileError(f"{needed} is damaged")).message


def test_a_late_restore_does_not_touch_the_folder_of_a_run_that_restored_as_the_same_epoch(
    tmp_path: Path,
) -> None:
    shape, _ = rolled_back(tmp_path)
    made = newest(tmp_path / "a")
    live = tmp_path / "a" / made.spark
    before = {path: path.read_bytes() for path in live.rglob("*") if path.is_file()}
    assert layout.restored_spark(made.epoch, made.run - 1) != made.spark
    with pytest.raises(FileExistsError):  # nor is a folder ever built twice
        build_spark_folder(
            str(live),
            RestoredLogs(made.epoch, made.offsets),
            StoredSources(str(live / "sources"), made.offsets),
            None,
            10,
        )
    assert {path: path.read_bytes() for path in live.rglob("*") if path.is_file()} == before
    assert start(tmp_path / "a", shape).manifest == made
