"""Checkpoint, restart and recovery settings by the methods of `CheckpointConfig` and of the environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.support.configuration_page import section

from cairn import (
    CheckpointConfig,
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    InvalidInputError,
    JobManagerCheckpointStorage,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
)
from cairn.config import (
    CheckpointSettings,
    RestartSettings,
    Settings,
    check,
    parse,
)


class Holder:
    """Stands for an environment: owns settings that `CheckpointConfig` reads and replaces."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.config = CheckpointConfig(lambda: self.settings, self.write)

    def write(self, settings: Settings) -> None:
        self.settings = settings


ROUND_TRIPS: list[tuple[str, Any, Any]] = [
    ("checkpointing_mode", CheckpointingMode.AT_LEAST_ONCE, CheckpointingMode.AT_LEAST_ONCE),
    ("checkpoint_interval", 5000, 5000),
    ("checkpoint_interval", Time.minutes(2), 120_000),
    ("checkpoint_interval", 0, 0),
    ("checkpoint_timeout", Time.seconds(30), 30_000),
    ("min_pause_between_checkpoints", 700, 700),
    ("max_concurrent_checkpoints", 3, 3),
    ("tolerable_checkpoint_failure_number", 2, 2),
    (
        "externalized_checkpoint_retention",
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION,
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION,
    ),
    ("max_retained_checkpoints", 6, 6),
    ("aligned_checkpoint_timeout", Time.seconds(1), 1000),
    ("checkpoint_storage", FileSystemCheckpointStorage("/data"), FileSystemCheckpointStorage("/data")),
    ("checkpoint_storage", JobManagerCheckpointStorage(1000), JobManagerCheckpointStorage(1000)),
]


@pytest.mark.parametrize(("name", "given", "expected"), ROUND_TRIPS)
def test_setter_and_getter_round_trip(name: str, given: Any, expected: Any) -> None:
    holder = Holder()
    assert getattr(holder.config, f"set_{name}")(given) is holder.config
    assert getattr(holder.config, f"get_{name}")() == expected
    check(holder.settings)


def test_getters_give_the_defaults() -> None:
    config = Holder().config
    assert not config.is_checkpointing_enabled()
    assert config.get_checkpoint_interval() == 0
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    assert config.get_checkpoint_timeout() == 600_000
    assert config.get_max_retained_checkpoints() == 1
    retention = config.get_externalized_checkpoint_retention()
    assert retention is ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    assert config.get_checkpoint_storage() is None
    assert JobManagerCheckpointStorage().get_max_state_size() == 5 * 1024 * 1024


def test_switches() -> None:
    holder = Holder()
    config = holder.config
    assert config.enable_unaligned_checkpoints().is_unaligned_checkpoints_enabled()
    assert not config.disable_unaligned_checkpoints().is_unaligned_checkpoints_enabled()
    assert not config.enable_unaligned_checkpoints(False).is_unaligned_checkpoints_enabled()
    assert config.enable_incremental_checkpoints().is_incremental_checkpoints_enabled()
    assert not config.enable_incremental_checkpoints(False).is_incremental_checkpoints_enabled()
    assert config.set_checkpoint_interval(10).is_checkpointing_enabled()
    assert not config.set_checkpoint_interval(-1).is_checkpointing_enabled()


def test_storage_directory_is_the_directory_of_the_job() -> None:
    holder = Holder()
    holder.config.set_checkpoint_storage(JobManagerCheckpointStorage())
    assert holder.settings.checkpoints.storage == "jobmanager"
    holder.config.set_checkpoint_storage_dir("/data")
    assert holder.settings.directory == "/data"
    assert holder.settings.checkpoints.storage == "filesystem"


