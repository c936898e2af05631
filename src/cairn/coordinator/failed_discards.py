"""Checkpoints that could not be deleted: told once, tried again after a pause that grows.

What cannot be deleted harms nobody and is still whole. A storage that refuses deletes for hours must not fill the log
with a line for every step of the coordinator, nor be asked in every one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cairn.logs import get_logger

_log = get_logger("cairn.checkpoint")
FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 600_000


@dataclass
class _Failed:
    again_ms: int
    pause_ms: int


class Discards:
    """When each checkpoint may be tried again."""

    def __init__(self) -> None:
        self._failed: dict[int, _Failed] = {}

    def due(self, number: int, now_ms: int) -> bool:
        known = self._failed.get(number)
        return known is None or now_ms >= known.again_ms

    def failed(self, number: int, why: Exception, now_ms: int) -> None:
        known = self._failed.get(number)
        pause = FIRST_PAUSE_MS if known is None else min(2 * known.pause_ms, LONGEST_PAUSE_MS)
        self._failed[number] = _Failed(now_ms + pause, pause)
        level = logging.WARNING if known is None else logging.DEBUG
        _log.log(
            level, "cannot delete checkpoint %d, which is not needed any more (tried again later): %s", number, why
        )

    def done(self, number: int) -> None:
        if self._failed.pop(number, None) is not None:
            _log.info("checkpoint %d, which could not be deleted before, is gone now", number)
