"""What names a snapshot: the command line, the web page, restores and the offline API accept and refuse the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.restore_lab import checkpoint_of, harness, newest, restored, savepoint_of, shape_of
from tests.support.web_job import JOB, UID, Totals, info

from cairn.api.savepoint import Savepoint
from cairn.cli import state_queries
from cairn.cli.output import Output
from cairn.errors import CairnError, InvalidInputError
from cairn.model.checkpoint_records import CheckpointType
from cairn.restore.restore_plan import JobShape
from cairn.snapshots.resolver import open_snapshot, retained
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import create_identity
from cairn.testing.faults import flip_bit
from cairn.web.app import create_app
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import WebOptions

JOBS = f"cairn-data/{JOB}"
"""The job's directory. It has chk-1, which is damaged, chk-2 and chk-3."""
DISCARDED, SAVEPOINT, GONE, UNKNOWN = 4, 5, 6, 99
"""Numbers of the job's history, and one that it never had."""
EMPTY = "harness-eu"
"""A job without checkpoints, whose id begins like that of the other one."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with jobs in the default directory, and savepoints."""
    here = tmp_path_factory.mktemp("place")
    folder = here / JOBS
    with harness(Totals(), folder) as job:
        for number in (1, 2, 3):
            job.push(("a", number))
            job.run_epoch()
            checkpoint_of(folder, number)
    saved = savepoint_of(folder, here / "savepoints")
    shutil.move(saved, here / "sp")
    store = CheckpointStore(LocalFileSystem(str(folder)))
    store.remember(info(DISCARDED, 1, path=str(folder / f"chk-{DISCARDED}")))
    for number, path in ((SAVEPOINT, here / "sp"), (GONE, here / "gone")):
        store.remember(info(number, 1, type=CheckpointType.SAVEPOINT, path=str(path)))
    shutil.copytree(here / "sp", here / "elsewhere" / "chk-9")
    shutil.copytree(folder, here / "orphan", ignore=shutil.ignore_patterns("job.json", "chk-1"))
    flip_bit(str(folder / "chk-1" / "_metadata"), 60)
    create_identity(LocalFileSystem(str(here / "cairn-data" / EMPTY)), EMPTY, EMPTY, 128)
    (here / "nothing").mkdir()
    (here / ".savepoint-abc.inprogress").mkdir()
    return here


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> JobShape:
    with harness(Totals(), tmp_path_factory.mktemp("shape")) as job:
        return shape_of(job)


@pytest.fixture(scope="module")
def web(place: Path) -> TestClient:
    app = create_app(Catalogue(str(place / "cairn-data")), WebOptions(token="a-token-of-some-length"))
    return TestClient(app, base_url="http://127.0.0.1:8081", raise_server_exceptions=False)


Outcome = tuple[str, str]
"""The path of a snapshot, or the code and the message of an error."""


def of_command_line(reference: str) -> Outcome:
    return "opened", state_queries.opened(reference, Output(as_json=True)).path


def of_offline_api(reference: str) -> Outcome:
    return "opened", Savepoint.load(None, reference).path  # type: ignore[arg-type]


def of_restore(reference: str, target: Path, shape: JobShape) -> Outcome:
    restored(reference, target, shape, allow_pickled=(f"{UID}.seen", f"{UID}.total"))
    return "opened", newest(target).origin.rpartition("#")[0]


def of_web(web: TestClient, job: str, number: int | None) -> Outcome:
    answer = web.get(f"/api/v1/jobs/{job}/state", params={} if number is None else {"checkpoint": number}).json()
    return ("opened", answer["path"]) if "path" in answer else (answer["code"], answer["detail"])


def outcome(call: Any, *args: Any) -> Outcome:
    try:
        made: Outcome = call(*args)
    except CairnError as error:
        return error.code, error.message
    return made


NEWEST = (JOB, None)
OPENED = [
    ("sp", None, "sp"),
    ("sp/", None, "sp"),
    ("sp/_metadata", None, "sp"),
    ("{here}/sp", None, "sp"),
    ("file://{here}/sp", None, "sp"),
    ("file:{here}/sp/_metadata", None, "sp"),
    (f"{JOBS}/chk-2", (JOB, 2), f"{JOBS}/chk-2"),
    (f"{JOBS}/chk-2/_metadata", (JOB, 2), f"{JOBS}/chk-2"),
    (f"file://{{here}}/{JOBS}/chk-2", (JOB, 2), f"{JOBS}/chk-2"),
    (f"{JOB}/chk-2", (JOB, 2), f"{JOBS}/chk-2"),
    (f"{JOBS}/chk-{SAVEPOINT}", (JOB, SAVEPOINT), "sp"),
    (f"{JOB}/chk-{SAVEPOINT}", (JOB, SAVEPOINT), "sp"),
    (JOBS, NEWEST, f"{JOBS}/chk-3"),
    (f"file://{{here}}/{JOBS}", NEWEST, f"{JOBS}/chk-3"),
    (JOB, NEWEST, f"{JOBS}/chk-3"),
    ("elsewhere/chk-9", None, "elsewhere/chk-9"),
    ("orphan/chk-2", None, "orphan/chk-2"),
]
REFUSED = [
    ("nowhere/sp", None, "not-found", "there is no folder {here}/nowhere/sp"),
    ("nobody", None, "not-found", "there is no folder {here}/nobody, and no job 'nobody' in {here}/cairn-data"),
    ("nobody/chk-1", None, "not-found", "there is no folder {here}/nobody, and no job 'nobody'"),
    ("nothing", None, "not-found", "{here}/nothing is not a savepoint, a checkpoint or a job"),
    (".savepoint-abc.inprogress", None, "not-found", "a savepoint that was never completed"),
    (EMPTY, (EMPTY, None), "not-found", f"the job in {{here}}/cairn-data/{EMPTY} has no completed checkpoint"),
    (f"{JOBS}/chk-{UNKNOWN}", (JOB, UNKNOWN), "not-found", f"chk-{UNKNOWN}; completed there: chk-1, chk-2, chk-3"),
    (f"{JOB}/chk-{UNKNOWN}", (JOB, UNKNOWN), "not-found", f"chk-{UNKNOWN}; completed there: chk-1, chk-2, chk-3"),
    (f"{JOBS}/chk-{DISCARDED}", (JOB, DISCARDED), "not-found", f"chk-{DISCARDED}; it is not retained"),
    (f"{JOBS}/chk-{GONE}", (JOB, GONE), "not-found", "{here}/gone is not a savepoint, a checkpoint or a job"),
    (f"{JOBS}/chk-1", (JOB, 1), "corrupt-file", "chk-1/_metadata"),
    ("s3://bucket/sp", None, "invalid-input", "directories are local paths or file: URLs"),
]


