"""Foreign text (names, keys, causes) in every place that shows it: page, terminal, JSON, log, metrics, table."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.cli_call import call
from tests.support.rest_client import BEARER, TOKEN, client_of
from tests.support.restore_lab import checkpoint_of, harness
from tests.support.web_job import JOB, START, UID, info, make_job
from tests.support.web_pages import PAGES, Reader

from cairn import KeyedProcessFunction, ValueStateDescriptor
from cairn.cli import checkpoint_commands, job_commands, state_queries
from cairn.cli.list_command import list_jobs
from cairn.cli.output import Output, json_text
from cairn.cli.progress_bar import progress
from cairn.errors import CheckpointFailedError, CorruptFileError, InvalidInputError
from cairn.model.checkpoint_records import CheckpointStatus, CheckpointType, FailureReason
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.text import printable
from cairn.view.job_reader import JobReader
from cairn.view.journal import Journal
from cairn.view.notebook_html import job_html, sparkline, table
from cairn.web import security
from cairn.web.web_options import WebOptions

PAGE = '"><img src=x onerror=alert(1)><script>alert(2)</script>{{ 7*7 }}'
TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\r\nforged line"
FORMULA = '=HYPERLINK("http://evil.example")'
HOSTILE = PAGE + TERMINAL


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    made = make_job(folder, ended="")
    identity = json.loads((made / "job.json").read_text())
    (made / "job.json").write_text(json.dumps({**identity, "name": HOSTILE}))
    failed = {"status": CheckpointStatus.FAILED, "path": "", "reason": FailureReason.ASYNC}
    store = CheckpointStore(LocalFileSystem(str(made)))
    store.remember(info(6, START + 60_000, failure=HOSTILE, **failed))
    store.remember(info(7, START + 70_000, failure=FORMULA, **failed))
    store.remember(info(8, START + 80_000, failure=f"\n {FORMULA}", **failed))
    for path in sorted((made / "events").iterdir()):  # what the job told of itself
        path.write_text(path.read_text().replace("<script>alert(1)</script>", json.dumps(HOSTILE)[1:-1]))
    return folder


@pytest.fixture(scope="module")
def web(root: Path) -> TestClient:
    return client_of(root)


@pytest.mark.parametrize("page", ["/", *PAGES])
def test_no_page_holds_control_characters(web: TestClient, page: str) -> None:
    text = web.get(page if page == "/" else f"/jobs/{JOB}{page}").text
    assert text.replace("\n", "").replace("\t", "").isprintable()


def test_no_notebook_holds_control_characters(root: Path) -> None:
    told = job_html(JobReader(str(root / JOB)).view())
    assert "\\x1b" in told
    assert (told + table(["a\x1b"], [["b\x9b"]]) + sparkline([1, 2], TERMINAL)).replace("\n", "").isprintable()


class Acting(Reader):
    """Also collects elements that no page of ours has."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag in ("iframe", "object", "embed", "base") or (tag == "img" and dict(attrs).get("src") == "x"):
            self.inline.append(tag)


@pytest.mark.parametrize("page", ["/", *PAGES, f"/state?state=total&key={PAGE}", f"/state?checkpoint=4&uid={PAGE}"])
def test_no_page_acts_on_it(web: TestClient, page: str) -> None:
    answer = web.get(page if page == "/" else f"/jobs/{JOB}{page}")
    assert answer.status_code in (200, 400, 404)
    reader = Acting()
    reader.feed(answer.text)
    assert reader.inline == []
    assert "<script>alert" not in answer.text


def test_what_is_not_there_is_told_without_acting_on_it(web: TestClient) -> None:
    for path in (f"/jobs/{PAGE}", f"/jobs/{JOB}/operators/{PAGE}", f"/jobs/{JOB}/checkpoints/{PAGE}", f"/{PAGE}"):
        answer = web.get(path)
        assert answer.status_code in (400, 404), path
        assert "<script>alert" not in answer.text or answer.headers["content-type"] == "application/problem+json"


def test_no_command_lets_it_steer_the_terminal(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_commands, "_ANSWER_SECONDS", 0.05)  # this process plays the job, and does not answer
    for out in (Output(), Output(as_json=True)):
        list_jobs(str(root), False, None, out)
        checkpoint_commands.show_checkpoints(JOB, str(root), 10, out)
        state_queries.ls(str(root / JOB), out)
        state_queries.show(str(root / JOB), UID, "seen", 5, out)
        state_queries.get(str(root / JOB), UID, "total", ["user-3"], [], out)
        told = capsys.readouterr()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", told.out + told.err)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    Output().error(InvalidInputError(HOSTILE, remedy=HOSTILE))
    Output().line(HOSTILE)
    told = capsys.readouterr()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", told.out + told.err)


LINES = "a\nFORGED line\r\x0bFORGED line\u2028FORGED line"


@pytest.fixture
def forging(root: Path, tmp_path: Path) -> Path:
    """A job whose names and causes have line breaks."""
    shutil.copytree(root, tmp_path / "jobs")
    made = tmp_path / "jobs" / JOB
    identity = json.loads((made / "job.json").read_text())
    (made / "job.json").write_text(json.dumps({**identity, "name": LINES}))
    store = CheckpointStore(LocalFileSystem(str(made)))
    store.remember(info(9, START + 90_000, path=f"/jobs/{LINES}", type=CheckpointType.SAVEPOINT))
    Journal(LocalFileSystem(str(made))).add(7, "failed", LINES)
    return tmp_path / "jobs"


