"""Requests to a running job: whose answer it is, what a client that goes leaves, and that every request is answered."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.job_lab import job_context
from tests.support.savepoint_lab import World

from cairn.coordinator.control import Control, ask
from cairn.errors import InvalidInputError, NotFoundError
from cairn.job.actions import JobActions
from cairn.job.supervisor import Supervisor
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType

INFO = CheckpointInfo(1, CheckpointStatus.COMPLETED, CheckpointType.SAVEPOINT, 0, epoch=3, path="/sp/savepoint-j-1")


class Job:
    """A job that answers when it is told to look; `fails` is raised by what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.files = self.world.files
        self.asked: list[str] = []
        self.fails: Exception | None = None
        self.refuses: Exception | None = None
        self.begin()

    def begin(self) -> None:
        """A new run."""
        self.control = Control(
            self.files, self.world.coordinator, {name: self._action(name) for name in ("savepoint", "stop", "cancel")}
        )

    def _action(self, name: str) -> Callable[[Any], Callable[[], CheckpointInfo]]:
        def begin(asked: Any) -> Callable[[], CheckpointInfo]:
            self.asked.append(name)
            if self.refuses is not None:
                raise self.refuses
            return self._end

        return begin

    def _end(self) -> CheckpointInfo:
        if self.fails is not None:
            raise self.fails
        return INFO

    def serve(self) -> list[str]:
        """Look for requests, and let those who answer finish; returns what lies in `control` then."""
        self.control.serve()
        self.control.finish(10)
        return [info.path.removeprefix("control/") for info in self.files.list("control")]

    def answer(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files.read(f"control/{name}.done"))
        return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def served(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The job looks for requests whenever the client waits."""
    monkeypatch.setattr(time, "sleep", lambda seconds: job.serve())
    return job


def test_an_answer_to_another_question_is_not_taken(served: Job) -> None:
    served.files.create("control/r1", b'{"action":"savepoint","dir":"/sp"}')
    assert served.serve() == ["r1.done"], "the client died before it heard"
    for question in ({"action": "stop", "drain": False}, {"action": "checkpoint"}):
        with pytest.raises(InvalidInputError, match=r"request id 'r1' .* \(savepoint\)"):
            ask(served.files, question, 5, "r1")
    assert served.asked == ["savepoint"]
    heard = ask(served.files, {"action": "savepoint"}, 5, "r1")
    assert heard is not None
    assert list(heard) == ["checkpoint"]
    assert served.serve() == []
    assert ask(served.files, {"action": "stop", "drain": False}, 5, "r1") is not None
    assert served.asked == ["savepoint", "stop"]


def test_an_id_is_heard_again_although_the_job_did_not_look_in_between(served: Job) -> None:
    """Both are there at one look, the answered request before and the new one after it: it must tell them apart."""
    for _ in range(2):
        assert ask(served.files, {"action": "savepoint"}, 5, "r1") is not None
    assert served.asked == ["savepoint", "savepoint"]
    assert served.files.list("control") == []


@pytest.mark.parametrize("request_id", ["a.done", "b.taken", "x.done.taken"])
def test_an_id_that_looks_like_an_answer_is_refused(job: Job, request_id: str) -> None:
    with pytest.raises(InvalidInputError, match="another ending"):
        ask(job.files, {"action": "savepoint"}, 5, request_id)
    assert list(job.files.list("control")) == [], "nothing is left for the job to find"
    actions = JobActions(Supervisor(job_context(Path(job.files.root))))
    with pytest.raises(InvalidInputError, match="another ending"):
        actions.order(job.files.root, request_id)


def test_a_stop_with_drain_is_another_thing_than_one_without(served: Job) -> None:
    served.files.create("control/r1", b'{"action":"stop"}')
    served.serve()
    with pytest.raises(InvalidInputError, match=r"\(stop\)"):
        ask(served.files, {"action": "stop", "drain": True}, 5, "r1")
    assert ask(served.files, {"action": "stop", "drain": False}, 5, "r1") is not None


def test_a_request_that_waits_for_another_thing_is_left_alone(served: Job) -> None:
    served.files.create("control/r1", b'{"action":"savepoint"}')
    with pytest.raises(InvalidInputError, match=r"\(savepoint\)"):
        ask(served.files, {"action": "stop"}, 5, "r1")
    assert served.files.exists("control/r1")
    assert ask(served.files, {"action": "savepoint"}, 5, "r1") is not None
    assert served.asked == ["savepoint"]


def test_answers_of_a_job_of_an_older_release_are_taken_by_who_asked_only(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.dumps({"error": "no"}).encode()
    monkeypatch.setattr(time, "sleep", lambda seconds: job.files.create("control/r1.done", told))
    assert ask(job.files, {"action": "stop"}, 5, "r1") == {"error": "no"}
    job.files.create("control/r1.done", told)
    with pytest.raises(InvalidInputError, match="something else"):
        ask(job.files, {"action": "stop"}, 5, "r1")


def test_ctrl_c_takes_the_request_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        assert job.files.exists("control/r1")
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(job.files, {"action": "stop"}, 100, "r1")
    assert job.files.list("control") == []
    job.begin()
    assert job.serve() == []
    assert job.asked == []


def test_an_old_request_to_stop_does_not_stop_the_next_run(job: Job) -> None:
    """The client was killed, so it took nothing back."""
    hour_ago = time.time() - 3600
    for name in ("stop", "cancel", "savepoint"):
        job.files.create(f"control/{name}", json.dumps({"action": name}).encode())
        os.utime(os.path.join(job.files.root, "control", name), (hour_ago, hour_ago))
    job.files.create("control/young", b'{"action":"stop"}')
    assert job.serve() == ["cancel.done", "savepoint.done", "stop.done", "young.done"]
    assert sorted(job.asked) == ["savepoint", "stop"], "what harms nobody is done all the same"
    assert "the request to stop is 3600 s old" in job.answer("stop")["error"]
    assert "the request to cancel is 3600 s old" in job.answer("cancel")["error"]
    assert "repeat the request" in job.answer("stop")["error"]
    assert job.answer("young")["checkpoint"]["epoch"] == 3


def test_that_a_job_was_stopped_is_not_said_of_its_next_run(served: Job) -> None:
    for name in ("stop", "cancel", "savepoint"):
        served.files.create(f"control/{name}", json.dumps({"action": name}).encode())
    assert served.serve() == ["cancel.done", "savepoint.done", "stop.done"], "the clients died before they heard"
    served.begin()
    assert served.serve() == ["savepoint.done"]
    ask(served.files, {"action": "stop"}, 5, "stop")
    assert served.asked == ["cancel", "savepoint", "stop", "stop"], "the job itself says what is so"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError("the savepoint has not ended within 3 s"), "the savepoint has not ended within 3 s"),
        (RuntimeError("the JVM is gone"), "RuntimeError: the JVM is gone"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (NotFoundError("no such folder"), "no such folder"),
    ],
)
@pytest.mark.parametrize("when", ["refuses", "fails"])
def test_every_request_is_answered_whatever_goes_wrong(job: Job, error: Exception, told: str, when: str) -> None:
    setattr(job, when, error)
    job.files.create("control/r1", b'{"action":"stop"}')
    assert job.serve() == ["r1.done"]
    assert job.answer("r1")["error"] == told


def test_a_request_is_gone_before_its_answer_is_there(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, the next run finds no request to stop."""
    job.files.create("control/r1", b'{"action":"stop"}')
    create = job.files.create

    def dying(path: str, data: Any) -> None:
        if path.endswith(".done"):
            assert not job.files.exists("control/r1")
            raise OSError("killed")
        create(path, data)

    monkeypatch.setattr(job.files, "create", dying)
    assert job.serve() == []
    job.begin()
    assert job.serve() == []
    assert job.asked == ["stop"]
