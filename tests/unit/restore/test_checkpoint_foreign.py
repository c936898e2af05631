"""Checkpoints that are not what they seem: another job's, hostile, too large, or such that cannot be read."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.cli_call import call
from tests.support.evolving_job import Pickled
from tests.support.restore_lab import checkpoint_of, harness, newest, planned, restored, savepoint_of, shape_of

from cairn import KeyedProcessFunction, ValueStateDescriptor
from cairn.config import Settings
from cairn.coordinator.ports import SystemClock
from cairn.coordinator.retained_checkpoints import RetainedCheckpoints
from cairn.errors import CorruptFileError, IncompatibleStateError, InvalidInputError, StorageError
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import Manifest
from cairn.model.types import Storage
from cairn.restore.damage import damage, newest_intact
from cairn.restore.recovery import Recovered, recover
from cairn.restore.restore_plan import JobShape
from cairn.restore.snapshot_origin import made_here
from cairn.restore.start_request import StartRequest
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import of_checkpoint
from cairn.snapshots.verification import verify_snapshot
from cairn.storage import record_file, regular_files, state_file
from cairn.storage.checkpoint_store import CheckpointStore, decode_checkpoint, encode_checkpoint
from cairn.storage.cleanup import collect, plan_garbage, sweep
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore, encode_manifest
from cairn.storage.savepoint_folder import encode_savepoint, read_savepoint
from cairn.storage.state_file import Section, StateFile
from cairn.testing.faults import flip_bit
from cairn.testing.keyed_harness import UID

replace = msgspec.structs.replace


class Sum(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("sum", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.key, str(self.total.value())


def run(folder: Path, *numbers: int, **settings: Any) -> JobShape:
    """An epoch for each number, which is added to every key."""
    with harness(Sum(), folder, **settings) as job:
        for n in numbers:
            job.push(*[(f"k{i}", n) for i in range(10)])
            job.run_epoch()
        return shape_of(job)


def started(folder: Path, shape: JobShape) -> Recovered:
    """What a plain start does before its first epoch."""
    files = LocalFileSystem(str(folder))
    start = StartRequest(files, "harness", "harness", Settings(), shape.parallelism, 128, list(shape.operators))
    return recover(start, now_ms=9000)


def rewritten(job: Path, change: Callable[[Checkpoint], Checkpoint]) -> None:
    path = job / "chk-1" / "_metadata"
    made = change(decode_checkpoint(path.read_bytes(), "x"))
    path.unlink()
    path.write_bytes(encode_checkpoint(made))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Another job's.


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, JobShape]:
    """A job whose chk-1 is another job's of the same name, which holds all of its state itself."""
    shape = run(tmp_path / "a", 1, 1, inline_threshold=20_000)
    run(tmp_path / "b", 1000, 1000, inline_threshold=20_000)
    shutil.copytree(checkpoint_of(tmp_path / "b"), tmp_path / "a" / "chk-1")
    return tmp_path / "a", shape


def test_a_job_does_not_fall_back_to_another_jobs_checkpoint(mixed: tuple[Path, JobShape]) -> None:
    job, shape = mixed
    flip_bit(job / "epochs" / f"{1:020d}", 40)
    before = tree(job)
    with pytest.raises(CorruptFileError, match="manifest of epoch 1 is the newest one"):
        started(job, shape)
    assert newest_intact(LocalFileSystem(str(job))) is None
    assert tree(job) == before


def test_a_job_does_not_go_back_to_another_jobs_checkpoint(mixed: tuple[Path, JobShape]) -> None:
    job, shape = mixed
    before = tree(job)
    told = r"chk-1/_metadata is refused: it was created by another job \('harness', \w+\).*move the folder back"
    with pytest.raises(CorruptFileError, match=told):
        open_snapshot(str(job / "chk-1"))
    with pytest.raises(CorruptFileError, match=told):
        restored(str(job / "chk-1"), job, shape)
    assert tree(job) == before
    with harness(Sum(), job) as made:
        assert made.state("sum", "k0") == 2


def test_a_checkpoint_without_an_incarnation_is_told_by_the_id_of_its_job(tmp_path: Path) -> None:
    shape = run(tmp_path, 1)
    checkpoint_of(tmp_path)
    rewritten(tmp_path, lambda c: replace(c, manifest=replace(c.manifest, incarnation="")))
    files = LocalFileSystem(str(tmp_path))
    assert made_here(open_snapshot(str(tmp_path / "chk-1")), files)
    restored(str(tmp_path / "chk-1"), tmp_path, shape)
    rewritten(tmp_path, lambda c: replace(c, job_id="another"))
    with pytest.raises(CorruptFileError, match="created by another job"):
        open_snapshot(str(tmp_path / "chk-1"))


