"""Storage that is slow, busy, lossy or broken, under whole runs of a driver: group D of the fault cases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.epoch_lab import EPOCHS, INPUT, OUTPUT, Ledger, World

from cairn.coordinator import compactor as compaction_module
from cairn.errors import CorruptFileError, StorageError
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.restore.damage import damage
from cairn.state import working_store
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import sweep
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.promise_check import broken_promise, check_promises
from cairn.storage.retrying import Patience, RetryingFileSystem
from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem
from cairn.testing.keyed_harness import KeyedProcessHarness
from cairn.testing.powerloss import UnsyncedDisk

ALWAYS = 1_000_000
STEPS = ["begin", "announced", "prepared", "acknowledged", "committed", "published", "cleaned"]


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compactions are adopted by the next epoch, so that a short job sees them."""
    monkeypatch.setattr(compaction_module, "DEFER_EPOCHS", -1)
    monkeypatch.setattr(working_store, "DEFER_EPOCHS", 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lose_stores()


def busy(root: Path, share: float, seed: int, **patience: Any) -> tuple[RetryingFileSystem, list[float]]:
    """Storage that turns a share of all calls away, half of them after they took effect; and the pauses it costs."""
    pauses: list[float] = []
    faults = [Fault("busy", share=share / 2, times=ALWAYS), Fault("busy", share=share / 2, times=ALWAYS, after=True)]
    inner = FaultyFileSystem(LocalFileSystem(str(root)), FaultPlan(faults, seed=seed))
    return RetryingFileSystem(inner, Patience(sleep=pauses.append, **patience)), pauses


# D15: busy storage.


@pytest.mark.parametrize("seed", range(6))
def test_a_fifth_of_all_calls_turned_away_changes_nothing(world: World, seed: int) -> None:
    files, pauses = busy(world.root, 0.2, seed, attempts=20)
    world.run(files=files)
    assert files.retries == len(pauses) > 10
    world.check()


def test_pauses_grow_up_to_a_limit_and_are_counted(tmp_path: Path) -> None:
    pauses: list[float] = []
    inner = FaultyFileSystem(LocalFileSystem(str(tmp_path)), FaultPlan([Fault("busy", times=ALWAYS)]))
    files = RetryingFileSystem(inner, Patience(8, 0.1, 1.0, sleep=pauses.append, chance=lambda: 1.0))
    with pytest.raises(StorageError, match="slow down"):
        files.create("a", b"x")
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert files.retries == 7
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["error", "full"])
def test_what_does_not_pass_is_told_at_once(tmp_path: Path, kind: str) -> None:
    files = RetryingFileSystem(FaultyFileSystem(LocalFileSystem(str(tmp_path)), FaultPlan([Fault(kind)])))
    with pytest.raises(StorageError):
        files.create("a", b"x")
    assert files.retries == 0


def test_a_create_that_worked_before_it_failed_is_known_as_our_own(tmp_path: Path) -> None:
    for name, there in (("ours", b"ours"), ("theirs", b"theirs")):
        inner = FaultyFileSystem(LocalFileSystem(str(tmp_path)), FaultPlan([Fault("busy", after=name == "ours")]))
        files = RetryingFileSystem(inner, Patience(sleep=lambda pause: None))
        if name == "ours":
            files.create(name, b"ours")
        else:
            (tmp_path / name).write_bytes(there)
            with pytest.raises(FileExistsError):
                files.create(name, b"ours")
        assert (tmp_path / name).read_bytes() == there
        assert files.retries == 1


