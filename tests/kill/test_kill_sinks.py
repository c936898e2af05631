"""A job with sinks to Delta, PostgreSQL, Kafka and a user's own, killed by force between and amid the phases."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.kill_sinks_child import PORTION
from tests.support.kill_trial import Trial
from tests.support.oracle import Result, expected, numbered_rows
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.postgres import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.server, pytest.mark.timeout(1800)]

EPOCHS = 4
LAKE = importlib.util.find_spec("deltalake") is not None


class SinksTrial(Trial):
    module = "tests.support.kill_sinks_child"


def delta_rows(table: str) -> list[Any]:
    import deltalake

    if not os.path.isdir(table):
        return []
    return [tuple(row.values()) for row in deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()]


@pytest.mark.parametrize(
    ("plan", "epochs"),
    [
        pytest.param({"crash": True}, (0, 0, 0, 0), id="amid the rows of an epoch"),
        pytest.param({"kill": ["committed", 2]}, (1, 1, 1, 1), id="between the phases"),
        pytest.param({"kill_after": ["topic", 2]}, (2, 2, 2, 1), id="amid the second phase"),
    ],
)
def test_sinks_are_exact_whenever_the_job_is_killed(
    postgres: PostgresServer,
    kafka: KafkaServer,
    spark: SparkSession,
    tmp_path: Path,
    plan: dict[str, Any],
    epochs: tuple[int, ...],
) -> None:
    """`epochs` are the newest that Delta, PostgreSQL, Kafka and the sink of a user show after the kill."""
    rows = numbered_rows(EPOCHS * PORTION, 9, seed=4)
    name = "killed_" + "_".join(plan)
    topic = kafka.create(name)
    lake = str(tmp_path / "lake") if LAKE else ""
    if not LAKE:
        print("without DeltaSink: the package deltalake is not installed")

    def shown() -> list[list[Result]]:
        """What a reader of each target sees."""
        tables = postgres.rows(f"SELECT 1 FROM pg_tables WHERE tablename = '{name}'")
        table = postgres.rows(f'SELECT "key", seq, count, total, chain FROM {name}') if tables else []
        records: list[Any] = [tuple(json.loads(value or b"").values()) for _, value, _ in kafka.read(topic)]
        with closing(sqlite3.connect(tmp_path / "own.db")) as db:
            own = db.execute("SELECT * FROM oracle").fetchall()
        return [sorted(found) for found in (*([delta_rows(lake)] if lake else []), table, records, own)]

    trial = SinksTrial(tmp_path, [], 0)
    places = {"postgres": postgres.url, "table": name, "kafka": kafka.address, "topic": topic, "lake": lake}
    whole: dict[str, Any] = {**places, "rows": rows, **plan}
    try:
        assert trial.run(**whole) == -signal.SIGKILL, trial.log()
        assert shown() == [expected(rows[: (epoch + 1) * PORTION]) for epoch in epochs[0 if LAKE else 1 :]]
        trial.run_here(spark, **whole)
    finally:
        trial.stop()
    assert shown() == [expected(rows)] * (4 if LAKE else 3)
    assert not list((tmp_path / "jobs" / "oracle" / "staging").rglob("part-*")), "staged files are left over"