@pytest.mark.parametrize(("reference", "shown", "path"), OPENED, ids=[case[0] for case in OPENED])
def test_the_same_is_accepted(
    place: Path,
    web: TestClient,
    shape: JobShape,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: str,
    shown: Any,
    path: str,
) -> None:
    monkeypatch.chdir(place)
    reference, wanted = reference.format(here=place), ("opened", str(place / path))
    assert outcome(of_command_line, reference) == wanted
    assert outcome(of_offline_api, reference) == wanted
    assert outcome(of_restore, reference, tmp_path / "new", shape) == wanted
    if shown is not None:  # the page shows jobs, and what else is named by a path is none of its business
        assert outcome(of_web, web, *shown) == wanted


@pytest.mark.parametrize(("reference", "shown", "code", "words"), REFUSED, ids=[case[0] for case in REFUSED])
def test_the_same_is_refused_with_the_same_error(
    place: Path,
    web: TestClient,
    shape: JobShape,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: str,
    shown: Any,
    code: str,
    words: str,
) -> None:
    monkeypatch.chdir(place)
    reference = reference.format(here=place)
    refused = outcome(of_command_line, reference)
    assert refused[0] == code
    assert words.format(here=place) in refused[1]
    assert outcome(of_offline_api, reference) == refused
    assert outcome(of_restore, reference, tmp_path / "new", shape) == refused
    assert not (tmp_path / "new").exists()
    if shown is not None:
        assert outcome(of_web, web, *shown) == refused


@pytest.mark.parametrize(
    ("prefix", "read", "candidates"),
    [
        ("harn", ("invalid-input", f"'harn' is ambiguous: {JOB}, {EMPTY}"), f"{JOB}, {EMPTY} begin like this"),
        ("harness-e", ("not-found", f"{EMPTY} has no completed checkpoint"), f"{EMPTY} begins like this"),
        ("pay", ("opened", "payments/chk-3"), "payments begins like this"),
        ("pay/chk-2", ("opened", "payments/chk-2"), "payments begins like this"),
    ],
)
def test_a_prefix_of_an_id_is_for_readers_only(
    place: Path,
    shape: JobShape,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    read: Outcome,
    candidates: str,
) -> None:
    here = tmp_path / "here"
    shutil.copytree(place / "cairn-data", here / "cairn-data")
    payments = here / "cairn-data" / "payments"
    shutil.copytree(here / JOBS, payments)
    identity = json.loads((payments / "job.json").read_text())
    (payments / "job.json").write_text(json.dumps({**identity, "job_id": "payments", "name": "Payments"}))
    monkeypatch.chdir(here)
    code, words = outcome(of_command_line, prefix)
    assert code == read[0]
    assert read[1] in words
    assert outcome(of_offline_api, prefix) == (code, words)
    code, words = outcome(of_restore, prefix, tmp_path / "new", shape)
    assert code == "not-found"
    assert candidates in words
    assert "only a whole name or id is accepted" in words
    assert not (tmp_path / "new").exists()


def test_a_job_without_checkpoints_stands_for_its_newest_savepoint(tmp_path: Path) -> None:
    with harness(Totals(), tmp_path / "job") as job:
        job.push(("a", 1))
        job.run_epoch()
    path = savepoint_of(tmp_path / "job", tmp_path / "sp")
    store = CheckpointStore(LocalFileSystem(str(tmp_path / "job")))
    store.remember(info(1, 1, type=CheckpointType.SAVEPOINT, path=path))
    snapshot = open_snapshot(str(tmp_path / "job"))
    assert (snapshot.path, snapshot.kind) == (path, "savepoint")
    assert "retains no checkpoint; this is its newest savepoint" in snapshot.note


def test_only_a_job_has_several_checkpoints(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for reference in (JOB, JOBS, f"file://{place}/{JOBS}"):
        assert [snapshot.checkpoint_number for snapshot in retained(reference)] == [2, 3]
    for reference in ("sp", f"{JOBS}/chk-2"):
        with pytest.raises(InvalidInputError, match="is not a job directory"):
            retained(reference)
