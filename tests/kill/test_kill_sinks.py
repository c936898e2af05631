"""A job with sinks to Delta, PostgreSQL, Kafka and a user's own, killed by force between and amid the phases."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.kill_sinks_child import PORTION
from tests.support.oracle import Result, expected, numbered_rows
from tests.support.patience import PATIENCE
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.postgres import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.server, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
EPOCHS = 5


def start(folder: Path, **plan: Any) -> int:
    """Run the job in a process group of its own; returns how it ended."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (folder / "log").open("a") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kill_sinks_child", json.dumps({"folder": str(folder), **plan})],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(path)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return child.wait(timeout=PATIENCE)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def delta_rows(table: str) -> list[Any]:
    import deltalake

    if not os.path.isdir(table):
        return []
    return [tuple(row.values()) for row in deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()]


def test_sinks_are_exact_whenever_the_job_is_killed(
    postgres: PostgresServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    rows = numbered_rows(EPOCHS * PORTION, 9, seed=4)
    topic = kafka.create("killed")
    lake = str(tmp_path / "lake") if importlib.util.find_spec("deltalake") else ""
    if not lake:
        print("without DeltaSink: the package deltalake is not installed")

    def shown() -> list[list[Result]]:
        """What a reader of each target sees."""
        tables = postgres.rows("SELECT 1 FROM pg_tables WHERE tablename = 'oracle'")
        table = postgres.rows('SELECT "key", seq, count, total, chain FROM oracle') if tables else []
        records: list[Any] = [tuple(json.loads(value or b"").values()) for _, value, _ in kafka.read(topic)]
        with closing(sqlite3.connect(tmp_path / "own.db")) as db:
            own = db.execute("SELECT * FROM oracle").fetchall()
        return [sorted(found) for found in (*([delta_rows(lake)] if lake else []), table, records, own)]

    def until(epoch: int) -> list[Result]:
        return expected(rows[: (epoch + 1) * PORTION])

    told = {"postgres": postgres.url, "kafka": kafka.address, "topic": topic, "lake": lake, "rows": rows}
    for plan, epochs in (
        ({}, (0, 0, 0, 0)),  # the script kills the driver amid the rows of epoch 1
        ({"kill": ["committed", 2]}, (1, 1, 1, 1)),  # between the phases
        ({"kill_after": ["topic", 3]}, (3, 3, 3, 2)),  # amid the second one: one sink has not published yet
    ):
        assert start(tmp_path, **told, **plan) == -signal.SIGKILL, (tmp_path / "log").read_text()
        assert shown() == [until(epoch) for epoch in epochs[0 if lake else 1 :]], plan
    assert start(tmp_path, **told) == 0, (tmp_path / "log").read_text()
    assert shown() == [expected(rows)] * (4 if lake else 3)
    assert not list((tmp_path / "jobs" / "oracle" / "staging").rglob("part-*")), "staged files are left over"
