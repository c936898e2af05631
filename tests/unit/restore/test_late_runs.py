"""A run that was overtaken wakes up late: what it may still do harms nobody (docs/design/0008-late-runs.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support import coordinator_lab as coordinating
from tests.support.epoch_lab import EPOCHS, World

from cairn.errors import CorruptFileError, EpochFailedError, FencedError
from cairn.job.retention import discard_all
from cairn.model.manifest import Manifest
from cairn.restore.log_agreement import output_is_published
from cairn.restore.newest_epoch import newest_epoch
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_bases import Base, record_base
from cairn.storage.run_records import Runs


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lose_stores()


def once(action: Callable[[], None]) -> Callable[[], None]:
    """An action that happens the first time only."""
    left = [action]
    return lambda: left.pop()() if left else None


def files_of(world: World) -> LocalFileSystem:
    return LocalFileSystem(str(world.root))


# The commit.


def test_a_commit_under_a_name_that_retention_has_freed_is_neither_published_nor_cleaned_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old run stalls between its last look and its create, and the new run's retention deletes that epoch."""
    files = files_of(world)
    old = world.start(files)
    world.log("offsets", 0)
    publish = ManifestStore.publish

    def stalled(manifest: Manifest) -> None:
        world.run()
        assert not ManifestStore(files).exists(0), "the name is free again"
        publish(old._manifests, manifest)

    monkeypatch.setattr(old._manifests, "publish", stalled)
    sink: Any = old._setup.sinks[0]
    monkeypatch.setattr(sink, "commit", lambda data, epoch: pytest.fail("published by a run that was overtaken"))
    with pytest.raises(FencedError):
        old.run_epoch(EPOCHS[0], 0)
    world.check()
    world.start(files)  # and the job goes on


@pytest.mark.parametrize("stalls_at", ["committed", "published"])
def test_a_run_that_stalls_after_its_commit_deletes_nothing_that_the_new_run_needs(
    world: World, stalls_at: str
) -> None:
    files = files_of(world)
    world.run(until=2)
    old = world.start(files)
    world.log("offsets", 2)

    def new_run() -> None:
        world.settings = replace(world.settings, epochs_retained=10)
        world.run()

    overtake = once(new_run)
    old.hook = lambda name, epoch: overtake() if name == stalls_at else None
    if stalls_at == "committed":
        with pytest.raises(FencedError):
            old.run_epoch(EPOCHS[2], 2)
    else:
        old.run_epoch(EPOCHS[2], 2)  # all that it still deletes, the new run calls garbage, too
    world.check()
    store = ManifestStore(files)
    newest = store.newest()
    assert newest is not None
    agreed = {epoch for known in store.epochs() for epoch in store.load(known).garbage.epochs}
    assert set(range(newest.epoch + 1)) - set(store.epochs()) <= agreed


def test_what_a_manifest_makes_superfluous_is_written_into_it_and_nothing_else_is_deleted(world: World) -> None:
    deleted: list[str] = []

    class Watched(LocalFileSystem):
        def delete(self, path: str) -> None:
            deleted.append(path)
            super().delete(path)

    files = Watched(str(world.root))
    named: set[str] = set()
    loop = world.start(files)

    def look(name: str, epoch: int) -> None:
        if name == "committed" and loop.current is not None:
            garbage = loop.current.garbage
            named.update(garbage.files, map(layout.epoch_path, garbage.epochs))

    loop.hook = look
    for epoch, rows in enumerate(EPOCHS):
        world.log("offsets", epoch)
        loop.run_epoch(rows, epoch)
        world.log("commits", epoch)
        assert set(deleted) <= named
    assert deleted


def test_a_crash_between_the_commit_and_the_deletion_leaves_it_to_the_next_run(world: World) -> None:
    files = files_of(world)
    world.run(until=2)
    loop = world.start(files)

    def die(name: str, epoch: int) -> None:
        if name == "published":
            raise KeyboardInterrupt

    loop.hook = die
    world.log("offsets", 2)
    with pytest.raises(KeyboardInterrupt):
        loop.run_epoch(EPOCHS[2], 2)
    garbage = ManifestStore(files).load(2).garbage
    assert garbage.epochs
    assert all(ManifestStore(files).exists(epoch) for epoch in garbage.epochs)
    world.run()
    assert not any(ManifestStore(files).exists(epoch) for epoch in garbage.epochs)
    world.check()


# Restores that come too late.


