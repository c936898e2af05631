"""Processes killed by force at every step, then started again: each row counts exactly once, in state and output."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.kill_trial import Trial
from tests.support.oracle import expected, numbered_rows
from tests.support.patience import PATIENCE
from tests.support.spark_lab import intact_manifests

pytestmark = [pytest.mark.kill, pytest.mark.timeout(1800)]


@pytest.fixture
def trials() -> Iterator[Callable[..., Trial]]:
    """Makes trials and ends what is left of them."""
    made: list[Trial] = []

    def make(folder: Path, rows: int = 120, files: int = 6, seed: int = 1) -> Trial:
        made.append(Trial(folder, numbered_rows(rows, 13, seed), files))
        return made[-1]

    yield make
    for trial in made:
        trial.stop()


def check_nothing_is_left(trial: Trial) -> None:
    assert not list((trial.folder / "output" / "_cairn").rglob("part-*")), "prepared files are left over"
    assert len(list((trial.folder / "jobs" / "oracle" / "runs").iterdir())) == trial.starts


@pytest.mark.parametrize(
    ("step", "epoch", "committed", "shown"),
    [
        ("begin", 1, 0, 0),
        ("announced", 1, 0, 0),
        ("prepared", 1, 0, 0),
        ("acknowledged", 1, 0, 0),
        ("committed", 1, 1, 0),
        ("published", 1, 1, 1),  # rolled forward, not run again
        ("cleaned", 4, 4, 4),
    ],
)
def test_a_driver_killed_at_a_step(
    trials: Any, spark: SparkSession, tmp_path: Path, step: str, epoch: int, committed: int, shown: int
) -> None:
    trial = trials(tmp_path)
    assert trial.run(kill=[step, epoch]) == -signal.SIGKILL, trial.log()
    assert trial.newest() == committed
    assert trial.visible() == trial.until(shown)
    trial.finish(spark)
    check_nothing_is_left(trial)


def test_a_driver_whose_jvm_is_killed_ends_with_an_error(trials: Any, spark: SparkSession, tmp_path: Path) -> None:
    """It must notice that its JVM is gone, and not hang."""
    trial = trials(tmp_path)
    assert trial.run(kill_jvm=["acknowledged", 2]) > 0, trial.log()
    assert trial.newest() in (1, 2)
    trial.finish(spark)
    check_nothing_is_left(trial)


def test_a_driver_killed_again_and_again(trials: Any, spark: SparkSession, tmp_path: Path) -> None:
    """Twice in the same epoch, each time a step later, then at random moments.

    `KILL_SEED` repeats a run, `KILL_ROUNDS` sets how many kills are random.
    """
    seed = int(os.environ.get("KILL_SEED") or random.randrange(1 << 30))
    print(f"KILL_SEED={seed}")
    rng = random.Random(seed)
    trial = trials(tmp_path, rows=400, files=20, seed=seed)
    for step, committed in (("acknowledged", 0), ("committed", 1)):
        assert trial.run(kill=[step, 1]) == -signal.SIGKILL, trial.log()
        assert trial.newest() == committed
        assert trial.visible() == trial.until(0)
    newest = trial.newest()
    for _ in range(int(os.environ.get("KILL_ROUNDS", "1"))):
        inline = rng.choice(["0", "2 kb", "20 kb"])
        trial.kill_at_random(rng, options={"execution.checkpointing.data-inline-threshold": inline})
        assert trial.newest() >= newest
        newest = trial.newest()
        assert partly_shown(trial, newest)
    trial.finish(spark)
    check_nothing_is_left(trial)


def partly_shown(trial: Trial, newest: int) -> bool:
    """All rows of the epochs before the newest, any of its own (its files appear one by one), none of them twice."""
    shown, done, doing = trial.visible(), trial.until(newest - 1), trial.until(newest)
    return len(set(shown)) == len(shown) and set(done) <= set(shown) <= set(doing)


def test_workers_killed_amid_rows_and_after_writing(trials: Any, tmp_path: Path) -> None:
    """Spark repeats the task; what the dead attempt wrote is named by no manifest."""
    trial = trials(tmp_path, rows=300, files=5)
    assert trial.run(workers=True, options={"cairn.compaction.max-chain": 100, "cairn.epochs.retained": 50}) == 0
    assert (tmp_path / "died-amid-rows").exists()
    assert (tmp_path / "died-after-writing").exists()
    assert trial.visible() == expected(trial.rows)
    job = tmp_path / "jobs" / "oracle"
    manifests = intact_manifests(job)
    named = set().union(*(manifest.files() for manifest in manifests))
    present = {f"shared/oracle/{path.name}" for path in (job / "shared" / "oracle").iterdir()}
    assert len(present - named) == 1, "the delta of the dead attempt"
    ranges = [handle.first_group for handle in manifests[-1].operators[0].chain if handle.epoch == 3]
    assert sorted(ranges) == [0, 8]


def test_newer_drivers_take_over(trials: Any, spark: SparkSession, tmp_path: Path) -> None:
    """One driver is overtaken before its commit, the next one after it. Both stop and name the newer run."""
    trial = trials(tmp_path, files=7)
    runs = tmp_path / "jobs" / "oracle" / "runs"
    first = trial.start(hold=["prepared", 2, str(runs / f"{2:020d}")])
    _wait(lambda: trial.newest() >= 1, first, trial)
    done = tmp_path / "done"
    second = trial.start(hold=["committed", 4, str(done)])
    assert first.wait(timeout=PATIENCE) > 0
    assert "FencedError" in trial.log(1)
    assert "this is run 1 of the job" in trial.log(1)
    assert f"run 2 (process {second.pid} on" in trial.log(1)
    _wait(lambda: trial.newest() >= 4, second, trial)
    trial.finish(spark)
    done.touch()
    assert second.wait(timeout=PATIENCE) > 0
    assert "FencedError" in trial.log(2), trial.log(2)
    assert "run 3 (process" in trial.log(2)
    assert trial.newest() == 6
    assert trial.visible() == expected(trial.rows)


def _wait(condition: Any, child: subprocess.Popen[str], trial: Trial) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert child.poll() is None, trial.log()
        assert time.monotonic() < deadline
        time.sleep(0.1)
