"""Commands of cairn, each in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
VARIABLES_OF_OURS = ("CAIRN_CONFIG", "CAIRN_DEBUG")


def cairn(*args: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that is forked from one that has imported the command line already.

    Where the start of the interpreter is tested, too, use `started`.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        code = ask_server(args, environment(**env), cwd, output=files)
        out, err = (Path(path).read_text() for path in files)
    return subprocess.CompletedProcess(["cairn", *map(str, args)], code, out, err)


def started(*args: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "cairn.cli.main", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**env),
        timeout=PATIENCE,
        check=False,
    )


def ask_server(args: tuple[str | Path, ...], env: dict[str, str], cwd: Path | None = None, **where: Any) -> int:
    """Have the server of this test process run a command; its exit code."""
    process = server()
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"args": [*map(str, args)], "env": env, "cwd": str(cwd or Path.cwd()), **where}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"the server of the command line ended with {process.wait()}"
    return int(answer)


@functools.cache
def server() -> subprocess.Popen[str]:
    """Ends when its input does, with this process at the latest."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.cli_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_interrupts,
    )


def environment(**extra: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in VARIABLES_OF_OURS} | extra


def job(folder: Path, text: str) -> Path:
    path = folder / "job.py"
    path.write_text(text)
    return path


def listen_to_interrupts() -> None:
    """A shell that runs the tests in the background ignores Ctrl-C, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
