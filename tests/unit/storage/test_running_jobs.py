"""Notes of running jobs: commands find them without being told, and believe nothing that they say."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.web_job import JOB, UID, make_job
from typer.testing import CliRunner

from cairn.cli.completion import job_names, snapshot_paths, state_names, uids
from cairn.cli.main import app
from cairn.errors import InvalidInputError, NotFoundError
from cairn.storage import running_jobs
from cairn.storage.job_lookup import open_job


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, and a state directory of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_running_job_is_found_from_anywhere(place: Path) -> None:
    folder = make_job(place / "far", ended="")
    with pytest.raises(NotFoundError):
        open_job(JOB, None)
    running_jobs.note_running(str(folder))
    assert open_job(JOB, None)[0].root == str(folder)
    assert open_job(JOB[:3], None)[0].root == str(folder)
    with pytest.raises(NotFoundError):
        open_job(JOB, str(place / "here"))
    listed = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert [job["directory"] for job in listed["jobs"]] == [str(folder)]
    assert "is in another directory" in CliRunner().invoke(app, ["list"]).stdout
    assert job_names("h") == [JOB]
    running_jobs.forget_running(str(folder))
    assert running_jobs.running_directories() == []


def test_jobs_at_hand_come_first_and_two_of_a_name_are_told_apart(place: Path) -> None:
    far = [make_job(place / name, ended="") for name in ("one", "two")]
    for folder in far:
        running_jobs.note_running(str(folder))
    with pytest.raises(InvalidInputError, match="pass the path") as caught:
        open_job(JOB, None)
    assert str(far[0]) in caught.value.message
    make_job(place / "here" / "cairn-data", ended="")
    assert open_job(JOB, None)[0].root == str(place / "here" / "cairn-data" / JOB)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", "{}", '{"directory": 3}', '{"directory": "relative"}', '{"directory": "/nope\\u0000"}',
     '{"directory": "/nope"}', '{"directory": "/etc", "pid": 1}'],
)  # fmt: skip
def test_what_a_note_says_is_not_believed(place: Path, text: str) -> None:
    Path(running_jobs.folder()).mkdir(parents=True)
    Path(running_jobs.folder(), "x.json").write_text(text)
    assert running_jobs.running_directories() == []


def test_notes_of_the_dead_are_removed(place: Path) -> None:
    folder = make_job(place / "far", ended="")
    running_jobs.note_running(str(folder))
    (note,) = Path(running_jobs.folder()).iterdir()
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    told = json.loads(note.read_text())
    note.write_text(json.dumps({**told, "pid": 2**22 - 3}))
    running_jobs.forget_running(str(folder))
    assert note.exists(), "it is another process's"
    assert running_jobs.running_directories() == []
    assert not note.exists()


def test_notes_of_the_living_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_job(place / "far", ended="")
    running_jobs.note_running(str(folder))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7 * 24 * 3600)
    assert running_jobs.running_directories() == [str(folder)], "the clock was set"
    (note,) = Path(running_jobs.folder()).iterdir()
    told = json.loads(note.read_text())
    for changes, found in (
        ({"ticks": told["ticks"] - 1}, []),
        ({"boot": "an earlier boot"}, []),
        ({"ticks": None, "boot": "an earlier boot"}, [str(folder)]),
        ({"ticks": None, "noted_ms": 1}, [str(folder)]),
        ({"directory": str(place / "away")}, []),
    ):
        note.write_text(json.dumps({**told, **changes}))
        assert running_jobs.running_directories() == found, changes
        assert note.exists(), "a process has the number"


def test_notes_can_be_switched_off_and_cost_nothing_where_they_cannot_be_written(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(running_jobs.SWITCH, "0")
    running_jobs.note_running(str(place))
    assert not os.path.exists(running_jobs.folder())
    monkeypatch.setenv(running_jobs.SWITCH, "1")
    (place / "state").write_text("a file")
    running_jobs.note_running(str(place))
    running_jobs.forget_running(str(place))
    assert running_jobs.running_directories() == []


# What the shell offers.


def context(**params: Any) -> Any:
    return SimpleNamespace(params=params)


def test_snapshots_operators_and_states_are_completed(place: Path) -> None:
    folder = make_job(place / "here" / "cairn-data")
    assert snapshot_paths("cairn-data/h") == [f"cairn-data/{JOB}", f"cairn-data/{JOB}/chk-2", f"cairn-data/{JOB}/chk-4"]
    saved = place / "here" / "cairn-data" / "savepoints"
    assert any(path.startswith(str(saved)) for path in snapshot_paths(str(saved)))
    assert uids(context(path=str(folder)), "") == [UID]
    assert state_names(context(path=str(folder), uid=UID), "t") == ["total"]
    assert set(state_names(context(path=str(folder), uid=None), "")) == {"total", "seen"}
    assert state_names(context(path=str(folder), uid="nobody"), "") == []


def test_completion_never_raises(place: Path) -> None:
    assert snapshot_paths("/nope/x") == []
    assert uids(context(), "") == []
    assert state_names(context(path="/nope"), "") == []
    (place / "here" / "cairn-data").write_text("a file")
    assert job_names("") == []
