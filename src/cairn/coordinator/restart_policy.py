"""Restart strategies: how long to wait before a failed job is started again, or that it is not."""

from __future__ import annotations

import random
from collections import deque

from cairn.config import CheckpointSettings, RestartSettings
from cairn.errors import CairnError, FencedError, IncompatibleStateError, InvalidInputError

_POINTLESS = (FencedError, IncompatibleStateError, InvalidInputError)


def worth_restarting(error: CairnError) -> bool:
    """Whether another run could do better. Not when a newer run has the job, or the job itself is wrong."""
    return not isinstance(error, _POINTLESS)


class RestartPolicy:
    """Decides after each failure of a job when it is restarted, if at all.

    Threads: owned by the one that supervises the job.
    """

    def __init__(
        self, settings: RestartSettings, checkpoints: CheckpointSettings, chance: random.Random | None = None
    ) -> None:
        self._settings = settings
        self._chance = chance or random.Random()
        self.type = settings.type or ("exponential-delay" if checkpoints.interval_ms > 0 else "none")
        self._failures: deque[int] = deque()
        self._attempts = 0
        self._backoff = float(settings.initial_backoff_ms)
        self._last_failure: int | None = None

    def next_delay(self, now_ms: int) -> int | None:
        """The job has failed. Returns the milliseconds until its restart, or None if it stays down."""
        if self.type == "fixed-delay":
            return self._fixed()
        if self.type == "failure-rate":
            return self._rate(now_ms)
        if self.type == "exponential-delay":
            return self._exponential(now_ms)
        return None

    def _fixed(self) -> int | None:
        self._attempts += 1
        return self._settings.delay_ms if self._attempts <= self._settings.attempts else None

    def _rate(self, now_ms: int) -> int | None:
        self._failures.append(now_ms)
        while self._failures[0] <= now_ms - self._settings.failure_interval_ms:
            self._failures.popleft()
        return self._settings.failure_delay_ms if len(self._failures) <= self._settings.max_failures else None

    def _exponential(self, now_ms: int) -> int | None:
        settings = self._settings
        if self._last_failure is not None and now_ms - self._last_failure >= settings.reset_ms + self._backoff:
            self._backoff = float(settings.initial_backoff_ms)
            self._attempts = 0
        elif self._last_failure is not None:
            self._backoff = min(self._backoff * settings.multiplier, settings.max_backoff_ms)
        self._last_failure = now_ms
        self._attempts += 1
        if settings.attempts_before_reset and self._attempts > settings.attempts_before_reset:
            return None
        spread = self._backoff * settings.jitter
        return int(min(max(0.0, self._backoff + self._chance.uniform(-spread, spread)), settings.max_backoff_ms))

    def describe(self) -> str:
        settings = self._settings
        return {
            "fixed-delay": f"fixed delay, {settings.attempts} attempts, {settings.delay_ms} ms apart",
            "failure-rate": f"failure rate, {settings.max_failures} in {settings.failure_interval_ms} ms, "
            f"{settings.failure_delay_ms} ms apart",
            "exponential-delay": f"exponential delay, {settings.initial_backoff_ms} to {settings.max_backoff_ms} ms, "
            f"each {settings.multiplier:g} times the one before, reset after {settings.reset_ms} ms without failure, "
            f"{settings.attempts_before_reset or 'any number of'} attempts",
        }.get(self.type, "none")
