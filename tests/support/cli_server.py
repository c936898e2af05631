"""A process that has imported the command line once, and forks a process for every command that it is sent.

Each line of its input is a JSON object: `args`, `cwd`, `env`, and `output`, the files that take stdout and stderr, or
`terminal`, the device that takes both. It answers with a line that holds the exit code. It has one thread only, so that
a fork is safe; that is why neither numpy nor pyarrow is imported here.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from typing import Any

import rich.console
import rich.table
from tests.support.patience import PATIENCE

import cairn.cli.doctor
import cairn.cli.run_command
from cairn.cli.main import main

PRELOADED = (rich.console, rich.table, cairn.cli.doctor, cairn.cli.run_command)


def become(request: dict[str, Any]) -> None:
    """Make this process what `python -m cairn.cli.main` would be. Never returns."""
    signal.alarm(int(PATIENCE))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "terminal" in request:
        os.setsid()
        device = os.open(request["terminal"], os.O_RDWR)  # the first one that a session opens is its terminal
        streams = (device, device, device)
    else:
        places = [os.open(path, os.O_WRONLY | os.O_CREAT) for path in request["output"]]
        streams = (os.open(os.devnull, os.O_RDONLY), places[0], places[1])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)
    sys.path.insert(0, request["cwd"])
    sys.argv = ["cairn", *request["args"]]
    code = main()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                become(json.loads(line))
            finally:
                os._exit(99)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    serve()
