"""How far long work is: parts of a savepoint on a real terminal, lines in a pipe, nothing beside JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.cli_process import ask_server, environment
from tests.support.web_job import JOB, UID, make_job

from cairn.cli import progress_bar as shown
from cairn.cli.checkpoint_commands import step_of
from cairn.cli.output import Output
from cairn.cli.progress_bar import Step, amount
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType, OperatorStats, SubtaskStats

RUNNING = CheckpointInfo(9, CheckpointStatus.IN_PROGRESS, CheckpointType.SAVEPOINT, 1)


def test_a_checkpoint_in_progress_is_told_in_steps() -> None:
    assert step_of(RUNNING, "savepoint").total == 0
    parts = msgspec.structs.replace(RUNNING, parts=8, parts_done=3)
    assert amount(step_of(parts, "savepoint")) == "3 of 8 parts"
    operators = [OperatorStats("a", "A", [SubtaskStats(0, 1)], 4), OperatorStats("b", "B", [], 2)]
    some = msgspec.structs.replace(RUNNING, operators=operators)
    assert amount(step_of(some, "checkpoint")) == "1 of 6 subtasks"
    assert amount(Step("x", 1 << 20, 3 << 30, "bytes")) == "1.0 MiB of 3.0 GiB"


def test_lines_come_now_and_then_and_never_beside_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.0)
    with shown.progress(Output(), "verifying", 4096, "bytes") as advance:
        advance(1024)
        advance(0)
        advance(3072)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "verifying: 0 B of 4.0 KiB",
        "verifying: 1.0 KiB of 4.0 KiB",
        "verifying: 4.0 KiB of 4.0 KiB",
    ]
    monkeypatch.setattr(shown, "LINE_SECONDS", 60.0)
    with shown.progress(Output(), "verifying", 10) as advance:
        for _ in range(10):
            advance(1)
    assert capsys.readouterr().err == ""
    with shown.progress(Output(as_json=True), "verifying", 10) as advance:
        advance(10)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_restore_is_shown_while_there_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.0)
    with shown.display(Output()) as show:
        show(Step("restoring totals", 1, 4, "pieces"))
        show(None)
        show(Step("restoring top", 0, 2, "pieces"))
    assert capsys.readouterr().err.splitlines() == ["restoring totals: 1 of 4 pieces", "restoring top: 0 of 2 pieces"]


class SlowJob:
    """Plays a job that writes a savepoint of four parts, one for each time that it is asked how far it is."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "control"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        done = 0
        waiting = ""
        while not self._stop.wait(0.01):
            for path in self._control.glob("*") if self._control.exists() else ():
                if path.suffix or path.name.startswith("."):
                    continue
                asked = json.loads(path.read_text())
                if asked["action"] == "progress":
                    info = {"id": 9, "status": "IN_PROGRESS", "type": "SAVEPOINT", "trigger_ms": 1, "parts": 4}
                    told: list[dict[str, Any]] = [{**info, "parts_done": done, "request": waiting}] if waiting else []
                    done += 1
                    self._answer(path, asked, {"checkpoints": told})
                elif not waiting:
                    waiting = path.name
                    (self._control / f"{waiting}.taken").touch()
            if waiting and done > 3:
                info = {
                    "id": 9,
                    "status": "COMPLETED",
                    "type": "SAVEPOINT",
                    "trigger_ms": 1,
                    "end_ms": 1501,
                    "path": "/s",
                }
                self._answer(self._control / waiting, {"action": "savepoint"}, {"checkpoint": info})
                return

    def _answer(self, path: Path, asked: dict[str, Any], answer: dict[str, Any]) -> None:
        gist = {"action": asked["action"], "drain": False}
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps({"asked": gist, **answer}))
        unfinished.rename(path.with_name(f"{path.name}.done"))
        path.unlink(missing_ok=True)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    folder = make_job(tmp_path, ended="")
    job = SlowJob(folder)
    yield folder
    job.close()


def on_terminal(*args: str, columns: int = 100, **env: str) -> str:
    """What a command shows on a pseudo-terminal."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    kept = {name: value for name, value in environment(**env).items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    ended: list[int] = []
    variables = {**kept, "TERM": env.get("TERM", "xterm-256color")}
    command = threading.Thread(
        target=lambda: ended.append(ask_server(args, variables, terminal=os.ttyname(theirs))), daemon=True
    )
    command.start()
    seen = b""
    while command.is_alive() or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    assert ended == [0], seen
    return seen.decode()


def test_a_savepoint_has_a_bar_on_a_terminal(slow: Path) -> None:
    seen = on_terminal("savepoint", str(slow))
    parts = [int(n) for n in re.findall(r"(\d) of 4 parts", seen)]
    assert parts, seen
    assert parts == sorted(parts)
    assert "writing savepoint 9" in seen
    assert "━" in seen
    assert "completed in 1.5 s" in seen
    assert "/s\r\n" in seen


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(tmp_path: Path, columns: int) -> None:
    folder = make_job(tmp_path, ended="")
    for args in (["list", "--dir", str(tmp_path)], ["checkpoints", str(folder)], ["state", "ls", str(folder)]):
        seen = on_terminal(*args, columns=columns)
        lines = plain(seen)
        table = [line for line in lines if not re.match(r"  \S+: |\w+ of ", line)]  # lines with paths are broken
        assert max(len(line) for line in table) <= columns, args
        text = "".join(line.strip() for line in lines)
        assert (JOB if args[0] != "state" else UID) in text
        assert "…" not in text, f"{args} cuts words off at {columns} columns"
        if args[0] == "checkpoints":
            assert re.search(r"COMPLETED", text), "a status is never broken"
