"""Jobs killed while a savepoint is written, right after it, and between a savepoint and the stop that it was for."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.kill_trial import Trial
from tests.support.oracle import numbered_rows

from cairn.snapshots.verification import verify_savepoint
from cairn.storage.savepoint_folder import is_savepoint, read_savepoint

pytestmark = [pytest.mark.kill, pytest.mark.timeout(1800)]


def counts(path: str) -> dict[str, int]:
    found: dict[str, int] = {}
    table = read_savepoint(path).operators[0].table("count")
    assert table is not None
    for file in table.files:
        rows = pq.read_table(f"{path}/{file.path}").to_pylist()
        found |= {row["key"]: row["value"] for row in rows}
    return found


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path, numbered_rows(120, 13, 3), 5)
    yield made
    made.stop()


def wanted(folder: Path, **more: Any) -> dict[str, Any]:
    return {"after": 4, "dir": str(folder / "sp"), "request": "first", **more}


def check_asked_again(trial: Trial, spark: SparkSession) -> None:
    """The same request gives one savepoint, which holds every row once; so does the job when it goes on."""
    trial.run_here(spark, savepoint=wanted(trial.folder))
    (made,) = (trial.folder / "sp").iterdir()
    assert (trial.folder / "savepoint").read_text() == str(made)
    assert verify_savepoint(str(made)) == []
    assert counts(str(made)) == Counter(key for key, _, _ in trial.rows)
    trial.finish(spark)


def test_killed_while_the_tables_are_written(trial: Trial, spark: SparkSession, tmp_path: Path) -> None:
    """C10: nothing that looks like a savepoint, and the job as it was."""
    assert trial.run(savepoint=wanted(tmp_path, kill="tables")) == -signal.SIGKILL, trial.log()
    (left,) = (tmp_path / "sp").iterdir()
    assert not is_savepoint(str(left))
    assert trial.newest() >= 4
    check_asked_again(trial, spark)


def test_killed_when_the_savepoint_is_complete_and_nobody_knows(
    trial: Trial, spark: SparkSession, tmp_path: Path
) -> None:
    """C11: who asks again is given the same savepoint, and there is no second one."""
    assert trial.run(savepoint=wanted(tmp_path, kill="completed")) == -signal.SIGKILL, trial.log()
    (made,) = (tmp_path / "sp").iterdir()
    assert verify_savepoint(str(made)) == []
    check_asked_again(trial, spark)
    assert list((tmp_path / "sp").iterdir()) == [made]


def test_killed_between_a_savepoint_and_the_stop_that_it_was_for(
    trial: Trial, spark: SparkSession, tmp_path: Path
) -> None:
    """C12: the next run says which of the two holds."""
    assert trial.run(savepoint=wanted(tmp_path, stop=True, kill="stopping")) == -signal.SIGKILL, trial.log()
    trial.finish(spark)
    assert "crashed while it was being stopped with a savepoint. Savepoint" in trial.log()
    assert "is complete and contains epoch" in trial.log()