@pytest.mark.parametrize("after", [False, True])
def test_a_move_that_worked_before_it_failed_is_done(tmp_path: Path, after: bool) -> None:
    inner = FaultyFileSystem(LocalFileSystem(str(tmp_path)), FaultPlan([Fault("busy", operation="move", after=after)]))
    files = RetryingFileSystem(inner, Patience(sleep=lambda pause: None))
    files.create("a", b"x")
    files.move("a", "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    files.create("a", b"other")
    with pytest.raises(FileExistsError):
        files.move("a", "b")
    assert (tmp_path / "b").read_bytes() == b"x"


def test_retries_of_tasks_and_driver_are_in_the_report(tmp_path: Path) -> None:
    inner = FaultyFileSystem(LocalFileSystem(str(tmp_path)))
    files = RetryingFileSystem(inner, Patience(sleep=lambda pause: None))
    with KeyedProcessHarness(Ledger(), "key", INPUT, OUTPUT, files=files) as harness:
        harness.push(("a", 1))
        harness.run_epoch()
        inner.plan = FaultPlan([Fault("busy", operation="create", pattern="epochs/*")])
        harness.push(("a", 2))
        harness.run_epoch()
        assert [report.retries > 0 for report in harness.reports] == [False, True]


# D9: slow storage.


def test_slow_writes_hold_the_next_epoch_back(world: World) -> None:
    """An epoch begins only when the one before is published, however long that takes; nothing is buffered."""
    files = FaultyFileSystem(LocalFileSystem(str(world.root)))
    waited: list[tuple[str, list[int]]] = []
    plan = FaultPlan([Fault("slow", operation="create", seconds=30, times=ALWAYS)])
    steps: list[tuple[str, int]] = []
    world.hook = lambda name, epoch: steps.append((name, epoch))

    def sleep(seconds: float) -> None:
        assert seconds == 30
        waited.append((files.log[-1][2], ManifestStore(LocalFileSystem(str(world.root))).epochs()))

    plan.sleep = sleep
    files.plan = plan
    world.run(files=files)
    world.check()
    assert [pair for pair in steps if pair[0] in ("begin", "committed")] == [
        (name, epoch) for epoch in range(len(EPOCHS)) for name in ("begin", "committed")
    ]
    for path, committed in waited:
        if path.startswith("shared/") and "snapshot" not in path:
            assert committed[-1:] in ([], [int(path.split("/")[-1][:12]) - 1]), (
                "a delta is written onto what is published"
            )


# D12: unfinished uploads.


def test_an_unfinished_write_counts_for_nothing_and_is_cleaned_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the bytes and the name. What is left has a name that no reader looks at."""
    world.run(until=2)

    def die(source: str, target: str) -> None:
        raise Crash

    def leave(path: str) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", die)
        patched.setattr(os, "unlink", leave)
        files = LocalFileSystem(str(world.root))
        folders = ["epochs", "runs", "history", "control", "shared/tested", "chk-7"]
        for folder in folders:
            name = "000000000001-1-99.state" if folder.startswith("shared") else "00000000000000000099"
            with pytest.raises(Crash):
                files.create(f"{folder}/{name}", b"half")
    left = list(world.root.rglob(".*.tmp"))
    assert len(left) == len(folders)
    assert CheckpointStore(files).numbers() == []
    assert sweep(files) == [], "they are young: their writer may be alive"
    assert len(sweep(files, dry_run=True, now=1e12)) >= len(left)
    sweep(files, now=1e12)
    assert not any(path.exists() for path in left)
    world.run()
    world.check()


# D13: stores that copy and delete.


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_move_that_was_cut_off_between_its_halves(world: World, epoch: int) -> None:
    """Setting an unfinished manifest aside leaves it under both names; the next run does it once more."""
    with pytest.raises(Crash):
        world.run(FaultPlan([Fault("torn", pattern=f"epochs/*{epoch}", keep=30)]))
    with pytest.raises(Crash):
        world.run(FaultPlan([Fault("copied")]))
    aside = [path for path in (world.root / "epochs").iterdir() if "unfinished" in path.name]
    assert len(aside) == 1
    assert (world.root / "epochs" / f"{epoch:020d}").exists()
    world.run()
    world.check()


# D14: stores that overwrite.


def test_a_directory_that_overwrites_is_refused(tmp_path: Path) -> None:
    files = FaultyFileSystem(LocalFileSystem(str(tmp_path)), FaultPlan([Fault("overwrite", times=ALWAYS)]))
    with pytest.raises(StorageError, match=r"created only if it does not exist.*cairn doctor"):
        check_promises(files)
    assert list(tmp_path.iterdir()) == [], "the probe leaves nothing behind"
    check_promises(LocalFileSystem(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_other_broken_promises_are_named(tmp_path: Path) -> None:
    class Careless(LocalFileSystem):
        def move(self, source: str, target: str) -> None:
            os.replace(self._full(source), self._full(target))

    class Forgetful(LocalFileSystem):
        def create(self, path: str, data: bytes | memoryview) -> None:
            super().create(path, b"" if data == b"first" else data)

    class Undying(LocalFileSystem):
        def delete(self, path: str) -> None:
            return None

    assert "move" in broken_promise(Careless(str(tmp_path)))
    assert "its bytes" in broken_promise(Forgetful(str(tmp_path)))
    assert "deleted is gone" in broken_promise(Undying(str(tmp_path)))


# D16: power loss.


@pytest.mark.parametrize("step", STEPS)
def test_power_fails_after_any_step(tmp_path: Path, step: str) -> None:
    """What was acknowledged survives although nothing survives that was not synced, and the job ends exact."""
    for epoch in range(len(EPOCHS)):
        before, after = World(tmp_path / f"{epoch}-before"), World(tmp_path / f"{epoch}-after")

        def fail(name: str, number: int, epoch: int = epoch) -> None:
            if (name, number) == (step, epoch):
                raise Crash

        before.hook = fail
        with UnsyncedDisk() as disk:
            with pytest.raises(Crash):
                before.run()
            disk.lose_power(before.root, after.root)
        committed = ManifestStore(LocalFileSystem(str(after.root))).epochs()
        assert committed[-1:] == ([epoch] if STEPS.index(step) >= 4 else [epoch - 1] if epoch else [])
        after.run()
        after.check()
        before.lose_stores()
        after.lose_stores()


def test_a_completed_checkpoint_survives_power_loss(tmp_path: Path) -> None:
    with UnsyncedDisk() as disk:
        files = LocalFileSystem(str(tmp_path / "job"))
        with KeyedProcessHarness(Ledger(), "key", INPUT, OUTPUT, files=files, inline_threshold=900) as harness:
            for rows in EPOCHS:
                harness.push(*rows)
                harness.run_epoch()
            assert harness.manifest is not None
            manifests = ManifestStore(files)
            older = harness.manifest.inline_epochs() - {harness.epoch}
            info = CheckpointInfo(1, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
            checkpoint = Checkpoint(
                1, "job", "job", 1, harness.manifest, info, inlined={e: manifests.load(e).inlined for e in older}
            )
            assert checkpoint.files(), "some of the state is in files"
            CheckpointStore(files).complete(checkpoint)
            disk.lose_power(files.root, tmp_path / "after")
    survived = LocalFileSystem(str(tmp_path / "after"))
    assert CheckpointStore(survived).load(1) == checkpoint
    assert damage(survived, checkpoint.manifest, thorough=True, checkpoint=checkpoint) == ""


def test_the_lossy_disk_loses_what_is_not_synced(tmp_path: Path) -> None:
    """The simulation itself: without syncs nothing is left, and a delete that was not synced is undone."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with UnsyncedDisk() as disk:
        files = LocalFileSystem(str(folder))
        files.create("kept", b"x")
        (folder / "lost").write_bytes(b"y")
        files.delete("kept")
        disk.lose_power(folder, tmp_path / "after")
        assert {path.name: path.read_bytes() for path in (tmp_path / "after").iterdir()} == {"kept": b"x"}
        files.create("other", b"z")
        (folder / "other").write_bytes(b"changed in place")
        disk.lose_power(folder, tmp_path / "later")
        assert {path.name: path.read_bytes() for path in (tmp_path / "later").iterdir()} == {"lost": b"", "other": b"z"}


def test_a_manifest_that_power_loss_left_empty_is_an_epoch_that_did_not_happen(world: World) -> None:
    world.run(until=2)
    (world.root / "spark" / "commits" / "1").unlink()
    (world.root / "epochs" / f"{1:020d}").write_bytes(b"")
    world.lose_stores()
    (world.root / "tables" / "out" / "001").unlink()
    world.run()
    world.check()


def test_metadata_that_power_loss_left_empty_is_refused_by_name(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path))
    files.create("chk-3/_metadata", b"")
    with pytest.raises(CorruptFileError, match="chk-3/_metadata"):
        CheckpointStore(files).load(3)
    assert CheckpointStore(files).all() == []
    assert msgspec.json.encode(CheckpointStore(files).history()) == b"[]"
