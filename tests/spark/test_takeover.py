"""Two runs of one job: the older one ends with an error, and the newer one goes on whatever the older one left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from tests.support.oracle import OUTPUT, Oracle, expected, numbered_rows
from tests.support.patience import PATIENCE
from tests.support.spark_lab import Lab, query_of

from cairn import FencedError, FileSink, JobHandle, JobStatus

pytestmark = pytest.mark.spark
ROWS = numbered_rows(80, 11, seed=3)


def start(lab: Lab) -> JobHandle:
    env = lab.env(1, restart_strategy__type="none").set_trigger(processing_time="0 seconds")
    checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.output)), uid="out")
    return env.execute_async("oracle")


def wait(condition: Callable[[], bool], job: JobHandle) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        assert job.status() in (JobStatus.RUNNING, JobStatus.RESTARTING), job.exception()
        time.sleep(0.05)


def test_the_older_run_fails_and_the_newer_one_survives_what_it_wrote(lab: Lab) -> None:
    lab.feed(ROWS[:40])
    old = start(lab)
    wait(lambda: len(old.epochs()) == 1, old)
    new = start(lab)  # Spark stops the query of the older run, as it does when a notebook's cell is run twice
    try:
        with pytest.raises(FencedError, match="run 2"):
            old.await_termination(PATIENCE)
        assert old.status() is JobStatus.FAILED
        events = [json.loads(path.read_bytes()) for path in (lab.jobs / "oracle" / "events").iterdir()]
        assert not [event for event in events if event["kind"] == "finished"]
        wait(lambda: "Waiting for data" in query_of(new).status["message"], new)
        # An older run that reads the next file first writes what it has seen before it looks who has the job.
        log = lab.jobs / "oracle" / "spark" / "sources" / "0"
        version, entry = (log / "0").read_text().splitlines()
        seen = {**json.loads(entry), "batchId": 1}
        seen["path"] = seen["path"].replace("00000.json", "00001.json")
        (log / "1").write_text(f"{version}\n{json.dumps(seen)}")
        lab.feed(ROWS[40:])
        wait(lambda: sum(report.rows_in for report in new.epochs()) == 40, new)
        assert (new.restarts, new.run) == (1, 3)
    finally:
        new.cancel()
    assert lab.written() == expected(ROWS)
