"""Rows of sources from Spark's reports of its batches: each report once, each source to its vertex."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cairn.restore.source_matching import again
from cairn.spark.task_progress import SourceRows, places_of


@dataclass
class Report:
    batch: int
    time: str
    rows: list[int]

    def batchId(self) -> int:
        return self.batch

    def timestamp(self) -> str:
        return self.time

    def sources(self) -> list[Any]:
        return [SimpleNamespace(numInputRows=lambda n=n: n) for n in self.rows]


class Query:
    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.asked = 0
        self._jsq = self

    def lastProgress(self) -> Report | None:
        self.asked += 1
        return self.reports[-1] if self.reports else None

    def recentProgress(self) -> list[Report]:
        return self.reports


def test_each_report_counts_once_and_one_without_rows_not_at_all() -> None:
    query = Query()
    rows = SourceRows(query, ["a", "b"], [("source-0", "b"), ("source-1", "a")], pause=0)
    assert list(rows.news()) == []
    query.reports = [Report(0, "t0", [5, 7]), Report(1, "t1", [0, 0])]
    assert list(rows.news()) == [(0, {"source-0": 7, "source-1": 5})]
    assert list(rows.news()) == []
    query.reports.append(Report(1, "t2", [1, 0]))  # the report before it had its number, and no rows
    assert list(rows.news()) == [(1, {"source-0": 0, "source-1": 1})]


def test_spark_is_asked_once_a_second_unless_it_must_be_now() -> None:
    query = Query()
    rows = SourceRows(query, ["a"], [("source-0", "a")], pause=3600)
    for _ in range(5):
        list(rows.news())
    assert query.asked == 1
    query.reports = [Report(0, "t0", [5])]
    assert list(rows.news(now=True)) == [(0, {"source-0": 5})]


def test_a_jvm_that_is_gone_is_no_error() -> None:
    def gone() -> None:
        raise ConnectionRefusedError

    query: Any = SimpleNamespace(_jsq=SimpleNamespace(lastProgress=gone))
    assert list(SourceRows(query, ["a"], [("source-0", "a")]).news(now=True)) == []


def test_sources_are_found_by_name() -> None:
    assert places_of(["a", "b", "cairn-ticks"], [("source-0", "b"), ("source-1", "a")]) == {
        "source-0": 1,
        "source-1": 0,
    }
    assert places_of(["a", again(0), "c"], [("source-0", "a"), ("source-1", "a"), ("source-2", "c")]) == {
        "source-0": 0, "source-1": 0, "source-2": 1,
    }  # fmt: skip
    assert places_of(["a", "a"], [("source-0", "a"), ("source-1", "a")]) == {"source-0": 0, "source-1": 1}
    assert places_of(["a"], [("source-0", "gone")]) == {}
