"""Trying again: a target that is down for a moment costs time, one that stays down fails the epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cairn.errors import InvalidInputError, StorageError
from cairn.logs import get_logger

_log = get_logger("cairn.sink")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after which pauses, a sink calls a target that does not answer.

    The pause starts at `first` seconds, grows by `factor` and never exceeds `longest`. After `attempts` calls in vain
    the epoch fails, and the job's restart strategy decides what comes next.
    """

    attempts: int = 6
    first: float = 0.2
    factor: float = 2.0
    longest: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first < 0 or self.factor < 1 or self.longest < 0:
            raise InvalidInputError(
                f"{self} makes no sense: at least one attempt, pauses of 0 seconds or more, a factor of 1 or more"
            )

    def call(
        self,
        action: Callable[[], T],
        passes: Callable[[Exception], bool],
        what: str,
        after: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> T:
        """The result of `action`, retried after errors that `passes` says may pass; others are raised at once.

        `what` says in the error what was tried, `after` what holds now that it failed.
        """
        pause = self.first
        for attempt in range(1, self.attempts + 1):
            try:
                return action()
            except Exception as error:
                if not passes(error):
                    raise
                text = " ".join(str(error).split()) or type(error).__name__
                if attempt == self.attempts:
                    raise StorageError(
                        f"{what} failed {attempt} times, the last time with: {text}. {after}", attempts=attempt
                    ) from error
                _log.warning("%s failed, attempt %d of %d: %s", what, attempt, self.attempts, text)
            sleep(pause)
            pause = min(pause * self.factor, self.longest)
        raise AssertionError("unreachable")
