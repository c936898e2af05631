"""An epoch whose plan a crash cut off: the entry that Spark's offset log lacks, made from the logs of its sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cairn.errors import CorruptFileError
from cairn.restore.planned_epoch import complete_plan
from cairn.restore.source_matching import TICKS, again

FILE = "FileSource[/in]"
NOW = 5_000


def written(folder: Path, **logs: dict[str, str]) -> None:
    """Entries of logs; `__` in a name stands for `/`."""
    for log, entries in logs.items():
        (folder / log.replace("__", "/")).mkdir(parents=True, exist_ok=True)
        for name, text in entries.items():
            (folder / log.replace("__", "/") / name).write_text(text)


def entry(*positions: Any, watermark: int = 100, time_ms: int = 1_000) -> str:
    metadata = {
        "batchWatermarkMs": watermark,
        "batchTimestampMs": time_ms,
        "conf": {"spark.sql.shuffle.partitions": "2"},
    }
    lines = ["-" if position is None else json.dumps(position) for position in positions]
    return "\n".join(["v1", json.dumps(metadata), *lines])


def commit(watermark: int = 0) -> str:
    return f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'


def at(number: int) -> dict[str, int]:
    return {"logOffset": number}


def planned(folder: Path, epoch: int) -> tuple[dict[str, Any], list[Any]]:
    version, metadata, *positions = (folder / "offsets" / str(epoch)).read_text().split("\n")
    assert version == "v1"
    return json.loads(metadata), [None if line == "-" else json.loads(line) for line in positions]


def test_the_entry_takes_one_batch_of_the_file_source_and_leaves_the_others_where_they_are(tmp_path: Path) -> None:
    kafka, ticks = {"t": {"0": 7}}, {"tick": 3}
    written(tmp_path, offsets={"4": entry(at(6), kafka, ticks)}, commits={"4": commit(250)})
    written(tmp_path, sources__0={"6": "v1\n{}", "7": "v1\n{}"}, sources__1={"0": "v1\n{}"})
    assert complete_plan(str(tmp_path), [FILE, "kafka", TICKS], NOW) == 5
    metadata, positions = planned(tmp_path, 5)
    assert positions == [at(7), kafka, ticks]
    assert (metadata["batchWatermarkMs"], metadata["batchTimestampMs"]) == (250, NOW)
    assert metadata["conf"] == {"spark.sql.shuffle.partitions": "2"}


def test_neither_watermark_nor_time_runs_back(tmp_path: Path) -> None:
    written(tmp_path, offsets={"0": entry(at(0), watermark=900, time_ms=9_000)}, commits={"0": commit(800)})
    written(tmp_path, sources__0={"0": "v1\n{}", "1": "v1\n{}"})
    assert complete_plan(str(tmp_path), [FILE], NOW) == 1
    metadata, _ = planned(tmp_path, 1)
    assert (metadata["batchWatermarkMs"], metadata["batchTimestampMs"]) == (900, 9_000)


def test_a_batch_that_was_compacted_is_seen(tmp_path: Path) -> None:
    written(tmp_path, offsets={"8": entry(at(8))}, commits={"8": commit()})
    written(tmp_path, sources__0={"8": "v1\n{}", "9.compact": "v1\n{}"})
    assert complete_plan(str(tmp_path), [FILE], NOW) == 9
    assert planned(tmp_path, 9)[1] == [at(9)]


def test_a_source_that_is_mentioned_twice_moves_in_both_places(tmp_path: Path) -> None:
    written(tmp_path, offsets={"0": entry(at(0), at(0), at(5))}, commits={"0": commit()})
    written(tmp_path, sources__0={"0": "v1\n{}", "1": "v1\n{}"}, sources__1={"5": "v1\n{}"})
    assert complete_plan(str(tmp_path), [FILE, again(0), "FileSource[/other]"], NOW) == 1
    assert planned(tmp_path, 1)[1] == [at(1), at(1), at(5)]


def test_the_first_epoch_is_planned_from_the_beginning(tmp_path: Path) -> None:
    written(tmp_path, sources__0={"0": "v1\n{}"}, sources__1={"0": "v1\n{}"})
    assert complete_plan(str(tmp_path), [FILE, "kafka"], NOW) == 0
    assert planned(tmp_path, 0)[1] == [at(0), None]


@pytest.mark.parametrize(
    "logs",
    [
        {},
        {"offsets": {"0": entry(at(0))}, "commits": {"0": commit()}, "sources__0": {"0": "v1\n{}"}},
        {"offsets": {"0": entry(at(0))}, "sources__0": {"0": "v1\n{}", "1": "v1\n{}"}},
        {"offsets": {"0": "v2\n{}\n{}"}, "commits": {"0": commit()}, "sources__0": {"1": "v1\n{}"}},
        {"offsets": {"0": entry(at(0), at(0))}, "commits": {"0": commit()}, "sources__0": {"1": "v1\n{}"}},
    ],
    ids=["nothing there", "logs agree", "newest entry not processed", "a later format", "another number of sources"],
)
def test_nothing_is_written_where_no_plan_was_cut_off(tmp_path: Path, logs: dict[str, dict[str, str]]) -> None:
    written(tmp_path, **logs)
    before = sorted(tmp_path.rglob("*"))
    assert complete_plan(str(tmp_path), [FILE], NOW) is None
    assert sorted(tmp_path.rglob("*")) == before


def test_an_entry_that_an_older_run_writes_meanwhile_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, offsets={"0": entry(at(0))}, commits={"0": commit()})
    written(tmp_path, sources__0={"0": "v1\n{}", "1": "v1\n{}"})
    theirs = entry(at(1), time_ms=2_000)

    def overtaken(folder: str) -> Any:
        written(tmp_path, offsets={"1": theirs})
        return original(folder)

    original = complete_plan.__globals__["LocalFileSystem"]
    monkeypatch.setattr("cairn.restore.planned_epoch.LocalFileSystem", overtaken)
    assert complete_plan(str(tmp_path), [FILE], NOW) is None
    assert (tmp_path / "offsets" / "1").read_text() == theirs


def test_a_damaged_commit_is_named(tmp_path: Path) -> None:
    written(tmp_path, offsets={"0": entry(at(0))}, commits={"0": "v1\n{"})
    written(tmp_path, sources__0={"0": "v1\n{}", "1": "v1\n{}"})
    with pytest.raises(CorruptFileError, match="commits/0"):
        complete_plan(str(tmp_path), [FILE], NOW)
