"""Working stores on a host: whose they are, and which can go."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.state_lab import Lab
from typer.testing import CliRunner

from cairn.cli.doctor import Status, check_stores
from cairn.cli.main import app
from cairn.errors import StorageError
from cairn.model.descriptors import ValueStateDescriptor
from cairn.state.local_stores import remove, survey


def fill(folder: Path, name: str, local: Path, **settings: Any) -> Path:
    """A job that ran once, with its stores below `local`; returns its directory."""
    job = folder / name
    with Lab(ValueStateDescriptor("v", "int"), backend="lmdb", state_dir=job, **settings) as lab:
        lab.do("a", lambda s, c: s.v.update(1))
        lab.do("a", lambda s, c: s.v.update(2))
        shutil.copytree(lab.local_directory, local, dirs_exist_ok=True)
    return job


def test_stores_say_whose_they_are_and_how_large(tmp_path: Path) -> None:
    local = tmp_path / "local"
    jobs = [fill(tmp_path / "jobs", name, local) for name in ("one", "two", "three")]
    (local / "something else").mkdir()
    (local / "0123456789abcdef").mkdir()
    found = {stores.job_dir: stores for stores in survey(str(local))}
    assert set(found) == {"", *map(str, jobs)}
    assert [found[str(job)].state for job in jobs] == ["live"] * 3
    assert found[""].state == "unknown"
    assert all(found[str(job)].size > 0 and found[str(job)].used > 1e9 for job in jobs)
    shutil.rmtree(jobs[0])
    identity = json.loads((jobs[1] / "job.json").read_text())
    (jobs[1] / "job.json").write_text(json.dumps({**identity, "incarnation": "another"}))
    states = {stores.job_dir: stores.state for stores in survey(str(local))}
    assert [states[str(job)] for job in jobs] == ["dead", "dead", "live"]
    shutil.rmtree(tmp_path / "jobs")
    assert {stores.state for stores in survey(str(local))} == {"hidden", "unknown"}, "a mount may be missing"
    assert survey(str(tmp_path / "nowhere")) == []


def test_only_stores_of_jobs_that_are_gone_are_removed(tmp_path: Path) -> None:
    local = tmp_path / "local"
    gone, there = (fill(tmp_path / "jobs", name, local) for name in ("gone", "there"))
    shutil.rmtree(gone)
    assert check_stores(str(local)).status is Status.WARN

    def call(*args: str) -> Any:
        shown = CliRunner().invoke(app, ["doctor", "--clean-stores", "--local-dir", str(local), "--json", *args])
        assert shown.exit_code == 0
        return json.loads(shown.stdout)

    assert call()["removed"] == []
    assert len(survey(str(local))) == 2, "only told, unless asked for more"
    text = CliRunner().invoke(app, ["doctor", "--clean-stores", "--local-dir", str(local)]).stdout
    assert "nothing was removed" in text
    assert str(gone) in text
    assert len(call("--yes")["removed"]) == 1
    assert [stores.job_dir for stores in survey(str(local))] == [str(there)]
    with pytest.raises(StorageError, match="not known to be gone"):
        remove(survey(str(local))[0])
    assert check_stores(str(local)).status is Status.OK
    assert CliRunner().invoke(app, ["doctor", "--yes"]).exit_code == 2


def test_an_owner_that_lies_is_nobody(tmp_path: Path) -> None:
    """The name of the folder is a hash of its owner, so a planted note cannot make somebody else's store go."""
    local = tmp_path / "local"
    fill(tmp_path / "jobs", "one", local)
    (stores,) = survey(str(local))
    note = Path(stores.path) / "owner.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "job_dir": str(tmp_path / "jobs" / "gone")}))
    assert survey(str(local))[0].state == "unknown"
    note.write_text("{")
    assert survey(str(local))[0].state == "unknown"
    os.unlink(note)
    assert survey(str(local))[0].state == "unknown"
