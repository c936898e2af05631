"""Servers that several folders of tests share: started at first use, ended with the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.servers.cache import NotAvailableError
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.postgres import PostgresServer


@pytest.fixture(scope="session", autouse=True)
def _own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs leave notes in the user's state directory; those of tests go elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


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
