"""The gate between epochs, stopping with a savepoint, notes of stops that died, claims."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from tests.support.coordinator_lab import manifest
from tests.support.evolving_job import ROWS, Old
from tests.support.patience import PATIENCE
from tests.support.restore_lab import checkpoint_of, harness, restored, savepoint_of, shape_of
from tests.support.savepoint_lab import World
from tests.support.stopping_lab import Loop, served, stopped

from cairn.coordinator.pending_checkpoint import SavepointOrder
from cairn.errors import CheckpointFailedError, InvalidInputError
from cairn.job.epoch_gate import EpochGate
from cairn.job.stopping import StopContext, StopNote, stop, tell_of_unfinished_stops
from cairn.restore.claims import release_claims
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.savepoint_target import savepoint_path


def test_a_shut_gate_waits_for_the_running_epoch_and_holds_the_next() -> None:
    gate = EpochGate()
    assert gate.enter()
    assert not gate.shut(0.05), "the epoch takes too long: the gate is open again"
    gate.leave()
    assert gate.shut(1)
    entered = threading.Event()

    def epoch() -> None:
        gate.enter()
        entered.set()

    thread = threading.Thread(target=epoch)
    thread.start()
    assert not entered.wait(0.1)
    gate.open()
    assert entered.wait(PATIENCE)
    gate.leave()
    thread.join()


def test_one_more_epoch_passes_a_shut_gate() -> None:
    gate = EpochGate()
    assert gate.shut(1)
    assert not gate.one_more(0.05), "none came"
    passed: list[int] = []

    def stream() -> None:
        while gate.enter():
            passed.append(len(passed))
            gate.leave()

    thread = threading.Thread(target=stream)
    thread.start()
    assert gate.one_more(PATIENCE)
    time.sleep(0.05)
    assert passed == [0]
    assert gate.end(PATIENCE)
    thread.join(PATIENCE)
    assert not gate.enter()
    assert not gate.shut(0.1)


def test_a_stop_takes_the_savepoint_of_the_last_epoch_and_ends_the_job(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(3)
    info, ended = stopped(world, EpochGate(), SavepointOrder("/sp", "r"))
    assert (info.epoch, ended) == (3, [True])
    assert world.files.list("stopping") == []


def test_if_the_savepoint_fails_the_job_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(3)
    world.writer.fail = OSError("no room")
    gate = EpochGate()
    error, ended = stopped(world, gate, SavepointOrder("/sp", "r"))
    assert isinstance(error, CheckpointFailedError)
    assert ended == []
    assert world.files.list("stopping") == []
    assert gate.enter(), "the stream goes on"


def test_a_drain_runs_one_more_epoch_at_the_end_of_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(0)
    gate, loop = EpochGate(), Loop()
    seen: list[bool] = []

    def stream() -> None:
        while gate.enter():
            seen.append(loop.draining)
            world.commit(len(seen))
            gate.leave()
            if len(seen) > 3:
                time.sleep(0.02)

    thread = threading.Thread(target=stream, daemon=True)
    thread.start()
    info, ended = stopped(world, gate, SavepointOrder("/sp", "r", drained=True), loop)
    gate.end(PATIENCE)
    thread.join(PATIENCE)
    assert ended == [True]
    assert seen.count(True) == 1
    assert seen[-1] is True, "no epoch lies after the last one"
    assert info.epoch == len(seen)


def test_a_stop_that_was_asked_for_again_after_the_job_has_gone_on(tmp_path: Path) -> None:
    """C12: never one batch in both histories."""
    world = World(tmp_path)
    world.commit(3)
    stopped(world, EpochGate(), SavepointOrder("/sp", "same"))
    again, ended = stopped(world, EpochGate(), SavepointOrder("/sp", "same"))
    assert (again.epoch, ended) == (3, [True]), "killed before it stopped, and nothing has happened since"
    world.commit(4)
    error, ended = stopped(world, EpochGate(), SavepointOrder("/sp", "same"))
    assert "the job is now at epoch 4" in str(error)
    assert ended == []


def test_a_new_run_tells_what_became_of_a_stop(tmp_path: Path) -> None:
    """C12."""
    with harness(Old(), tmp_path / "job") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
    files = LocalFileSystem(str(tmp_path / "job"))
    for request in ("done", "lost"):
        note = StopNote(request, str(tmp_path / "sp"), False, 1)
        files.create(f"stopping/{request}", json.dumps({f: getattr(note, f) for f in note.__struct_fields__}).encode())
    made = savepoint_of(tmp_path / "job", tmp_path / "sp")
    Path(made).rename(savepoint_path(str(tmp_path / "sp"), "harness", "done"))
    complete, lost = tell_of_unfinished_stops(files, "harness", 0)
    assert "is complete and contains epoch 0" in complete
    assert "There is no savepoint" in lost
    assert tell_of_unfinished_stops(files, "harness", 0) == []


def test_claims(tmp_path: Path) -> None:
    """J9: one owner; deleted when enough newer checkpoints exist, by the owner alone."""
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
        shape = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    restored(path, tmp_path / "b", shape, claim_mode="CLAIM")
    for mode in ("CLAIM", "NO_CLAIM"):
        with pytest.raises(InvalidInputError, match="claimed by job 'harness' in"):
            restored(path, tmp_path / "c", shape, claim_mode=mode)
    assert not (tmp_path / "c").exists()
    restored(path, tmp_path / "b", shape, claim_mode="CLAIM", restore_again=True)  # its own, again
    files = LocalFileSystem(str(tmp_path / "b"))
    assert release_claims(files, 1) == []
    checkpoint_of(tmp_path / "b", 1)
    assert release_claims(files, 2) == []
    assert Path(path).exists()
    assert release_claims(files, 1) != []
    assert not Path(path).exists()
    assert files.list("claims") == []
    with pytest.raises(InvalidInputError, match="cannot be claimed"):
        restored(checkpoint_of(tmp_path / "a"), tmp_path / "d", shape, claim_mode="CLAIM")


def test_the_end_of_time_fires_every_timer_also_those_of_its_own_rows(tmp_path: Path) -> None:
    with harness(Old(), tmp_path / "job") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
        assert len(job.timers()) == 10
        job._loop.draining = True
        job.push(*ROWS[10:14])
        job.run_epoch()
        assert job.timers() == []
        assert sum(metrics.timers_fired for _, _, metrics in job.reports[-1].tasks) == 14
        job._loop.draining = False
        manifest = job.manifest
        assert manifest is not None
        assert manifest.watermark < 1 << 62, "if the job goes on, it goes on with its own time"


def test_a_stop_finishes_an_epoch_whose_output_is_not_published_yet(tmp_path: Path) -> None:
    """After a crash between commit and publication Spark asks for the epoch again, which must pass the shut gate."""
    world = World(tmp_path)
    world.commit(3)
    world.coordinator._cuts.published = False
    gate = EpochGate()
    rolled_forward = []

    def spark() -> None:
        if gate.enter():
            world.coordinator.epoch_committed(manifest(3), ())
            rolled_forward.append(3)
            gate.leave()

    gate.shut(10)
    threading.Thread(target=spark, daemon=True).start()
    order = SavepointOrder("/sp", "r")
    context = StopContext(world.files, gate, world.coordinator, Loop(), 1, False, lambda: None)
    info = served(world, lambda: stop(context, order, PATIENCE))
    assert not isinstance(info, Exception), info
    assert rolled_forward == [3]
