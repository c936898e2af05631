"""Records the main commands in a real terminal: `docs/images/commands.cast` (asciinema v2) and pictures of it as SVG.

Run in the project's root: `.venv/bin/python scripts/record.py [FOLDER]`. It types the commands below into a shell on a
pseudo-terminal, waits for each to end, and writes down what the terminal showed, with pauses cut short. Needs Java.
Play it with `asciinema play docs/images/commands.cast`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

COLUMNS, ROWS = 112, 30
LONGEST_PAUSE = 1.2
READING = 1.6
"""Seconds that a reader gets after each command."""
TYPING = 0.03
PROMPT = "\x1b[1;32m$\x1b[0m "
JOB = """\
from cairn import FileSink, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment(config={
    "execution.checkpointing.interval": "2 s",
    "execution.checkpointing.incremental": True,
    "execution.checkpointing.savepoint-dir": "savepoints",
})
env.set_trigger(processing_time="1 second")
rows = env.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5000).load()
words = rows.selectExpr("concat('user-', value * 48271 % 500) AS user")
counts = env.from_df(words).key_by("user").count(uid="visits")
counts.sink_to(FileSink("out"), uid="files")
env.execute("visits")
"""
START = "cairn run visits.py --master 'local[2]' -p 2 >visits.log 2>&1 &"
COMMANDS = (
    "cairn demo --epochs 4 --rows 2000",
    "cat visits.py",
    START,
    "cairn list",
    "cairn checkpoints visits --limit 4",
    "cairn savepoint visits",
    "cairn state ls savepoints/*",
    "cairn state show savepoints/* visits --limit 4",
    "cairn verify savepoints/*",
    "cairn stop visits",
    "cairn list",
)
PICTURES = {
    "terminal-checkpoints": ("cairn checkpoints",),
    "terminal-savepoint": ("cairn savepoint", "cairn state show"),
}
"""Pictures by name, and the beginnings of the commands that they show."""


class Terminal:
    """A shell on a pseudo-terminal that is typed into and listened to."""

    def __init__(self, folder: Path, columns: int = COLUMNS, rows: int = ROWS, path: Sequence[str] = ()) -> None:
        self.events: list[tuple[float, str]] = []
        self._began = time.monotonic()
        self._rest = b""
        environment = {
            "PATH": os.pathsep.join([*path, str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(folder), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PS1": PROMPT, "PS2": "",
            **{name: os.environ[name] for name in ("JAVA_HOME", "PYTHONPATH") if name in os.environ},
        }  # fmt: skip
        self._pid, self._handle = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i", "+m"], environment)
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.wait_for_prompt(30)
        self.type_line("set +o history; bind 'set enable-bracketed-paste off'", 30)
        self.events.clear()
        self._began = time.monotonic()
        self._write("\n")
        self.wait_for_prompt(30)

    def _write(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def _listen(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._handle], [], [], seconds)
        if not ready:
            return False
        try:
            data = self._rest + os.read(self._handle, 65536)
        except OSError:  # the shell is gone
            return False
        for cut in range(len(data), max(-1, len(data) - 4), -1):  # a character may be in two pieces
            try:
                text = data[:cut].decode()
            except UnicodeDecodeError:
                continue
            self._rest = data[cut:]
            if text:
                self.events.append((time.monotonic() - self._began, text))
            break
        return True

    def wait_for_prompt(self, timeout: float) -> None:
        """Until the shell asks for the next command."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            told = "".join(text for _, text in self.events)
            if told.endswith(PROMPT) and not self._listen(0.05):
                return
            self._listen(0.2)
        raise TimeoutError(f"no prompt within {timeout:.0f} s; the terminal shows: {told[-400:]!r}")

    def type_line(self, text: str, timeout: float = 300) -> str:
        """Type a command as a person would, and wait for its end. Returns what it printed, its own line included."""
        first = len(self.events)
        for character in text:
            self._write(character)
            self._listen(0.02)
        self.events.append((time.monotonic() - self._began, ""))
        self._write("\n")
        told = len(self.events)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not any("\n" in part for _, part in self.events[told:]):
            self._listen(0.2)
        self.wait_for_prompt(max(1.0, deadline - time.monotonic()))
        return "".join(part for _, part in self.events[first:]).removesuffix(PROMPT)

    def close(self) -> None:
        os.close(self._handle)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGHUP)
        os.waitpid(self._pid, 0)


def cast(events: Sequence[tuple[float, str]], columns: int = COLUMNS, rows: int = ROWS) -> str:
    """An asciinema v2 file: a header, then a line for each piece of output, at a reader's pace."""
    header = {"version": 2, "width": columns, "height": rows, "title": "cairn", "env": {"TERM": "xterm-256color"}}
    lines = [json.dumps(header)]
    now = last = 0.0
    for moment, text in events:
        now += min(LONGEST_PAUSE, max(0.0, moment - last))
        last = moment
        if text:
            lines.append(json.dumps([round(now, 3), "o", text], ensure_ascii=False))
        now += READING if text.endswith(PROMPT) else TYPING if len(text) == 1 else 0.0
    return "\n".join(lines) + "\n"


def screen(text: str) -> list[str]:
    """The lines that a terminal shows in the end, colours kept: enough of a terminal for what our commands print."""
    lines: list[str] = [""]
    row = 0
    restart = False
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r|\n)", text):
        if part == "\n":
            row += 1
            restart = False
            if row == len(lines):
                lines.append("")
        elif part == "\r":
            restart = True
        elif part.startswith("\x1b["):
            count = int(part[2:-1]) if part[2:-1].isdigit() else 1
            if part[-1] == "A":
                row = max(0, row - count)
            elif part[-1] == "K":
                lines[row] = ""
            elif part[-1] == "m":
                lines[row] = part if restart and lines[row] == "" else lines[row] + part
        elif part and not part.startswith("\x1b"):
            lines[row] = part if restart else lines[row] + part
            restart = False
    return lines


def picture(text: str, target: Path) -> None:
    """What the terminal showed, as SVG without foreign fonts."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    shown = Text.from_ansi("\n".join(screen(text)).strip("\n"))
    console.print(shown, soft_wrap=False)
    made = console.export_svg(title="cairn", unique_id=target.stem)
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", made, flags=re.DOTALL))


def record(folder: Path, target: Path) -> None:
    (folder / "visits.py").write_text(JOB)
    terminal = Terminal(folder)
    told: list[tuple[str, str]] = []
    try:
        for command in COMMANDS:
            if command == COMMANDS[COMMANDS.index(START) + 1]:
                wait_for_checkpoints(folder / "cairn-data" / "visits", 4)
            told.append((command, terminal.type_line(command)))
        terminal.type_line("wait")
    finally:
        events = list(terminal.events)
        terminal.close()
    target.mkdir(parents=True, exist_ok=True)
    (target / "commands.cast").write_text(cast(events))
    for name, beginnings in PICTURES.items():
        parts = [PROMPT + text for command, text in told if command.startswith(beginnings)]
        picture("".join(parts), target / f"{name}.svg")


def wait_for_checkpoints(job: Path, wanted: int, timeout: float = 180) -> None:
    """Until the job that was started has something to show."""
    deadline = time.monotonic() + timeout
    while len(list(job.glob("history/*"))) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the job in {job} has not taken {wanted} checkpoints within {timeout:.0f} s")
        time.sleep(0.5)


def main(target: Path) -> None:
    folder = Path(tempfile.gettempdir()) / "visits"  # a short path that says nothing of this machine
    if folder.exists():
        raise SystemExit(f"{folder} exists already; remove it first")
    folder.mkdir()
    try:
        record(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
