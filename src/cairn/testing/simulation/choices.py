"""Every decision of a simulated history, each under a name of its own, drawn from one seed.

A decision is named by who takes it and how often that one has decided before (`driver 2 loop/create 17`), not by a
global count: leaving one out moves the others as little as possible. That is what makes a failing history shrink.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from xxhash import xxh3_64_intdigest as _digest

_T = TypeVar("_T")
_SCALE = float(1 << 64)
Decisions = Mapping[str, int]
"""The decisions that differ from the default, by name."""


class Choices:
    """Decides by the seed and remembers what is not the default; or repeats given decisions, and else the default."""

    def __init__(self, seed: int, given: Decisions | None = None) -> None:
        self.seed = seed
        self.given = given
        self.taken: dict[str, int] = {}
        self._prefix = f"{seed}:".encode()

    def draw(self, name: str) -> float:
        """A number from 0 up to 1 that belongs to this seed and name."""
        return _digest(self._prefix + name.encode()) / _SCALE

    def number(self, name: str, weights: Sequence[float]) -> int:
        """The index of one of the weights, chosen in proportion to them. Index 0 is the default."""
        if self.given is not None:
            chosen = self.given.get(name, 0)
            chosen = min(chosen, len(weights) - 1)
        else:
            reached = list(accumulate(weights))
            chosen = min(bisect_right(reached, self.draw(name) * reached[-1]), len(weights) - 1)
        if chosen:
            self.taken[name] = chosen
        return chosen

    def below(self, name: str, limit: int) -> int:
        """A number from 0 to `limit` - 1; 0 is the default."""
        chosen = self.given.get(name, 0) % limit if self.given is not None else int(self.draw(name) * limit)
        if chosen:
            self.taken[name] = chosen
        return chosen

    def chance(self, name: str, share: float) -> bool:
        """True in this share of the cases; False is the default."""
        chosen = bool(self.given.get(name, 0)) if self.given is not None else self.draw(name) < share
        if chosen:
            self.taken[name] = 1
        return chosen

    def one_of(self, name: str, options: Sequence[_T]) -> _T:
        """One of the options; the first is the default."""
        return options[self.below(name, len(options))]
