"""A job with windows, killed by force between and amid epochs and started again, also at another parallelism."""

from __future__ import annotations

import datetime as dt
import random
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.kill_trial import Trial
from tests.support.kill_windows_child import COUNT, GAP, INPUT, SIZE, SLIDE
from tests.support.oracle import write_file

pytestmark = [pytest.mark.kill, pytest.mark.timeout(1800)]

FILES = 7
END = 1_000_000


def rows_of(number: int, rng: random.Random) -> list[tuple[str, int, int]]:
    """The rows of one file: a second of event time, in any order. No two rows have the same value."""
    return [(f"u{rng.randrange(4)}", number * 100 + at, number * 1000 + rng.randrange(1000)) for at in range(40)]


def sums(rows: list[tuple[str, int, int]], slide: int = SIZE) -> list[Any]:
    found: dict[tuple[str, int], int] = defaultdict(int)
    for user, value, ms in rows:
        for start in range(ms - ms % slide, ms - SIZE, -slide):
            found[user, start] += value
    return sorted((user, start, start + SIZE, total) for (user, start), total in found.items())


def check_counted(found: list[Any], rows: list[tuple[str, int, int]]) -> None:
    """Every window is full, no row is in two of them, and as few are in none as can be."""
    for user in {user for user, _, _ in rows}:
        mine = {value for name, value, _ in rows if name == user}
        windows = [values for name, values in found if name == user]
        assert {len(values) for values in windows} == {COUNT}
        together = [value for values in windows for value in values]
        assert len(together) == len(set(together)) == len(mine) - len(mine) % COUNT
        assert set(together) <= mine


def sessions(rows: list[tuple[str, int, int]]) -> list[Any]:
    found: list[Any] = []
    for user, value, ms in sorted(rows, key=lambda row: (row[0], row[2])):
        if found and found[-1][0] == user and ms <= found[-1][2]:
            found[-1][2] = ms + GAP
            found[-1][3].append(value)
        else:
            found.append([user, ms, ms + GAP, [value]])
    return sorted((user, first, last, " ".join(map(str, sorted(v)))) for user, first, last, v in found)


def written(folder: Path) -> list[Any]:
    rows = [tuple(row.values()) for path in folder.glob("part-*.parquet") for row in pq.read_table(path).to_pylist()]
    return sorted(tuple(millis(value) if isinstance(value, dt.datetime) else value for value in row) for row in rows)


def millis(moment: dt.datetime) -> int:
    return round(moment.replace(tzinfo=moment.tzinfo or dt.UTC).timestamp() * 1000)


class WindowsTrial(Trial):
    module = "tests.support.kill_windows_child"
    job = "windows"


@pytest.mark.parametrize(("step", "before", "after"), [("acknowledged", 2, 3), ("committed", 3, 1)])
def test_windows_are_exact_after_kills_and_rescaling(
    spark: SparkSession, tmp_path: Path, step: str, before: int, after: int
) -> None:
    rng = random.Random(11)
    rows: list[tuple[str, int, int]] = []
    for number in range(FILES):
        portion = rows_of(number, rng)
        rows += portion
        write_file(tmp_path / "input", number, portion, INPUT)
    write_file(tmp_path / "input", FILES, [("~", 0, END)], INPUT)
    write_file(tmp_path / "input", FILES + 1, [("~", 0, END + 1)], INPUT)
    trial = WindowsTrial(tmp_path, [], 0)
    try:
        ended = trial.run(kill=[step, 3], options={"parallelism.default": before})
        assert ended == -signal.SIGKILL, trial.log()
        trial.run_here(spark, options={"parallelism.default": after})
    finally:
        trial.stop()
    assert written(tmp_path / "sums") == sums(rows)
    assert written(tmp_path / "sessions") == sessions(rows)
    assert written(tmp_path / "sliding") == sums(rows, SLIDE)
    check_counted(written(tmp_path / "counted"), rows)
