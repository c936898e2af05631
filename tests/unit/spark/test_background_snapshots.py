"""Snapshots of full checkpoints: what is covered while they are written, and what a cancel leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from cairn.errors import CheckpointFailedError
from cairn.model.manifest import Manifest, OperatorState, StateHandle
from cairn.spark.background_snapshots import SparkSnapshots

CHECKPOINT = 3
TIMEOUT = 30.0


class Pieces:
    """`Background`, which writes another piece each time that it is let go on."""

    def __init__(self) -> None:
        self._may_write = threading.Semaphore(0)
        self._written = threading.Semaphore(0)

    def run(
        self, call: Any, work: Sequence[Any], group: str, what: str,
        finished: Callable[[int], None], given_up: Callable[[], bool],
    ) -> list[list[bytes]]:  # fmt: skip
        pieces = []
        for number, (_, epoch, _, _, first, last, _, _) in enumerate(work):
            assert self._may_write.acquire(timeout=TIMEOUT)
            if given_up():
                break
            pieces.append([msgspec.msgpack.encode(StateHandle(epoch, first, last, 1, "checksum"))])
            finished(number)
            self._written.release()
        return pieces

    def let_go(self) -> None:
        self._may_write.release()

    def write(self) -> None:
        self.let_go()
        assert self._written.acquire(timeout=TIMEOUT)


class Lab:
    """Two operators of two subtasks; one of them has no state yet."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        background: Any = self.pieces
        self.groups: list[str] = []
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobGroup=self.groups.append))
        self.snapshots = SparkSnapshots(spark, background, "/job", 1)
        self.results: list[Any] = []
        self._ended = threading.Event()
        chain = [StateHandle(7, 0, 7, 1, "checksum")]
        operators = [OperatorState("totals", "Totals", 2, "", [], chain), OperatorState("new", "New", 2, "", [], [])]
        manifest = Manifest("job", "i", 7, "c", 1, 6, 8, "", 0, 0, operators, [], {})
        self.snapshots.start(CHECKPOINT, manifest, self._done)

    def _done(self, result: Any) -> None:
        self.results.append(result)
        self._ended.set()

    def result(self) -> Any:
        assert self._ended.wait(TIMEOUT)
        return self.results[0]


def test_subtasks_are_covered_one_after_the_other() -> None:
    lab = Lab()
    stateless = [("new", 0), ("new", 1)]
    assert lab.snapshots.written(CHECKPOINT) == stateless
    lab.pieces.write()
    assert lab.snapshots.written(CHECKPOINT) == [("totals", 0), *stateless]
    lab.pieces.write()
    handles = lab.result()
    assert [(handle.first_group, handle.last_group) for handle in handles["totals"]] == [(0, 3), (4, 7)]
    assert handles["new"] == []
    spent = lab.snapshots.spent(CHECKPOINT)
    assert spent["totals", 0] <= spent["totals", 1]
    assert lab.snapshots.spent(CHECKPOINT) == {}, "it can be read once"


def test_a_cancel_ends_the_snapshots_and_leaves_nothing() -> None:
    lab = Lab()
    lab.pieces.write()
    lab.snapshots.cancel(CHECKPOINT)
    lab.pieces.let_go()
    assert isinstance(lab.result(), CheckpointFailedError)
    assert lab.snapshots.spent(CHECKPOINT) == {}
    assert len(lab.groups) == 1
    assert lab.groups[0].endswith(f"-{CHECKPOINT}")
    lab.snapshots.cancel(4)  # of a checkpoint that has no snapshots
    assert lab.snapshots.written(4) == []
