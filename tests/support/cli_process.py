"""Commands of cairn, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE

VARIABLES_OF_OURS = ("CAIRN_CONFIG", "CAIRN_DEBUG")


def cairn(*args: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cairn.cli.main", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**env),
        timeout=PATIENCE,
        check=False,
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
