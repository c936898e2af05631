"""Notices that a newer run has taken the job, also while the job is at rest."""

from __future__ import annotations

import time
from collections.abc import Callable

from cairn.errors import CairnError, FencedError
from cairn.logs import get_logger
from cairn.storage.run_records import Runs

_log = get_logger("cairn.checkpoint")
LOOK_SECONDS = 1.0
"""How often a run looks whether a newer one has taken its job."""


class RunWatch:
    """Checks about once a second whether a newer run has taken the job, and reports that once.

    The epoch loop checks too, but only when an epoch begins, and Spark writes its log before that: an old run at rest
    would wake with the first new rows, and put an entry into the log of the run that has the job now.

    Threads: `look` belongs to the coordinator's thread. `end` may be called from any; a look that is under way may
    still report.
    """

    def __init__(
        self,
        runs: Runs,
        run: int,
        overtaken: Callable[[FencedError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._run = run
        self._overtaken = overtaken
        self._clock = clock
        self._next = clock()
        self._ended = False

    def look(self) -> None:
        now = self._clock()
        if self._ended or now < self._next:
            return
        self._next = now + LOOK_SECONDS
        try:
            self._runs.check(self._run)
        except FencedError as error:
            if not self._ended:  # a run that has ended is followed by the next one of the same job
                self._ended = True
                self._overtaken(error)
        except (CairnError, OSError) as error:  # away for a moment: the next look, or the next epoch, will see
            _log.debug("cannot look for a newer run: %s", error)

    def end(self) -> None:
        self._ended = True
