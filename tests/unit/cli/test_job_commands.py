"""`cairn savepoint`, `cairn stop` and the options of `cairn run` and `cairn plan`, with a job that a test plays."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.evolving_job import RENAMES, ROWS, New, Old
from tests.support.restore_lab import harness, savepoint_of, shape_of
from tests.support.savepoint_lab import World
from typer.testing import CliRunner

from cairn.cli.main import app
from cairn.cli.output import Output
from cairn.cli.plan_command import show
from cairn.config import Settings
from cairn.coordinator import control as control_module
from cairn.coordinator.control import Control
from cairn.errors import CheckpointFailedError, InvalidInputError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.restore.restore_plan import make_plan
from cairn.snapshots.resolver import open_snapshot
from cairn.storage.manifest_store import create_identity


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[list[Any]]:
    """A job that answers; gives what it was asked."""
    world = World(tmp_path / "jobs" / "payments")
    create_identity(world.files, "payments", "Payments", 128)
    heard: list[Any] = []
    info = CheckpointInfo(
        4, CheckpointStatus.COMPLETED, CheckpointType.SAVEPOINT, 1000, end_ms=1250, epoch=9, path="/sp/made",
        savepoint_bytes=2048,
    )  # fmt: skip

    def action(asked: Any) -> Callable[[], CheckpointInfo]:
        heard.append(dict(asked))
        if asked.get("dir") is None:
            raise InvalidInputError("no directory for the savepoint: name one")
        return lambda: info

    control = Control(world.files, world.coordinator, {"savepoint": action, "stop": action})
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            control.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    yield heard
    stop.set()
    thread.join()


def call(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def test_a_savepoint_is_asked_for(asked: list[Any], tmp_path: Path) -> None:
    jobs = str(tmp_path / "jobs")
    made = call("savepoint", "payments", str(tmp_path / "sp"), "--dir", jobs, "--request-id", "mine")
    assert made.exit_code == 0, made.output
    assert made.stdout.splitlines()[-1] == "/sp/made"
    assert "epoch 9, 2.0 KiB" in made.stdout
    assert asked == [{"action": "savepoint", "dir": str(tmp_path / "sp"), "id": "mine"}]
    document = json.loads(call("savepoint", "payments", "sp", "--dir", jobs, "--json").stdout)
    assert (document["path"], document["stopped"], document["duration_ms"]) == ("/sp/made", False, 250)
    assert asked[-1]["dir"] == str(Path.cwd() / "sp"), "seen from where the command runs"
    assert isinstance(call("savepoint", "payments", "--dir", jobs).exception, CheckpointFailedError)


def test_a_stop_is_asked_for(asked: list[Any], tmp_path: Path) -> None:
    made = call("stop", "payments", "--savepoint-dir", "/sp", "--drain", "--dir", str(tmp_path / "jobs"))
    assert made.exit_code == 0, made.output
    assert "has stopped" in made.stdout
    assert (asked[0]["action"], asked[0]["drain"], asked[0]["dir"]) == ("stop", True, "/sp")


def test_a_job_that_is_down_is_told_apart_from_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "payments")
    create_identity(world.files, "payments", "Payments", 128)
    monkeypatch.setattr(control_module, "PATIENCE", 0.2)
    made = call("savepoint", str(tmp_path / "payments"), "/sp")
    assert isinstance(made.exception, CheckpointFailedError)
    assert "did not answer" in made.exception.message
    assert world.files.list("control") == [], "the request is taken back"


def test_a_plan_for_people_and_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS)
        job.run_epoch()
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(New(), tmp_path / "shape", 5) as job:
        shape = shape_of(job)
    plan = make_plan(open_snapshot(path), shape, Settings(renames=RENAMES))
    show(plan, Output())
    text = capsys.readouterr().out
    assert "parallelism 2 -> 5" in text
    assert "smallest: renamed from 'least'" in text
    assert "kind: string added" in text
    assert "spare: no longer declared, kept" in text
    assert "fresh: new, starts empty" in text
    show(plan, Output(as_json=True))
    document = json.loads(capsys.readouterr().out)
    assert document["possible"] is True
    assert document["parallelism"] == {"stored": [2], "job": 5}
    states = {state["name"]: state for state in document["matched"][0]["states"]}
    assert states["total"]["how"] == "changed"
    assert states["total"]["changes"] == ["int becomes bigint"]
    with harness(Old(), tmp_path / "shape2") as job:
        other = shape_of(job, uid="other")
    refused = make_plan(open_snapshot(path), other, Settings())
    show(refused, Output())
    text = capsys.readouterr().out
    assert "missing  tested" in text
    assert "new      other: starts empty" in text
    assert "The job cannot start" in text


def test_a_plan_needs_a_snapshot() -> None:
    made = call("plan", "job.py")
    assert made.exit_code == 2
    assert "-s PATH" in made.output
