"""Runs whole programs as users do: a process of its own, its output line by line, and an end by force."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from tests.support.patience import PATIENCE

QUICK = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "parallelism.default": 2,
}


class Program:
    """One start of a script by `cairn run`, in `folder`, which also takes the working stores.

    `cairn` is the command of another installation, and `variables` the environment that it runs in.
    """

    def __init__(
        self,
        script: Path,
        folder: Path,
        *args: str,
        cairn: Sequence[str] = (sys.executable, "-m", "cairn.cli.main"),
        variables: Mapping[str, str] = os.environ,
    ) -> None:
        config = {**QUICK, "execution.checkpointing.local-backup.dirs": str(folder / "stores")}
        self._errors = (folder / "stderr.txt").open("ab")
        self._process = subprocess.Popen(
            [*cairn, "run", str(script), *args],
            cwd=folder,
            env={**variables, "CAIRN_CONFIG": json.dumps(config), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._folder = folder
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, enough: Callable[[list[str]], bool]) -> list[str]:
        """The lines so far, once there are enough of them."""
        deadline = time.monotonic() + PATIENCE
        while not enough(self.lines):
            assert self._reader.is_alive(), f"the program ended early:\n{self._said()}"
            assert time.monotonic() < deadline, f"nothing for {PATIENCE} seconds:\n{self._said()}"
            time.sleep(0.05)
        return list(self.lines)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds, which it must before the program ends."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited for {PATIENCE} seconds:\n{self._said()}"
            assert self._process.poll() is None, f"the program ended early:\n{self._said()}"
            time.sleep(0.1)

    def finish(self) -> list[str]:
        """All lines of a program that ends by itself, which it must do well."""
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert code == 0, f"exit code {code}:\n{self._said()}"
        return self.lines

    def _said(self) -> str:
        errors = (self._folder / "stderr.txt").read_text(errors="replace").splitlines()[-40:]
        return "\n".join([*self.lines[-20:], "--- stderr", *errors])

    def kill(self) -> None:
        """SIGKILL to all processes of the program, the JVM and the Python workers among them."""
        family = [self._process.pid]
        if self._process.poll() is None:
            family += [child.pid for child in psutil.Process(self._process.pid).children(recursive=True)]
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(PATIENCE)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *reason: object) -> None:
        self.kill()
        self._reader.join(PATIENCE)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def command(folder: Path, *args: str, code: int = 0) -> str:
    """The output of a command of cairn that is typed in `folder`."""
    config = {**QUICK, "execution.checkpointing.local-backup.dirs": str(folder / "stores")}
    ended = subprocess.run(
        [sys.executable, "-m", "cairn.cli.main", *args],
        cwd=folder,
        env={**os.environ, "CAIRN_CONFIG": json.dumps(config)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout
