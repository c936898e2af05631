"""Jobs killed while a savepoint is written, right after it, and between a savepoint and the stop that it was for."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.kill_trial import Trial
from tests.support.oracle import expected, numbered_rows

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


def test_a_job_killed_around_its_savepoint(tmp_path: Path) -> None:
    """C10, C11, C12: one job through all of it, and in the end every row once."""
    trial = Trial(tmp_path, numbered_rows(200, 13, 3), 8)
    target = tmp_path / "sp"
    wanted: dict[str, Any] = {"after": 7, "dir": str(target), "request": "first"}
    try:
        # While the tables are written: nothing that looks like a savepoint, the job as it was.
        assert trial.run(savepoint={**wanted, "kill": "tables"}) == -signal.SIGKILL, trial.log()
        left = list(target.iterdir())
        assert len(left) == 1
        assert not is_savepoint(str(left[0]))
        assert trial.newest() >= 7
        # The same request again, killed when it is complete and nobody has heard of it.
        assert trial.run(savepoint={**wanted, "kill": "completed"}) == -signal.SIGKILL, trial.log()
        (made,) = target.iterdir()
        assert verify_savepoint(str(made)) == []
        # And again: the same savepoint, no second one.
        assert trial.run(savepoint=wanted) == 0, trial.log()
        assert (tmp_path / "savepoint").read_text() == str(made)
        assert list(target.iterdir()) == [made]
        model: dict[str, int] = {}
        for key, _, _ in trial.rows:
            model[key] = model.get(key, 0) + 1
        assert counts(str(made)) == model
        # Killed between the savepoint and the stop: the next run says which of the two holds.
        stop = {**wanted, "request": "second", "stop": True, "kill": "stopping"}
        assert trial.run(savepoint=stop) == -signal.SIGKILL, trial.log()
        assert trial.run() == 0, trial.log()
        assert "died on the way. Savepoint" in trial.log()
        assert "is complete and holds epoch" in trial.log()
        assert trial.visible() == expected(trial.rows)
    finally:
        trial.stop()
