"""Checkpoints and restarts as PyFlink programs configure them: `env.get_checkpoint_config()`, `RestartStrategies`.

The environment owns the settings; everything here reads them from it and gives it changed copies. Each call checks its
value as the option of the same meaning does, and raises the same error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

from cairn.config import RestartSettings, Settings, with_options
from cairn.errors import InvalidInputError
from cairn.model.descriptors import Time
from cairn.model.pyflink_names import PyFlinkNames

_PREFIX = "execution.checkpointing."


class CheckpointingMode(Enum):
    """How often each row counts when a failure lies between two checkpoints."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class ExternalizedCheckpointRetention(Enum):
    """Which checkpoints outlive the job that took them."""

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"


class FileSystemCheckpointStorage(PyFlinkNames):
    """Checkpoints are files in a directory."""

    def __init__(self, checkpoint_directory: str) -> None:
        self._directory = checkpoint_directory

    def get_checkpoint_path(self) -> str:
        return self._directory

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileSystemCheckpointStorage) and other._directory == self._directory

    def __hash__(self) -> int:
        return hash(self._directory)

    def __repr__(self) -> str:
        return f"FileSystemCheckpointStorage({self._directory!r})"


class JobManagerCheckpointStorage(PyFlinkNames):
    """Checkpoints are held by the driver; no single state may be larger than `max_state_size` bytes."""

    def __init__(self, max_state_size: int = 5 << 20) -> None:
        if type(max_state_size) is not int or max_state_size < 1:
            raise InvalidInputError(f"max_state_size must be a number of bytes, at least 1, found {max_state_size!r}")
        self._max_state_size = max_state_size

    def get_max_state_size(self) -> int:
        return self._max_state_size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobManagerCheckpointStorage) and other._max_state_size == self._max_state_size

    def __hash__(self) -> int:
        return hash(self._max_state_size)

    def __repr__(self) -> str:
        return f"JobManagerCheckpointStorage({self._max_state_size})"


CheckpointStorage = FileSystemCheckpointStorage | JobManagerCheckpointStorage


