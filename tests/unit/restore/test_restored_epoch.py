"""The parts of a restore that need no Spark: a file source's log cut at a position, what counts as damage."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cairn.errors import CorruptFileError, NotFoundError, StorageError
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.manifest import Manifest, OperatorState, StateHandle, inline_key
from cairn.restore.damage import damage
from cairn.restore.restored_epoch import BroughtState, Restore, publish_restored
from cairn.restore.source_logs import copy_source, positions_of
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import of_checkpoint
from cairn.storage import state_file
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import JobIdentity, ManifestStore
from cairn.storage.run_records import Runs
from cairn.testing.faults import Fault, FaultPlan, FaultyFileSystem


def write_log(folder: Path, last: int, gone_before: int = 0) -> None:
    """A file source's log as Spark writes it: one file a batch, everything together in every tenth."""
    folder.mkdir()
    lines = [json.dumps({"path": f"file:///in/{n}", "timestamp": n, "batchId": n}) for n in range(last + 1)]
    for number in range(gone_before, last + 1):
        if (number + 1) % 10 == 0:
            (folder / f"{number}.compact").write_text("\n".join(["v1", *lines[: number + 1]]))
        else:
            (folder / str(number)).write_text("\n".join(["v1", lines[number]]))
        (folder / f".{number}.crc").write_bytes(b"old checksum")


def interval_of(folder: Path, default: int) -> int:
    """How Spark works out the interval at which the log is compacted, from what it finds."""
    compacted = sorted(int(path.stem) for path in folder.iterdir() if path.suffix == ".compact")
    if not compacted:
        return default
    latest = compacted[-1] + 1
    if len(compacted) >= 2:
        return compacted[-1] - compacted[-2]
    if default >= latest:
        return latest
    if latest < 2 * default:
        return latest
    return next(n for n in range(default, latest + 1) if latest % n == 0)


def known(folder: Path, default: int = 10) -> list[int]:
    """The batches that Spark reads from a log: from its newest compact file on, by its own rule."""
    newest = max(int(path.name.removesuffix(".compact")) for path in folder.iterdir())
    interval = interval_of(folder, default)
    first = (newest + 1) // interval * interval - 1
    found: set[int] = set()
    for number in range(max(first, 0), newest + 1):
        together = (number + 1) % interval == 0
        version, *lines = (folder / (f"{number}.compact" if together else str(number))).read_text().split("\n")
        assert version == "v1"
        batches = {int(json.loads(line)["batchId"]) for line in lines}
        assert batches == (set(range(number + 1)) if together else {number})
        found |= batches
    return sorted(found)


@pytest.mark.parametrize("position", [0, 5, 8, 9, 10, 14, 19, 20, 29, 35, 43, 44])
@pytest.mark.parametrize("gone_before", [0, 9, 19, 29, 39])
def test_a_file_sources_log_is_cut_at_the_position(tmp_path: Path, position: int, gone_before: int) -> None:
    write_log(tmp_path / "log", 44, gone_before)
    for interval in (10, 4, 25):
        cut = tmp_path / f"cut-{interval}"
        copy_source(str(tmp_path / "log"), str(cut), {"logOffset": position}, interval)
        assert known(cut, interval) == list(range(position + 1))
    newest = max(int(path.name.removesuffix(".compact")) for path in cut.iterdir())
    assert newest == position


def test_a_position_that_the_log_no_longer_knows_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 13, gone_before=10)
    with pytest.raises(CorruptFileError, match="no longer contains batch 0"):
        copy_source(str(tmp_path / "log"), str(tmp_path / "cut"), {"logOffset": 12}, 10)


def test_other_sources_logs_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0").write_text("v1\nstart time")
    copy_source(str(tmp_path / "log"), str(tmp_path / "copy"), 17, 10)
    assert (tmp_path / "copy" / "0").read_text() == "v1\nstart time"


def test_positions_of_an_offset_entry() -> None:
    assert positions_of('v1\n{"batchWatermarkMs":0}\n{"logOffset":3}\n-\n12') == [{"logOffset": 3}, None, 12]


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a savepoint, a checkpoint or a job"):
        open_snapshot(str(tmp_path))
    (tmp_path / "chk-3").mkdir()
    with pytest.raises(NotFoundError, match="completed there: none"):
        open_snapshot(str(tmp_path / "chk-3"))
    with pytest.raises(NotFoundError, match="completed there: none"):
        open_snapshot(f"file://{tmp_path}/chk-3/_metadata")


def inlined_manifest(epoch: int) -> Manifest:
    """Two epochs of inlined state: the bytes of the first lie in its own manifest."""
    data, checksum = state_file.encode([])
    handles = [StateHandle(e, 0, 15, len(data), checksum) for e in range(epoch + 1)]
    operator = OperatorState("op", "Op", 1, "key string", [], handles)
    return Manifest(
        "job", "inc", epoch, f"c{epoch}", 1, epoch - 1, 16, "v1\n{}\n{}", 0, 0, [operator], [], {},
        inlined={inline_key("op", 0): data},
    )  # fmt: skip


def test_a_lost_manifest_with_inlined_state_is_damage_unless_the_checkpoint_has_the_bytes(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path))
    store = ManifestStore(files)
    for epoch in range(2):
        store.publish(inlined_manifest(epoch))
    newest = inlined_manifest(1)
    assert damage(files, newest, thorough=True) == ""
    store.delete(0)
    assert "epochs/00000000000000000000" in damage(files, newest)
    info = CheckpointInfo(1, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
    whole = Checkpoint(1, "job", "Job", 1, newest, info, inlined={0: inlined_manifest(0).inlined})
    assert damage(files, newest, thorough=True, checkpoint=whole) == ""
    lacking = Checkpoint(1, "job", "Job", 1, newest, info)
    assert "not in the checkpoint" in damage(files, newest, checkpoint=lacking)


def test_storage_that_fails_is_no_damage(tmp_path: Path) -> None:
    """A job must not go back to an older state because a disk did not answer for a moment."""
    handle = StateHandle(0, 0, 15, 3, "c", "shared/op/000000000000-1-0.state")
    operator = OperatorState("op", "Op", 1, "key string", [], [handle])
    manifest = msgspec.structs.replace(inlined_manifest(0), operators=[operator], inlined={})
    plan = FaultPlan([Fault("error", operation="exists")])
    files = FaultyFileSystem(LocalFileSystem(str(tmp_path)), plan)
    with pytest.raises(StorageError):
        damage(files, manifest)
    assert "is missing" in damage(files, manifest)


def test_a_missing_source_log_stops_a_restore(tmp_path: Path) -> None:
    """Without it the file source would take everything that is there for read."""
    files = LocalFileSystem(str(tmp_path / "jobs"))
    info = CheckpointInfo(1, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
    old = msgspec.structs.replace(inlined_manifest(0), offsets='v1\n{}\n{"logOffset":3}')
    source = of_checkpoint(files, Checkpoint(1, "job", "Job", 1, old, info))
    identity = JobIdentity("job", "Job", "inc", 16)
    run = Runs(files).take(1, 0)
    with pytest.raises(CorruptFileError, match="sources/0 is missing"):
        publish_restored(Restore(source, files, identity), run, 1, BroughtState(carried={"op": []}))
    assert ManifestStore(files).epochs() == [], "nothing was committed"