def restored(manifest: Manifest, epoch: int, run: int) -> Manifest:
    return msgspec.structs.replace(
        manifest, epoch=epoch, run=run, commit_id="late", restored=1, spark=layout.restored_spark(epoch, run), sinks=[]
    )


def test_a_restore_that_comes_too_late_is_void_though_its_epoch_is_the_highest(world: World) -> None:
    files = files_of(world)
    world.run(until=2)
    store = ManifestStore(files)
    old = Runs(files).take(1, 0).run
    loop = world.start(files)
    late = restored(store.load(1), 3, old)
    world.log("offsets", 2)
    loop.run_epoch(EPOCHS[2], 2)
    world.log("commits", 2)
    store.publish(late)
    newest = newest_epoch(files)
    assert newest is not None
    assert newest.epoch == 2
    world.log("offsets", 3)
    with pytest.raises(EpochFailedError, match="created the manifest of epoch 3") as caught:
        loop.run_epoch(EPOCHS[3], 3)
    assert "collision" in caught.value.facts, "the job starts again by itself"
    again = world.start(files).current
    assert again is not None
    assert (again.epoch, again.parent) == (4, 2), "it goes on above the name, from what it has"
    assert again.operators == newest.operators
    assert store.load(3).commit_id == "late", "nobody deletes by a name that may be created again"


def test_a_restore_that_comes_before_the_first_commit_of_a_newer_run_is_void_as_well(world: World) -> None:
    """The newer run has written down what it goes on from, and may have published the output of that epoch."""
    files = files_of(world)
    world.run(until=2)
    old = Runs(files).take(1, 0).run
    loop = world.start(files)
    store = ManifestStore(files)
    store.publish(restored(store.load(1), 2, old))
    newest = newest_epoch(files)
    assert newest is not None
    assert newest.epoch == 1
    world.log("offsets", 2)
    with pytest.raises(EpochFailedError, match="created the manifest of epoch 2"):
        loop.run_epoch(EPOCHS[2], 2)
    again = world.start(files).current
    assert again is not None
    assert (again.epoch, again.parent) == (3, 1)


def test_a_first_commit_that_comes_too_late_does_not_count(world: World) -> None:
    files = files_of(world)
    old = world.start(files)
    world.log("offsets", 0)
    world.start(files)
    with pytest.raises(FencedError):
        old.run_epoch(EPOCHS[0], 0)
    late = world.start(files)
    assert late.current is None


def test_a_base_whose_manifest_is_lost_hides_no_older_one(world: World) -> None:
    files = files_of(world)
    world.run(until=3)
    store = ManifestStore(files)
    newest = store.newest()
    assert newest is not None
    record_base(files, Base(Runs(files).take(1, 0).run, newest.epoch, newest.commit_id))
    store.delete(newest.epoch)
    older = store.newest()
    assert older is not None
    assert older.epoch == newest.epoch - 1
    with pytest.raises(CorruptFileError, match="the state of that batch is lost"):
        world.start(files)


# Checkpoints.


def overtaken(folder: Path, **settings: Any) -> tuple[coordinating.World, coordinating.World]:
    """A run with a completed checkpoint, and the newer run that has taken its job."""
    old = coordinating.World(folder, **settings)
    Runs(old.files).take(1, 0)
    ManifestStore(old.files).publish(coordinating.manifest(0))
    old.commit(0)
    old.coordinator.request()
    old.step()
    new = coordinating.World(folder, **settings)
    take_over(new)
    return old, new


def take_over(world: coordinating.World) -> None:
    """Become the newest run, as a start does."""
    run = Runs(world.files).take(1, 0).run
    record_base(world.files, Base(run, 0, "commit-0", CheckpointStore(world.files).numbers()))
    world.start(coordinating.manifest(0), run=run)


def test_a_checkpoint_that_an_overtaken_run_completes_too_late_is_none(tmp_path: Path) -> None:
    old, new = overtaken(tmp_path, num_retained=5)
    late = msgspec.structs.replace(old.store.load(1), id=2)
    old.store.complete(late)
    assert CheckpointStore(new.files).numbers() == [1]
    assert [checkpoint.id for checkpoint in CheckpointStore(new.files).all()] == [1]
    assert CheckpointStore(new.files).next_number() == 3
    take_over(new)
    new.step()
    assert not (tmp_path / "chk-2").exists(), "the next run removes it"


def test_a_checkpoint_that_was_completed_in_time_is_taken_over(tmp_path: Path) -> None:
    _, new = overtaken(tmp_path, num_retained=5)
    assert new.store.numbers() == [1]
    new.coordinator.request()
    new.step()
    assert CheckpointStore(new.files).numbers() == [1, 2]


