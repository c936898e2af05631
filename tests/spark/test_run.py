"""`cairn run --json` as a program runs it: events in lines, Ctrl-C with a last checkpoint, and a start that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_process import environment, listen_to_interrupts

pytestmark = pytest.mark.spark

SCRIPT = """
from cairn import KeyedProcessFunction, PrintSink, StreamExecutionEnvironment, ValueStateDescriptor
from limits import checked

class Totals(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + 1)
        yield value.user, checked(self.total.value())

env = StreamExecutionEnvironment.get_execution_environment()
rows = env.spark.readStream.format("rate").option("rowsPerSecond", 10).load().selectExpr("value % 3 AS user")
stream = env.from_df(rows).key_by("user").process(Totals(), "user bigint, total bigint", uid="totals")
stream.sink_to(PrintSink(), uid="print")
env.execute("counted")
"""
LIMITS = """
LIMIT = {limit}

def checked(total):
    if total > LIMIT:
        raise ValueError(f"{{total}} is too much")
    return total
"""
SETTINGS = {
    "execution.checkpointing.interval": "1h", "restart-strategy.type": "none", "spark.master": "local[2]",
    "spark.driver.memory": "1g", "spark.ui.enabled": "false", "cairn.web.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}  # fmt: skip


def started(folder: Path, limit: int) -> subprocess.Popen[str]:
    (folder / "job.py").write_text(SCRIPT)
    (folder / "limits.py").write_text(LIMITS.format(limit=limit))
    command = [sys.executable, "-m", "cairn.cli.main", "run", "--json", "job.py", "-p", "2"]
    command += [part for key, value in SETTINGS.items() for part in ("-D", f"{key}={value}")]
    with (folder / "err").open("w") as messages:
        return subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=messages, text=True,
            env=environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)), preexec_fn=listen_to_interrupts,
        )  # fmt: skip


def test_a_run_is_followed_interrupted_and_goes_on(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    with started(tmp_path, limit=10_000) as process:
        assert process.stdout is not None
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "epoch" and events[-1]["rows_in"]:
                process.send_signal(signal.SIGINT)
                break
        events += [json.loads(line) for line in process.stdout]
    told = (tmp_path / "err").read_text()
    assert process.returncode == 130, told
    assert events[0]["event"] == "started"
    assert "checkpoint" in [event["event"] for event in events]
    summary = events[-1]
    (job,) = summary["jobs"]
    assert (summary["event"], summary["exit_code"], job["state"]) == ("summary", 130, "CANCELED")
    assert f"committed up to epoch {job['epoch']}" in told
    assert f"cairn run JOB.py -s {job['checkpoint']}" in told
    assert (Path(job["checkpoint"]) / "_metadata").exists(), "what is interrupted keeps its checkpoints"

    with started(tmp_path, limit=0) as process:
        assert process.stdout is not None
        again = [json.loads(line) for line in process.stdout]
    assert process.returncode == 1
    assert again[0]["restored_epoch"] == job["epoch"]
    error = again[-1]["error"]
    assert (error["code"], error["location"]["function"]) == ("user-function", "checked")
    assert error["location"]["file"] == str(tmp_path / "limits.py")
    assert error["cause"].endswith("is too much")
    problems = [line for line in (tmp_path / "err").read_text().splitlines() if line.startswith('{"type": "urn:cairn')]
    assert [json.loads(line)["detail"] for line in problems] == [error["detail"]]
