"""Background snapshots are written, watched and canceled on several threads, with their steps interleaved by a seed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.interleaved_runs import manifest, play
from tests.support.interleaving import Interleaving

from cairn.errors import CheckpointFailedError
from cairn.model.manifest import StateHandle
from cairn.spark import background_snapshots, background_tasks
from cairn.spark.background_snapshots import SparkSnapshots
from cairn.spark.background_tasks import Background


class Writing:
    """Full checkpoints that Spark writes in pieces, one of which is canceled on the way."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.run = Interleaving(seed, [background_snapshots, background_tasks])
        self.run.install(patch, background_snapshots, background_tasks)
        patch.setattr(background_snapshots, "compact_range", self._piece)
        context = SimpleNamespace(
            defaultParallelism=3, setJobGroup=lambda *a, **k: None, setLocalProperty=lambda *a: None,
            parallelize=lambda pieces, slices: SimpleNamespace(
                map=lambda call: SimpleNamespace(collect=lambda: [call(piece) for piece in pieces])
            ),
            cancelJobGroup=lambda group: None,
        )  # fmt: skip
        spark: Any = SimpleNamespace(sparkContext=context)
        self.snapshots = SparkSnapshots(spark, Background(spark, self._idle), "/job", 1)
        self.results: dict[int, list[Any]] = {1: [], 2: [], 3: []}

    def _idle(self) -> float:
        return self.run.random.choice([0.0, 60.0])

    def _piece(self, work: Any) -> list[bytes]:
        self.run.give_way()
        return [msgspec.msgpack.encode(StateHandle(work[1], work[4], work[5], 1, "c", "p", snapshot=True))]

    def coordinate(self) -> None:
        made = manifest(3)
        large = [msgspec.structs.replace(handle, rows=1_000_000) for handle in made.operators[0].chain]
        made = msgspec.structs.replace(made, operators=[msgspec.structs.replace(made.operators[0], chain=large)])
        for number in self.results:
            self.snapshots.start(number, made, self.results[number].append)
        while not all(self.results.values()):
            for number in self.results:
                assert set(self.snapshots.written(number)) <= {("op", 0), ("op", 1)}
            self.run.wait_for(lambda: False, 0.02)
            if self.run.random.random() < 0.2:
                self.snapshots.cancel(2)

    def play(self) -> None:
        self.run.spawn("coordinator", self.coordinate)
        self.run.run()

    def verify(self) -> None:
        assert all(len(results) == 1 for results in self.results.values()), "each end is reported once"
        for number in (1, 3):
            handles = self.results[number][0]["op"]
            groups = sorted((handle.first_group, handle.last_group) for handle in handles)
            assert [first for first, _ in groups] == [0, *(last + 1 for _, last in groups[:-1])]
            assert groups[-1][1] == 127
            assert self.snapshots.spent(number).keys() == {("op", 0), ("op", 1)}
            assert self.snapshots.spent(number) == {}
        if isinstance(self.results[2][0], CheckpointFailedError):
            assert self.snapshots.spent(2) == {}
        assert [self.snapshots.written(number) for number in self.results] == [[], [], []]


def writing(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    job = Writing(seed, patch)
    job.play()
    job.verify()


def test_background_snapshots(tmp_path: Path) -> None:
    play(writing, tmp_path)