def test_a_discard_that_comes_late_is_one_that_the_new_run_agrees_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = coordinating.World(tmp_path, num_retained=1)
    Runs(old.files).take(1, 0)
    for epoch in (0, 1):
        old.commit(epoch)
        old.coordinator.request()
        if epoch == 1:  # it looks for a newer run, sees none, and stalls
            monkeypatch.setattr(old.store, "discard", lambda number: None)
        old.step()
    assert (tmp_path / "chk-1" / "_metadata").exists()
    new = coordinating.World(tmp_path, num_retained=5)
    take_over(new)
    assert new.store.numbers() == [2]


def test_giving_a_checkpoint_up_deletes_nothing_of_a_newer_run_with_the_same_number(tmp_path: Path) -> None:
    old, new = overtaken(tmp_path, incremental=False, tolerable_failures=9)
    for world in (old, new):
        world.coordinator.request()
        world.step()
    number = max(new.runner.started)
    assert number in old.runner.started, "both write checkpoint 2"
    theirs, mine = f"chk-{number}/op-g0-1-aa.state", f"chk-{number}/op-g0-2-bb.state"
    for path in (theirs, mine):
        old.files.create(path, b"state")
    new.runner.started[number]({"op": []})
    new.step()
    old.runner.started[number](RuntimeError("no room"))
    old.step()
    assert new.store.load(number).run == 2
    assert new.files.exists(mine)
    assert not new.files.exists(theirs)


def test_checkpoints_that_a_run_discards_at_its_end_stay_if_a_newer_run_has_the_job(tmp_path: Path) -> None:
    _, new = overtaken(tmp_path)
    discard_all(LocalFileSystem(str(tmp_path)), "job", 1)
    assert (tmp_path / "chk-1" / "_metadata").exists()
    assert CheckpointStore(new.files).numbers() == [1]
    take_over(new)
    new.step()
    assert CheckpointStore(new.files).numbers() == [1]


def test_checkpoints_that_a_run_discards_at_its_end_are_none_for_a_run_that_starts_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = coordinating.World(tmp_path)
    Runs(world.files).take(1, 0)
    world.commit(0)
    world.coordinator.request()
    world.step()
    seen: list[list[int]] = []
    discard = CheckpointStore.discard

    def slow(store: CheckpointStore, number: int) -> None:
        Runs(world.files).take(1, 0)
        seen.append(CheckpointStore(world.files).numbers())
        discard(store, number)

    monkeypatch.setattr(CheckpointStore, "discard", slow)
    discard_all(LocalFileSystem(str(tmp_path)), "job", 1)
    assert seen == [[]]
    assert CheckpointStore(world.files).next_number() == 2


def test_no_checkpoint_is_cut_at_an_epoch_whose_output_is_not_published_yet(tmp_path: Path) -> None:
    """A restore from it would begin after that epoch, and nobody would ever publish the output."""
    world = coordinating.World(tmp_path)
    world.start(coordinating.manifest(0), run=2, published=False)
    request = world.coordinator.request()
    world.step()
    assert not request.ended
    world.coordinator.epoch_committed(coordinating.manifest(0), ())  # rolled forward
    world.step()
    assert request.wait(0).epoch == 0


def test_spark_s_commit_says_that_the_output_of_an_epoch_is_published(world: World) -> None:
    world.run(until=1)
    newest = newest_epoch(files_of(world))
    assert output_is_published(files_of(world), newest)
    (world.root / "spark" / "commits" / "0").unlink()
    assert not output_is_published(files_of(world), newest)
    assert output_is_published(files_of(world), None)


def test_no_unaligned_checkpoint_is_cut_at_the_epoch_before_one_that_is_being_committed(tmp_path: Path) -> None:
    """What the commit makes superfluous is decided by then; the checkpoint would need it."""
    world = coordinating.World(tmp_path, unaligned=True, aligned_timeout_ms=0)
    world.commit(0)
    world.coordinator.epoch_began(1, "offsets of 1")
    world.coordinator.pins()
    request = world.coordinator.request()
    world.step(10)
    assert not request.ended
    world.coordinator.epoch_committed(coordinating.manifest(1), [])
    world.step()
    assert request.wait(0).epoch == 1
    world.coordinator.epoch_began(2, "offsets of 2")
    unaligned = world.coordinator.request()
    world.step(10)
    assert unaligned.wait(0).epoch == 1
