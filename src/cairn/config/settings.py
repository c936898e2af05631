"""The settings of a job as frozen records, with their defaults."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field

CONFIG_VARIABLE = "CAIRN_CONFIG"
"""The environment variable in which `cairn run` hands options to the job, as JSON."""
DEFAULT_DIRECTORY = "./cairn-data"
MAX_INLINE = 1 << 20
MIN_CHECKPOINT_MS = 10
DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 8081
"""Where the web page is served, by the driver and by `cairn ui`."""
MODES = ("EXACTLY_ONCE", "AT_LEAST_ONCE")
RETENTIONS = ("NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION")
STORAGES = ("filesystem", "jobmanager")
CLAIM_MODES = ("NO_CLAIM", "CLAIM")
RESTART_TYPES = ("none", "fixed-delay", "failure-rate", "exponential-delay")


def default_local_directory() -> str:
    """Where working stores live unless told otherwise: private to the user, on the host's own disk."""
    return os.path.join(tempfile.gettempdir(), f"cairn-{os.getuid() if hasattr(os, 'getuid') else 0}")


@dataclass(frozen=True, slots=True)
class RememberedOption:
    """An option that a job was given explicitly, as a record of a run keeps it."""

    value: bool | int | float | str | list[str]
    origin: str
    """Where it was set: `-D`, `config` or `code`."""
    run: int = 0
    """The run that was given it; 0 until that run has a number."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """When checkpoints are taken, what they promise, and how many are kept. `interval_ms` 0 or less: none are taken."""

    interval_ms: int = 0
    mode: str = "EXACTLY_ONCE"
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retention: str = "NO_EXTERNALIZED_CHECKPOINTS"
    num_retained: int = 1
    unaligned: bool = False
    aligned_timeout_ms: int = 0
    incremental: bool = False
    storage: str = "filesystem"
    max_state_size: int = 5 << 20  # of storage "jobmanager" only, and like in Flink without a key
    savepoint_dir: str = ""
    write_buffer: int = 4096
    local_recovery: bool = True
    prefer_checkpoint_for_recovery: bool = False


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """What happens after a failure. An empty `type` is Flink's rule: `none` without checkpoints, else
    `exponential-delay`. Each type uses its own fields only; `attempts_before_reset` 0 is without end."""

    type: str = ""
    attempts: int = 1
    delay_ms: int = 1000
    max_failures: int = 1
    failure_interval_ms: int = 60_000
    failure_delay_ms: int = 1000
    initial_backoff_ms: int = 1000
    max_backoff_ms: int = 60_000
    multiplier: float = 1.5
    reset_ms: int = 3_600_000
    jitter: float = 0.1
    attempts_before_reset: int = 0


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The server in the driver (docs/web.md). An empty token is made up at every start."""

    enabled: bool = True
    address: str = DEFAULT_ADDRESS
    port: int = DEFAULT_PORT
    token: str = ""
    hosts: tuple[str, ...] = ()
    read_only: bool = False
    hidden_states: tuple[str, ...] = ()
    savepoint_roots: tuple[str, ...] = ()
    history: int = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """What a job runs with. Built by `parse`; the environment's `set_*` calls give changed copies."""

    directory: str = ""
    inline_threshold: int = 20 * 1024
    local_directory: str = field(default_factory=default_local_directory)
    backend: str = "lmdb"
    parallelism: int = 0
    max_parallelism: int = 0
    job_id: str = ""
    auto_uids: bool = True
    restore_path: str = ""
    restore_again: bool = True
    claim_mode: str = "NO_CLAIM"
    ignore_unclaimed: bool = False
    renames: Mapping[str, str] = field(default_factory=dict)
    allow_pickled: tuple[str, ...] = ()
    compaction_chain: int = 32
    epochs_retained: int = 10
    show_values: bool = True
    max_jump_ms: int = 86_400_000
    max_downtime_ms: int = 90 * 86_400_000
    time_reset: bool = False
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    web: WebSettings = field(default_factory=WebSettings)
    parameters: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The options that were set explicitly, and where: `-D`, `config` or `code`."""
    remembered: Mapping[str, RememberedOption] = field(default_factory=dict, compare=False)
    """What the job's directory will keep of these settings for later runs (`config/remembered_options.py`)."""
