"""A failing history made short: as few decisions as still break the same rule, and a trace that one can read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cairn.testing.simulation.choices import Decisions
from cairn.testing.simulation.simulated_history import EPOCHS, Outcome, simulate

_TOLD = {"start", "ends", "!!", "create", "delete", "move", "rename", "spark-write"}
Run = Callable[[Decisions, int, bool], Outcome]


def shrink(failed: Outcome, seconds: float = 60.0, run: Run | None = None) -> Outcome:
    """The shortest history with the same seed, found within the time, that breaks the same rule, with its trace."""
    again: Run = run or (lambda decisions, epochs, traced: simulate(failed.seed, decisions, traced, epochs))
    deadline = time.monotonic() + seconds

    def breaks(decisions: Decisions, epochs: int) -> bool:
        return time.monotonic() < deadline and again(decisions, epochs, False).rule == failed.rule

    decisions = dict(failed.decisions)
    epochs = EPOCHS
    if not breaks(decisions, epochs):  # not to be repeated by its decisions alone: shown as it is
        return again(decisions, epochs, True)
    while epochs > 1 and breaks(decisions, epochs // 2):
        epochs //= 2
    decisions = _fewer(decisions, lambda kept: breaks(kept, epochs))
    for name in list(decisions):  # smaller numbers: shorter pauses, fewer rows
        while decisions[name] > 1 and breaks({**decisions, name: decisions[name] - 1}, epochs):
            decisions[name] -= 1
    return again(decisions, epochs, True)


def _fewer(decisions: dict[str, int], breaks: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Delta debugging: leave out portions, half at first, as long as the rest still breaks the rule."""
    names = list(decisions)
    portions = 2
    while names:
        size = max(1, len(names) // portions)
        for start in range(0, len(names), size):
            rest = names[:start] + names[start + size :]
            if breaks({name: decisions[name] for name in rest}):
                names = rest
                portions = max(2, portions - 1)
                break
        else:
            if size == 1:
                break
            portions = min(len(names), portions * 2)
    return {name: decisions[name] for name in names}


def readable(trace: Sequence[str]) -> list[str]:
    """The lines of a trace that change something or tell of a pause, with paths as people know them."""
    told = []
    for line in trace:
        now, _, rest = line.strip().partition(" ")
        actor, _, what = rest.partition(": ")
        operation = what.split(" ", 1)[0]
        if operation in _TOLD or " -- " in what:
            told.append(f"{now:>7} {actor:<24} | {what.replace('/sim/', '').replace('0' * 16, '')}")
    return told
