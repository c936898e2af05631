"""A job with operator, raw and broadcast state, shared state of two inputs and joins, killed and rescaled, is exact."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.kill_streams_child import NEAR
from tests.support.kill_trial import Trial
from tests.support.oracle import Row, numbered_rows

pytestmark = [pytest.mark.kill, pytest.mark.timeout(1800)]


class StreamsTrial(Trial):
    module = "tests.support.kill_streams_child"
    job = "streams"

    def rows_of(self, sink: str) -> list[tuple[Any, ...]]:
        found = sorted((self.folder / sink).glob("part-*.parquet"))
        return sorted(tuple(row.values()) for path in found for row in pq.read_table(path).to_pylist())

    def check(self, epoch: int) -> None:
        """All outputs are what the model says of all epochs to this one."""
        bounds = [self.read_until(number) for number in range(-1, epoch + 1)]
        numbered, ruled, let_out = model([self.rows[first:end] for first, end in pairwise(bounds)])
        assert self.rows_of("rules") == sorted(ruled)
        assert self.rows_of("late") == sorted(ruled[:let_out])
        evens, odds = ([(key, n) for key, seq, n in numbered if seq % 2 == rest] for rest in (0, 1))
        joined = sorted((key, even, odd) for key, even in evens for other, odd in odds if other == key)
        assert self.rows_of("joined") == joined
        assert self.rows_of("near") == [pair for pair in joined if abs(pair[2] - pair[1]) <= NEAR]
        pairs = self.rows_of("pairs")
        assert sorted(row[:3] for row in pairs) == sorted(numbered)
        counts: dict[str, list[int]] = {}
        for key, _, _, count in pairs:
            counts.setdefault(key, []).append(count)
        wanted = Counter(key for key, _, _ in numbered)
        assert {key: sorted(found) for key, found in counts.items()} == {
            key: list(range(1, count + 1)) for key, count in wanted.items()
        }


def model(epochs: list[list[Row]]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], int]:
    """Numbered rows; the same with the rules of their epoch, since broadcast rows come before all others of it; and how
    many of those the broadcast rows of a later epoch have let out.
    """
    numbered: list[tuple[Any, ...]] = []
    ruled: list[tuple[Any, ...]] = []
    rules: dict[str, int] = {}
    let_out = 0
    for portion in epochs:
        fresh = [(key, seq, len(numbered) + place) for place, (key, seq, _) in enumerate(portion, 1)]
        for key, seq, n in fresh:
            if seq % 2 == 0 and seq % 5 == 0:
                let_out = len(ruled)
                if seq % 20 == 0 and seq:
                    rules.pop(key, None)
                else:
                    rules[key] = n
        numbered += fresh
        ruled += [(*row, len(rules), sum(rules.values())) for row in fresh]
    return numbered, ruled, let_out


@pytest.mark.parametrize(
    ("step", "parallelisms", "shown"),
    [("acknowledged", (2, 3, 1), 1), ("committed", (3, 1, 2), 1), ("published", (1, 2, 4), 2)],
)
def test_all_kinds_of_state_survive_kills_and_rescaling(
    spark: SparkSession, tmp_path: Path, step: str, parallelisms: tuple[int, int, int], shown: int
) -> None:
    """Killed in epoch 2; then two more runs, each with another parallelism.

    `KILL_ROUNDS` adds kills at random, `KILL_SEED` repeats them.
    """
    seed = int(os.environ.get("KILL_SEED") or random.randrange(1 << 30))
    print(f"KILL_SEED={seed}")
    rng = random.Random(seed)
    before, after, later = ({"parallelism.default": number} for number in parallelisms)
    trial = StreamsTrial(tmp_path, numbered_rows(210, 7, seed), files=7, held=3)
    try:
        assert trial.run(kill=[step, 2], options=before) == -signal.SIGKILL, trial.log()
        trial.check(shown)
        for _ in range(int(os.environ.get("KILL_ROUNDS", "0"))):
            trial.kill_at_random(rng, options={"parallelism.default": rng.randint(1, 4)})
        trial.run_here(spark, options=after)
        trial.check(trial.newest())
        trial.let_out()
        trial.run_here(spark, options=later)
        assert trial.read_until(trial.newest()) == len(trial.rows)
        trial.check(trial.newest())
    finally:
        trial.stop()
