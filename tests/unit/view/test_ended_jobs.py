"""Jobs that have ended, are damaged, or fail again and again: what commands, pages and REST say of them."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.rest_client import BEARER, client_of, get, post
from tests.support.web_job import EVIL, JOB, UID, info, make_job
from typer.testing import CliRunner

from cairn.cli.main import app
from cairn.config import CheckpointSettings, Settings
from cairn.coordinator import control
from cairn.errors import CairnError, CheckpointFailedError
from cairn.job.publisher import settings_facts
from cairn.model.checkpoint_records import CheckpointStatus, CheckpointType, FailureReason
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.view.health import health_of
from cairn.view.job_reader import JobReader
from cairn.view.job_view import JobView
from cairn.view.journal import Event, Journal, SubtaskLoad
from cairn.view.state_browser import skew_of


def call(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped with a savepoint; the job's checkpoints are gone, as by default."""
    root = tmp_path_factory.mktemp("ended")
    folder = make_job(root, ended="stopped")
    store = CheckpointStore(LocalFileSystem(str(folder)))
    for number in store.numbers():
        store.discard(number)
    return folder


# Asking a job that has ended.


@pytest.mark.parametrize(
    "command", [["stop"], ["savepoint", "JOB", "/sp"], ["cancel", "JOB", "--yes"], ["cancel"], ["checkpoint"]]
)
def test_a_job_that_has_ended_is_told_of_at_once(
    ended: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, *more = command

    def wait(seconds: float) -> None:
        raise AssertionError("the command waits for an answer that nobody gives")

    monkeypatch.setattr(control, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic, time=time.time))
    made = call(verb, ended, *more[1:])
    assert isinstance(made.exception, CheckpointFailedError), made.output
    error = made.exception
    assert "was stopped with a savepoint" in error.message
    assert "cairn run JOB.py -s" in str(error.facts["remedy"])
    assert "savepoint" in str(error.facts["remedy"])
    assert not list(ended.glob("control/*"))


@pytest.mark.parametrize(
    ("end", "pid", "told"),
    [
        ("failed", None, "has failed"), ("canceled", None, "was canceled"), ("finished", None, "has finished"),
        ("", 2**22 - 3, "has crashed"),
    ],
)  # fmt: skip
def test_every_end_has_its_words(tmp_path: Path, end: str, pid: int | None, told: str) -> None:
    made = call("stop", make_job(tmp_path, ended=end, pid=pid))
    assert isinstance(made.exception, CheckpointFailedError)
    assert told in made.exception.message
    assert ("it is over" in made.exception.message) is (end == "failed")


