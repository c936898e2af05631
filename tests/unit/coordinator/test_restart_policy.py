"""Restart strategies: delays and when they end."""

from __future__ import annotations

import random

import pytest

from cairn.config import CheckpointSettings, RestartSettings
from cairn.coordinator.restart_policy import RestartPolicy, worth_restarting
from cairn.errors import (
    CorruptFileError,
    EpochFailedError,
    FencedError,
    IncompatibleStateError,
    InvalidInputError,
    UserFunctionError,
)

OFF = CheckpointSettings()
ON = CheckpointSettings(interval_ms=1000)


def test_the_default_follows_the_checkpoints() -> None:
    assert RestartPolicy(RestartSettings(), OFF).type == "none"
    assert RestartPolicy(RestartSettings(), OFF).next_delay(0) is None
    assert RestartPolicy(RestartSettings(), ON).type == "exponential-delay"
    assert RestartPolicy(RestartSettings(type="none"), ON).next_delay(0) is None


def test_fixed_delay_ends_after_its_attempts() -> None:
    policy = RestartPolicy(RestartSettings(type="fixed-delay", attempts=2, delay_ms=70), OFF)
    assert [policy.next_delay(now) for now in range(3)] == [70, 70, None]


def test_failure_rate_looks_at_an_interval() -> None:
    settings = RestartSettings(type="failure-rate", max_failures=2, failure_interval_ms=1000, failure_delay_ms=5)
    policy = RestartPolicy(settings, OFF)
    assert [policy.next_delay(now) for now in (0, 100, 1100, 1200)] == [5, 5, 5, 5]
    assert policy.next_delay(1300) is None


def test_exponential_delay_grows_and_starts_anew_after_a_quiet_time() -> None:
    settings = RestartSettings(
        type="exponential-delay",
        initial_backoff_ms=100,
        max_backoff_ms=500,
        multiplier=2.0,
        reset_ms=10_000,
        jitter=0.0,
    )
    policy = RestartPolicy(settings, OFF)
    assert [policy.next_delay(now) for now in (0, 1, 2, 3, 4)] == [100, 200, 400, 500, 500]
    assert policy.next_delay(20_000) == 100


def test_jitter_spreads_the_delay() -> None:
    settings = RestartSettings(type="exponential-delay", initial_backoff_ms=1000, jitter=0.1)
    delays = [RestartPolicy(settings, OFF, random.Random(seed)).next_delay(0) for seed in range(50)]
    assert all(delay is not None and 900 <= delay <= 1100 for delay in delays)
    assert len(set(delays)) > 20


def test_exponential_delay_may_be_limited() -> None:
    settings = RestartSettings(type="exponential-delay", attempts_before_reset=2, jitter=0.0)
    policy = RestartPolicy(settings, OFF)
    assert [policy.next_delay(now) is None for now in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (UserFunctionError("x"), True), (EpochFailedError("x"), True), (CorruptFileError("x"), True),
        (FencedError("x"), False), (IncompatibleStateError("x"), False), (InvalidInputError("x"), False),
    ],
)  # fmt: skip
def test_what_is_worth_another_try(error: Exception, worth: bool) -> None:
    assert worth_restarting(error) is worth  # type: ignore[arg-type]
