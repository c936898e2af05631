"""Clean-up: only what no manifest needs, and only from what manifests say."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import CorruptFileError
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.manifest import Garbage, Manifest, OperatorState, StateHandle
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import collect, old_spark_folders, orphans, plan_garbage, sweep
from cairn.storage.filesystem import FileInfo, LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem, truncate


def handle(epoch: int, path: str = "") -> StateHandle:
    return StateHandle(epoch, 0, 127, 1, "x", path)


def manifest(epoch: int, *chain: StateHandle, run: int = 1) -> Manifest:
    operators = [OperatorState("op", "op", 1, "k string", [], list(chain))]
    return Manifest("j", "i", epoch, f"c{epoch}", run, epoch - 1, 128, "", 0, 0, operators, [], {})


def test_files_live_as_long_as_a_retained_manifest_names_them() -> None:
    known = {
        0: manifest(0, handle(0, "f0")),
        1: manifest(1, handle(0, "f0"), handle(1, "f1")),
        2: manifest(2, handle(1, "snap")),
        3: manifest(3, handle(1, "snap"), handle(3, "f3")),
    }
    assert plan_garbage(known, 2) == Garbage(["f0", "f1"], [0, 1])
    assert plan_garbage(known, 3) == Garbage([], [0])
    assert plan_garbage(known, 10) == Garbage()
    assert plan_garbage({}, 2) == Garbage()


def test_what_could_not_be_deleted_is_named_again_unless_it_is_needed() -> None:
    known = {2: manifest(2, handle(1, "f1")), 3: manifest(3, handle(1, "f1"), handle(2), handle(3, "f3"))}
    left = Garbage(["f0", "f1"], [1, 2])
    assert plan_garbage(known, 1, left=left) == Garbage(["f0"], [1])


def test_a_manifest_of_an_overtaken_run_goes_once_the_history_is_past_its_number() -> None:
    known = {
        4: manifest(4, handle(4, "f4"), run=2),
        5: manifest(5, handle(4, "f4"), handle(5, "f5"), run=2),
        9: manifest(9, handle(3, "old"), handle(4, "f4"), run=1),
    }
    assert plan_garbage(known, 10) == Garbage()
    assert plan_garbage(known | {10: manifest(10, handle(4, "f4"), run=2)}, 1) == Garbage(["f5", "old"], [4, 5, 9])


def test_a_manifest_stays_for_its_inlined_bytes() -> None:
    known = {0: manifest(0, handle(0)), 1: manifest(1, handle(0), handle(1, "f1")), 2: manifest(2, handle(0))}
    assert plan_garbage(known, 1) == Garbage(["f1"], [1])


def build(
    folder: Path, chain_length: int, epochs: int, files: object = None
) -> tuple[ManifestStore, dict[int, Manifest]]:
    """A job in which every third delta is inlined and the chain is cut now and then."""
    store = ManifestStore(LocalFileSystem(str(folder)))
    known: dict[int, Manifest] = {}
    chain: list[StateHandle] = []
    for epoch in range(epochs):
        if len(chain) >= chain_length:
            chain = [handle(epoch - 1, f"shared/op/{epoch}.snapshot.state")]
            store.files.create(chain[0].path, b"s")
        path = "" if epoch % 3 == 0 else f"shared/op/{epoch}.state"
        if path:
            store.files.create(path, b"d")
        chain = [*chain, handle(epoch, path)]
        known[epoch] = manifest(epoch, *chain)
        store.publish(known[epoch])
    return store, known


def is_whole(store: ManifestStore, retained: int) -> None:
    """Every retained manifest finds all that it needs."""
    epochs = store.epochs()
    for epoch in epochs[-retained:]:
        loaded = store.load(epoch)
        assert all(store.files.exists(path) for path in loaded.files())
        assert loaded.inline_epochs() <= set(epochs)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 6))
def test_what_is_retained_is_whole(chain_length: int, epochs: int, retained: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store, known = build(Path(folder), chain_length, epochs)
        garbage = plan_garbage(known, retained)
        assert collect(store, garbage) == Garbage()
        is_whole(store, retained)
        left = {info.path for info in store.files.walk("shared")}
        needed = set().union(*(store.load(epoch).files() for epoch in store.epochs()[-retained:]))
        assert left == needed
        reread = {epoch: store.load(epoch) for epoch in store.epochs()}
        assert plan_garbage(reread, retained).epochs == []


def test_a_crash_at_every_delete_leaves_what_is_retained_whole(tmp_path: Path) -> None:
    """C8."""
    number = 0
    while True:
        number += 1
        store, known = build(tmp_path / str(number), 3, 12)
        faulty = FaultyFileSystem(store.files, FaultPlan([Fault("crash", call=number, after=bool(number % 2))]))
        try:
            collect(ManifestStore(faulty), plan_garbage(known, 2))
        except Crash:
            is_whole(store, 2)
            reread = {epoch: store.load(epoch) for epoch in store.epochs()}
            collect(store, plan_garbage(reread, 2))
            is_whole(store, 2)
            continue
        break
    assert number > 5


def test_a_failed_delete_is_left_for_later(tmp_path: Path) -> None:
    store, known = build(tmp_path, 3, 12)
    faulty = FaultyFileSystem(store.files, FaultPlan([Fault("error", operation="delete", times=10_000)]))
    garbage = plan_garbage(known, 2)
    assert garbage.files
    assert collect(ManifestStore(faulty), garbage) == garbage
    is_whole(store, 2)


def test_orphans_are_files_that_no_commit_can_name_any_more() -> None:
    def file(name: str, modified: float = 0.0) -> FileInfo:
        return FileInfo(f"shared/op/{name}", 1, modified)

    named = "shared/op/000000000004-2-7.state"
    committed = [manifest(4, handle(4, named), run=2), manifest(5, handle(4, named), run=3)]
    spared = [
        FileInfo(named, 1, 0.0),
        file("000000000005-3-1.state", modified=95.0),  # young
        file("000000000006-3-1.state"),  # of the epoch that may be committed next
        file("000000000003-4-1.state"),  # of a run that has not committed yet
        file("000000000004-3-g0-ab12.snapshot.state"),  # may be adopted by the next commit of that run
        file("notes.txt"),  # not ours
    ]
    dead = [
        file("000000000005-3-2.state"),
        file("000000000009-2-1.state"),
        file("000000000004-2-g0-ab12.snapshot.state"),
        file(".000000000005-3-2.state.00ff.tmp"),
    ]
    assert orphans(spared + dead, committed, now=100.0, age_guard=10) == dead
    assert orphans(spared + dead, [], now=100.0, age_guard=10) == []


def test_sweep(tmp_path: Path) -> None:
    store, _ = build(tmp_path, 3, 6)
    before = {info.path for info in store.files.walk("shared")}
    lost = {f"shared/op/{name}" for name in ("000000000000-0-99.state", ".000000000001-0-99.state.00.tmp")}
    for path in lost:
        (tmp_path / path).write_bytes(b"x")
    assert sweep(store.files) == []  # all young
    for info in store.files.walk("shared"):
        os.utime(tmp_path / info.path, (0, 0))
    assert {info.path for info in sweep(store.files, dry_run=True)} == lost
    assert {info.path for info in sweep(store.files)} == lost
    assert {info.path for info in store.files.walk("shared")} == before


def test_nothing_is_swept_beside_an_unreadable_manifest(tmp_path: Path) -> None:
    store, _ = build(tmp_path, 3, 6)
    lost = tmp_path / "shared" / "op" / "000000000000-0-99.state"
    lost.write_bytes(b"x")
    truncate(tmp_path / "epochs" / f"{2:020d}", 30)
    for info in store.files.walk("shared"):
        os.utime(tmp_path / info.path, (0, 0))
    with pytest.raises(CorruptFileError):
        sweep(store.files)
    assert lost.exists()


# Spark's folders from before restores.


def with_spark(made: Manifest, folder: str) -> Manifest:
    return msgspec.structs.replace(made, spark=folder)


def checkpoint(number: int, made: Manifest) -> Checkpoint:
    info = CheckpointInfo(number, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
    return Checkpoint(number, "j", "j", 1, made, info)


def test_folders_of_spark_stay_while_a_manifest_or_a_checkpoint_names_them() -> None:
    manifests = [with_spark(manifest(epoch), "spark-9") for epoch in (9, 10, 11)]
    folders = ["chk-1", "shared", "spark", "spark-4", "spark-7", "spark-9", "spark-12", "spark-x"]
    kept = [checkpoint(1, with_spark(manifest(5), "spark-4"))]
    assert old_spark_folders(folders, manifests, kept) == ["spark", "spark-7"]
    assert old_spark_folders(folders, manifests, []) == ["spark", "spark-4", "spark-7"]
    assert old_spark_folders(folders, [], []) == []
    assert "spark-12" not in old_spark_folders(folders, manifests, []), "a restore may be building it"


def test_sweep_removes_old_folders_of_spark(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path))
    store = ManifestStore(files)
    store.publish(with_spark(manifest(3), "spark-3"))
    CheckpointStore(files).complete(checkpoint(1, with_spark(manifest(1), "spark-1")))
    for name in ("spark", "spark-1", "spark-3"):
        for log in ("offsets/0", "sources/0/0", ".metadata.crc"):
            path = tmp_path / name / log
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        (tmp_path / name / "state").mkdir()
    assert sweep(files) == []
    os.utime(tmp_path / "spark" / "offsets" / "0", (0, 0))
    assert sweep(files) == [], "its query may still be alive as long as one file is young"
    assert len(sweep(files, dry_run=True, now=1e12)) == 3
    assert (tmp_path / "spark").exists()
    sweep(files, now=1e12)
    assert files.folders("") == ["chk-1", "epochs", "spark-1", "spark-3"]
    assert len(list(files.walk("spark-1"))) == 3, "a restore of the checkpoint needs its sources"
    CheckpointStore(files).discard(1)
    sweep(files, now=1e12)
    assert files.folders("") == ["epochs", "spark-3"]