def test_the_same_request_gets_its_savepoint_also_after_the_end(ended: Path) -> None:
    made = call("savepoint", ended, "/sp", "--request-id", "first", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["id"] == 5
    assert json.loads(call("stop", ended, "--request-id", "first", "--json").stdout)["stopped"] is True
    assert isinstance(call("stop", ended, "--request-id", "other").exception, CheckpointFailedError)


@pytest.mark.parametrize(("epoch", "told"), [(3, "epoch 3, 1 epoch older; to restore it:"), (4, "Or from its")])
def test_an_older_savepoint_is_no_way_to_go_on(tmp_path: Path, epoch: int, told: str) -> None:
    folder = make_job(tmp_path, ended="finished")
    store = CheckpointStore(LocalFileSystem(str(folder)))
    saved = next(one for one in store.history() if one.type is CheckpointType.SAVEPOINT)
    store.remember(msgspec.structs.replace(saved, id=9, epoch=epoch))
    made = call("stop", folder)
    assert isinstance(made.exception, CheckpointFailedError)
    assert told in str(made.exception.facts["remedy"])
    left = health_of(JobReader(str(folder)).view()).reasons[-1]
    assert ("(epoch 3, 1 epoch older)" in left) is (epoch == 3)


@pytest.mark.parametrize("path", ["stop", "savepoints"])
def test_rest_says_first_that_the_job_has_ended(tmp_path: Path, path: str) -> None:
    make_job(tmp_path, ended="failed")
    answer = post(client_of(tmp_path), f"/{path}", **BEARER)
    assert answer.status_code == 409
    assert "is FAILED" in answer.json()["detail"]


def test_the_restart_strategy_is_published_as_it_works() -> None:
    assert settings_facts(Settings())["restart"] == "none"
    told = settings_facts(Settings(checkpoints=CheckpointSettings(interval_ms=1000)))
    assert told["restart"] == "exponential-delay"
    assert "1000 to 60000 ms, each 1.5 times" in told["restart_numbers"]


# The state of a job that retains no checkpoint.


def test_state_falls_back_to_the_newest_savepoint_and_says_so(ended: Path) -> None:
    made = call("state", "ls", ended)
    assert made.exit_code == 0, made.output
    assert "retains no checkpoint; this is its newest savepoint" in made.stderr
    assert "savepoint of harness" in made.stdout
    web = client_of(ended.parent)
    told = get(web, f"/jobs/{JOB}/state")
    assert told["kind"] == "savepoint"
    assert "newest savepoint" in told["note"]
    page = web.get(f"/jobs/{JOB}/state")
    assert page.status_code == 200
    assert "this is its newest savepoint" in page.text
    assert "States of" in page.text
    overview = web.get(f"/jobs/{JOB}").text
    assert ">discarded</span>" in overview
    assert "Latest savepoint: " in overview


def test_without_any_savepoint_there_is_nothing_to_show(tmp_path: Path, ended: Path) -> None:
    shutil.copytree(ended, tmp_path / JOB)
    for path in (tmp_path / JOB / "history").iterdir():
        if b"SAVEPOINT" in path.read_bytes():
            path.unlink()
    made = call("state", "ls", tmp_path / JOB)
    assert isinstance(made.exception, CairnError)
    assert "has no completed checkpoint any more: all 3 were discarded" in made.exception.message
    assert "RETAIN_ON_CANCELLATION" in str(made.exception.facts["remedy"])
    page = client_of(tmp_path).get(f"/jobs/{JOB}/state")
    assert page.status_code == 200
    assert "has no completed checkpoint" in page.text


def test_a_job_that_wrote_nothing_down_is_not_shown_as_idle(tmp_path: Path) -> None:
    folder = make_job(tmp_path, ended="", pid=2**22 - 3)
    shutil.rmtree(folder / "stats")
    web = client_of(tmp_path)
    assert "rows unknown" in web.get(f"/jobs/{JOB}").text
    assert "in 0 · out 0" not in web.get(f"/jobs/{JOB}").text
    assert "are unknown" in web.get(f"/jobs/{JOB}/operators/{UID}").text
    told = web.get("/metrics").text
    assert f'cairn_state_bytes{{job="{JOB}",operator="{UID}"}}' in told
    assert "cairn_operator_records_in_total{" not in told
    vertex = next(one for one in get(web, f"/jobs/{JOB}")["vertices"] if one["id"] == UID)
    assert vertex["metrics"]["read-records-complete"] is False


def test_the_moment_of_the_end_stands_where_it_belongs(tmp_path: Path) -> None:
    made = call("stop", make_job(tmp_path, ended="", pid=2**22 - 3))
    assert re.search(r"has crashed \d[^:]* ago: its process no longer runs, so", str(made.exception))


def test_the_state_of_a_job_is_found_by_its_name(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ended.parent.parent)
    monkeypatch.setattr("cairn.storage.job_lookup.DEFAULT_DIRECTORY", str(ended.parent))
    assert "savepoint of harness" in call("state", "ls", JOB).stdout
    made = call("state", "ls", "nobody")
    assert isinstance(made.exception, CairnError)
    assert "no job 'nobody'" in made.exception.message
    assert "cairn list" in str(made.exception.facts["remedy"])


def test_list_says_why_a_job_has_failed(tmp_path: Path) -> None:
    folder = make_job(tmp_path, ended="")
    identity = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**identity, "name": "Payments of today"}))
    facts = {"file": "job.py", "line": 12}
    Journal(LocalFileSystem(str(folder))).add(7, "failed", "division by zero\nmore", **facts)
    told = json.loads(call("list", "--dir", tmp_path, "--json").stdout)["jobs"][0]
    assert told["failure"] == {"cause": "division by zero", **facts}
    shown = " ".join(call("list", "--dir", tmp_path).stdout.split())
    for part in ("division", "by zero", "job.py:12", "Payments"):
        assert part in shown