def test_lying_in_the_directory_does_not_make_a_checkpoint_the_jobs_own(tmp_path: Path) -> None:
    run(tmp_path, 1)
    checkpoint_of(tmp_path)
    files = LocalFileSystem(str(tmp_path))
    mine = CheckpointStore(files).load(1)
    assert made_here(of_checkpoint(files, mine), files)
    foreign = replace(mine, manifest=replace(mine.manifest, incarnation="another"))
    assert not made_here(of_checkpoint(files, foreign), files)


def test_a_plan_and_a_start_agree_on_the_pickles_of_an_edited_savepoint(tmp_path: Path) -> None:
    with harness(Pickled(), tmp_path / "a") as job:
        job.push(("k", 1))
        job.run_epoch()
        shape = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    files = LocalFileSystem(str(tmp_path / "a"))

    def problems() -> tuple[str, ...]:
        return planned(path, Path(files.root), shape).problems

    assert problems() == ()
    stored = read_savepoint(path)
    Path(path, "_metadata").write_bytes(encode_savepoint(replace(stored, created_ms=stored.created_ms + 1)))
    refused = f"state '{UID}.any' is pickled, and this job did not make the savepoint as it is"
    (problem,) = problems()
    assert refused in problem
    with pytest.raises(IncompatibleStateError, match=refused):
        restored(path, tmp_path / "a", shape)


# Of which nobody knows what they need.


def long_job(folder: Path) -> ManifestStore:
    """A checkpoint of early epochs, and so many later ones that only the checkpoint needs their files."""
    settings = {"epochs_retained": 100, "compaction_chain": 3, "inline_threshold": 0}
    run(folder, 1, 1, **settings)
    checkpoint_of(folder)
    run(folder, *[1] * 25, **settings)
    return ManifestStore(LocalFileSystem(str(folder)))


def cleaned_up(store: ManifestStore) -> int:
    """What a new run deletes after its first commit."""
    kept = RetainedCheckpoints(CheckpointStore(store.files), 1, 5, SystemClock())
    garbage = plan_garbage({epoch: store.load(epoch) for epoch in store.epochs()}, 2, kept.pins([]))
    collect(store, garbage)
    return len(garbage.files)


