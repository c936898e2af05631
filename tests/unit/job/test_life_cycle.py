"""The states of a job: every transition of the table can be taken, and no other."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from tests.support.patience import PATIENCE

from cairn.errors import InternalError
from cairn.job.life_cycle import REQUESTED, STATUS, TRANSITIONS, JobState, JobStatus, LifeCycle, end_of

ENDS = {JobState.FINISHED, JobState.CANCELED, JobState.FAILED}
CLOSING = {JobState.STOPPING, JobState.CANCELING, JobState.FINISHING, JobState.FAILING}


def paths() -> dict[JobState, list[JobState]]:
    """A shortest way to every state that can be reached."""
    known: dict[JobState, list[JobState]] = {JobState.CREATED: []}
    todo = deque([JobState.CREATED])
    while todo:
        state = todo.popleft()
        for following in sorted(TRANSITIONS[state], key=lambda s: s.value):
            if following not in known:
                known[following] = [*known[state], following]
                todo.append(following)
    return known


def brought_to(state: JobState) -> LifeCycle:
    life = LifeCycle()
    for step in paths()[state]:
        assert life.enter(step)
    assert life.state is state
    return life


def test_every_state_can_be_reached_and_has_a_status() -> None:
    assert set(paths()) == set(JobState) == set(TRANSITIONS) == set(STATUS)
    assert set(STATUS.values()) == set(JobStatus)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("following", JobState)
def test_the_table_is_what_can_happen(state: JobState, following: JobState) -> None:
    life = brought_to(state)
    if following in TRANSITIONS[state]:
        assert life.enter(following)
        assert life.state is following
        return
    if state in REQUESTED:
        assert not life.enter(following), "a user was first, and the supervisor sees to it"
    else:
        with pytest.raises(InternalError, match=f"is {state.value} cannot become {following.value}"):
            life.enter(following)
    assert life.state is state


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("wanted", [JobState.CANCELING, JobState.STOPPING])
def test_a_request_that_comes_too_late_changes_nothing(state: JobState, wanted: JobState) -> None:
    life = brought_to(state)
    assert life.request(wanted) is (state in (JobState.RUNNING, JobState.RESTARTING))
    assert life.state is (wanted if state in (JobState.RUNNING, JobState.RESTARTING) else state)


@pytest.mark.parametrize("state", JobState)
def test_only_a_job_that_is_being_closed_ends(state: JobState) -> None:
    life = brought_to(state)
    assert life.over is (state in ENDS)
    if state in CLOSING:
        assert TRANSITIONS[state] == {end_of(state)}, "how a job ends is decided once"
        life.close()
        assert life.over
    else:
        with pytest.raises(InternalError, match="is not being closed"):
            life.close()
        assert life.state is state


def test_waiting_ends_with_the_change_that_is_waited_for() -> None:
    life = brought_to(JobState.RESTARTING)
    assert not life.has_left(JobState.RESTARTING, 0.01)
    assert not life.wait_until_over(0.01)
    left, over = threading.Event(), threading.Event()

    def wait_for_change() -> None:
        if life.has_left(JobState.RESTARTING, PATIENCE):
            left.set()

    def wait_for_end() -> None:
        if life.wait_until_over(PATIENCE):
            over.set()

    threads = [threading.Thread(target=wait_for_change), threading.Thread(target=wait_for_end)]
    for thread in threads:
        thread.start()
    assert life.request(JobState.CANCELING)
    assert left.wait(PATIENCE)
    assert not over.is_set()
    life.close()
    assert over.wait(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