WRONG_CALLS: list[tuple[Callable[[CheckpointConfig], Any], str]] = [
    (lambda config: config.set_checkpoint_interval(9), "interval: expected at least 10 ms"),
    (lambda config: config.set_checkpoint_timeout(Time.milliseconds(1)), "timeout: expected at least 10 ms"),
    (lambda config: config.set_max_concurrent_checkpoints(0), "max-concurrent-checkpoints: expected at least 1"),
    (lambda config: config.set_checkpointing_mode(cast(Any, "never")), "mode: expected EXACTLY_ONCE"),
    (lambda config: config.enable_unaligned_checkpoints(cast(Any, 1)), "expected true or false"),
    (lambda config: config.set_checkpoint_storage(cast(Any, "/data")), "set_checkpoint_storage_dir"),
    (lambda config: config.set_checkpoint_storage_dir(""), "dir: expected some text"),
    (lambda config: JobManagerCheckpointStorage(0), "max_state_size"),
    (
        lambda config: config.enable_unaligned_checkpoints().set_max_concurrent_checkpoints(2),
        "max-concurrent-checkpoints: expected 1 because execution.checkpointing.unaligned.enabled is true, found 2",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS)
def test_wrong_call_is_an_error_and_changes_nothing_itself(
    call: Callable[[CheckpointConfig], Any], message: str
) -> None:
    holder = Holder()
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call(holder.config)
    assert replace(holder.settings.checkpoints, unaligned=False) == CheckpointSettings()


def test_restart_strategies() -> None:
    assert RestartStrategies.no_restart() == RestartSettings(type="none")
    assert RestartStrategies.fixed_delay_restart(3, Time.seconds(10)) == RestartSettings(
        type="fixed-delay", attempts=3, delay_ms=10_000
    )
    assert RestartStrategies.failure_rate_restart(4, Time.minutes(5), 2000) == RestartSettings(
        type="failure-rate", max_failures=4, failure_interval_ms=300_000, failure_delay_ms=2000
    )
    assert RestartStrategies.exponential_delay_restart() == RestartSettings(type="exponential-delay")
    assert RestartStrategies.exponential_delay_restart(1, Time.seconds(1), 2.0, 5000, 0.0) == RestartSettings(
        "exponential-delay", initial_backoff_ms=1, max_backoff_ms=1000, multiplier=2.0, reset_ms=5000, jitter=0.0
    )
    with pytest.raises(InvalidInputError, match="attempts: expected at least 0, found -1"):
        RestartStrategies.fixed_delay_restart(-1, 0)


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(cast(Any, None), Settings())


def test_environment_owns_the_settings() -> None:
    env = environment()
    assert env.enable_checkpointing(1000) is env
    config = env.get_checkpoint_config()
    assert config.get_checkpoint_interval() == 1000
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    env.enable_checkpointing(Time.seconds(2), CheckpointingMode.AT_LEAST_ONCE)
    assert config.get_checkpoint_interval() == 2000
    assert config.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
    config.set_max_retained_checkpoints(3)
    env.set_default_savepoint_directory("/savepoints")
    env.set_restart_strategy(RestartStrategies.no_restart())
    assert env.definition.settings == replace(
        Settings(),
        checkpoints=CheckpointSettings(2000, "AT_LEAST_ONCE", num_retained=3, savepoint_dir="/savepoints"),
        restart=RestartSettings("none"),
    )


@pytest.mark.parametrize("interval", [9, 0, -1])
def test_enabling_needs_an_interval(interval: int) -> None:
    env = environment()
    with pytest.raises(InvalidInputError, match="at least 10 ms"):
        env.enable_checkpointing(interval)
    assert env.definition.settings == Settings()


def test_environment_refuses_a_wrong_restart_strategy() -> None:
    env = environment()
    with pytest.raises(InvalidInputError, match="takes what RestartStrategies gives, not str"):
        env.set_restart_strategy(cast(Any, "none"))
    with pytest.raises(InvalidInputError, match="expected more than 1"):
        env.set_restart_strategy(RestartSettings(type="exponential-delay", multiplier=0.5))
    assert env.definition.settings == Settings()


def test_production_profile_is_the_same_in_code_and_on_the_command_line() -> None:
    code, command = re.findall(r"```(?:python|sh)\n(.*?)```", section("Production profile"), flags=re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "-D")
    env = environment()
    exec(code, {"env": env})
    assert env.definition.settings == parse(given)
    assert env.definition.settings == replace(
        Settings(),
        backend="rocksdb",
        directory="/mnt/cairn",
        checkpoints=CheckpointSettings(
            interval_ms=120_000, retention="RETAIN_ON_CANCELLATION", num_retained=6, incremental=True
        ),
    )
