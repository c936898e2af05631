"""How long tests wait for something that must happen: far longer than it takes, because a busy machine is no fault."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 240.0


def until(condition: Callable[[], bool], otherwise: Callable[[], object] = lambda: "waited too long") -> None:
    """Return once the condition holds; `otherwise` says what to show if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)
