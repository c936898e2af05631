"""Savepoints are deleted over the web only where that is allowed, once, and nothing else ever is."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.patience import PATIENCE
from tests.support.rest_client import BEARER, client_of
from tests.support.web_job import JOB, make_job

from cairn.storage import layout
from cairn.storage.savepoint_folder import read_savepoint

PATH = "/api/v1/savepoint-disposal"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_job(tmp_path, savepoint_dir=str(tmp_path / "savepoints"))
    return tmp_path


def savepoint_of(root: Path) -> Path:
    return next((root / "savepoints").iterdir())


def post(web: TestClient, path: str | Path, trigger: str | None = None, **headers: str) -> Any:
    body = {"savepoint-path": str(path)} | ({"triggerId": trigger} if trigger else {})
    return web.post(PATH, json=body, headers=headers or BEARER)


def outcome(web: TestClient, trigger: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        told = web.get(f"{PATH}/{trigger}").json()
        if told["status"]["id"] == "COMPLETED":
            return told["operation"]
        time.sleep(0.02)
    raise AssertionError("it never ended")


def test_a_savepoint_of_the_job_is_deleted_once(root: Path) -> None:
    web, path = client_of(root), savepoint_of(root)
    assert "Delete savepoint 5" in web.get(f"/jobs/{JOB}/savepoints").text
    for _ in range(2):  # a repeated POST is the same disposal
        answer = post(web, path, "clean-up-7")
        assert (answer.status_code, answer.json()) == (202, {"request-id": "clean-up-7"})
    assert outcome(web, "clean-up-7") == {}
    assert not path.exists()
    page = web.get(f"/jobs/{JOB}/savepoints").text
    assert "no longer exists" in page
    assert "Delete savepoint 5" not in page
    assert "5 (savepoint)" not in page, "it cannot be compared any more"
    assert (root / JOB / "job.json").exists()
    assert post(web, path).status_code in (400, 404), "there is none any more"
    assert post(web, root / "savepoints" / "another", "clean-up-7").status_code == 409


def test_it_needs_the_token_and_is_refused_where_nothing_may_change(root: Path) -> None:
    web, path = client_of(root), savepoint_of(root)
    assert post(web, path, None, Authorization="Bearer wrong").status_code == 401
    assert post(web, path, None, **BEARER, Origin="http://evil.example").status_code == 403
    assert post(client_of(root, read_only=True), path).status_code == 403
    assert 'data-open="dialog-dispose"' not in client_of(root, read_only=True).get(f"/jobs/{JOB}/savepoints").text
    assert web.get(PATH).status_code == 405
    assert web.get(f"{PATH}/unknown").status_code == 404
    read_savepoint(str(path))


def test_no_other_path_is_ever_touched(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    web = client_of(root)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(savepoint_of(root), elsewhere / "savepoint-of-another")
    inside = root / "savepoints" / "link"
    inside.symlink_to(elsewhere / "savepoint-of-another")
    unfinished = root / "savepoints" / layout.savepoint_progress("abc")
    unfinished.mkdir()
    (unfinished / "part").write_text("being written")
    notes = root / "savepoints" / "notes"
    notes.mkdir()
    (notes / "keep.txt").write_text("mine")
    for path in (
        elsewhere / "savepoint-of-another", inside, unfinished, notes, root / "savepoints", root / JOB, root, "/",
        "/etc",
        root / "savepoints" / ".." / JOB, f"{root}/savepoints/../../{elsewhere.name}/savepoint-of-another", "", " ",
        f"{savepoint_of(root)}\0", "file:///etc", "..", "https://example.com/x",
    ):  # fmt: skip
        answer = post(web, path)
        assert answer.status_code in (400, 404, 422, 500), (path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
    read_savepoint(str(elsewhere / "savepoint-of-another"))
    assert (unfinished / "part").exists()
    assert (notes / "keep.txt").read_text() == "mine"
    assert (root / JOB / "job.json").exists()


def test_roots_of_the_configuration_count_as_well(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    archive = tmp_path_factory.mktemp("archive")
    shutil.copytree(savepoint_of(root), archive / "old")
    assert post(client_of(root), archive / "old").status_code == 400
    web = client_of(root, savepoint_roots=(str(archive),))
    assert post(web, archive / "old", "old").status_code == 202
    assert outcome(web, "old") == {}
    assert os.listdir(archive) == []


def test_a_claimed_savepoint_is_the_jobs(root: Path) -> None:
    web, path = client_of(root), savepoint_of(root)
    (path / layout.CLAIMED).write_text("another job")
    answer = post(web, path)
    assert answer.status_code == 400
    assert "CLAIM" in answer.json()["detail"]
    read_savepoint(str(path))
