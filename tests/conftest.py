"""Servers that several folders of tests share: started at first use, ended with the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.servers.cache import NotAvailableError
from tests.servers.kafka import KafkaServer
from tests.servers.postgres import PostgresServer


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
