"""The recording of the commands in docs/images: it can be played, it is of today's commands, and its script works."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from cairn.cli.main import app

ROOT = Path(__file__).parents[3]
CAST = ROOT / "docs" / "images" / "commands.cast"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", ROOT / "scripts" / "record.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def events() -> list[Any]:
    return [json.loads(line) for line in CAST.read_text().splitlines()]


def shown(events: list[Any]) -> str:
    return "".join(text for _, _, text in events[1:])


def test_the_recording_is_asciinemas(events: list[Any]) -> None:
    header = events[0]
    assert (header["version"], header["width"] > 0, header["height"] > 0) == (2, True, True)
    assert all(len(event) == 3 and event[1] == "o" and isinstance(event[2], str) for event in events[1:])
    times = [event[0] for event in events[1:]]
    assert times == sorted(times)
    assert 10 < times[-1] < 180, "short enough to be watched"


def test_it_says_nothing_of_the_machine_and_nothing_failed(events: list[Any], script: ModuleType) -> None:
    text = "\n".join(script.screen(shown(events)))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not re.search(r"/(home|root|work|Users)/", plain)
    assert not re.search(r"error \[|Traceback|command not found|No such", plain)
    for words in ("is exact", "RUNNING", "COMPLETED", "is intact", "has stopped", "FINISHED"):
        assert words in plain, words


def test_every_command_that_is_typed_was_recorded_and_exists(events: list[Any], script: ModuleType) -> None:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown(events)).replace("\n", "")
    root: Any = typer.main.get_command(app)
    for command in script.COMMANDS:
        assert command.replace(" ", "") in plain.replace(" ", ""), f"{command} was not recorded: run scripts/record.py"
        words = shlex.split(command.rstrip("&").split(">")[0])
        if words[0] != "cairn":
            continue
        found, rest = root, words[1:]
        while rest and rest[0] in getattr(found, "commands", {}):
            found, rest = found.commands[rest[0]], rest[1:]
        assert not hasattr(found, "commands"), f"{command}: there is no such command"
        known = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in rest if re.match(r"--?[a-zA-Z]", word)} <= known, command


def test_the_script_still_drives_a_terminal(script: ModuleType, tmp_path: Path) -> None:
    terminal = script.Terminal(tmp_path, columns=80)
    try:
        told = terminal.type_line("python -m cairn.cli.main list --dir .", 60)
        assert "no jobs in ." in told
    finally:
        made = script.cast(terminal.events, 80)
        terminal.close()
    first, *rest = [json.loads(line) for line in made.splitlines()]
    assert first["width"] == 80
    assert "no jobs in ." in "".join(event[2] for event in rest)


def test_pauses_are_cut_and_bars_are_wiped(script: ModuleType) -> None:
    lines = script.cast([(0.0, "a"), (100.0, "b"), (100.5, "")]).splitlines()
    assert json.loads(lines[-1]) == [script.TYPING + script.LONGEST_PAUSE, "o", "b"]
    assert script.screen("one\r\n\x1b[?25lbar 1\r\x1b[2Kbar 2\r\n\x1b[1A\x1b[2K\x1b[?25hdone\r\n") == [
        "one",
        "done",
        "",
    ]
