"""`cairn checkpoints` and `cairn checkpoint` on a job's directory, and the requests between them and the job."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.coordinator_lab import World
from tests.support.patience import PATIENCE
from typer.testing import CliRunner

from cairn.cli.main import app
from cairn.coordinator.control import Control
from cairn.errors import CheckpointFailedError, NotFoundError
from cairn.storage.manifest_store import create_identity


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "jobs" / "payments", num_retained=2)
    create_identity(made.files, "payments", "Payments", 128)
    made.commit(0)
    for _ in range(3):
        made.coordinator.request()
        made.step(10)
    return made


def call(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def test_checkpoints_are_shown_newest_first(world: World, tmp_path: Path) -> None:
    shown = call("checkpoints", "payments", "--dir", str(tmp_path / "jobs"), "--json")
    assert shown.exit_code == 0
    document = json.loads(shown.stdout)
    assert (document["job"], document["name"]) == ("payments", "Payments")
    assert [(c["id"], c["status"], c.get("discarded", False)) for c in document["checkpoints"]] == [
        (3, "COMPLETED", False), (2, "COMPLETED", False), (1, "COMPLETED", True),
    ]  # fmt: skip
    assert document["checkpoints"][2]["full_bytes"] == 200
    table = call("checkpoints", "pay", "--dir", str(tmp_path / "jobs"), "-n", "1")
    assert "chk-3" in table.stdout
    assert "chk-2" not in table.stdout
    assert call("checkpoints", str(tmp_path / "jobs" / "payments")).exit_code == 0


def test_a_failed_checkpoint_is_shown_with_its_cause(world: World, tmp_path: Path) -> None:
    world.coordinator.epoch_began(1, "offsets of 1")
    world.coordinator.request()
    world.step()
    world.coordinator.epoch_failed(1, RuntimeError("[red]a cause[/red]"))
    world.step()
    shown = call("checkpoints", "payments", "--dir", str(tmp_path / "jobs"))
    assert "FAILED" in shown.stdout
    assert "[red]a cause[/red]" in shown.stdout, "foreign text is shown as it is"


@pytest.mark.parametrize("command", ["checkpoints", "checkpoint"])
def test_a_job_that_is_not_there(tmp_path: Path, command: str) -> None:
    result = call(command, "nope", "--dir", str(tmp_path))
    assert isinstance(result.exception, NotFoundError)
    assert "there is no job 'nope'" in str(result.exception)


def test_a_request_is_answered_by_the_job(world: World, tmp_path: Path) -> None:
    control = Control(world.files, world.coordinator)
    stop = threading.Event()

    def job() -> None:
        while not stop.wait(0.02):
            control.serve()
            world.coordinator.step()

    thread = threading.Thread(target=job)
    thread.start()
    try:
        taken = call(
            "checkpoint", "payments", "--dir", str(tmp_path / "jobs"), "--incremental", "--timeout", str(PATIENCE)
        )
        assert taken.exit_code == 0, taken.exception
        assert "checkpoint 4 of payments completed" in taken.stdout
        world.coordinator.close()
        refused = call("checkpoint", "payments", "--dir", str(tmp_path / "jobs"), "--timeout", str(PATIENCE))
        assert isinstance(refused.exception, CheckpointFailedError)
        assert "the job has ended" in str(refused.exception)
    finally:
        stop.set()
        thread.join()
    assert world.files.list("control") == []


def test_nobody_answers(world: World, tmp_path: Path) -> None:
    result = call("checkpoint", "payments", "--dir", str(tmp_path / "jobs"), "--timeout", "0.2")
    assert isinstance(result.exception, CheckpointFailedError)
    assert "did not answer" in str(result.exception)
    assert world.files.list("control") == [], "the request is taken back"


@pytest.mark.parametrize("text", [b"no json", b"[]", b'{"action": "delete"}', b'{"action": "checkpoint", "full": "x"}'])
def test_what_is_no_request_is_told_so(world: World, text: bytes) -> None:
    world.files.create("control/odd", text)
    Control(world.files, world.coordinator).serve()
    answer = json.loads(world.files.read("control/odd.done"))
    assert "not a request" in answer["error"]
