"""Events: what happens in this process, passed on to whoever has subscribed.

This is the only mechanism of its kind. Every event is a record derived from `JobEvent`. The coordinator of a run
publishes on a bus of its own, a job forwards that to its bus, and the buses of all jobs forward to `PROCESS_EVENTS`:

    CheckpointCoordinator.events  ->  Supervisor.events  ->  PROCESS_EVENTS  <-  SparkMover

Sinks and claims listen to the first, the journal and epoch listeners to the second, the command line to the third. The
events of a job's life are in `job/job_events.py`.

An event reaches the listeners of the process after all those of the job: by then `JobHandle.epochs()` has the epoch,
and the journal has been told. The end of a job comes in this order: the note of the running job is removed, the journal
and the other listeners of the job hear of `JobEnded`, the status becomes final, the listeners of the process hear of
it, and those who wait for the job go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cairn.logs import get_logger

_log = get_logger("cairn.job")


@dataclass(frozen=True)
class JobEvent:
    """The base of all events. Who subscribes to it hears of everything."""


@dataclass(frozen=True)
class CheckpointCompleted(JobEvent):
    job_id: str
    number: int


@dataclass(frozen=True)
class CheckpointAborted(JobEvent):
    """A checkpoint that was triggered will never be completed."""

    job_id: str
    number: int


@dataclass(frozen=True)
class StateMoved(JobEvent):
    """Progress of a restore: so many pieces of an operator's state are in the job now."""

    uid: str
    done: int
    total: int


E = TypeVar("E", bound=JobEvent)


class EventBus:
    """Passes events on to those who subscribed to their type, or to a base of it.

    Threads: every method may be called from any thread. Listeners run on the thread that publishes, in the order in
    which they subscribed, so they must be quick. A listener that raises is logged; nobody else notices.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[tuple[type[JobEvent], Callable[[Any], object]], ...] = ()

    def subscribe(self, kind: type[E], listener: Callable[[E], object]) -> None:
        """Call `listener(event)` for every event of this type from now on."""
        with self._lock:
            self._listeners = (*self._listeners, (kind, listener))

    def unsubscribe(self, listener: Callable[[E], object]) -> None:
        """End all subscriptions of a listener. Nothing happens if there are none."""
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known[1] != listener)

    def has_listeners(self, kind: type[JobEvent]) -> bool:
        """Whether anybody hears of such events; progress that costs something is not measured for nobody."""
        return any(issubclass(kind, subscribed) for subscribed, _ in self._listeners)

    def publish(self, event: JobEvent) -> None:
        for kind, listener in self._listeners:
            if isinstance(event, kind):
                try:
                    listener(event)
                except Exception:  # noqa: BLE001 - whatever it was, the job must not suffer
                    _log.exception("a listener of %s raised; the job continues", type(event).__name__)


PROCESS_EVENTS = EventBus()
"""Events of all jobs of this process."""
