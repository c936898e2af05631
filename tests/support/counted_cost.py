"""Counts what rows cost, so that tests can say how the cost of a row grows with their number.

Two things are counted, both exact from run to run, neither of them time: the lines that are executed (every round of a
loop counts, also of one within a line), and the memory that is allocated while one row is processed. The second shows
what happens inside a single call of C, such as a copy of a long list.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

SMALLEST = 12
LIMIT = 1.9
"""With a linear cost the ratio below is 1, with n * log(n) about 1.3, with n * n it is 4."""
FREE_LINES = 12
FREE_BYTES = 100
"""Costs of a row below which none is taken for growing."""


def lines(run: Callable[[], Any]) -> int:
    """How many lines a call executes, in all functions that it calls."""
    count = 0

    def traced(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return traced

    before = sys.gettrace()
    gc.disable()  # what earlier tests left behind must not be cleared away here
    sys.settrace(traced)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def allocations(run: Callable[[], Any], function: type, method: str) -> int:
    """How many bytes the calls of a method allocate at most at a time, added up over all calls."""
    total = 0
    original = getattr(function, method)

    def measured(*given: Any) -> list[Any]:
        nonlocal total
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = list(original(*given) or ())
        total += tracemalloc.get_traced_memory()[1] - before
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, method, measured)
        tracemalloc.start()
        try:
            run()
        finally:
            tracemalloc.stop()
    return total


def growth(cost: Callable[[int], int], free: int) -> float:
    """By which factor a row becomes dearer between n to 4n and 4n to 16n rows, without the costs that all runs have."""
    cost(1)  # imports and caches
    small, medium, large = (cost(SMALLEST * factor) for factor in (1, 4, 16))
    return ((large - medium) / 12) / max((medium - small) / 3, free * SMALLEST)


def assert_linear(prepared: Callable[[int], Callable[[], Any]], function: type, methods: tuple[str, ...]) -> None:
    """The cost of `prepared(rows)()` is linear in the number of rows."""
    factors = {"lines": growth(lambda rows: lines(prepared(rows)), FREE_LINES)}
    for method in methods:
        factors[f"bytes allocated in {method}"] = growth(
            lambda rows, method=method: allocations(prepared(rows), function, method),  # type: ignore[misc]
            FREE_BYTES,
        )
    dearer = {what: factor for what, factor in factors.items() if factor > LIMIT}
    assert not dearer, f"the cost of a row grows with their number: {dearer}"
