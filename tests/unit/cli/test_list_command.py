"""`cairn list`, `cancel`, `ui` and `plan-memory` on the directory of a job."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_process import cairn, environment
from tests.support.patience import PATIENCE
from tests.support.rest_client import Answering
from tests.support.web_job import JOB, make_job
from typer.testing import CliRunner

from cairn.cli.completion import job_names
from cairn.cli.main import app
from cairn.cli.memory_command import plan_memory
from cairn.errors import CorruptFileError, InvalidInputError
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import create_identity
from cairn.text import printable


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    make_job(folder, ended="")
    return folder


def test_list_tells_every_job_in_a_line(root: Path) -> None:
    answer = cairn("list", "--dir", root)
    assert answer.returncode == 0, answer.stderr
    line = next(line for line in answer.stdout.splitlines() if JOB in line)
    assert "RUNNING" in line
    assert "running with problems" in line
    assert "\x1b" not in answer.stdout
    told = json.loads(cairn("list", "--dir", root, "--json").stdout)
    assert (told["version"], told["jobs"][0]["jid"], told["jobs"][0]["state"]) == (1, JOB, "RUNNING")


def test_a_damaged_neighbour_hides_nobody_and_is_told(tmp_path: Path) -> None:
    for name in ("payments", "orders", "orders-eu"):
        create_identity(LocalFileSystem(str(tmp_path / name)), name, name.title(), 16)
    (tmp_path / "orders" / "job.json").write_text("{")
    (tmp_path / "returns").mkdir()
    (tmp_path / "returns" / "job.json").write_text("[]")
    where = ["--dir", str(tmp_path), "--json"]

    def call(*args: str) -> Any:
        return CliRunner().invoke(app, [*args, *where])

    assert json.loads(call("checkpoints", "payments").stdout)["job"] == "payments"
    assert json.loads(call("checkpoints", "Orders-Eu").stdout)["job"] == "orders-eu"
    for job in ("orders", "returns", "ret"):
        error = call("checkpoints", job).exception
        assert isinstance(error, CorruptFileError), job
        assert "job.json cannot be read" in error.message
    error = call("checkpoints", "order").exception
    assert "'order' is ambiguous: orders, orders-eu" in str(error)
    error = call("checkpoints", "nobody").exception
    assert "cannot be read: orders, returns" in str(error)
    told = json.loads(call("list").stdout)
    assert sorted(job["jid"] for job in told["jobs"]) == ["orders-eu", "payments"]
    assert [Path(found["directory"]).name for found in told["damaged"]] == ["orders", "returns"]
    assert all("job.json cannot be read" in found["error"] for found in told["damaged"])
    shown = CliRunner().invoke(app, ["list", "--dir", str(tmp_path)])
    assert shown.exit_code == 0
    assert any("orders " in line and "DAMAGED" in line for line in shown.stdout.splitlines())


def test_list_of_nothing_and_of_a_place_that_is_not_there(tmp_path: Path) -> None:
    assert "no jobs in" in cairn("list", "--dir", tmp_path).stdout
    assert cairn("list", "--dir", tmp_path / "nothing").returncode == 3


def test_a_mistyped_job_and_a_mistyped_command_are_guessed(root: Path) -> None:
    answer = cairn("checkpoints", "harnes_", "--dir", root)
    assert answer.returncode == 3
    assert "did you mean 'harness'?" in answer.stderr
    wrong = cairn("lst")
    assert wrong.returncode == 2
    assert "list" in wrong.stderr


def test_cancel_asks_and_does_not_ask_where_nobody_is(root: Path) -> None:
    refused = cairn("cancel", JOB, "--dir", root)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    dry = cairn("cancel", JOB, "--dir", root, "--dry-run")
    assert (dry.returncode, "nothing was changed" in dry.stdout) == (0, True)
    assert not list((root / JOB).glob("control/*"))


def test_cancel_reaches_the_job(tmp_path: Path) -> None:
    folder = make_job(tmp_path, ended="")
    with Answering(folder, {"done": True}) as job:
        answer = cairn("cancel", folder, "--yes", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == {"version": 1, "job": JOB, "canceled": True, "checkpoints": [2, 4]}
    assert [question["action"] for question in job.asked] == ["cancel"]


def test_ui_serves_a_directory_and_ends_with_ctrl_c(root: Path) -> None:
    command = [sys.executable, "-m", "cairn.cli.main", "ui", str(root), "--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            text = ""
            while "}" not in text:
                line = process.stdout.readline()
                assert line, process.stderr.read() if process.stderr else ""
                text += line
            told = json.loads(text)
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    with urllib.request.urlopen(f"{told['url']}/api/v1/jobs") as answer:
                        found = json.load(answer)
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            assert found == {"jobs": [{"id": JOB, "status": "RUNNING"}]}
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", told["link"])
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) in (0, 130, -signal.SIGINT)


def test_ui_on_an_open_address_needs_a_token(root: Path) -> None:
    answer = cairn("ui", root, "--bind", "0.0.0.0", "--port", "0")
    assert answer.returncode == 2
    assert "requires a token" in answer.stderr


def test_memory_is_planned_from_a_snapshot_or_from_numbers(root: Path) -> None:
    measured = json.loads(cairn("plan-memory", root / JOB, "--json").stdout)
    assert measured["keys"] == 7
    assert measured["host_memory"] >= 4 * (120 << 20)
    assert cairn("plan-memory").returncode == 2


def test_the_plan_grows_with_keys_and_shrinks_with_parallelism() -> None:
    small = plan_memory(1_000_000, 100, 10_000, 4, 4, "lmdb", 128)
    wide = plan_memory(1_000_000, 100, 10_000, 8, 4, "lmdb", 128)
    assert wide.store_bytes < small.store_bytes
    assert small.delta_bytes == 10_000 * 100
    resident = plan_memory(1_000_000, 100, 10_000, 4, 4, "hashmap", 128)
    assert resident.worker_bytes > small.worker_bytes
    assert resident.host_disk == 0
    with pytest.raises(InvalidInputError, match="no estimate"):
        plan_memory(1, 1, 1, 1, 1, "paper", 128)


def test_foreign_text_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"


def test_completion_offers_jobs_and_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert job_names("") == []
    for name in ("orders", "other", "photos"):
        (tmp_path / "cairn-data" / name).mkdir(parents=True)
    for name in ("orders", "other"):
        (tmp_path / "cairn-data" / name / "job.json").write_text("{}")
    assert job_names("o") == ["orders", "other"]
    assert job_names("x") == []


def test_help_is_quick_and_light() -> None:
    script = (
        "import sys, time; began = time.process_time(); sys.argv = ['cairn', '--help']\n"
        "from cairn.cli.main import main\n"
        "code = main()\n"
        "heavy = {'pyspark', 'pyarrow', 'fastapi', 'uvicorn', 'msgspec', 'rich.table'} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else f'{time.process_time() - began}')\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=False
    )
    assert "imported" not in answer.stderr, answer.stderr
    assert float(answer.stderr.strip().splitlines()[-1]) < 0.3


def test_the_page_of_the_command_line_has_every_command_and_exit_code() -> None:
    import typer.main

    from cairn.cli.exit_codes import ExitCode
    from cairn.cli.main import app

    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"| `cairn {name}" in page, name
    for code in ExitCode:
        assert f"\n| {code.value} | " in page, code
