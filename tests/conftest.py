"""What several folders of tests share: one Spark session, servers, and which tests belong together.

Sessions and servers are started at first use and end with the test process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.support.servers.cache import NotAvailableError
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.master": "local[2,2]",
    "spark.app.name": "cairn-tests",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "OFF",
}
"""Local, two cores, two attempts per task."""
LONGEST_FIRST = (
    "test_install",
    "test_kill",
    "test_upgrade_page",
    "test_run.",
    "test_demo",
    "test_readme",
    "test_examples",
    "test_browser",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a server are a group, so that there is one server; all others are handed out one by one.

    What takes longest comes first, so that all workers end at about the same time.
    """
    for item in items:
        if item.get_closest_marker("server"):
            item.add_marker(pytest.mark.xdist_group("servers"))
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if item.get_closest_marker("server"):
        return -1
    return next((place for place, name in enumerate(LONGEST_FIRST) if name in item.nodeid), len(LONGEST_FIRST))


@pytest.fixture(scope="session", autouse=True)
def _own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs leave notes in the user's state directory; those of tests go elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from cairn.spark.session import local_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = local_session({**SETTINGS, "spark.sql.warehouse.dir": warehouse})
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
        server.start()
    except NotAvailableError as reason:
        print(f"no PostgreSQL: {reason}")
        pytest.skip(f"no PostgreSQL: {reason}")
    yield server
    server.remove()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    try:
        server = KafkaServer()
        server.start()
    except NotAvailableError as reason:
        print(f"no Kafka: {reason}")
        pytest.skip(f"no Kafka: {reason}")
    yield server
    server.remove()
