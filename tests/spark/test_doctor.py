"""`cairn doctor` runs a real job, and says what is wrong where jobs cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def doctor(folder: Path, *args: str, **variables: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the last check and stderr of `cairn doctor`; its temporary files go to `folder/tmp`."""
    (folder / "tmp").mkdir()
    answer = subprocess.run(
        [sys.executable, "-m", "cairn.cli.main", "doctor", "--json", "--timeout", "500", *args],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode, json.loads(answer.stdout)["checks"][-1], answer.stderr


def test_a_healthy_machine_runs_the_smallest_job_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    code, check, _ = doctor(tmp_path)
    assert (code, check["name"], check["status"]) == (0, "smallest job", "ok"), check
    assert "2 epochs" in check["detail"]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


def test_a_package_that_spark_asks_for_and_cannot_import_fails_the_job_with_the_remedy(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "pandas"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no pandas here')\n")
    code, check, _ = doctor(tmp_path, PYTHONPATH=str(hidden.parent))
    assert (code, check["name"], check["status"]) == (1, "smallest job", "fail"), check
    assert "Pandas >= 2.2.0 must be installed" in check["detail"]
    assert "pip install 'cairn-streaming[spark]'" in check["remedy"]
    (log,) = (tmp_path / "tmp").iterdir()
    assert str(log) in check["remedy"]
    assert "PACKAGE_NOT_INSTALLED" in log.read_text()


def test_a_job_that_takes_too_long_is_ended_and_reported(tmp_path: Path) -> None:
    code, check, _ = doctor(tmp_path, "--timeout", "1")
    assert (code, check["name"], check["status"]) == (1, "smallest job", "fail"), check
    assert "0 of 2 epochs within the limit of 1 s" in check["detail"]
    assert "--timeout" in check["detail"]
