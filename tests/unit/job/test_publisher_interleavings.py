"""The publisher is used by the stream, the coordinator's thread and pages, with their steps interleaved by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.interleaved_runs import noticed, play
from tests.support.interleaving import Actor, Interleaving, NoLock

from cairn.config import Settings, WebSettings
from cairn.coordinator.epoch_loop import EpochReport
from cairn.job import publisher
from cairn.job.publisher import Publisher
from cairn.model.manifest import TaskMetrics
from cairn.storage.filesystem import LocalFileSystem
from cairn.view import journal
from cairn.view.journal import Journal


class Published:
    """A job that reports epochs, a coordinator's thread that writes them down, and readers."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.run = Interleaving(seed, [publisher, journal])
        self.run.install(patch, publisher, journal)
        folder.mkdir(parents=True)
        self.files = LocalFileSystem(str(folder))
        self.publisher = Publisher(self.files, "job", Settings(web=WebSettings(enabled=False)))
        self.publisher.recorder.begin(1)
        self.publisher.watch(self)
        self.committed = 0
        self.reported = 0
        self.stream: Actor | None = None

    def news(self, now: bool = False) -> Iterator[tuple[int, dict[str, int]]]:
        """As Spark reports the rows of sources: after the epoch."""
        while self.reported < self.committed:
            self.reported += 1
            yield self.reported - 1, {"source": 10}

    def epochs(self) -> None:
        for epoch in range(20):
            tasks = (("op", 0, TaskMetrics(rows_in=3)), ("op", 1, TaskMetrics(rows_in=4)))
            self.publisher.recorder.record(EpochReport(epoch, 7, 7, 1, 1, 1, 1.0, 0, 0, tasks=tasks))
            self.committed += 1
            self.pause()

    def pause(self) -> None:
        self.run.wait_for(lambda: False, self.run.random.choice([0.0] * 9 + [30.0]))

    def look(self) -> None:
        while self.stream is not None and not self.stream.done:
            self.publisher.look()
            if self.run.random.random() < 0.5:
                self.publisher.recorder.flush()
            else:
                self.publisher.recorder.due()
            self.pause()

    def read(self) -> None:
        while self.stream is not None and not self.stream.done:
            epochs = [stats.epoch for stats in self.publisher.recorder.epochs()]
            assert epochs == list(range(len(epochs)))
            self.publisher.recorder.totals()
            self.pause()

    def play(self) -> None:
        self.stream = self.run.spawn("stream", self.epochs)
        others = [self.run.spawn("coordinator", self.look), self.run.spawn("page", self.read)]

        def end() -> None:
            self.run.wait_for(lambda: self.stream is not None and self.stream.done)
            self.publisher.look(now=True)  # beside the coordinator's thread, which may be looking, too
            self.publisher.recorder.flush()
            self.run.wait_for(lambda: all(other.done for other in others))
            self.publisher.recorder.flush()

        self.run.spawn("end", end)
        self.run.run()

    def verify(self) -> None:
        chunks = Journal(self.files).chunks()
        assert sorted(stats.epoch for chunk in chunks for stats in chunk.epochs) == list(range(20))
        recorder = self.publisher.recorder
        assert [load.rows_in for load in recorder.totals()["op"]] == [60, 80]
        assert recorder.ends() == {"source": 200}


def publishing(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    job = Published(seed, folder, patch)
    job.play()
    job.verify()


def test_publisher(tmp_path: Path) -> None:
    play(publishing, tmp_path)


def test_a_missing_lock_of_the_recorder_is_noticed(tmp_path: Path) -> None:
    def broken(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        job = Published(seed, folder, patch)
        patch.setattr(job.publisher.recorder, "_lock", NoLock())
        job.play()
        job.verify()

    noticed(broken, tmp_path)
