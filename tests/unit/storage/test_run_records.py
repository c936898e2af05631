"""The runs of a job: the newest owns it, and every older one is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from cairn.errors import FencedError
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.run_records import Runs


def test_runs(tmp_path: Path) -> None:
    runs = Runs(LocalFileSystem(str(tmp_path)))
    assert runs.newest() == 0
    one = runs.take(4, 0)
    runs.check(one.run)
    two = runs.take(4, 0)
    runs.check(two.run)
    with pytest.raises(FencedError, match=r"this is run 1 .*run 2 \(process"):
        runs.check(one.run)
    assert runs.record(1) == one
    (tmp_path / "runs" / f"{2:020d}").write_text("{")
    with pytest.raises(FencedError, match="run 2"):
        runs.check(one.run)
    assert runs.take(1, 0).run == 3
