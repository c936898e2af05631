"""`python -m cairn.testing.simulation`: run simulated histories until a number, a time, or a finding.

Examples::

    python -m cairn.testing.simulation --seeds 2000          # so many new seeds
    python -m cairn.testing.simulation --minutes 30          # for so long
    python -m cairn.testing.simulation --seed 4711 --shrink  # repeat one, and make it short
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from cairn.testing.simulation.campaign import quiet, run_chunk, warm_up
from cairn.testing.simulation.shrink import readable, shrink
from cairn.testing.simulation.simulated_history import EPOCHS, Outcome, simulate

_CHUNK = 20
_SHOWN_FINDINGS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m cairn.testing.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=0, help="how many histories to run")
    parser.add_argument("--minutes", type=float, default=0.0, help="for how long to run histories")
    parser.add_argument("--seed", type=int, help="run this one history")
    parser.add_argument("--first", type=int, help="the first seed; by default one made of the time")
    parser.add_argument("--shrink", action="store_true", help="make a failing history short and show it")
    parser.add_argument("--trace", action="store_true", help="show every call of the history of --seed")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="how many epochs a history goes on for")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many processes to use")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        with quiet():
            return _one(given.seed, given.epochs, given.trace, given.shrink)
    first = given.first if given.first is not None else time.time_ns() // 1_000_000 % 1_000_000_000 * 1000
    seeds = given.seeds or (1 << 40 if given.minutes else 1000)
    return _many(first, seeds, given.minutes * 60 or float("inf"), given.epochs, given.processes, given.shrink)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _one(seed: int, epochs: int, traced: bool, shrunk: bool) -> int:
    outcome = simulate(seed, traced=traced, epochs=epochs)
    for line in outcome.trace:
        _say(line)
    if not outcome.problem:
        _say(f"seed {seed}: no rule was broken in {outcome.calls} calls ({outcome.fingerprint})")
        _say(_summary(Counter(outcome.counters)))
        return 0
    _tell(outcome, shrunk)
    return 1


def _tell(outcome: Outcome, shrunk: bool) -> None:
    _say(f"\nseed {outcome.seed}: {outcome.problem}")
    _say(f"repeat it: python -m cairn.testing.simulation --seed {outcome.seed} --shrink")
    if shrunk:
        small = shrink(outcome)
        for line in readable(small.trace):
            _say(line)
        _say(small.problem)
        _say(f"{len(small.decisions)} of {len(outcome.decisions)} decisions are left: {small.decisions}")


def _work(first: int, seeds: int, epochs: int, deadline: float) -> Iterator[tuple[int, int, int, float]]:
    for start in range(first, first + seeds, _CHUNK):
        if time.time() > deadline:
            return
        yield start, min(_CHUNK, first + seeds - start), epochs, deadline


def _many(first: int, seeds: int, seconds: float, epochs: int, processes: int, shrunk: bool) -> int:
    began = time.time()
    deadline = began + seconds if seconds != float("inf") else float("inf")
    _say(f"simulating from seed {first} on, with {processes} processes")
    counters: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    done = 0
    said = began
    with multiprocessing.get_context("spawn").Pool(processes, warm_up) as pool:
        waiting = []
        work = _work(first, seeds, epochs, deadline)
        for portion in work:
            waiting.append(pool.apply_async(run_chunk, (portion,)))
            while len(waiting) >= 2 * processes:
                done += _take(waiting.pop(0).get(), counters, rules, shrunk)
            if time.time() - said >= 10:
                said = time.time()
                _say(f"{done} histories, {done / (said - began) * 60:.0f} a minute, {rules.total()} findings")
            if rules.total() >= _SHOWN_FINDINGS:
                break
        for one in waiting:
            done += _take(one.get(), counters, rules, shrunk)
    spent = time.time() - began
    _say(_summary(counters))
    _say(f"{done} histories in {spent:.0f} s, {done / spent * 60:.0f} a minute, {rules.total()} findings")
    for rule, times in rules.most_common():
        _say(f"  {times} x {rule}")
    return 1 if rules else 0


def _take(
    result: tuple[int, Counter[str], list[Outcome]], counters: Counter[str], rules: Counter[str], shrunk: bool
) -> int:
    done, counted, failed = result
    counters.update(counted)
    for outcome in failed:
        if not rules[outcome.rule]:
            _tell(outcome, shrunk)
        rules[outcome.rule] += 1
    return done


def _summary(counters: Counter[str]) -> str:
    return "exercised: " + ", ".join(f"{count} {what}" for what, count in sorted(counters.items()))


if __name__ == "__main__":
    sys.exit(main())
