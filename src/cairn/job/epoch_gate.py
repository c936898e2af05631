"""The gate that every epoch passes: it can be shut between two epochs, let one more through, or end the job."""

from __future__ import annotations

import math
import threading
import time
from enum import Enum
from typing import Any


class _State(Enum):
    OPEN = "open"
    ONE_MORE = "one more"
    SHUT = "shut"
    ENDED = "ended"


class EpochGate:
    """Lets one epoch in at a time. Shut, the next one waits; ended, it is turned away.

    Threads: the stream's thread enters and leaves, any other may shut, open or end the gate. One condition guards all.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = _State.OPEN
        self._inside = False
        self._emptied = time.monotonic()
        self._passed = 0
        self._holder: Any = None

    def hold(self, holder: Any) -> Any:
        """Make `holder` the only one who may shut the gate; if somebody else is, that one is returned instead.

        Two who shut it would each open it without asking the other.
        """
        with self._changed:
            if self._holder is not None:
                return self._holder
            self._holder = holder
            return None

    def release(self) -> None:
        """Release the gate; its holder has left it open."""
        with self._changed:
            self._holder = None

    def enter(self) -> bool:
        """Wait until the epoch may begin; False if none may any more."""
        with self._changed:
            while self._state is not _State.ENDED and (self._inside or self._state is _State.SHUT):
                self._changed.wait()
            if self._state is _State.ENDED:
                return False
            if self._state is _State.ONE_MORE:
                self._state = _State.SHUT
            self._inside = True
            return True

    def leave(self) -> None:
        with self._changed:
            self._inside = False
            self._emptied = time.monotonic()
            self._passed += 1
            self._changed.notify_all()

    def shut(self, timeout: float | None = None) -> bool:
        """Let no further epoch begin, and wait for the running one. False, and open again, if that takes longer."""
        with self._changed:
            if self._state is _State.ENDED:
                return False
            self._state = _State.SHUT
            if self._wait_until_empty(timeout):
                return self._state is _State.SHUT
        self.open()
        return False

    def one_more(self, timeout: float | None = None) -> bool:
        """Of a shut gate: let one epoch through and wait for its end. False, and still shut, if none came in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            if self._state is not _State.SHUT:
                return False
            before = self._passed
            self._state = _State.ONE_MORE
            self._changed.notify_all()
            while self._passed == before and self._state is not _State.ENDED:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            if self._state is _State.ONE_MORE:
                self._state = _State.SHUT
            return self._passed > before and self._state is _State.SHUT

    def open(self) -> None:
        with self._changed:
            if self._state is not _State.ENDED:
                self._state = _State.OPEN
                self._changed.notify_all()

    def end(self, grace: float) -> bool:
        """Turn all further epochs away, and wait for the running one. False if it takes longer than `grace` seconds."""
        with self._changed:
            self._state = _State.ENDED
            self._changed.notify_all()
            return self._wait_until_empty(grace)

    @property
    def idle(self) -> float:
        """Seconds since the last epoch ended: none while one is inside, and without end while none may enter."""
        with self._changed:
            if self._inside:
                return 0.0
            return time.monotonic() - self._emptied if self._state is _State.OPEN else math.inf

    @property
    def ended(self) -> bool:
        with self._changed:
            return self._state is _State.ENDED

    def _wait_until_empty(self, timeout: float | None) -> bool:
        return self._changed.wait_for(lambda: not self._inside, timeout)