def test_refusals_of_rest_name_what_to_do(tmp_path: Path) -> None:
    make_job(tmp_path, ended="", savepoint_dir=str(tmp_path / "savepoints"))
    web = client_of(tmp_path)
    refused = post(web, "/savepoints", {"cancel-job": True}, **BEARER)
    assert refused.status_code == 422
    assert "/stop" in refused.json()["remedy"]
    assert "openapi.json" in web.get("/api/v1/nothing").json()["remedy"]


# Damage.


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    make_job(tmp_path, ended="")
    (tmp_path / JOB / "chk-4" / "_metadata").write_bytes(b"x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "job.json").write_text(f"{{ {EVIL}")
    return tmp_path


def test_damaged_jobs_are_listed_with_the_reason(damaged: Path) -> None:
    web = client_of(damaged)
    page = web.get("/")
    assert page.status_code == 200
    assert "1 job cannot be read" in page.text
    assert str(damaged / "broken") in page.text
    assert f'href="/jobs/{JOB}"' in page.text
    assert "<script>alert" not in page.text
    told = get(web, "/jobs/overview")
    assert [job["jid"] for job in told["jobs"]] == [JOB]
    assert [(job["directory"], job["code"]) for job in told["damaged"]] == [(str(damaged / "broken"), "corrupt-file")]
    assert told["damaged"][0]["remedy"]
    assert get(web, "/jobs/broken", 500)["code"] == "corrupt-file"
    assert "/metrics" in web.get("/").text
    assert web.get("/metrics").status_code == 200


def test_a_damaged_newest_checkpoint_leaves_the_page(damaged: Path) -> None:
    web = client_of(damaged)
    page = web.get(f"/jobs/{JOB}/state")
    assert page.status_code == 200
    assert 'role="alert"' in page.text
    assert "corrupt-file" in page.text
    assert "Start from an older checkpoint" in page.text
    assert '<option value="2"' in page.text, "another one can be chosen"
    other = web.get(f"/jobs/{JOB}/state?checkpoint=2&uid={UID}&state=total&key=user-1")
    assert other.status_code == 200
    assert "corrupt-file" not in other.text
    problem = get(web, f"/jobs/{JOB}/state/{UID}", 500)
    assert (problem["code"], bool(problem["remedy"])) == ("corrupt-file", True)
    compared = web.get(f"/jobs/{JOB}/savepoints?before=2&after=4")
    assert compared.status_code == 200
    assert "corrupt-file" in compared.text
    spec = web.get("/api/v1/openapi.json").json()
    operations = [op for path, ops in spec["paths"].items() if path.startswith("/api") for op in ops.values()]
    assert all("500" in op["responses"] for op in operations)


def test_a_wrong_operator_or_state_is_not_found(damaged: Path) -> None:
    web = client_of(damaged)
    for query in ("uid=zzz", f"uid={UID}&state=zzz"):
        page = web.get(f"/jobs/{JOB}/state?checkpoint=2&{query}")
        assert page.status_code == 404
        assert "zzz" in page.text
        assert "States of" not in page.text or "state=zzz" in query


def test_head_is_answered_as_get_without_a_body(damaged: Path) -> None:
    web = client_of(damaged)
    for path in ("/", f"/jobs/{JOB}", f"/api/v1/jobs/{JOB}", "/metrics", "/static/cairn.css"):
        answer = web.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
    assert web.head("/jobs/nobody").status_code == 404
    assert web.head(f"/api/v1/jobs/{JOB}/events").status_code == 405


# Long causes.


def test_a_traceback_is_folded_where_a_checkpoint_failed(tmp_path: Path) -> None:
    folder = make_job(tmp_path, ended="")
    cause = f'the epoch failed {EVIL}\nTraceback (most recent call last):\n  File "x.py", line 1\nValueError: deep'
    more: dict[str, Any] = {"status": CheckpointStatus.FAILED, "failure": cause, "reason": FailureReason.EXPIRED}
    store = CheckpointStore(LocalFileSystem(str(folder)))
    store.remember(info(6, int(time.time() * 1000), path="", **more))
    store.remember(info(7, int(time.time() * 1000), path="", type=CheckpointType.SAVEPOINT, **more))
    web = client_of(tmp_path)
    for page in ("/checkpoints", "/checkpoints/6", "/savepoints"):
        text = web.get(f"/jobs/{JOB}{page}").text
        assert "<script>alert" not in text
        assert "<summary>full text</summary><pre>the epoch failed" in text, page
    assert "ValueError: deep" not in web.get(f"/jobs/{JOB}").text, "the verdict has the first line only"
    listed = call("checkpoints", folder)
    assert "the epoch failed" in listed.stdout
    assert "deep" not in listed.stdout
    assert get(web, f"/jobs/{JOB}/checkpoints/details/6")["failure_message"] == cause


# Verdicts.


def with_events(view: JobView, *kinds: str, epoch: int = 4) -> JobView:
    now = view.now_ms
    events = [
        Event(now - 1000 * (len(kinds) - at), at, kind, "it broke", {"epoch": epoch}) for at, kind in enumerate(kinds)
    ]
    restores = [msgspec.structs.replace(view.restores[0], epoch=epoch)] * kinds.count("started")
    return msgspec.structs.replace(view, events=events, restores=restores)


def test_a_job_that_restarts_again_and_again_is_told_so(tmp_path: Path) -> None:
    view = JobReader(str(make_job(tmp_path, ended=""))).view()
    looping = ["started", "restarting"] * 4 + ["started"]
    told = health_of(with_events(view, *looping))
    assert (told.level, told.verdict) == ("bad", "The job fails repeatedly.")
    assert "failed and restarted 4 times" in told.reasons[0]
    assert "without getting beyond epoch 4" in told.reasons[0]
    assert "it broke" in told.reasons[0]
    crashing = health_of(with_events(view, *["started"] * 5))
    assert crashing.verdict == "The job fails repeatedly."
    upgraded = health_of(with_events(view, *["started", "stopped"] * 4, "started"))
    assert upgraded.verdict != "The job fails repeatedly."


def test_skew_is_not_judged_from_a_handful_of_keys(tmp_path: Path) -> None:
    assert skew_of(7, [7, *[0] * 127]) is None
    assert skew_of(5000, [5000, *[0] * 127]) == 1.0
    view = JobReader(str(make_job(tmp_path, ended=""))).view()
    skewed = [msgspec.structs.replace(view.operators[0], skew=0.98)]
    few = msgspec.structs.replace(view, operators=skewed)
    assert not any("has a skew" in reason for reason in health_of(few).reasons)
    loads = [SubtaskLoad(30, 30, 500, 1, 400.0, 100.0), SubtaskLoad(10, 10, 2, 0, 100.0, 0.0)]
    many = msgspec.structs.replace(few, epochs=[msgspec.structs.replace(few.epochs[-1], operators={UID: loads})])
    assert any("has a skew of 98%" in reason for reason in health_of(many).reasons)


def test_the_end_of_a_job_is_read_from_its_files(tmp_path: Path) -> None:
    folder = make_job(tmp_path, ended="")
    reader = JobReader(str(folder))
    assert reader.end() is None
    Journal(LocalFileSystem(str(folder))).add(7, "failed", "it broke")
    end = reader.end()
    assert end is not None
    assert (end.status, end.kind, end.cause, end.epoch) == ("FAILED", "failed", "it broke", 4)
