"""Deletes the folders of checkpoints, and tries again what could not be deleted.

A checkpoint that cannot be deleted does no harm and is still whole. While a storage refuses deletes for hours, the log
must not get a line at every step of the coordinator, nor the storage a call: the pause between attempts grows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cairn.coordinator.ports import Clock
from cairn.errors import CairnError, FencedError
from cairn.logs import get_logger
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.run_records import Runs

_log = get_logger("cairn.checkpoint")
FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 600_000


@dataclass
class _Pause:
    again_ms: int
    pause_ms: int


class CheckpointDeletion:
    """Deletes for one run, as long as no newer run has the job.

    Threads: used by one thread at a time, the one that holds the ledger's `work`.
    """

    def __init__(self, store: CheckpointStore, run: int, clock: Clock) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._runs = Runs(store.files)
        self._retries: dict[int, _Pause] = {}

    def discard(self, number: int, at_once: bool) -> bool:
        """Delete a checkpoint; False if that failed, or it is too soon to try again and not wanted `at_once`."""
        return self._try(number, partial(self._discard, number), at_once)

    def abandon(self, number: int, at_once: bool) -> bool:
        """Delete what a checkpoint of this run has written that was never completed."""
        return self._try(number, partial(self._store.abandon, number, self._run), at_once)

    def _discard(self, number: int) -> None:
        self._runs.check(self._run)
        self._store.discard(number)

    def _try(self, number: int, delete: Callable[[], None], at_once: bool) -> bool:
        now = self._clock.monotonic_ms()
        retry = self._retries.get(number)
        if retry is not None and now < retry.again_ms and not at_once:
            return False
        try:
            delete()
        except FencedError:
            return False
        except (CairnError, OSError) as error:
            self._failed(number, error, now)
            return False
        if self._retries.pop(number, None) is not None:
            _log.info("checkpoint %d, which could not be deleted before, is gone now", number)
        return True

    def _failed(self, number: int, why: Exception, now_ms: int) -> None:
        retry = self._retries.get(number)
        pause = FIRST_PAUSE_MS if retry is None else min(2 * retry.pause_ms, LONGEST_PAUSE_MS)
        self._retries[number] = _Pause(now_ms + pause, pause)
        level = logging.WARNING if retry is None else logging.DEBUG
        _log.log(level, "cannot delete checkpoint %d, which is no longer needed (to be retried later): %s", number, why)
