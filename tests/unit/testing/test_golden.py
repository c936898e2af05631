"""F1: a checkpoint and a savepoint that were made when this format was new are restored by the code of today."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.golden.make import FOLDER, ROWS, Golden, day, job, wide
from tests.support.restore_lab import restored, shape_of

from cairn.snapshots.verification import verify_savepoint
from cairn.testing.keyed_harness import UID


def model() -> dict[tuple[str, int], dict[str, Any]]:
    told: dict[tuple[str, int], dict[str, Any]] = {}
    for user, shop, n in ROWS:
        mine = told.setdefault((user, shop), {"total": 0, "seen": [], "days": {}})
        mine["total"] += n
        mine["seen"].append(n)
        mine["days"][day(n)] = n / 4
        mine["last"] = n
    return told


@pytest.mark.parametrize("parallelism", [1, 5])
@pytest.mark.parametrize("path", ["savepoint", "job/chk-1"])
def test_golden_files_are_restored(tmp_path: Path, path: str, parallelism: int) -> None:
    shutil.copytree(FOLDER, tmp_path / "golden")
    assert verify_savepoint(str(tmp_path / "golden" / "savepoint")) == []
    with job(tmp_path / "shape", parallelism) as made:
        shape = shape_of(made)
    restored(str(tmp_path / "golden" / path), tmp_path / "b", shape, groups=16, allow_pickled=(f"{UID}.any",), now_ms=1)
    shutil.rmtree(tmp_path / "golden")
    with job(tmp_path / "b", parallelism) as made:
        for key, mine in model().items():
            assert made.state("total", key) == mine["total"]
            assert tuple(made.state("wide", key)) == wide(mine["last"])
            assert made.state("recent", key) == f"r{mine['last']}"
            assert made.state("seen", key) == mine["seen"]
            assert made.state("by day", key) == mine["days"]
            assert made.state("least", key) == min(mine["seen"])
            assert made.state("mean", key) == mine["total"] / len(mine["seen"])
            assert made.state("any", key) == {"n": mine["last"]}
        assert len(made.timers()) == 2 * len(ROWS)
        made.push(("u0", 0, 100))
        made.run_epoch()
        assert made.state("seen", ("u0", 0)) == [*model()["u0", 0]["seen"], 100]
    assert type(made.spec.function) is Golden
