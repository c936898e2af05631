"""What every command has: colours, quiet and verbose, JSON for results, events and errors."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_process import cairn, environment, job, listen_to_interrupts
from tests.support.patience import PATIENCE
from tests.support.web_job import make_job

from cairn.cli.common import arranged
from cairn.cli.output import Output, problem_document
from cairn.cli.run_events import RunEvents, watched
from cairn.config import Settings
from cairn.coordinator.epoch_loop import EpochReport
from cairn.errors import UserFunctionError
from cairn.events import PROCESS_EVENTS, CheckpointCompleted, StateMoved
from cairn.job.epoch_gate import EpochGate
from cairn.job.job_context import JobContext
from cairn.job.job_events import EpochCommitted, JobEnded, JobRestarting, JobStarted
from cairn.job.job_run import JobRun
from cairn.job.life_cycle import JobState, JobStatus
from cairn.storage.filesystem import LocalFileSystem

PROBLEM = {"type", "title", "detail", "code", "remedy", "exit_code", "location", "cause"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["list", "--no-color"], ["--no-color", "list"]),
        (["-q", "state", "ls", "-v", "path"], ["-q", "-v", "state", "ls", "path"]),
        (["state", "get", "p", "--", "-q"], ["state", "get", "p", "--", "-q"]),
        (["--no-color", "run", "job.py", "-v", "--quiet"], ["--no-color", "run", "job.py", "-v", "--quiet"]),
        (["--debug", "-v", "plan", "job.py", "-q"], ["-v", "--debug", "plan", "job.py", "-q"]),
        ([], []),
    ],
)
def test_common_options_may_stand_anywhere_but_among_those_of_a_script(given: list[str], expected: list[str]) -> None:
    assert arranged(given) == expected


def test_quiet_leaves_messages_out_and_verbose_adds_the_log(tmp_path: Path) -> None:
    script = job(
        tmp_path,
        "import logging\nlog = logging.getLogger('cairn.job')\n"
        "log.info('some news')\nlog.warning('a warning')\nlog.error('trouble')\nprint('result')\n",
    )
    plain = cairn("run", script)
    assert ("some news" in plain.stderr, "a warning" in plain.stderr) == (False, True)
    quiet = cairn("-q", "run", script)
    assert ("a warning" in quiet.stderr, "trouble" in quiet.stderr) == (False, True)
    assert quiet.stdout == "result\n"
    verbose = cairn("--verbose", "run", script)
    assert "INFO cairn.job: some news" in verbose.stderr
    assert verbose.stderr.count("a warning") == 1
    assert cairn("-q", "-v", "list").returncode == 2


def test_quiet_output_says_errors_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAIRN_QUIET", "1")
    out = Output()
    out.message("on the way")
    out.line("the result")
    out.error(UserFunctionError("it broke"))
    told = capsys.readouterr()
    assert told.out == "the result\n"
    assert "on the way" not in told.err
    assert "it broke" in told.err


def test_no_color_is_taken_after_the_command(tmp_path: Path) -> None:
    make_job(tmp_path)
    answer = cairn("list", "--dir", tmp_path, "--no-color", "-q", FORCE_COLOR="1")
    assert answer.returncode == 0, answer.stderr
    assert "\x1b" not in answer.stdout


# Errors as JSON.


def problem_of(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert answer.stdout == ""
    document: dict[str, Any] = json.loads(answer.stderr)
    assert set(document) == PROBLEM
    assert document["exit_code"] == answer.returncode
    assert document["type"] == f"urn:cairn:error:{document['code']}"
    return document


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (["verify", "/nope", "--json"], 3, "not-found"),
        (["checkpoints", "nobody", "--dir", "/nope", "--json"], 3, "not-found"),
        (["list", "--json", "--nonsense"], 2, "usage"),
        (["lst", "--json"], 2, "usage"),
        (["state", "ls", "--json"], 2, "usage"),
    ],
)
def test_errors_are_problem_documents_with_json(args: list[str], code: int, kind: str) -> None:
    answer = cairn(*args)
    assert answer.returncode == code, answer.stderr
    assert problem_of(answer)["code"] == kind


def test_errors_for_people_stay_as_they_are() -> None:
    answer = cairn("lst")
    assert answer.returncode == 2
    assert "Did you mean" in answer.stderr
    assert "Usage:" in answer.stderr
    assert cairn("verify", "/nope").stderr.startswith("error [not-found]")
    assert cairn().returncode in (0, 2)


def test_a_problem_names_the_line_of_user_code() -> None:
    error = UserFunctionError("it broke", file="rules.py", line=3, function="check", traceback="Traceback ...")
    told = problem_document(error)
    assert told["location"] == {"file": "rules.py", "line": 3, "function": "check"}
    assert told["cause"] == "Traceback ..."


def test_a_waiting_command_ends_with_130(tmp_path: Path) -> None:
    folder = make_job(tmp_path, ended="", pid=os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-m", "cairn.cli.main", "checkpoint", str(folder)], stderr=subprocess.PIPE, text=True,
        env=environment(), preexec_fn=listen_to_interrupts,
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        assert "requesting a checkpoint of job" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130


# Events of a run.


class Job:
    restarts = 1

    def __init__(self, directory: Path) -> None:
        files = LocalFileSystem(str(directory))
        self.context = JobContext("Orders", "orders", files, Settings())
        self.current = JobRun(self.context, EpochGate(), 2, 4)

    def status(self) -> JobStatus:
        return JobStatus.FAILED

    def exception(self) -> UserFunctionError:
        return UserFunctionError("it broke")


def report(epoch: int) -> EpochReport:
    return EpochReport(epoch, 10, 5, 3, 3, 100, 12.5, 0, 0)


def test_what_happens_is_told_in_lines_and_summed_up(tmp_path: Path) -> None:
    (tmp_path / "chk-3").mkdir()
    stream = io.StringIO()
    events = RunEvents(stream)
    orders = Job(tmp_path)
    events.hear(JobStarted(orders))
    for epoch in (5, 6):
        events.hear(EpochCommitted(orders, report(epoch)))
    events.hear(CheckpointCompleted("orders", 3))
    events.hear(StateMoved("op", 1, 2))
    events.hear(JobRestarting(orders, UserFunctionError("once")))
    events.hear(JobEnded(orders, JobState.FAILING, UserFunctionError("it broke")))
    events.summary(1, UserFunctionError("it broke"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "started", "epoch", "epoch", "checkpoint", "restarting", "ended", "summary",
    ]  # fmt: skip
    assert (lines[1]["epoch"], lines[1]["rows_in"], lines[1]["duration_ms"]) == (5, 10, 12.5)
    assert lines[3]["path"] == str(tmp_path / "chk-3")
    assert lines[4]["error"]["detail"] == "once"
    summary = lines[-1]
    assert (summary["version"], summary["exit_code"], summary["error"]["code"]) == (1, 1, "user-function")
    (sums,) = summary["jobs"]
    assert (sums["epoch"], sums["epochs"], sums["rows_in"], sums["rows_out"]) == (6, 2, 20, 10)
    assert (sums["state"], sums["checkpoint"], sums["restarts"]) == ("FAILED", str(tmp_path / "chk-3"), 1)


def test_only_what_is_printed_is_asked_for() -> None:
    with watched():
        assert PROCESS_EVENTS.has_listeners(EpochCommitted)
        assert PROCESS_EVENTS.has_listeners(CheckpointCompleted)
        assert not PROCESS_EVENTS.has_listeners(StateMoved), "its progress costs something"
    assert not PROCESS_EVENTS.has_listeners(EpochCommitted)


def test_stdout_of_a_run_is_json_only(tmp_path: Path) -> None:
    answer = cairn("run", job(tmp_path, "print('rows of a sink')"), "--json")
    assert answer.returncode == 0, answer.stderr
    (line,) = answer.stdout.splitlines()
    assert json.loads(line)["jobs"] == []
    assert "rows of a sink" in answer.stderr
    failing = cairn("run", job(tmp_path, "from cairn.errors import StorageError\nraise StorageError('full')"), "--json")
    assert failing.returncode == 7
    assert json.loads(failing.stdout)["error"]["code"] == "storage"
    assert json.loads(failing.stderr.splitlines()[-1])["detail"] == "full"
