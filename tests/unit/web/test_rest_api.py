"""REST and the gate before it, without Spark, on the directory of a job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.patience import PATIENCE
from tests.support.rest_client import BEARER, TOKEN, Answering, client_of, get, post
from tests.support.web_job import EVIL, JOB, UID, make_job

from cairn.config import WebSettings
from cairn.errors import InvalidInputError
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.view.state_browser import Masks
from cairn.web.web_options import WebOptions, options_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    make_job(folder, ended="")  # its process is this one: it runs
    return folder


@pytest.fixture(scope="module")
def web(root: Path) -> TestClient:
    return client_of(root)


# Flink's documents.


def test_jobs_have_flinks_shape(web: TestClient) -> None:
    assert get(web, "/jobs") == {"jobs": [{"id": JOB, "status": "RUNNING"}]}
    told = get(web, "/jobs/overview")["jobs"][0]
    assert {"jid", "name", "state", "start-time", "end-time", "duration", "last-modification", "tasks"} <= set(told)
    detail = get(web, f"/jobs/{JOB}")
    vertices = {vertex["id"]: vertex for vertex in detail["vertices"]}
    assert list(vertices) == ["source-0", "source-1", "clean", UID, "out", "late-out"]
    assert vertices[UID]["metrics"]["read-records"] == 2400
    assert vertices[UID]["tasks"]["running"] == vertices[UID]["parallelism"] == 2
    assert vertices["source-0"]["metrics"]["write-records"] == 2400
    assert vertices["source-0"]["metrics"]["write-records-per-second"] == pytest.approx(20 * 40 / 19.54, abs=0.01)
    assert vertices["out"]["metrics"]["read-records"] == 2280
    assert not vertices["source-1"]["metrics"]["write-records-complete"]  # nobody counts
    assert vertices["source-0"]["metrics"]["read-records-complete"]
    assert not vertices["clean"]["metrics"]["read-records-complete"]
    assert not vertices["clean"]["metrics"]["write-records-complete"]
    nodes = {node["id"]: node for node in detail["plan"]["nodes"]}
    assert [node["kind"] for node in nodes.values()] == ["source", "source", "function", "operator", "sink", "sink"]
    assert nodes[UID]["inputs"][1] == {
        "num": 1, "id": "source-1", "ship_strategy": "BROADCAST", "exchange": "pipelined_bounded",
    }  # fmt: skip
    assert nodes["late-out"]["inputs"][0]["side_output"] == "late"


def test_checkpoints_have_flinks_shape(web: TestClient) -> None:
    told = get(web, f"/jobs/{JOB}/checkpoints")
    assert told["counts"] == {"total": 5, "in_progress": 0, "completed": 4, "failed": 1, "restored": 1}
    assert set(told["summary"]["end_to_end_duration"]) == {"min", "max", "avg", "p50", "p90", "p95", "p99", "p999"}
    assert [entry["id"] for entry in told["history"]] == [5, 4, 3, 2, 1]
    assert told["latest"]["savepoint"]["external_path"].startswith("/")
    assert told["latest"]["restored"]["is_savepoint"]
    assert [e["id"] for e in get(web, f"/jobs/{JOB}/checkpoints?limit=2&offset=1")["history"]] == [4, 3]
    assert get(web, f"/jobs/{JOB}/checkpoints/config")["mode"] == "exactly_once"
    assert get(web, f"/jobs/{JOB}/checkpoints/details/4")["tasks"][UID]["num_acknowledged_subtasks"] == 2
    part = get(web, f"/jobs/{JOB}/checkpoints/details/4/subtasks/{UID}")
    assert [subtask["index"] for subtask in part["subtasks"]] == [0, 1]
    assert part["subtasks"][0]["checkpoint"] == {"sync": 3.5, "async": 0.0}


def test_operators_metrics_and_exceptions(web: TestClient) -> None:
    assert get(web, f"/jobs/{JOB}/vertices/{UID}")["subtasks"][1]["read-records"] == 600
    assert get(web, f"/jobs/{JOB}/vertices/{UID}/backpressure")["backpressureLevel"] == "low"
    assert {"id": "numRestarts", "value": "1"} in get(web, f"/jobs/{JOB}/metrics?get=numRestarts,lastCheckpointSize")
    assert {"id": "lastCheckpointDuration"} in get(web, f"/jobs/{JOB}/metrics")
    assert EVIL in get(web, f"/jobs/{JOB}/exceptions")["exceptionHistory"]["entries"][0]["stacktrace"]
    assert get(web, f"/jobs/{JOB}/rescales/history")["history"][0]["rescaled"] is True
    assert len(get(web, f"/jobs/{JOB}/epochs?limit=5")["epochs"]) == 5


METRICS = f"/jobs/{JOB}/vertices/{UID}/metrics"
SUBTASKS = f"/jobs/{JOB}/vertices/{UID}/subtasks/metrics"


def test_metrics_of_vertices_have_flinks_shape(web: TestClient) -> None:
    assert {"id": "1.numRecordsIn"} in get(web, METRICS)
    assert get(web, f"{METRICS}?get=0.numRecordsIn,1.numRecordsIn,2.none") == [
        {"id": "0.numRecordsIn", "value": "1800"},
        {"id": "1.numRecordsIn", "value": "600"},
    ]
    busy = get(web, f"{METRICS}?get=0.busyTimeMsPerSecond,0.idleTimeMsPerSecond,0.backPressuredTimeMsPerSecond")
    assert sum(float(entry["value"]) for entry in busy) == pytest.approx(1000, abs=1)
    assert {"id": "numRecordsOut"} in get(web, SUBTASKS)
    assert get(web, f"{SUBTASKS}?get=numRecordsIn") == [
        {"id": "numRecordsIn", "min": 600, "max": 1800, "avg": 1200, "sum": 2400, "skew": 50}
    ]
    assert get(web, f"{SUBTASKS}?get=numRecordsIn&agg=max,sum&subtasks=1-3") == [
        {"id": "numRecordsIn", "max": 600, "sum": 600}
    ]
    assert get(web, f"/jobs/{JOB}/vertices/{UID}/subtasks/1/metrics?get=numRecordsIn") == [
        {"id": "numRecordsIn", "value": "600"}
    ]
    assert get(web, f"/jobs/{JOB}/vertices/source-0/metrics?get=0.numRecordsOut")[0]["value"] == "2400"
    assert get(web, f"/jobs/{JOB}/vertices/out/subtasks/metrics?get=numRecordsIn&agg=sum")[0]["sum"] == 2280
    assert get(web, f"/jobs/{JOB}/vertices/clean/metrics") == []  # nobody counts
    watermarks = get(web, f"/jobs/{JOB}/vertices/{UID}/watermarks")
    assert [entry["id"] for entry in watermarks] == ["0.currentInputWatermark", "1.currentInputWatermark"]
    assert get(web, f"/jobs/{JOB}/vertices/source-0/watermarks") == []
    told = get(web, f"/jobs/{JOB}/vertices/{UID}/backpressure")
    assert (told["status"], told["subtasks"][0]["backpressure-level"]) == ("ok", "low")
    assert get(web, f"/jobs/{JOB}/vertices/out/backpressure") == {"status": "deprecated", "subtasks": []}
    assert get(web, f"/jobs/{JOB}/vertices/out")["subtasks"] == []


def test_jobs_are_told_of_in_one_word_and_drawn_together(web: TestClient) -> None:
    assert get(web, f"/jobs/{JOB}/status") == {"status": "RUNNING"}
    executes = get(web, f"/jobs/{JOB}/config")
    assert executes["execution-config"]["job-parallelism"] == 2
    assert executes["execution-config"]["user-config"]["interval"] == "10000"
    assert {"id": "numRestarts"} in get(web, "/jobs/metrics")
    drawn = get(web, f"/jobs/metrics?get=numRestarts,lastCheckpointExternalPath&agg=sum&jobs={JOB}")
    assert drawn == [{"id": "numRestarts", "sum": 1}]  # a path cannot be added up
    assert get(web, "/overview")["jobs-running"] == get(web, "/overview")["taskmanagers"] == 1
    assert get(web, "/config")["features"]["web-cancel"] is True


def test_state_by_key_and_between_checkpoints(web: TestClient) -> None:
    path = f"/jobs/{JOB}/state/{UID}"
    assert get(web, f"/jobs/{JOB}/state")["operators"][0]["uid"] == UID
    assert {entry["name"] for entry in get(web, path)["states"]} == {"total", "seen"}
    total = sum(n for n in range(100) if n % 7 == 3)
    assert get(web, f"{path}/total/key?key=user-3")["value"] == str(total)
    assert len(get(web, f"{path}/total/key/history?key=user-3")["history"]) == 2
    assert get(web, f"{path}/total/key?key=user-3&checkpoint=5")["checkpoint"] == 0  # number 5 is a savepoint
    changed = {
        entry["state"]: entry["changed"] for entry in get(web, f"/jobs/{JOB}/compare?before=2&after=4")["states"]
    }
    assert changed["total"] == 7


def test_tables_quote_what_a_spreadsheet_would_run(web: TestClient, root: Path) -> None:
    answer = web.get(f"/api/v1/jobs/{JOB}/checkpoints.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert len(answer.text.splitlines()) == 6
    from cairn.web.rest_api import _csv

    assert "'=1+1" in bytes(_csv(["a"], [["=1+1"]], "x.csv").body).decode()


def test_one_event_of_the_stream(web: TestClient) -> None:
    answer = web.get(f"/api/v1/jobs/{JOB}/events?once=true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = json.loads(answer.text.split("data: ")[1])
    assert (data["state"], data["completed"], data["checkpoint"]) == ("RUNNING", 4, 4)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/jobs/nothing", 404),
        ("/jobs/..%2F..%2Fetc", 404),
        (f"/jobs/{JOB}%00", 422),
        (f"/jobs/{JOB}/checkpoints/details/99", 404),
        (f"/jobs/{JOB}/checkpoints/details/x", 422),
        (f"/jobs/{JOB}/checkpoints/details/{10**30}", 422),
        (f"/jobs/{JOB}/checkpoints?limit=0", 422),
        (f"/jobs/{JOB}/vertices/none", 404),
        (f"/jobs/{JOB}/vertices/none/metrics", 404),
        (f"/jobs/{JOB}/vertices/{UID}/subtasks/9/metrics", 404),
        (f"/jobs/{JOB}/vertices/{UID}/subtasks/metrics?get=numRecordsIn&agg=median", 400),
        (f"/jobs/{JOB}/vertices/{UID}/subtasks/metrics?subtasks=one", 400),
        ("/jobs/metrics?jobs=nothing", 404),
        (f"/jobs/{JOB}/state/none", 404),
        (f"/jobs/{JOB}/state/{UID}/none/key?key=a", 404),
        (f"/jobs/{JOB}/state/{UID}/total/key", 422),
        (f"/jobs/{JOB}/state?checkpoint=1", 404),
        (f"/jobs/{JOB}/savepoints/unknown", 404),
        ("/nothing", 404),
    ],
)
def test_what_is_not_there_is_a_problem_document(web: TestClient, path: str, status: int) -> None:
    told = get(web, path, status)
    assert {"type", "title", "status", "detail", "code"} <= set(told)


# The gate.


def test_every_answer_carries_the_headers(web: TestClient) -> None:
    for path in ("/api/v1/jobs", "/api/v1/nothing", "/metrics"):
        headers = web.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8081",
        "",
        "127.0.0.1:8081@evil",
        "127.0.0.1:8081@evil:8081",
        "user@127.0.0.1:8081",
        "user:8081@127.0.0.1",
        "127.0.0.1:8081:8081",
        "127.0.0.1:",
        "127.0.0.1:80a",
        "127.0.0.1:123456",
        "127.0.0.1:-1",
        "127.0.0.1/evil",
        "127.0.0.1?evil",
        "127.0.0.1#evil",
        "127.0.0.1, evil.example",
        "127.0.0.1 evil",
        "http://127.0.0.1:8081",
        "localhost.",
        "localhost%2e",
        "[::1]evil",
        "[::1]:8081@evil",
        "[::1",
        "::1",
        "[127.0.0.1]",
        "[localhost]",
        "[::1%25lo]",
        ":8081",
        "127.0.0.1:\u0668\u0660",
    ],
)
def test_a_foreign_host_gets_nothing(web: TestClient, host: str) -> None:
    assert web.get("/api/v1/jobs", headers={b"Host": host.encode()}).status_code == 421


def test_a_request_with_two_hosts_gets_nothing(web: TestClient) -> None:
    own = (b"Host", b"127.0.0.1:8081")
    assert web.get("/api/v1/jobs", headers=[own]).status_code == 200
    assert web.get("/api/v1/jobs", headers=[own, (b"Host", b"evil.example")]).status_code == 421
    assert web.get("/api/v1/jobs", headers=[own, own]).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:8081", "[::1]", "[0:0:0:0:0:0:0:1]:8081", "127.0.0.1:9000"])
def test_the_own_host_is_answered_however_it_is_written(web: TestClient, host: str) -> None:
    assert web.get("/api/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("number", ["²", "x", "-1", "9" * 16])
def test_what_is_no_number_of_a_checkpoint_is_refused(web: TestClient, number: str) -> None:
    assert web.get(f"/jobs/{JOB}/state", params={"checkpoint": number}).status_code == 400


def test_named_hosts_are_allowed(root: Path) -> None:
    web = client_of(root, hosts=("cairn.example",))
    assert web.get("/api/v1/jobs", headers={"Host": "CAIRN.example:80"}).status_code == 200
    assert web.get("/api/v1/jobs", headers={"Host": "[::1]:8081"}).status_code == 200


@pytest.mark.parametrize("path", ["/checkpoints", "/savepoints", "/stop"])
def test_a_change_needs_the_token(web: TestClient, path: str) -> None:
    assert post(web, path).status_code == 401
    assert post(web, path, Authorization="Bearer wrong").status_code == 401
    assert post(web, path, Authorization=f"Basic {TOKEN}").status_code == 401
    assert web.patch(f"/api/v1/jobs/{JOB}?mode=cancel").status_code == 401


def test_a_change_from_another_origin_is_refused(web: TestClient) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = post(web, "/checkpoints", **BEARER, **headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign-origin")


def test_a_change_must_be_json_and_small(web: TestClient) -> None:
    path = f"/api/v1/jobs/{JOB}/checkpoints"
    form = web.post(path, content=b"a=b", headers={**BEARER, "Content-Type": "application/x-www-form-urlencoded"})
    assert form.status_code == 415
    large = web.post(path, content=b" " * 70_000, headers={**BEARER, "Content-Type": "application/json"})
    assert large.status_code == 413
    broken = web.post(path, content=b"{", headers={**BEARER, "Content-Type": "application/json"})
    assert broken.status_code == 422
    assert post(web, "/checkpoints", {"surprise": 1}, **BEARER).status_code == 422


def test_a_link_with_the_token_sets_a_cookie_that_scripts_cannot_read(root: Path) -> None:
    web = client_of(root)
    answer = web.get("/metrics", params={"token": TOKEN, "a": "b"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/metrics?a=b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert web.get("/metrics", params={"token": "wrong"}).status_code == 401
    twice = web.get("http://127.0.0.1:8081//evil.example/", params={"token": TOKEN}, follow_redirects=False)
    assert twice.headers["location"] == "/evil.example/"
    refused = post(web, "/savepoints", {"target-directory": "/etc"})
    assert refused.status_code == 400  # the cookie is enough, the directory is not


def test_a_read_only_server_changes_nothing(root: Path) -> None:
    answer = post(client_of(root, read_only=True), "/checkpoints", **BEARER)
    assert (answer.status_code, answer.json()["code"]) == (403, "read-only")


def test_an_open_address_needs_the_token_for_everything(root: Path) -> None:
    web = client_of(root, address="0.0.0.0")
    assert web.get("/api/v1/jobs").status_code == 401
    assert web.get("/api/v1/jobs", headers=BEARER).status_code == 200
    assert web.get("/api/v1/jobs", headers={"X-Cairn-Token": TOKEN}).status_code == 200
    with pytest.raises(InvalidInputError, match=r"cairn\.web\.token"):
        options_of(WebSettings(address="0.0.0.0"))
    with pytest.raises(InvalidInputError, match="too short"):
        options_of(WebSettings(token="short"))
    assert options_of(WebSettings(address="0.0.0.0", token=TOKEN)).token == TOKEN
    assert len(options_of(WebSettings()).token) >= 24


def test_the_token_is_not_in_what_is_printed_of_the_options() -> None:
    assert TOKEN not in repr(WebOptions(token=TOKEN))


def test_hidden_states_stay_hidden(root: Path) -> None:
    web = client_of(root, masks=Masks(["tested.*"]))
    assert get(web, f"/jobs/{JOB}/state/{UID}/total/key?key=user-3")["value"] == "(hidden)"


# Changes reach the job through its control folder.


@pytest.fixture
def running(tmp_path: Path) -> Path:
    return make_job(tmp_path, ended="", savepoint_dir=str(tmp_path / "savepoints"))


def settled(web: TestClient, path: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        told = get(web, path)
        if told["status"]["id"] == "COMPLETED":
            return told["operation"]
        time.sleep(0.02)
    raise AssertionError("it was not settled in time")


def test_a_savepoint_is_asked_for_once_for_a_trigger_id(running: Path) -> None:
    web = client_of(running.parent)
    path = str(running.parent / "savepoints" / "deep")
    info = CheckpointInfo(9, CheckpointStatus.COMPLETED, CheckpointType.SAVEPOINT, 1, path="/somewhere/savepoint-x")
    answer = {"checkpoint": {"id": 9, "status": "COMPLETED", "type": "SAVEPOINT", "trigger_ms": 1, "path": info.path}}
    with Answering(running, answer) as job:
        for _ in range(3):
            told = post(web, "/savepoints", {"target-directory": path, "triggerId": "mine"}, **BEARER)
            assert (told.status_code, told.json()) == (202, {"request-id": "mine"})
        assert settled(web, f"/jobs/{JOB}/savepoints/mine") == {"location": info.path}
        other = post(web, "/stop", {"triggerId": "mine"}, **BEARER)
        assert other.status_code == 409
    assert job.asked == [{"action": "savepoint", "dir": path, "id": "mine"}]


def test_an_empty_body_asks_for_what_is_configured(running: Path) -> None:
    web = client_of(running.parent)
    with Answering(running, {"done": True}) as job:
        for path, poll in (("/checkpoints", "checkpoints"), ("/savepoints", "savepoints"), ("/stop", "savepoints")):
            told = web.post(f"/api/v1/jobs/{JOB}{path}", headers=BEARER)
            assert told.status_code == 202, told.text
            settled(web, f"/jobs/{JOB}/{poll}/{told.json()['request-id']}")
    assert [{k: v for k, v in question.items() if k != "id"} for question in job.asked] == [
        {"action": "checkpoint", "full": None},
        {"action": "savepoint", "dir": None},
        {"action": "stop", "dir": None, "drain": False},
    ]


def test_stop_cancel_and_checkpoint_are_asked_for_in_the_jobs_words(running: Path) -> None:
    web = client_of(running.parent)
    with Answering(running, {"done": True}) as job:
        post(web, "/stop", {"drain": True, "triggerId": "s"}, **BEARER)
        assert settled(web, f"/jobs/{JOB}/savepoints/s") == {"location": ""}
        post(web, "/checkpoints", {"checkpointType": "FULL", "triggerId": "c"}, **BEARER)
        assert settled(web, f"/jobs/{JOB}/checkpoints/c") == {"checkpointId": 0}
        asked = web.patch(f"/api/v1/jobs/{JOB}?mode=cancel", headers=BEARER).json()["request-id"]
        settled(web, f"/jobs/{JOB}/savepoints/{asked}")
    assert [{k: v for k, v in question.items() if k != "id"} for question in job.asked] == [
        {"action": "stop", "dir": None, "drain": True},
        {"action": "checkpoint", "full": True},
        {"action": "cancel"},
    ]


def test_a_failure_of_the_job_is_the_operations_cause(running: Path) -> None:
    web = client_of(running.parent)
    with Answering(running, {"error": "the disk is full"}):
        post(web, "/savepoints", {"triggerId": "f"}, **BEARER)
        told = settled(web, f"/jobs/{JOB}/savepoints/f")
    assert told["failure-cause"]["stack-trace"] == "the disk is full"


def test_a_savepoint_of_an_earlier_server_is_found_by_its_trigger_id(running: Path) -> None:
    told = get(client_of(running.parent), f"/jobs/{JOB}/savepoints/first")
    assert told["status"]["id"] == "COMPLETED"
    assert "savepoint" in told["operation"]["location"]


@pytest.mark.parametrize(
    "target", ["/etc", "savepoints", "{root}/savepoints/../elsewhere", "{root}/savepointsish", "s3://b/x", "\0"]
)
def test_a_target_outside_the_roots_is_refused(running: Path, target: str) -> None:
    web = client_of(running.parent)
    answer = post(web, "/savepoints", {"target-directory": target.format(root=running.parent)}, **BEARER)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-input")
    assert not list((running / "control").glob("*")) if (running / "control").exists() else True


def test_a_link_inside_a_root_does_not_lead_out_of_it(running: Path) -> None:
    root = running.parent / "savepoints"
    (root / "out").symlink_to("/tmp")
    answer = post(client_of(running.parent), "/savepoints", {"target-directory": str(root / "out" / "x")}, **BEARER)
    assert answer.status_code == 400


def test_a_job_that_ended_is_not_asked(tmp_path: Path) -> None:
    make_job(tmp_path)
    answer = post(client_of(tmp_path), "/checkpoints", **BEARER)
    assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint-failed")


def test_each_change_is_a_line_of_the_audit(running: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "cairn.audit"), Answering(running, {"done": True}):
        post(client_of(running.parent), "/checkpoints", {"triggerId": "audited"}, **BEARER)
    assert any("POST" in line and "audited" in line for line in caplog.messages)
    assert not any(TOKEN in line for line in caplog.messages)
