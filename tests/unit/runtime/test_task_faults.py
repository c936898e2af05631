"""Tasks that fail again and again, and two attempts of one task at the same time."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.epoch_lab import EPOCHS, INPUT, OUTPUT, Ledger, World
from tests.support.patience import PATIENCE

from cairn.config import Settings
from cairn.errors import CairnError, InvalidInputError, UserFunctionError
from cairn.restore.recovery import recover
from cairn.restore.start_request import StartRequest
from cairn.state import working_store
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import sweep
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.testing.keyed_harness import KeyedProcessHarness
from cairn.testing.local_cluster import LocalCluster

# A13: initialisation that fails.


def open_things() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


class NeverOpens(Ledger):
    def __init__(self) -> None:
        self.works = True

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        if not self.works:
            raise RuntimeError("cannot reach the service")


@pytest.mark.parametrize("backend", ["hashmap", "lmdb", "rocksdb"])
def test_a_function_that_fails_to_open_fifty_times_leaves_nothing_behind(tmp_path: Path, backend: str) -> None:
    function = NeverOpens()
    with KeyedProcessHarness(
        function, "key", INPUT, OUTPUT, backend=backend, parallelism=2, state_dir=tmp_path / "job"
    ) as harness:
        for rows in EPOCHS[:2]:
            harness.push(*rows)
            harness.run_epoch()
        function.works = False
        harness.push(*EPOCHS[2])
        with pytest.raises(UserFunctionError):
            harness.run_epoch()
        before = open_things()
        files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
        local = {path for path in Path(harness.local_directory).rglob("*") if path.is_dir()}
        for _ in range(50):
            with pytest.raises(UserFunctionError, match="cannot reach the service"):
                harness.run_epoch()
        assert open_things() == before
        assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == files
        assert {path for path in Path(harness.local_directory).rglob("*") if path.is_dir()} == local
        function.works = True
        harness.run_epoch()
        assert harness.state("total", "a") == 10


def test_a_start_that_is_refused_fifty_times_leaves_nothing_behind(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path / "job"))

    def refuse() -> None:
        raise InvalidInputError("the sink's folder cannot be used")

    def start(prepare: Any) -> None:
        recover(StartRequest(files, "job", "job", Settings(), 2, 128, ["op"]), now_ms=0, prepare=prepare)

    with pytest.raises(CairnError):
        start(refuse)
    before, listing = open_things(), sorted(path.name for path in tmp_path.rglob("*"))
    for _ in range(50):
        with pytest.raises(InvalidInputError, match="cannot be used"):
            start(refuse)
    assert open_things() == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == listing, "no run was taken, nothing piled up"
    start(lambda: None)


# E1: speculative execution.


_both: Any = None


def _meet(barrier: Any) -> None:
    global _both
    _both = barrier


def _attempt(spec: Any, root: str, context: Any, attempts: int, subtask: int, batches: Any) -> Any:
    """One attempt in a worker process; the other one begins at the same moment."""
    copy = LocalCluster(spec, None, LocalFileSystem(root))  # type: ignore[arg-type]
    copy.context, copy.attempts = context, attempts
    _both.wait(PATIENCE)
    return [tuple(row) for row in copy.run_subtask(subtask, batches)], copy.acks


class Speculating(LocalCluster):
    """Every task runs twice at the same time, in two workers, as Spark runs them; both write, and the acknowledgement
    of one is handed on."""

    workers: Any = None

    def run_subtask(self, subtask: int, batches: Any) -> list[Any]:
        given = (self.spec, self.files.root, self.context)
        asked = [
            self.workers.apply_async(_attempt, (*given, self.attempts + number, subtask, batches))
            for number in range(2)
        ]
        outputs, acks = [answer.get(90) for answer in asked][subtask % 2]
        self.attempts += 2
        self.acks += acks
        return list(outputs)


@pytest.fixture(params=["lmdb", "rocksdb"])
def world(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(working_store, "DEFER_EPOCHS", 1)
    made = World(tmp_path, request.param)
    processes = multiprocessing.get_context("spawn")
    with processes.Pool(2, _meet, (processes.Barrier(2),)) as workers:
        made.cluster_type = type("Speculating", (Speculating,), {"workers": workers})
        yield made
    made.lose_stores()


def test_of_two_attempts_at_once_one_counts_and_the_other_is_swept(world: World) -> None:
    world.settings = replace(world.settings, inline_threshold=0, epochs_retained=1000)
    world.run()
    world.check()
    files = LocalFileSystem(str(world.root))
    newest = ManifestStore(files).load(len(EPOCHS) - 1)
    present = {info.path for info in files.walk("shared") if "snapshot" not in info.path}
    losers = present - newest.files()
    assert len(losers) == len(newest.files()), "both attempts wrote, one of each pair is named"
    assert sweep(files) == [], "not while one of them may be alive"
    old = {info.path for info in sweep(files, now=1e12)}
    assert old == losers
    assert all(files.exists(path) for path in newest.files())
    assert CheckpointStore(files).numbers() == []
    world.check()
