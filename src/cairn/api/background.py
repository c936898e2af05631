"""Spark tasks beside the stream: many short ones in a pool of their own, which leave the stream its share of the slots.

While an epoch runs, they take a quarter of Spark's slots; where that is less than one, a single task at a time with
pauses in between. While the stream rests, they take all. Snapshots of full checkpoints, savepoints and compactions are
all written this way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

POOL = "cairn-background"
_SHARE = 0.25
_POLL = 0.01
_RESTS_AFTER = 0.05
"""Seconds without an epoch after which the stream is held to be at rest: the moment between two epochs is none."""

_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


class Background:
    """Runs tasks of one Spark session. `busy` says whether an epoch is running now."""

    def __init__(self, spark: SparkSession, busy: Callable[[], bool] = lambda: False) -> None:
        self._spark = spark
        self._busy = busy

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
            context.setLocalProperty("spark.scheduler.pool", POOL)
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

    def _wait_for_rest(self, go_on: Callable[[], bool], longest: float | None = None) -> None:
        """Until the stream rests, but no longer than so many seconds, and not if there is nothing to wait for."""
        now = time.monotonic()
        until = None if longest is None else now + longest
        idle_since = now - _RESTS_AFTER if not self._busy() and longest is None else now
        while go_on() and (until is None or now < until):
            if self._busy():
                idle_since = now
            elif now - idle_since >= _RESTS_AFTER:
                return
            time.sleep(_POLL)
            now = time.monotonic()
