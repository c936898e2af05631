"""Unit tests do not wait for the disk; many of them run over all backends."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.support.state_lab import BACKENDS


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["hashmap", "lmdb"])
def fast_backend(request: pytest.FixtureRequest) -> Any:
    """For tests about types, which all backends store alike."""
    return request.param
