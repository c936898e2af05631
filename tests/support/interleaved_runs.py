"""Plays scenarios whose threads are interleaved by a seed.

A run that fails names its seed: `INTERLEAVING_SEED=<seed>` repeats it, alone. `INTERLEAVING_ROUNDS` sets how many fixed
and how many new seeds are played.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cairn.model.manifest import Manifest, OperatorState, StateHandle

ROUNDS = int(os.environ.get("INTERLEAVING_ROUNDS", "12"))


def seeds(rounds: int = ROUNDS) -> Iterator[int]:
    """Fixed seeds, and as many new ones."""
    alone = os.environ.get("INTERLEAVING_SEED")
    if alone is not None:
        yield int(alone)
        return
    yield from range(rounds)
    first = time.time_ns() % 1_000_000_000
    yield from range(first, first + rounds)


Scenario = Callable[[int, Path, pytest.MonkeyPatch], None]


def play(scenario: Scenario, folder: Path, rounds: int = ROUNDS) -> None:
    for seed in seeds(rounds):
        with pytest.MonkeyPatch.context() as patch:
            try:
                scenario(seed, folder / str(seed), patch)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def noticed(scenario: Scenario, folder: Path, rounds: int = 300) -> None:
    """The run of one of the first seeds fails."""
    for seed in range(rounds):
        with pytest.MonkeyPatch.context() as patch:
            try:
                scenario(seed, folder / str(seed), patch)
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}")
                return
    pytest.fail(f"none of {rounds} seeds notices the broken version")


def manifest(epoch: int) -> Manifest:
    """The state of an epoch: what it wrote itself, and what the epoch before it wrote."""
    chain = [
        StateHandle(e, g, g + 63, 1, f"c{e}", f"shared/op/{e:012d}-1-{g}.state")
        for e in range(max(0, epoch - 1), epoch + 1)
        for g in (0, 64)
    ]
    return Manifest(
        "job", "inc", epoch, f"commit-{epoch}", 1, epoch - 1, 128, f"offsets of {epoch}", 0, 0,
        [OperatorState("op", "Op", 2, "key string", [], chain)], [], {},
    )  # fmt: skip
