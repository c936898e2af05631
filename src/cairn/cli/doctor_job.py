"""The job that `cairn doctor` runs: the smallest one that needs Spark, Python workers, state and a sink.

It is the job of `cairn demo` with two short epochs, so that the second one reads state that the first one wrote. It
runs as a process of its own in a temporary directory, and its output and state are compared with plain Python.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from cairn.cli.demo import JobProcess, exact, expected, read_back
from cairn.cli.doctor import Check, Status
from cairn.cli.output import Output
from cairn.cli.progress_bar import Step, watching
from cairn.errors import CairnError, from_traceback

NAME = "smallest job"
EPOCHS = 2
ROWS = 2_000
_TEXT = "running the smallest job on local Spark (--quick leaves it out)"
_REMEDIES = (
    (
        r"PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION|No module named",
        "Run: pip install 'cairn-streaming[spark]'.",
    ),
    (r"UnsupportedClassVersionError", "Point JAVA_HOME to Java 17 or newer."),
    (
        r"PYTHON_VERSION_MISMATCH|Cannot run program|error=2, No such file",
        "Unset PYSPARK_PYTHON, or point it to this Python.",
    ),
    (r"UnknownHostException|assign requested address", "Set SPARK_LOCAL_IP=127.0.0.1."),
    (r"OutOfMemoryError|Cannot allocate memory|insufficient memory", "Free 2 GiB of memory."),
    (r"No space left on device", "Free some space, or set TMPDIR to another disk."),
)


def check_job(seconds: float, out: Output) -> Check:
    """Run the job for at most `seconds`. Nothing is left behind but the log of a job that failed."""
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="cairn-doctor-"))
    try:
        problem = _problem(place, began + seconds, seconds, out)
        if not problem:
            took = time.monotonic() - began
            return Check(NAME, Status.OK, f"{EPOCHS} epochs on local Spark, state and output are exact ({took:.0f} s)")
        return Check(NAME, Status.FAIL, problem, _remedy(place / "job.log"))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _problem(place: Path, deadline: float, seconds: float, out: Output) -> str:
    """What went wrong, in a line; nothing if all is well."""
    committed = 0
    try:
        with (
            JobProcess(place, EPOCHS, ROWS, patience=seconds) as job,
            watching(out, _TEXT, lambda: Step(_TEXT, committed, EPOCHS, "epochs")),
        ):
            for event in job.events(until=lambda: time.monotonic() > deadline):
                committed += event["event"] == "epoch"
            if time.monotonic() > deadline:
                return f"{committed} of {EPOCHS} epochs within the limit of {seconds:g} s; raise it with --timeout"
        if not exact(expected(EPOCHS * ROWS), read_back(place, EPOCHS * ROWS)):
            return "the job ran, but its state or its output is wrong"
    except (CairnError, OSError) as error:
        return _cause(place / "job.log") or str(error).splitlines()[0]
    return ""


def _cause(log: Path) -> str:
    """The line of a log that names the error: the last one that looks like the end of a traceback."""
    text = _text(log)
    error = from_traceback(text)
    if error is not None:
        return error.message
    lines = [line.strip() for line in text.splitlines()]
    named = [line for line in lines if re.match(r"(Caused by: )?[\w.$]*(Error|Exception)\b.*: ", line)]
    return (named or [line for line in lines if line] or [""])[-1]


def _remedy(log: Path) -> str:
    text = _text(log)
    advice = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), "")
    if not text:
        return advice
    handle, kept = tempfile.mkstemp(prefix="cairn-doctor-", suffix=".log")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    return f"{advice} The log of the job is in {kept}.".strip()


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
