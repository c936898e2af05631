"""`DeltaSink` on a local table: what a reader of the table sees after crashes, repeats and conflicts."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import types as t
from tests.support.connector_lab import attempt, frame, job, started

from cairn import CorruptFileError, DeltaSink, InvalidInputError, Retry, StorageError


def rows(path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist())


def test_each_row_once_however_often_an_epoch_is_published(tmp_path: Path) -> None:
    where, table = job(tmp_path), tmp_path / "table"
    sink = started(DeltaSink(str(table)), where)
    data = sink.prepare(frame([("a", 1), ("b", 2)], parts=2), 0, attempt(0))
    assert rows(table) == [], "prepared rows are seen"
    shutil.copytree(Path(where) / "staging", tmp_path / "copy")
    sink.commit(data, 0)
    for _ in range(2):
        shutil.copytree(tmp_path / "copy", Path(where) / "staging", dirs_exist_ok=True)
        started(DeltaSink(str(table)), where).commit(data, 0)
    sink.commit(sink.prepare(frame([("c", 3)]), 1, attempt(1)), 1)
    assert rows(table) == [("a", 1), ("b", 2), ("c", 3)]
    assert not list((Path(where) / "staging").rglob("part-*"))


def test_two_runs_that_publish_an_epoch_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The late one has looked before the other was done: Delta's log refuses it, and it looks again."""
    where, table = job(tmp_path), tmp_path / "table"
    old = started(DeltaSink(str(table), retry=Retry(first=0.01)), where)
    data = old.prepare(frame([("a", 1)]), 0, attempt(0))
    shutil.copytree(Path(where) / "staging", tmp_path / "copy")
    stale = old._open()
    started(DeltaSink(str(table)), where).commit(data, 0)
    shutil.copytree(tmp_path / "copy", Path(where) / "staging", dirs_exist_ok=True)
    views = [stale]
    opened = old._open
    monkeypatch.setattr(old, "_open", lambda: views.pop() if views else opened())
    old.commit(data, 0)
    assert views == []
    assert rows(table) == [("a", 1)]


def test_partitions_and_times(tmp_path: Path) -> None:
    schema = t.StructType().add("day", t.DateType()).add("at", t.TimestampType())
    at = dt.datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
    sink = started(DeltaSink(str(tmp_path / "table"), partition_by="day"), job(tmp_path), schema)
    sink.commit(sink.prepare(frame([(at.date(), at)], schema), 0, attempt(0)), 0)
    assert rows(tmp_path / "table") == [(at.date(), at)]
    assert [path.name for path in (tmp_path / "table").glob("day=*")] == ["day=2026-02-03"]


def test_what_does_not_fit_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, table = job(tmp_path), str(tmp_path / "table")
    started(DeltaSink(table), where)
    other = t.StructType().add("word", t.StringType()).add("n", t.DoubleType())
    with pytest.raises(InvalidInputError, match=r"column 'n' is .*long.* in the Delta table .* and .*double"):
        started(DeltaSink(table), where, other)
    with pytest.raises(InvalidInputError, match="no column 'day' to partition by"):
        started(DeltaSink(table, partition_by=["day"]), where)
    with pytest.raises(InvalidInputError, match="path or URL"):
        DeltaSink("")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'cairn-streaming\[delta\]'"):
        started(DeltaSink(table), where)


def test_epoch_whose_manifest_was_lost_is_not_run_again(tmp_path: Path) -> None:
    where, table = job(tmp_path), str(tmp_path / "table")
    sink = started(DeltaSink(table), where)
    sink.commit(sink.prepare(frame([("a", 1)]), 0, attempt(0)), 0)
    with pytest.raises(CorruptFileError, match="has epoch 0 of this sink, and epoch 0 is run again"):
        sink.prepare(frame([("a", 1)]), 0, attempt(0, run=2))


def test_table_that_cannot_be_reached(tmp_path: Path) -> None:
    where, table = job(tmp_path), tmp_path / "table"
    sink = started(DeltaSink(str(table), retry=Retry(attempts=2, first=0.01)), where)
    data = sink.prepare(frame([("a", 1)]), 0, attempt(0))
    table.rename(tmp_path / "away")
    with pytest.raises(StorageError, match=r"publishing epoch 0 failed 2 times.*Epoch 0 is committed"):
        sink.commit(data, 0)
    (tmp_path / "away").rename(table)
    sink.commit(data, 0)
    assert rows(table) == [("a", 1)]


def test_at_least_once_may_write_an_epoch_twice(tmp_path: Path) -> None:
    sink = started(DeltaSink(str(tmp_path / "table")), job(tmp_path))
    sink.may_repeat = True
    data = sink.prepare(frame([("a", 1)]), 0, attempt(0))
    sink.commit(data, 0)
    sink.commit(data, 0)
    sink.commit(sink.prepare(frame([("b", 1)]), 1, attempt(1)), 1)
    assert rows(tmp_path / "table") == [("a", 1), ("a", 1), ("b", 1)]
    assert len(list((tmp_path / "job" / "staging" / "out").iterdir())) == 1, "only the newest epoch is kept"
