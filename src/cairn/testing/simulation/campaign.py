"""Many histories in one process: what each worker of a long run does."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cairn.testing.simulation import system
from cairn.testing.simulation.simulated_history import MEMORY, Outcome, simulate


@contextmanager
def quiet() -> Iterator[None]:
    """Without log records, of which a history has many, and without garbage collections in the middle of one."""
    disabled, collecting = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        logging.disable(disabled)
        if collecting:
            gc.enable()
        gc.collect()


def warm_up() -> None:
    """Load what a first history loads. Nothing of it is ever garbage: no later collection looks at it."""
    run_chunk((0, 1, 1, float("inf")))
    gc.freeze()


def run_chunk(work: tuple[int, int, int, float]) -> tuple[int, Counter[str], list[Outcome]]:
    """Histories of consecutive seeds: how many were run, what they exercised, and those that broke a rule."""
    first, count, epochs, deadline = work
    counters: Counter[str] = Counter()
    failed = []
    done = 0
    with quiet(), system.installed(MEMORY):
        for seed in range(first, first + count):
            if time.time() > deadline:
                break
            outcome = simulate(seed, epochs=epochs, in_place=True)
            counters.update(outcome.counters)
            counters["calls of the storage"] += outcome.calls
            done += 1
            if outcome.problem:
                failed.append(outcome)
    return done, counters, failed
