"""`cairn demo` as a user runs it: the kill, the restart, the verdict, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cairn.cli.demo import amount_of, report, user_of
from cairn.cli.output import Output

pytestmark = [pytest.mark.spark, pytest.mark.kill]
EPOCHS, ROWS = 4, 2000


def demo(*options: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    temporary.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "cairn.cli.main", "demo", "--epochs", str(EPOCHS), "--rows", str(ROWS), *options]
    environment = {**os.environ, "TMPDIR": str(temporary), "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800, check=False)


def test_demo_is_exact_quiet_and_leaves_nothing(tmp_path: Path) -> None:
    answer = demo(temporary=tmp_path / "t")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stderr == ""
    assert "The result is exact" in answer.stdout
    assert "kill -9 of all" in answer.stdout
    resumed = 2 if "right after the commit of epoch 2" in answer.stdout else 1  # a busy machine kills later
    assert f"run 2 resumes from epoch {resumed}, the last committed epoch" in answer.stdout
    epochs = re.findall(
        r"^ +(\d+) (?: +2,000 +[\d,]+ +[\d,]+ +[\d,]+|was committed before the kill)$", answer.stdout, re.MULTILINE
    )
    assert epochs == ["0", "1", "2", "3"]
    assert list((tmp_path / "t").iterdir()) == []
    mine = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert not mine


def test_demo_notices_what_is_lost_doubled_or_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "d"
    made = demo("--dir", str(place), "--json", temporary=tmp_path / "t")
    assert made.returncode == 0
    events = [json.loads(line) for line in made.stdout.splitlines()]
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == [0, 1, 2, 3]
    assert [event["event"] for event in events if event["event"] != "epoch"] == [
        "started",
        "killed",
        "started",
        "summary",
    ]
    assert (events[-1]["exact"], events[-1]["exit_code"], events[-1]["directory"]) == (True, 0, str(place))
    assert all(check["exact"] for check in events[-1]["checks"])
    assert demo("--dir", str(place), temporary=tmp_path / "t").returncode == 2  # not empty
    part = max((place / "out").glob("part-*"), key=lambda path: path.stat().st_size)

    def verdict() -> bool:
        exact = report(place, EPOCHS * ROWS, Output())
        assert ("WRONG" in capsys.readouterr().out) is not exact
        return exact

    assert verdict()
    shutil.copy(part, part.with_name(f"part-copy-{part.name}"))
    assert not verdict()
    part.with_name(f"part-copy-{part.name}").unlink()
    assert verdict()
    kept = part.read_bytes()
    part.unlink()
    assert not verdict()
    part.write_bytes(kept)
    for manifest in (place / "jobs" / "demo" / "epochs").iterdir():
        if int(manifest.name) >= EPOCHS - 1:
            manifest.unlink()
    assert not verdict()  # the state is then that of the epoch before


def test_payments_are_the_same_in_python_and_in_sql(spark: object) -> None:
    from pyspark.sql import SparkSession

    from cairn.cli.demo import AMOUNT_SQL, USER_SQL

    assert isinstance(spark, SparkSession)
    rows = spark.range(0, 5000, 7).selectExpr("id AS value").selectExpr("value", USER_SQL, AMOUNT_SQL).collect()
    assert [tuple(row) for row in rows] == [(n, user_of(n), amount_of(n)) for n in range(0, 5000, 7)]
