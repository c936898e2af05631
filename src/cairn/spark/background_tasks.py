"""Spark tasks beside the stream: many short ones in a pool of their own, which leave the stream its share of the slots.

While the stream runs, they take a seventh of Spark's slots; where that is less than one, a single task at a time with
pauses in between. While the stream rests, they take all. Snapshots of full checkpoints, savepoints and compactions are
all written this way.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

POOL = "cairn-background"
POOL_PROPERTY = "spark.scheduler.pool"
_SHARE = 0.15
_POLL = 0.01
_RESTS_AFTER = 0.5
"""Seconds without an epoch after which the stream is held to be at rest. Between two epochs Spark needs some 0.1 s."""

_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


class Background:
    """Runs tasks of one Spark session. `idle` says for how many seconds no epoch has been running."""

    def __init__(self, spark: SparkSession, idle: Callable[[], float] = lambda: math.inf) -> None:
        self._spark = spark
        self._idle = idle

    def run(
        self,
        call: Callable[[_Work], _Result],
        work: Sequence[_Work],
        group: str,
        what: str,
        finished: Callable[[int], None] = lambda number: None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> list[_Result]:
        """What `call` returns for each piece of work, in their order. Every piece is a Spark job of its own.

        `finished` hears the number of every piece that is done, on some thread. Once `given_up` is true no further
        piece is begun, and what there is is returned. The first error of a piece ends the others, and is raised.
        """
        slots = max(1, self._spark.sparkContext.defaultParallelism)
        share = slots * _SHARE
        todo = list(reversed(list(enumerate(work))))
        results: dict[int, _Result] = {}
        errors: list[Exception] = []

        def go_on() -> bool:
            return bool(todo) and not errors and not given_up()

        def take_turns(eager: bool) -> None:
            context: Any = self._spark.sparkContext
            context.setJobGroup(group, what, interruptOnCancel=True)
            context.setLocalProperty(POOL_PROPERTY, POOL)
            while go_on():
                if not eager:
                    self._wait_for_rest(go_on)
                try:
                    number, piece = todo.pop()
                except IndexError:  # another thread has taken the last one
                    return
                since = time.monotonic()
                try:
                    (results[number],) = context.parallelize([piece], 1).map(call).collect()
                    finished(number)
                except Exception as error:  # noqa: BLE001 - raised below
                    errors.append(error)
                if share < 1:
                    pause = (time.monotonic() - since) * (1 / share - 1)
                    self._wait_for_rest(go_on, pause)

        count = min(len(work), slots)
        eager = max(1, int(share))
        threads = [
            threading.Thread(target=take_turns, args=(number < eager,), name=f"cairn-background-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[number] for number in sorted(results)]

    def _wait_for_rest(self, go_on: Callable[[], bool], longest: float = math.inf) -> None:
        """Until the stream rests, but no longer than so many seconds, and not if there is nothing to wait for."""
        until = time.monotonic() + longest
        while go_on() and self._idle() < _RESTS_AFTER and time.monotonic() < until:
            time.sleep(_POLL)
