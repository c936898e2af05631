"""A job with periodic checkpoints killed at random: what is listed restores, and holds what the model says."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.kill_trial import Trial
from tests.support.oracle import Row, expected, numbered_rows
from tests.support.patience import PATIENCE

from cairn.model.checkpoint_records import Checkpoint
from cairn.model.keygroups import KeyGroupRange
from cairn.restore.damage import damage
from cairn.state.section_changes import ChainFiles
from cairn.storage.chain_merge import compact
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem

pytestmark = [pytest.mark.kill, pytest.mark.timeout(1800)]

FILES = 30
OPTIONS = {
    "execution.checkpointing.interval": "150 ms",
    "execution.checkpointing.num-retained": 4,
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.tolerable-failed-checkpoints": 100,
    "restart-strategy.type": "fixed-delay",
}


def stored_counts(files: LocalFileSystem, checkpoint: Checkpoint) -> dict[str, int]:
    """The state `count` of the oracle in a checkpoint, by key."""
    manifest = checkpoint.manifest
    operator = manifest.operators[0]
    state_files = ChainFiles(files, manifest)
    specs = {spec.name: spec for spec in operator.states}
    groups = KeyGroupRange(0, manifest.max_parallelism - 1)
    counts: dict[str, int] = {}
    for _, sections in compact(lambda h: state_files.open(operator.uid, h), operator.chain, groups, specs, 0):
        for section in sections:
            if section.table == "count":
                keys = [key[2:].decode() for key in section.data.column("key").to_pylist()]
                counts |= dict(zip(keys, section.data.column("value").to_pylist(), strict=True))
    return counts


def model(rows: list[Row]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for key, _, _ in rows:
        counts[key] = counts.get(key, 0) + 1
    return counts


def check(trial: Trial) -> list[int]:
    """Every listed checkpoint is whole, and is what the model says. Nothing else looks like one."""
    files = LocalFileSystem(str(trial.folder / "jobs" / "oracle"))
    store = CheckpointStore(files)
    numbers = store.numbers()
    for number in numbers:
        checkpoint = store.load(number)
        assert damage(files, checkpoint.manifest, thorough=True) == "", number
        read = trial.read_until(checkpoint.manifest.epoch)
        assert stored_counts(files, checkpoint) == model(trial.rows[:read]), number
    return numbers


def _newest(trial: Trial) -> int:
    return max(CheckpointStore(LocalFileSystem(str(trial.folder / "jobs" / "oracle"))).numbers(), default=0)


def test_checkpoints_of_a_job_that_is_killed_at_random(spark: SparkSession, tmp_path: Path) -> None:
    """`KILL_SEED` repeats a run, `KILL_ROUNDS` sets how many."""
    seed = int(os.environ.get("KILL_SEED") or random.randrange(1 << 30))
    print(f"KILL_SEED={seed}")
    rng = random.Random(seed)
    trial = Trial(tmp_path, numbered_rows(600, 13, seed), FILES)
    highest = 0
    try:
        for _ in range(int(os.environ.get("KILL_ROUNDS", "2"))):
            options: dict[str, Any] = {**OPTIONS, "execution.checkpointing.incremental": rng.random() < 0.5}
            child = trial.start(options=options)
            before = _newest(trial)
            deadline = time.monotonic() + PATIENCE
            while _newest(trial) == before and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 3))
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            assert child.wait() in (-signal.SIGKILL, 0), trial.log()
            numbers = check(trial)
            assert not numbers or numbers[-1] >= highest, "numbers only grow"
            highest = max([highest, *numbers])
        assert highest > 0, "no checkpoint was ever taken"
        # Back to the oldest one that is listed, in place, then to the end.
        numbers = check(trial)
        path = tmp_path / "jobs" / "oracle" / f"chk-{numbers[0]}"
        trial.run_here(spark, options={**OPTIONS, "execution.state-recovery.path": str(path)})
        assert "Restoring job oracle from Checkpoint" in trial.log()
        shown = trial.visible()
        assert set(shown) == set(expected(trial.rows)), "every row has its one right result"
    finally:
        trial.stop()
