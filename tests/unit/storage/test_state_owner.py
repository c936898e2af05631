"""A state file says where it belongs: files that are whole and in the wrong place are found, and both are named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.recovery_lab import Sum, run, start, tell_spark, total
from tests.support.restore_lab import checkpoint_of, harness, newest, restored, savepoint_of, shape_of

from cairn.errors import CorruptFileError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import Manifest, StateHandle
from cairn.restore.damage import MANY_FILES, damage
from cairn.state.section_changes import ChainFiles
from cairn.storage import state_file
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore, load_identity
from cairn.storage.run_records import Runs
from cairn.storage.state_file import StateFile
from cairn.storage.state_owner import Place, StateOwner, Writer

UID = "tested"


def swap(one: Path, other: Path) -> None:
    kept = one.with_name("kept")
    os.rename(one, kept)
    os.rename(other, one)
    os.rename(kept, other)


def chain_of(folder: Path) -> list[StateHandle]:
    operator = newest(folder).operator(UID)
    assert operator is not None
    return operator.chain


def owners(folder: Path, manifest: Manifest | None = None) -> list[StateOwner | None]:
    """The owners of all state that the newest manifest needs, read through the handles."""
    manifest = manifest or newest(folder)
    files = ChainFiles(LocalFileSystem(str(folder)), manifest)
    return [files.open(op.uid, handle).owner for op in manifest.operators for handle in op.chain]


def test_a_delta_says_where_it_belongs(tmp_path: Path) -> None:
    run(tmp_path, 1, 2, inline_threshold=0, parallelism=1)
    identity = load_identity(LocalFileSystem(str(tmp_path)))
    assert identity is not None
    for handle, owner in zip(chain_of(tmp_path), owners(tmp_path), strict=True):
        attempt = handle.path.removesuffix(".state").rpartition("-")[2]
        assert owner == StateOwner(
            identity.job_id, identity.incarnation, UID, handle.epoch, 0, 127, 1, attempt, handle.path
        )


def test_inlined_changes_and_snapshots_say_where_they_belong(tmp_path: Path) -> None:
    run(tmp_path, *range(1, 16), inline_threshold=20_000, compaction_chain=3)
    made = owners(tmp_path)
    assert None not in made
    assert any(owner.snapshot for owner in made if owner is not None)
    assert any(not handle.path for handle in chain_of(tmp_path))


@pytest.mark.parametrize("keep_stores", [True, False])
def test_swapped_deltas_are_found_at_the_start_and_both_are_named(tmp_path: Path, keep_stores: bool) -> None:
    """Also if warm stores would hide it: tasks would not read the files for epochs."""
    shape = run(tmp_path / "a", 1, 20, 300, inline_threshold=0, parallelism=1)
    one, two, _ = (tmp_path / "a" / handle.path for handle in chain_of(tmp_path / "a"))
    runs = Runs(LocalFileSystem(str(tmp_path / "a"))).newest()
    swap(one, two)
    if not keep_stores:
        with harness(Sum(), tmp_path / "a") as job:
            job.restart()
    with pytest.raises(CorruptFileError, match="is in the wrong place") as caught:
        start(tmp_path / "a", shape)
    told = caught.value.message
    assert str(one) in told
    assert str(two) in told
    assert "it holds the changes of epoch 1" in told
    assert "the changes of epoch 0 in key groups 0 to 127 of operator 'tested' belong here" in told
    assert Runs(LocalFileSystem(str(tmp_path / "a"))).newest() == runs + (not keep_stores) * 2
    swap(one, two)
    start(tmp_path / "a", shape)
    assert total(tmp_path / "a") == 321


def test_deltas_of_two_subtasks_that_changed_places_are_found(tmp_path: Path) -> None:
    with harness(Sum(), tmp_path / "a", inline_threshold=0) as job:
        job.push(*((f"k{n}", 1) for n in range(50)))
        job.run_epoch()
        shape = shape_of(job)
    tell_spark(tmp_path / "a")
    low, high = chain_of(tmp_path / "a")
    swap(tmp_path / "a" / low.path, tmp_path / "a" / high.path)
    with pytest.raises(CorruptFileError, match=r"holds .* key groups 64 to 127 .* key groups 0 to 63 .* belong here"):
        start(tmp_path / "a", shape)


def test_a_file_of_another_job_is_named_with_the_job_that_it_belongs_to(tmp_path: Path) -> None:
    """The other job ran the same program over other rows: the file has the same name and the same size."""
    shape = run(tmp_path / "a", 1, inline_threshold=0, parallelism=1)
    run(tmp_path / "b", 2, inline_threshold=0, parallelism=1)
    (mine,), (other,) = chain_of(tmp_path / "a"), chain_of(tmp_path / "b")
    assert mine.path == other.path
    shutil.copy(tmp_path / "b" / other.path, tmp_path / "a" / mine.path)
    with pytest.raises(CorruptFileError, match="It belongs to another job, 'harness'") as caught:
        start(tmp_path / "a", shape)
    assert newest(tmp_path / "a").incarnation in caught.value.message
    assert newest(tmp_path / "b").incarnation in caught.value.message


def test_a_task_that_reads_a_file_in_the_wrong_place_names_both(tmp_path: Path) -> None:
    """Files may also change places while the job runs."""
    with harness(Sum(), tmp_path, inline_threshold=0, parallelism=1) as job:
        for amount in (1, 2):
            job.push(("a", amount))
            job.run_epoch()
        one, two = (tmp_path / handle.path for handle in chain_of(tmp_path))
        swap(one, two)
        job.restart()
        job.push(("a", 3))
        with pytest.raises(CorruptFileError, match=r"is in the wrong place: it holds the changes of epoch 1") as caught:
            job.run_epoch()
    assert str(one) in caught.value.message
    assert str(two) in caught.value.message


def test_the_bytes_that_an_older_manifest_holds_are_checked_at_the_start(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1, 2, 3, inline_threshold=20_000)
    run(tmp_path / "b", 1, 2, 3, inline_threshold=20_000)
    path = "epochs/" + "0" * 19 + "1"
    shutil.copy(tmp_path / "b" / path, tmp_path / "a" / path)
    with pytest.raises(CorruptFileError, match=f"{path} is the manifest of another job, 'harness'"):
        start(tmp_path / "a", shape)
    (tmp_path / "a" / path).unlink()
    with pytest.raises(CorruptFileError, match=f"{path} is missing"):
        start(tmp_path / "a", shape)


@pytest.mark.parametrize("inline", [0, 20_000])
def test_what_a_restore_takes_over_belongs_to_the_restored_job(tmp_path: Path, inline: int) -> None:
    run(tmp_path / "a", 1, 2, inline_threshold=inline)
    path = checkpoint_of(tmp_path / "a")
    shape = run(tmp_path / "shape", 1)
    made = restored(path, tmp_path / "b", shape).manifest
    assert made is not None
    identity = load_identity(LocalFileSystem(str(tmp_path / "b")))
    assert identity is not None
    assert {owner.incarnation for owner in owners(tmp_path / "b", made) if owner is not None} == {identity.incarnation}
    assert [owner.path for owner in owners(tmp_path / "b", made) if owner is not None] == [
        handle.path for op in made.operators for handle in op.chain
    ]
    assert damage(LocalFileSystem(str(tmp_path / "b")), made, thorough=True) == ""
    shutil.rmtree(tmp_path / "a")
    assert total(tmp_path / "b") == 3
    one, two = (tmp_path / "b" / handle.path for op in made.operators for handle in op.chain)
    swap(one, two)
    assert "is in the wrong place" in damage(LocalFileSystem(str(tmp_path / "b")), made)


def test_a_restore_in_place_and_one_from_a_savepoint_leave_files_that_belong(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1, 2, inline_threshold=0)
    inlined = run(tmp_path / "c", 1, 2, inline_threshold=20_000)
    for folder, what in ((tmp_path / "a", shape), (tmp_path / "c", inlined)):
        made = restored(checkpoint_of(folder), folder, what).manifest
        assert made is not None
        assert None not in owners(folder, made)
        assert damage(LocalFileSystem(str(folder)), made, thorough=True) == ""
    made = restored(savepoint_of(tmp_path / "a", tmp_path / "sp"), tmp_path / "b", shape).manifest
    assert made is not None
    assert None not in owners(tmp_path / "b", made)


def test_a_checkpoint_whose_files_changed_places_is_not_restored(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1, 2, inline_threshold=0, parallelism=1)
    path = checkpoint_of(tmp_path / "a")
    one, two = (tmp_path / "a" / handle.path for handle in chain_of(tmp_path / "a"))
    swap(one, two)
    with pytest.raises(CorruptFileError, match=f"{path} cannot be restored: .* is in the wrong place"):
        restored(path, tmp_path / "b", shape)


def without_owners(folder: Path) -> Manifest:
    """The job as an earlier version left it: no file says where it belongs."""
    manifest = newest(folder)
    files = LocalFileSystem(str(folder))
    operators = []
    for operator in manifest.operators:
        chain = []
        for handle in operator.chain:
            file = ChainFiles(files, manifest).open(operator.uid, handle)
            data, checksum = state_file.encode(file.read(info) for info in file.sections)
            assert checksum == handle.checksum
            (folder / handle.path).write_bytes(data)
            chain.append(msgspec.structs.replace(handle, size=len(data)))
        operators.append(msgspec.structs.replace(operator, chain=chain))
    store = ManifestStore(files)
    store.delete(manifest.epoch)
    store.publish(msgspec.structs.replace(manifest, operators=operators))
    return newest(folder)


def test_files_of_earlier_versions_are_read_and_restored(tmp_path: Path) -> None:
    shape = run(tmp_path / "a", 1, 2, inline_threshold=0, parallelism=1)
    without_owners(tmp_path / "a")
    assert owners(tmp_path / "a") == [None, None]
    start(tmp_path / "a", shape)
    made = restored(checkpoint_of(tmp_path / "a"), tmp_path / "b", shape).manifest
    assert made is not None
    assert None not in owners(tmp_path / "b", made)
    assert total(tmp_path / "b") == 3


# The record itself.

GROUPS = KeyGroupRange(0, 15)
OWNER = Writer("job", "i1", "op", 3).owner("shared/op/000000000007-3-9.state", 7, GROUPS)
DATA, CHECKSUM = state_file.encode([], OWNER)
HANDLE = StateHandle(7, 0, 15, len(DATA), CHECKSUM, OWNER.path)


def place(**changes: Any) -> Place:
    return Place("/jobs/job", changes.pop("incarnation", "i1"), changes.pop("uid", "op"),
                 msgspec.structs.replace(HANDLE, **changes))  # fmt: skip


def test_a_record_that_fits_is_accepted() -> None:
    for where in (place(), place(incarnation=""), place(path="")):
        assert StateFile(DATA, "it", CHECKSUM, len(DATA), where).owner == OWNER


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": "i2"}, {"uid": "other"}, {"epoch": 8}, {"first_group": 1}, {"last_group": 14},
        {"snapshot": True}, {"path": "shared/op/000000000007-3-8.state"},
    ],
)  # fmt: skip
def test_every_fact_of_the_place_explains_a_file_with_other_contents(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError, match=r"it is in the wrong place|it is in the wrong") as caught:
        StateFile(DATA, "it", "0" * 16, len(DATA), place(**changes))
    assert "/jobs/job/" in caught.value.message or "another job, 'job'" in caught.value.message


def test_a_file_with_the_right_contents_is_accepted_whatever_its_record_says() -> None:
    """An earlier version copies files byte by byte when it restores a job; nothing is wrong with them."""
    for changes in ({"incarnation": "i2"}, {"path": "shared/op/000000000007-3-8.state"}):
        assert StateFile(DATA, "it", CHECKSUM, len(DATA), place(**changes)).owner == OWNER


def test_every_damaged_byte_of_the_record_is_found() -> None:
    plain, _ = state_file.encode([])
    end = len(DATA) - (len(plain) - len(state_file.MAGIC))
    for at in range(len(state_file.MAGIC), end):
        damaged = bytearray(DATA)
        damaged[at] ^= 1
        if at >= end - 8:  # the sign that there is a record: without it the file is as an earlier version wrote it
            continue
        with pytest.raises(CorruptFileError, match="the record of its owner"):
            StateFile(bytes(damaged), "it", CHECKSUM, len(DATA))


def test_text_of_a_foreign_record_is_shown_escaped_and_cut() -> None:
    evil = msgspec.structs.replace(OWNER, uid="\x1b[31m" + "u" * 5000, incarnation="\n\n", job_id="\u202e", path="\r\n")
    data, checksum = state_file.encode([], evil)
    with pytest.raises(CorruptFileError, match="is in the wrong place") as caught:
        StateFile(data, "it", checksum[::-1], len(data), place())
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 2000


def test_the_start_of_a_job_with_thousands_of_files_finds_the_two_that_changed_places(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path))
    shape = run(tmp_path, 1, inline_threshold=0, parallelism=1)
    manifest = newest(tmp_path)
    writer = Writer(manifest.job_id, manifest.incarnation, UID, 1)
    (first,) = chain_of(tmp_path)
    section = [ChainFiles(files, manifest).open(UID, first).read(info) for info in
               ChainFiles(files, manifest).open(UID, first).sections]  # fmt: skip
    chain = []
    (tmp_path / "shared" / UID).mkdir(exist_ok=True, parents=True)
    for number in range(4000):
        path = f"shared/{UID}/{0:012d}-1-{number + 1000}.state"
        contents = section if number != 3000 else []
        data, checksum = state_file.encode(contents, writer.owner(path, 0, first.groups))
        (tmp_path / path).write_bytes(data)
        chain.append(msgspec.structs.replace(first, path=path, size=len(data), checksum=checksum))
    operator = msgspec.structs.replace(manifest.operators[0], chain=chain)
    large = msgspec.structs.replace(manifest, operators=[operator])
    assert damage(files, large) == ""
    swap(tmp_path / chain[3000].path, tmp_path / chain[3999].path)
    assert chain[3000].path in damage(files, large)
    assert chain[3999].path in damage(files, large)
    assert len(chain) >= MANY_FILES
    assert shape.parallelism == 1
    assert CheckpointStore(files).all() == []
