"""Closes the sinks that a test has started."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support import connector_lab as lab


@pytest.fixture(autouse=True)
def closed_sinks() -> Iterator[None]:
    yield
    for sink in lab.running:
        sink.close()
    lab.running.clear()
