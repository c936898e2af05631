"""The examples that need a server, each run for real by the command that its header names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import programs
from tests.support.servers.cache import NotAvailableError, jars
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.postgres import PostgresServer

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's Kafka connector for the programs of a test."""
    try:
        monkeypatch.setitem(programs.QUICK, "spark.jars", ",".join(map(str, jars("spark"))))
    except NotAvailableError as reason:
        pytest.skip(f"no Kafka connector for Spark: {reason}")


@pytest.mark.usefixtures("connector")
def test_kafka_totals_from_topic_to_topic(kafka: KafkaServer, tmp_path: Path) -> None:
    """Two starts over a topic that grows, with a payment in between that its sender took back."""
    kafka.create("payments")
    kafka.create("totals")
    where = ("--servers", kafka.address, "--connector", "", "--available-now")
    total = {"ada": 0, "bob": 0}
    want = []
    for portion in (range(5), range(5, 9)):
        payments = [("ada" if number % 2 else "bob", number) for number in portion]
        kafka.send("payments", [json.dumps({"user": user, "amount": n}) for user, n in payments], key="one partition")
        kafka.abandon("payments", json.dumps({"user": "ada", "amount": 1_000_000}))
        for user, amount in payments:
            total[user] += amount
            want.append((user.encode(), {"user": user, "sum": total[user]}))
        with programs.Program(EXAMPLES / "kafka_totals.py", tmp_path, *where) as run:
            run.finish()
        found = [(key, json.loads(value or b"")) for key, value, _ in kafka.read("totals")]
        assert sorted(found, key=str) == sorted(want, key=str)


@pytest.mark.usefixtures("connector")
def test_a_job_that_reads_kafka_goes_on_from_its_savepoint(kafka: KafkaServer, tmp_path: Path) -> None:
    """Stopped with a savepoint while payments are still to come, and started from it with more subtasks."""
    for topic in ("sp-payments", "sp-totals"):
        kafka.create(topic)

    def send(amounts: range) -> None:
        kafka.send("sp-payments", [json.dumps({"user": "ada", "amount": n}) for n in amounts], key="one partition")

    def sums() -> list[int]:
        return sorted(json.loads(value or b"")["sum"] for _, value, _ in kafka.read("sp-totals"))

    script = EXAMPLES / "kafka_totals.py"
    where = ("--servers", kafka.address, "--connector", "", "--input", "sp-payments", "--output", "sp-totals")
    send(range(1, 4))
    with programs.Program(script, tmp_path, *where) as run:
        run.wait_until(lambda: len(sums()) == 3)
        path = programs.command(tmp_path, "stop", "kafka", "--savepoint-dir", "savepoints").splitlines()[-1]
        run.finish()
    assert sums() == [1, 3, 6]
    send(range(4, 6))
    plan = json.loads(programs.command(tmp_path, "plan", str(script), "-s", path, "-p", "3", "--json", *where))
    assert plan["possible"], plan
    with programs.Program(script, tmp_path, "-s", path, "-p", "3", *where, "--available-now") as run:
        run.finish()
    assert sums() == [1, 3, 6, 10, 15], "each payment once: none is read again, none is left out"


def test_postgres_totals_are_exact(postgres: PostgresServer, tmp_path: Path) -> None:
    command = ("--url", postgres.url, "--payments", "2500")
    with programs.Program(EXAMPLES / "postgres_totals.py", tmp_path, *command) as run:
        run.finish()
    want = {f"user-{user}": sum(i * 7 % 100 for i in range(user, 2500, 50)) for user in range(50)}
    assert dict(postgres.rows('SELECT "user", sum FROM user_totals')) == want
