"""Lives that end and begin again: dropped operators, restored directories, sinks that share a folder or change."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cairn import EpochFailedError, KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor
from cairn.connectors.file_sink import FileSink
from cairn.errors import CorruptFileError
from cairn.testing import keyed_harness
from cairn.testing.keyed_harness import KeyedProcessHarness


class Ledger(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.amount)
        self.seen.add(value.amount)
        ctx.timer_service().register_processing_time_timer(10_000)
        yield value.key, self.total.value(), len(list(self.seen.get()))

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), -1, -1


def ledger(backend: str, **more: Any) -> KeyedProcessHarness:
    return KeyedProcessHarness(
        Ledger(), "key", "key string, amount bigint", "key string, total bigint, seen bigint", backend=backend, **more
    )


def run(lab: KeyedProcessHarness, *rows: tuple[str, int]) -> list[Any]:
    lab.push(*rows)
    return [tuple(row) for row in lab.run_epoch()]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("backend", ["hashmap", "lmdb", "rocksdb"])
def test_a_dropped_operator_that_comes_back_starts_empty(backend: str, keep: bool) -> None:
    with ledger(backend) as lab:
        for _ in range(12):
            run(lab, ("x", 5), ("y", 1))
        lab._loop._setup = replace(lab._loop._setup, operators=[])  # its state was dropped on request
        lab._loop._builder = replace(lab._loop._builder, operators=[])
        lab.cluster.run = lambda rows: []  # type: ignore[method-assign]
        lab.run_epoch()
        lab.run_epoch()
        lab.restart(keep_stores=keep)
        assert run(lab, ("x", 1)) == [("x", 1, 1)]
        lab.advance_processing_time(20_000)
        assert run(lab, ("x", 1)) == [("x", -1, -1), ("x", 2, 2)]  # and no timer of y


@pytest.mark.parametrize("backend", ["hashmap", "lmdb", "rocksdb"])
def test_a_directory_brought_back_from_a_copy_goes_on_from_it(tmp_path: Path, backend: str) -> None:
    place = tmp_path / "job"
    with ledger(backend, state_dir=str(place)) as lab:
        for _ in range(3):
            run(lab, ("x", 1))
        shutil.copytree(place, tmp_path / "copy")
        for _ in range(3):
            lab.restart(keep_stores=True)
            for _ in range(12):
                run(lab, ("x", 1))
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "copy", place)
        lab.discard()
        lab.restart(keep_stores=True)
        assert run(lab, ("x", 1)) == [("x", 4, 4)]


class Frame:
    """As much of a Spark DataFrame as `FileSink` uses."""

    def __init__(self, values: list[int]) -> None:
        self.values = values
        self.write = self

    def format(self, name: str) -> Frame:
        return self

    def options(self, **options: Any) -> Frame:
        return self

    def mode(self, mode: str) -> Frame:
        return self

    def save(self, url: str) -> None:
        path = url.removeprefix("file://")
        os.makedirs(path)
        pq.write_table(pa.table({"v": self.values}), f"{path}/part-00000-x-c000.snappy.parquet")


def attached(path: Path, uid: str, job: str = "/jobs/a") -> FileSink:
    sink = FileSink(str(path))
    sink.uid = uid
    sink.start(None, job, None)
    return sink


def rows(path: Path) -> list[int]:
    files = sorted(path.glob("part-*"))
    return sorted(value for file in files for value in pq.read_table(file)["v"].to_pylist())


def test_sinks_and_jobs_may_share_a_directory(tmp_path: Path) -> None:
    sinks = [attached(tmp_path, "a"), attached(tmp_path, "b"), attached(tmp_path, "a", "/other/a")]
    prepared = [sink.prepare(Frame([number]), 5, "5-1-deadbeef") for number, sink in enumerate(sinks)]
    assert rows(tmp_path) == []
    for sink, data in zip(sinks, prepared, strict=True):
        sink.commit(data, 5)
        sink.commit(data, 5)
    assert rows(tmp_path) == [0, 1, 2]


def test_an_epoch_whose_output_is_published_is_not_written_again(tmp_path: Path) -> None:
    sink = attached(tmp_path, "a")
    sink.commit(sink.prepare(Frame([1]), 5, "5-1-aaaaaaaa"), 5)
    restarted = attached(tmp_path, "a")
    with pytest.raises(CorruptFileError, match=r"holds output of epoch 5 .* ends with epoch 4"):
        restarted.prepare(Frame([1]), 5, "5-2-bbbbbbbb")
    assert rows(tmp_path) == [1]


def test_output_that_the_history_does_not_know_is_refused_also_if_the_next_epoch_has_none(tmp_path: Path) -> None:
    """A job directory that was brought back from a backup, while the sink is five epochs ahead."""
    sink = attached(tmp_path, "a")
    for epoch in (3, 5, 6, 8):  # 4 and 7 had no rows
        sink.commit(sink.prepare(Frame([epoch]), epoch, f"{epoch}-1-aaaaaaaa"), epoch)
    restarted = attached(tmp_path, "a")
    with pytest.raises(CorruptFileError, match=r"output of epochs 5 to 8 .*part-0000000005.* ends with epoch 3"):
        restarted.prepare(Frame([4]), 4, "4-2-bbbbbbbb")
    assert rows(tmp_path) == [3, 5, 6, 8]
    other_sink = attached(tmp_path, "b")
    other_sink.prepare(Frame([4]), 4, "4-1-cccccccc")  # the output of others is none of its business


def test_output_of_earlier_epochs_hinders_no_run(tmp_path: Path) -> None:
    sink = attached(tmp_path, "a")
    sink.commit(sink.prepare(Frame([1]), 5, "5-1-aaaaaaaa"), 5)
    restarted = attached(tmp_path, "a")
    restarted.commit(restarted.prepare(Frame([2]), 6, "6-2-bbbbbbbb"), 6)
    assert rows(tmp_path) == [1, 2]


@pytest.mark.parametrize("change", ["emptied", "cut", "flipped"])
def test_a_prepared_file_that_was_changed_is_not_published(tmp_path: Path, change: str) -> None:
    sink = attached(tmp_path, "a")
    data = sink.prepare(Frame([1, 2, 3]), 5, "5-1-aaaaaaaa")
    prepared = tmp_path / data[0]["from"]
    content = prepared.read_bytes()
    flipped = bytes([content[0] ^ 1]) + content[1:]
    prepared.write_bytes({"emptied": b"", "cut": content[:-1], "flipped": flipped}[change])
    with pytest.raises(CorruptFileError, match=r"epoch 5 is committed, but .* is not published"):
        sink.commit(data, 5)
    assert rows(tmp_path) == []
    prepared.write_bytes(content)
    sink.commit(data, 5)
    assert rows(tmp_path) == [1, 2, 3]


def test_a_published_file_that_was_changed_before_the_epoch_was_done_is_an_error(tmp_path: Path) -> None:
    sink = attached(tmp_path, "a")
    data = sink.prepare(Frame([1]), 5, "5-1-aaaaaaaa")
    sink.commit(data, 5)
    published = tmp_path / data[0]["to"]
    published.write_bytes(published.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="bytes instead of"):
        sink.commit(data, 5)


def test_what_overtaken_attempts_have_staged_is_not_published_once_a_new_run_works(tmp_path: Path) -> None:
    old = attached(tmp_path, "a")
    data = old.prepare(Frame([1]), 5, "5-1-aaaaaaaa")
    restored = attached(tmp_path, "a")  # went back behind epoch 5 and stands for it as epoch 6
    restored.prepare(Frame([2]), 7, "7-2-bbbbbbbb")
    with pytest.raises(CorruptFileError, match="are missing"):
        old.commit(data, 5)
    assert rows(tmp_path) == []


class Staged:
    uid = "output"
    kind = "file"

    def prepare(self, frame: Any, epoch: int, attempt: str) -> Any:
        return ["staged"]

    def commit(self, data: Any, epoch: int) -> None:
        pass


class Silent(Staged):
    kind = "foreach"


def test_a_committed_epoch_is_published_by_its_own_kind_of_sink() -> None:
    with ledger("hashmap") as lab:
        lab._loop._setup = replace(lab._loop._setup, sinks=[Staged()])
        lab._loop.stop_at = "committed"
        with pytest.raises(keyed_harness._Stopped):
            lab._loop.run_epoch([], 0)
        lab._sink = Silent()  # type: ignore[assignment]
        lab.restart()
        with pytest.raises(EpochFailedError, match="no longer has the file sink 'output'"):
            lab._loop.run_epoch([], 0)


def test_an_overtaken_run_that_publishes_before_its_commit_leaves_what_a_newer_one_prepares(tmp_path: Path) -> None:
    old, new = attached(tmp_path, "a"), attached(tmp_path, "a")
    old.may_repeat = new.may_repeat = True
    data = old.prepare(Frame([1]), 5, "5-1-aaaaaaaa")
    newer = new.prepare(Frame([1]), 5, "5-2-bbbbbbbb")
    old.commit(data, 5)
    new.commit(newer, 5)
    assert rows(tmp_path) == [1, 1]


def test_a_file_that_another_run_publishes_in_the_same_moment_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = attached(tmp_path, "a"), attached(tmp_path, "a")
    data = old.prepare(Frame([1]), 5, "5-1-aaaaaaaa")
    verify = FileSink._verify

    def overtaken(sink: FileSink, *args: Any) -> None:
        monkeypatch.undo()
        old.commit(data, 5)
        verify(sink, *args)

    monkeypatch.setattr(FileSink, "_verify", overtaken)
    new.commit(data, 5)
    assert rows(tmp_path) == [1]