def test_storage_that_fails_at_the_start_costs_no_checkpoint_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = long_job(tmp_path)
    read = regular_files.read

    def failing(path: str, limit: int) -> bytes:
        if path.endswith("chk-1/_metadata"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return read(path, limit)

    with monkeypatch.context() as patched:
        patched.setattr(regular_files, "read", failing)
        with pytest.raises(StorageError, match="chk-1/_metadata"):
            cleaned_up(store)
    assert cleaned_up(store) > 0
    checkpoint = CheckpointStore(store.files).load(1)
    assert damage(store.files, checkpoint.manifest, thorough=True, checkpoint=checkpoint) == ""


def test_with_a_checkpoint_that_cannot_be_read_no_state_file_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = long_job(tmp_path)
    metadata = tmp_path / "chk-1" / "_metadata"
    good = metadata.read_bytes()
    newer = good[:7] + b"2" + good[8:]
    files = set((tmp_path / "shared" / UID).iterdir())
    for bad in (good[:-1], newer):
        metadata.unlink()
        metadata.write_bytes(bad)
        caplog.clear()
        with caplog.at_level(logging.ERROR, logger="cairn.checkpoint"):
            assert cleaned_up(store) == 0
        (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert "chk-1 in" in told
        assert "start the job again" in told
    assert set((tmp_path / "shared" / UID).iterdir()) == files
    assert len(store.epochs()) == 2, "manifests go: a checkpoint holds what it needs of them itself"
    metadata.unlink()
    metadata.write_bytes(good)
    checkpoint = CheckpointStore(store.files).load(1)
    assert damage(store.files, checkpoint.manifest, thorough=True, checkpoint=checkpoint) == ""
    for path in files:
        os.utime(path, (0, 0))
    CheckpointStore(store.files).discard(1)
    assert sweep(store.files), "a later run takes what nobody needs"


# Hostile.


def with_operator(**changed: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(m, operators=[replace(m.operators[0], **changed)])


def with_handles(**changed: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(
        m, operators=[replace(op, chain=[replace(handle, **changed) for handle in op.chain]) for op in m.operators]
    )


def with_state(**changed: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: replace(
        m, operators=[replace(op, states=[replace(op.states[0], **changed)]) for op in m.operators]
    )


IMPOSSIBLE: list[tuple[Callable[[Manifest], Manifest], str]] = [
    (lambda m: replace(m, spark="../secret"), "'../secret' is not a folder of Spark's logs"),
    (lambda m: replace(m, spark="/etc"), "'/etc' is not a folder of Spark's logs"),
    (lambda m: replace(m, max_parallelism=0), "max parallelism of 0"),
    (lambda m: replace(m, max_parallelism=1 << 40), "max parallelism of 1099511627776"),
    (lambda m: replace(m, operators=m.operators * 2), "an operator appears twice"),
    (lambda m: replace(m, abandoned=[(-5, 1 << 62)]), "cannot have given up"),
    (lambda m: replace(m, abandoned=[(0, m.epoch + 1)]), "cannot have given up"),
    (lambda m: replace(m, offsets="junk", source_names=["rate"]), "it has one line only: 'junk'"),
    (lambda m: replace(m, offsets="v1\nnone\n5"), "its second line is no JSON"),
    (lambda m: replace(m, offsets="v1\n[]\n5"), "its second line is no JSON object"),
    (lambda m: replace(m, offsets='v1\n{}\n{"logOffset":1e400}'), "the position of source 0 is impossible"),
    (with_operator(parallelism=0), "a parallelism of 0 of operator"),
    (with_operator(parallelism=1 << 40), "a parallelism of 1099511627776"),
    (with_operator(uid="../x"), "uid '../x' cannot be used"),
    (with_operator(base=1 << 40), "cannot have come into the job at epoch"),
    (lambda m: with_operator(states=m.operators[0].states * 2)(m), "a state of operator '.*' appears twice"),
    (with_state(kind="weird"), "unknown kind 'weird'"),
    (with_state(name="../x"), "state name '../x' cannot be part of a path"),
    (with_state(ttl_ms=-1), "impossible time to live"),
    (with_state(value_type="array<" * 3000 + "int" + ">" * 3000), "nested more than"),
    (with_handles(path="../../etc/passwd"), "cannot be as it says: .*passwd"),
    (with_handles(path="/etc/passwd"), "cannot be as it says"),
    (with_handles(path="job.json"), "cannot be as it says"),
    (with_handles(path="shared/x/../../job.state"), "cannot be as it says"),
    (with_handles(size=-1), "cannot be as it says"),
    (with_handles(rows=-1), "cannot be as it says"),
    (with_handles(epoch=1 << 62), "cannot be as it says"),
    (with_handles(first_group=100, last_group=1), "cannot be as it says"),
    (with_handles(last_group=1 << 40), "cannot be as it says"),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JobShape]:
    folder = tmp_path_factory.mktemp("hostile")
    shape = run(folder, 1, 1, inline_threshold=0)
    checkpoint_of(folder)
    return folder, shape


@pytest.mark.parametrize(("change", "why"), IMPOSSIBLE)
def test_metadata_that_cannot_be_is_refused_before_anything_is_done(
    original: tuple[Path, JobShape], tmp_path: Path, change: Callable[[Manifest], Manifest], why: str
) -> None:
    job, shape = tmp_path / "job", original[1]
    shutil.copytree(original[0], job)
    rewritten(job, lambda c: replace(c, manifest=change(c.manifest)))
    before = tree(job)
    told = f"chk-1/_metadata is refused: .*{why}"
    with pytest.raises(CorruptFileError, match=told):
        open_snapshot(str(job / "chk-1"))
    for target in (job, tmp_path / "new"):
        with pytest.raises(CorruptFileError, match=told):
            restored(str(job / "chk-1"), target, shape)
    assert tree(job) == before
    assert not (tmp_path / "new").exists()
    found, unknown = CheckpointStore(LocalFileSystem(str(job))).readable()
    assert (found, unknown) == ([], [1])


def test_the_command_that_verifies_refuses_it_and_names_it(original: tuple[Path, JobShape], tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(original[0], job)
    assert call("verify", str(job / "chk-1"))[0] == 0
    rewritten(job, lambda c: replace(c, manifest=with_handles(first_group=127, last_group=127)(c.manifest)))
    code, text = call("verify", str(job / "chk-1"))
    assert code == 5
    assert "is in the wrong place" in text
    assert "in key groups 127 to 127 of operator 'tested' belong here" in text
    rewritten(job, lambda c: replace(c, manifest=with_handles(path="../../x.state")(c.manifest)))
    code, text = call("verify", str(job / "chk-1"))
    assert code == 5
    assert "chk-1/_metadata is refused" in text


def test_statistics_and_the_range_in_flight_are_looked_at_too(original: tuple[Path, JobShape]) -> None:
    made = CheckpointStore(LocalFileSystem(str(original[0]))).load(1)
    for bad, why in (
        (replace(made, in_flight="v1\n{}\n{"), "the position of source 0 is no JSON"),
        (replace(made, info=replace(made.info, end_ms=1 << 60)), "ended at 1152921504606846976"),
    ):
        with pytest.raises(CorruptFileError, match=f"x is refused: .*{why}"):
            decode_checkpoint(encode_checkpoint(bad), "x")
    needs = replace(made, manifest=replace(made.manifest, requires=["wings"]))
    with pytest.raises(IncompatibleStateError, match="x needs features that this cairn does not have: wings"):
        decode_checkpoint(encode_checkpoint(needs), "x")


@pytest.mark.parametrize("inline", [0, 20_000])
def test_key_groups_that_are_not_those_of_the_file_are_damage(tmp_path: Path, inline: int) -> None:
    """Readers choose files by these numbers: with wrong ones they would find no state and say nothing."""
    job = tmp_path / "job"
    shape = run(job, 1, inline_threshold=inline, parallelism=1)
    checkpoint_of(job)
    assert verify_snapshot(open_snapshot(str(job / "chk-1"))) == []
    if inline:
        bytes_of = newest(job).inlined[f"{UID}/0"]
        rewritten(job, lambda c: replace(c, manifest=replace(c.manifest, inlined={f"{UID}/127": bytes_of})))
    rewritten(job, lambda c: replace(c, manifest=with_handles(first_group=127, last_group=127)(c.manifest)))
    (problem,) = verify_snapshot(open_snapshot(str(job / "chk-1")))
    told = r"it holds the changes of epoch 0 in key groups 0 to 127 .* in key groups 127 to 127 .* belong here"
    with pytest.raises(CorruptFileError, match=told):
        raise CorruptFileError(problem.why)
    with pytest.raises(CorruptFileError, match=told):
        restored(str(job / "chk-1"), tmp_path / "new", shape)
    assert newest_intact(LocalFileSystem(str(job))) is None


def test_a_file_whose_sections_are_none_is_damage() -> None:
    """Checksums that fit do not make it a state file."""
    for data in (pa.table({"value": [1]}), pa.table({"key": pa.array([None], pa.binary()), "value": [1]})):
        made, checksum = state_file.encode([Section("sum", "value", Storage.INT, False, data)])
        with pytest.raises(CorruptFileError, match="x is damaged: the section of state 'sum' cannot be read"):
            StateFile(made, "x", checksum, len(made)).verify(KeyGroupRange(0, 127))


# Too large.


def test_records_that_are_too_large_are_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, 1)
    checkpoint_of(tmp_path)
    files = LocalFileSystem(str(tmp_path))
    store = ManifestStore(files)
    whole = store.load(0), CheckpointStore(files).load(1)
    for path in (tmp_path / "epochs" / f"{0:020d}", tmp_path / "chk-1" / "_metadata"):
        os.truncate(path, regular_files.MAX_BODY + record_file.HEAD + 1)  # a hole: it takes no room
    with pytest.raises(CorruptFileError, match=r"epochs/0+ is refused: it has 1073741845 bytes, at most 1073741844"):
        store.load(0)
    with pytest.raises(CorruptFileError, match="chk-1/_metadata is refused: it has 1073741845 bytes"):
        CheckpointStore(files).load(1)
    (tmp_path / "chk-1" / "_metadata").unlink()
    (tmp_path / "chk-1" / "_metadata").symlink_to("/dev/zero")
    with pytest.raises(CorruptFileError, match="chk-1/_metadata is refused: it is not a regular file"):
        CheckpointStore(files).load(1)
    monkeypatch.setattr(record_file, "MAX_BODY", 100)
    with pytest.raises(InvalidInputError, match=r"Lower execution\.checkpointing\.data-inline"):
        encode_manifest(whole[0])
    with pytest.raises(InvalidInputError, match="at most 100 are written"):
        encode_checkpoint(whole[1])
