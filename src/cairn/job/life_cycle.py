"""The life cycle of a job: its states and the transitions between them, as data.

                         a run fails            strategy allows it
               +-----------------------> RESTARTING -----------> RUNNING
               |                             |
    CREATED -> RUNNING                       | stays down
               |   |                         v
               |   |                      FAILING -----------------> FAILED
               |   |
               |   | the query ends by itself
               |   +---------------> FINISHING --------------------> FINISHED
               |
               |   (the next two also from RESTARTING)
               |   a stop has its savepoint
               +-------------------> STOPPING ---------------------> FINISHED
               |   cancel()
               +-------------------> CANCELING --------------------> CANCELED

FAILING, FINISHING, STOPPING and CANCELING are left for one state only: how a job ends is decided once. While they last,
the query is stopped, checkpoints are discarded or kept, and the end is written to the job's journal. RUNNING goes to
FAILING, too, if the supervisor itself meets an error. A stop whose savepoint is complete when the job is FAILING comes
too late: the job is FAILED, and the stop raises an error that names the savepoint.

Users see Flink's words, `JobStatus`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import Enum

from cairn.errors import InternalError


class JobStatus(Enum):
    """Flink's words."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


class JobState(Enum):
    """Where a job is in its life."""

    CREATED = "created"
    """No run has been started."""
    RUNNING = "running"
    """The query of a run is active."""
    RESTARTING = "restarting"
    """A run has failed. Another one is started unless the restart strategy says no."""
    STOPPING = "stopping"
    """Stopped with a savepoint, which is complete."""
    CANCELING = "canceling"
    FINISHING = "finishing"
    """The query has ended by itself: its sources are exhausted."""
    FAILING = "failing"
    """A run has failed and none follows."""
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"


_CLOSING = {
    JobState.STOPPING: JobState.FINISHED,
    JobState.CANCELING: JobState.CANCELED,
    JobState.FINISHING: JobState.FINISHED,
    JobState.FAILING: JobState.FAILED,
}

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.CREATED: frozenset({JobState.RUNNING}),
    JobState.RUNNING: frozenset(
        {JobState.RESTARTING, JobState.FINISHING, JobState.STOPPING, JobState.CANCELING, JobState.FAILING}
    ),
    JobState.RESTARTING: frozenset({JobState.RUNNING, JobState.FAILING, JobState.STOPPING, JobState.CANCELING}),
    **{closing: frozenset({end}) for closing, end in _CLOSING.items()},
    **{end: frozenset() for end in _CLOSING.values()},
}

STATUS: Mapping[JobState, JobStatus] = {
    JobState.CREATED: JobStatus.CREATED,
    JobState.RUNNING: JobStatus.RUNNING,
    JobState.RESTARTING: JobStatus.RESTARTING,
    JobState.STOPPING: JobStatus.RUNNING,
    JobState.CANCELING: JobStatus.RUNNING,
    JobState.FINISHING: JobStatus.RUNNING,
    JobState.FAILING: JobStatus.RESTARTING,
    JobState.FINISHED: JobStatus.FINISHED,
    JobState.CANCELED: JobStatus.CANCELED,
    JobState.FAILED: JobStatus.FAILED,
}

REQUESTED = frozenset({JobState.STOPPING, JobState.CANCELING})
"""States that users bring about."""
FAILURE = frozenset({JobState.FAILING, JobState.FAILED})


def end_of(closing: JobState) -> JobState:
    """The state in which a job that is being closed ends."""
    if closing not in _CLOSING:
        raise InternalError(f"a job that is {closing.value} is not being closed")
    return _CLOSING[closing]


class LifeCycle:
    """The state of one job.

    Threads: every method may be called from any thread; one condition guards the state. The supervisor's thread
    enters states; other threads request some, and wait.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = JobState.CREATED
        self._telling = False

    @property
    def state(self) -> JobState:
        with self._changed:
            return self._state

    @property
    def ended(self) -> bool:
        """Whether the job is in its last state."""
        return not TRANSITIONS[self.state]

    @property
    def over(self) -> bool:
        """Whether the job has ended, and nothing more will happen to it: its end has been told, too."""
        with self._changed:
            return self._is_over()

    def enter(self, state: JobState) -> bool:
        """Change the state. False, and no change, if a user has requested the end of the job before.

        `InternalError` if the table has no such transition.
        """
        with self._changed:
            if state in TRANSITIONS[self._state]:
                self._set(state)
                return True
            if self._state in REQUESTED:
                return False
            raise InternalError(f"a job that is {self._state.value} cannot become {state.value}")

    def request(self, state: JobState) -> bool:
        """Change the state on a user's request. False, and no change, if the job is ending already or has no run."""
        with self._changed:
            if state not in TRANSITIONS[self._state]:
                return False
            self._set(state)
            return True

    def close(self, tell: Callable[[], object] = lambda: None) -> None:
        """Enter the last state: the job has been closed. Those who wait for its end go on once `tell` has returned."""
        with self._changed:
            end = end_of(self._state)
            self._telling = True
            self._set(end)
        try:
            tell()
        finally:
            with self._changed:
                self._telling = False
                self._changed.notify_all()

    def has_left(self, state: JobState, timeout: float) -> bool:
        """Wait until the job is in another state, at most `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state is not state, timeout)

    def wait_until_over(self, timeout: float) -> bool:
        """Wait for the end of the job, at most `timeout` seconds; whether it has ended."""
        with self._changed:
            return self._changed.wait_for(self._is_over, timeout)

    def _is_over(self) -> bool:
        return not TRANSITIONS[self._state] and not self._telling

    def _set(self, state: JobState) -> None:
        self._state = state
        self._changed.notify_all()