@pytest.mark.parametrize("columns", [80, 240])
def test_no_command_prints_a_line_that_foreign_text_has_begun(
    forging: Path, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "columns", columns)
    out = Output()
    list_jobs(str(forging), False, None, out)
    checkpoint_commands.show_checkpoints(JOB, str(forging), 10, out)
    state_queries.ls(str(forging / JOB), out)
    out.line(state_queries._line(LINES))
    out.message(LINES)
    with pytest.raises(CheckpointFailedError) as refused:
        job_commands.cancel_job(JOB, str(forging), 0.1, out)
    out.error(refused.value)
    out.error(InvalidInputError(LINES, remedy=LINES))
    with progress(out, LINES, 3) as advance:
        advance(3)
    told = capsys.readouterr()
    assert "FORGED" in told.out
    assert "FORGED" in told.err
    assert not re.search(r"^FORGED", told.out + told.err, re.MULTILINE)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", told.out + told.err)


def test_a_value_of_several_lines_is_one_line_and_json_has_it_to_the_letter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output().line(state_queries._line("a\tb\nc"))
    assert capsys.readouterr().out == "a\\tb\\nc\n"
    Output(as_json=True).document({"value": "a\tb\nc"})
    assert json.loads(capsys.readouterr().out) == {"value": "a\tb\nc"}


def test_a_traceback_that_was_asked_for_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().error(InvalidInputError(HOSTILE), debug=True)
    told = capsys.readouterr().err
    assert "InvalidInputError" in told
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", told)


def test_colours_of_ours_stay_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Output()
    out.line(out.style("fine", "green") + " \x1b[2J\x1b]0;owned\x07")
    assert screen.getvalue() == "\x1b[32m\x1b[1mfine\x1b[0m \\x1b[2J\\x1b]0;owned\\x07\n"


def test_json_means_what_it_meant() -> None:
    value = {"text": HOSTILE, "wide": "\U000e0001é", "alone": "\udc80"}
    text = json_text(value)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    assert "é" in text
    assert printable("\U000e0001") == "\\U000e0001"


def test_a_change_is_one_line_of_the_audit_log(web: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cairn.audit"):
        body = b'{"surprise":\n"x\x1b[2J"}'
        path = f"/api/v1/jobs/{JOB}%0AGET%20forged/checkpoints"
        web.post(path, content=body, headers={**BEARER, "Content-Type": "application/json"})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "cairn.audit"]
    assert line.isprintable(), line
    assert "\\n" in line
    assert TOKEN not in line


def test_metrics_and_tables_hold_it(web: TestClient) -> None:
    metrics = web.get("/metrics").text
    assert all(re.match(r"(# |cairn_)", line) for line in metrics.splitlines())
    assert "alert" not in metrics
    rows = list(csv.reader(io.StringIO(web.get(f"/api/v1/jobs/{JOB}/checkpoints.csv").text)))
    causes = {row[0]: row[-1] for row in rows[1:]}
    assert causes["7"] == f"'{FORMULA}"
    assert causes["8"].startswith("'")
    assert len({len(row) for row in rows}) == 1


def test_a_body_that_does_not_come_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "BODY_SECONDS", 0.05)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def app(*_: Any) -> None:
        raise AssertionError("it was let through")

    headers = [
        (b"host", b"127.0.0.1"),
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"content-type", b"application/json"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    asyncio.run(security.Guard(app, WebOptions(token=TOKEN))(scope, receive, send))
    assert sent[0]["status"] == 408


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", FORMULA]


class Formulas(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.text = runtime_context.get_state(ValueStateDescriptor("text", "string"))
        self.number = runtime_context.get_state(ValueStateDescriptor("number", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.text.update(value.key)
        self.number.update(value.n)
        yield (value.key, "")


def exported(tmp_path: Path, state: str, *options: str) -> list[list[str]]:
    if not (tmp_path / "job").exists():
        with harness(Formulas(), tmp_path / "job") as job:
            job.push(*[(text, -1 - number) for number, text in enumerate([*FORMULAS, "plain", "1-1"])])
            job.run_epoch()
        checkpoint_of(tmp_path / "job")
    target = tmp_path / f"{state}{len(options)}.csv"
    assert call("state", "export", str(tmp_path / "job"), UID, state, str(target), *options)[0] == 0
    with target.open(newline="") as file:
        return list(csv.reader(file))


def test_exported_text_begins_no_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    safe = {f"'{text}" for text in FORMULAS} | {"plain", "1-1"}
    head, *rows = exported(tmp_path, "text")
    assert {row[head.index("value")] for row in rows} == safe
    assert {row[head.index("key")] for row in rows} == safe
    head, *rows = exported(tmp_path, "number")
    assert {int(row[head.index("value")]) for row in rows} == {-1 - number for number in range(len(FORMULAS) + 2)}


def test_exported_text_is_raw_where_that_is_asked_for(tmp_path: Path) -> None:
    head, *rows = exported(tmp_path, "text", "--raw-csv")
    assert {row[head.index("value")] for row in rows} == {*FORMULAS, "plain", "1-1"}


def test_a_job_whose_id_is_no_name_is_damaged(tmp_path: Path) -> None:
    made = make_job(tmp_path)
    identity = json.loads((made / "job.json").read_text())
    (made / "job.json").write_text(json.dumps({**identity, "job_id": LINES}))
    with pytest.raises(CorruptFileError, match=r"job\.json is refused: job id 'a\\nFORGED"):
        JobReader(str(made)).identity()
