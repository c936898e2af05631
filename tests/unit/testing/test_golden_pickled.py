"""Pickled state that was written before modules were renamed is read by the code of today."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.golden.make_pickled import FOLDER, ROWS, job
from tests.support.restore_lab import restored, shape_of

from cairn import CountWindow, TimeWindow
from cairn.testing import KeyedProcessHarness
from cairn.testing.keyed_harness import UID

STATES = (f"{UID}.row", f"{UID}.windows")


def check(made: KeyedProcessHarness) -> None:
    last = {(user, shop): (user, shop, place, n) for user, shop, place, n in ROWS}
    for key, (user, shop, place, n) in last.items():
        kept = made.state("row", key)
        assert (kept["row"].user, kept["row"].shop, kept["row"].n) == (user, shop, n)
        assert (kept["row"].place.street, kept["place"].number) == place
        assert (kept["key"].user, kept["key"].shop) == key
        assert made.state("windows", key) == [TimeWindow(n, n + 10), CountWindow(n)]


@pytest.mark.parametrize("path", ["savepoint", "job/chk-1"])
def test_rows_and_windows_in_golden_snapshots_are_restored(tmp_path: Path, path: str) -> None:
    with job(tmp_path / "shape", 3) as made:
        shape = shape_of(made)
    shutil.copytree(FOLDER, tmp_path / "golden")
    restored(str(tmp_path / "golden" / path), tmp_path / "b", shape, groups=16, allow_pickled=STATES, now_ms=1)
    with job(tmp_path / "b", 3) as made:
        check(made)


def test_a_golden_job_directory_goes_on(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "job", tmp_path / "job")
    with job(tmp_path / "job") as made:
        check(made)
        made.push(("u0", 0, ("new street", 1), 100))
        made.run_epoch()
        assert made.state("windows", ("u0", 0)) == [TimeWindow(100, 110), CountWindow(100)]