class CheckpointConfig(PyFlinkNames):
    """The checkpoint settings of an environment under PyFlink's names. Durations are milliseconds or `Time`."""

    def __init__(self, read: Callable[[], Settings], write: Callable[[Settings], None]) -> None:
        self._read = read
        self._write = write

    def is_checkpointing_enabled(self) -> bool:
        return self._read().checkpoints.interval_ms > 0

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        return self._set("mode", checkpointing_mode)

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return CheckpointingMode(self._read().checkpoints.mode)

    def set_checkpoint_interval(self, checkpoint_interval: int | Time) -> CheckpointConfig:
        """The time from one checkpoint to the next, at least 10 ms; 0 or less switches checkpoints off."""
        return self._set("interval", checkpoint_interval)

    def get_checkpoint_interval(self) -> int:
        """In milliseconds; 0 if checkpoints are off."""
        return max(0, self._read().checkpoints.interval_ms)

    def set_checkpoint_timeout(self, checkpoint_timeout: int | Time) -> CheckpointConfig:
        """How long a checkpoint may take, at least 10 ms."""
        return self._set("timeout", checkpoint_timeout)

    def get_checkpoint_timeout(self) -> int:
        return self._read().checkpoints.timeout_ms

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int | Time) -> CheckpointConfig:
        """The least time from the end of one checkpoint to the start of the next."""
        return self._set("min-pause", min_pause_between_checkpoints)

    def get_min_pause_between_checkpoints(self) -> int:
        return self._read().checkpoints.min_pause_ms

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        return self._set("max-concurrent-checkpoints", max_concurrent_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        return self._read().checkpoints.max_concurrent

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """How many checkpoints in a row may fail without failing the job."""
        return self._set("tolerable-failed-checkpoints", tolerable_checkpoint_failure_number)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        return self._read().checkpoints.tolerable_failures

    def set_externalized_checkpoint_retention(
        self, externalized_checkpoint_retention: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        return self._set("externalized-checkpoint-retention", externalized_checkpoint_retention)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        return ExternalizedCheckpointRetention(self._read().checkpoints.retention)

    def set_max_retained_checkpoints(self, max_retained_checkpoints: int) -> CheckpointConfig:
        """How many completed checkpoints are kept."""
        return self._set("num-retained", max_retained_checkpoints)

    def get_max_retained_checkpoints(self) -> int:
        return self._read().checkpoints.num_retained

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Needs mode EXACTLY_ONCE and at most one checkpoint at a time; set these first."""
        return self._set("unaligned.enabled", enabled)

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        return self.enable_unaligned_checkpoints(False)

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._read().checkpoints.unaligned

    def set_aligned_checkpoint_timeout(self, aligned_checkpoint_timeout: int | Time) -> CheckpointConfig:
        """With unaligned checkpoints: how long one may stay aligned; 0 is unaligned from the start."""
        return self._set("aligned-checkpoint-timeout", aligned_checkpoint_timeout)

    def get_aligned_checkpoint_timeout(self) -> int:
        return self._read().checkpoints.aligned_timeout_ms

    def enable_incremental_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        return self._set("incremental", enabled)

    def is_incremental_checkpoints_enabled(self) -> bool:
        return self._read().checkpoints.incremental

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> CheckpointConfig:
        if isinstance(storage, FileSystemCheckpointStorage):
            return self.set_checkpoint_storage_dir(storage.get_checkpoint_path())
        if not isinstance(storage, JobManagerCheckpointStorage):
            raise InvalidInputError(
                "set_checkpoint_storage takes a FileSystemCheckpointStorage or a JobManagerCheckpointStorage, not "
                f"{type(storage).__name__}; a directory is set with set_checkpoint_storage_dir"
            )
        settings = with_options(self._read(), {_PREFIX + "storage": "jobmanager"})
        checkpoints = replace(settings.checkpoints, max_state_size=storage.get_max_state_size())
        self._write(replace(settings, checkpoints=checkpoints))
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Checkpoints are files in this directory: the same as the option `execution.checkpointing.dir`."""
        options = {_PREFIX + "storage": "filesystem", _PREFIX + "dir": checkpoint_path}
        self._write(with_options(self._read(), options))
        return self

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        """None if checkpoints are files and no directory was set."""
        settings = self._read()
        if settings.checkpoints.storage == "jobmanager":
            return JobManagerCheckpointStorage(settings.checkpoints.max_state_size)
        return FileSystemCheckpointStorage(settings.directory) if settings.directory else None

    def _enable(self, interval: int | Time, mode: CheckpointingMode) -> None:
        """Interval and mode in one step. An interval that means "off" is refused: the call says "enable"."""
        options = {_PREFIX + "interval": _plain(interval), _PREFIX + "mode": _plain(mode)}
        settings = with_options(self._read(), options)
        if settings.checkpoints.interval_ms == 0:
            raise InvalidInputError(
                f"enable_checkpointing takes an interval of at least 10 ms, found {interval!r}; to switch checkpoints "
                "off, use get_checkpoint_config().set_checkpoint_interval(0)",
                option=_PREFIX + "interval",
            )
        self._write(settings)

    def _set(self, key: str, value: Any) -> CheckpointConfig:
        self._write(with_options(self._read(), {_PREFIX + key: _plain(value)}))
        return self


class RestartStrategies(PyFlinkNames):
    """What happens after a failure, for `env.set_restart_strategy(...)`. Durations are milliseconds or `Time`."""

    @staticmethod
    def no_restart() -> RestartSettings:
        """The job fails with its first failure."""
        return _restart("none")

    @staticmethod
    def fixed_delay_restart(attempts: int, delay_ms: int | Time) -> RestartSettings:
        """So many restarts, always after the same pause."""
        return _restart("fixed-delay", attempts=attempts, delay=delay_ms)

    @staticmethod
    def failure_rate_restart(max_failures: int, interval_ms: int | Time, delay_ms: int | Time) -> RestartSettings:
        """Restarts, unless the failures within the interval are too many."""
        return _restart(
            "failure-rate", max_failures_per_interval=max_failures, failure_rate_interval=interval_ms, delay=delay_ms
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: int | Time = 1000,
        max_backoff: int | Time = 60_000,
        multiplier: float = 1.5,
        reset_threshold: int | Time = 3_600_000,
        jitter: float = 0.1,
    ) -> RestartSettings:
        """Restarts after a pause that grows with each failure, and is the first one again after a quiet time."""
        return _restart(
            "exponential-delay",
            initial_backoff=initial_backoff,
            max_backoff=max_backoff,
            backoff_multiplier=multiplier,
            reset_backoff_threshold=reset_threshold,
            jitter_factor=jitter,
        )


def _restart(kind: str, **values: Any) -> RestartSettings:
    options = {f"restart-strategy.{kind}.{name.replace('_', '-')}": _plain(value) for name, value in values.items()}
    return with_options(Settings(), {"restart-strategy.type": kind} | options).restart


def _plain(value: Any) -> Any:
    """A value as an option has it: enums by name, times in milliseconds."""
    if isinstance(value, Enum):
        return value.value
    return value.to_milliseconds() if isinstance(value, Time) else value
