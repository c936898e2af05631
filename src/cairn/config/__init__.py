"""Settings: one frozen object, Flink's keys, defaults and validation. Unknown keys and wrong values are errors.

Keys of Flink that have no counterpart in cairn are refused with the reason, so that no setting is silently without
effect. `spark.*` keys are handed to the local Spark session that the environment starts when it is given none.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from cairn.errors import InvalidInputError

DEFAULT_DIRECTORY = "./cairn-data"
MAX_INLINE = 1 << 20
MIN_CHECKPOINT_MS = 10
MODES = ("EXACTLY_ONCE", "AT_LEAST_ONCE")
RETENTIONS = ("NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION")
STORAGES = ("filesystem", "jobmanager")
CLAIM_MODES = ("NO_CLAIM", "CLAIM")
RESTART_TYPES = ("none", "fixed-delay", "failure-rate", "exponential-delay")
_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "k": 1 << 10, "mb": 1 << 20, "m": 1 << 20, "gb": 1 << 30, "g": 1 << 30}
_MILLISECONDS = {
    unit: length
    for length, units in (
        (1, ("", "ms", "milli", "millis", "millisecond", "milliseconds")),
        (1000, ("s", "sec", "secs", "second", "seconds")),
        (60_000, ("m", "min", "mins", "minute", "minutes")),
        (3_600_000, ("h", "hour", "hours")),
        (86_400_000, ("d", "day", "days")),
    )
    for unit in units
}


def default_local_directory() -> str:
    """Where working stores live unless told otherwise: private to the user, on the host's own disk."""
    return os.path.join(tempfile.gettempdir(), f"cairn-{os.getuid() if hasattr(os, 'getuid') else 0}")


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
    claim_mode: str = "NO_CLAIM"
    ignore_unclaimed: bool = False
    compaction_chain: int = 32
    epochs_retained: int = 10
    show_values: bool = False
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    parameters: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value).strip()):
            raise ValueError(f"expected a whole number, found {value!r}")
        number = int(str(value))
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}, found {number}")
        return number

    return read


def _boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, found {value!r}")
    return text == "true"


def _size(value: Any) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match.group(2).lower() not in _UNITS:
        raise ValueError(f"expected a size such as '20 kb', found {value!r}")
    return int(match.group(1)) * _UNITS[match.group(2).lower()]


def _inline(value: Any) -> int:
    size = _size(value)
    if size > MAX_INLINE:
        raise ValueError(f"at most 1 mb is allowed, found {value!r}")
    return size


def _text(value: Any) -> str:
    text = str(value).strip()
    if not text:
        raise ValueError("expected some text, found nothing")
    return text


def _decimal(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a number such as 1.5, found {value!r}")
    return number


def _duration(value: Any) -> int:
    match = re.fullmatch(r"\s*(-?\d+)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match.group(2).lower() not in _MILLISECONDS:
        raise ValueError(f"expected a duration such as '10 s', '2 min' or a number of milliseconds, found {value!r}")
    return int(match.group(1)) * _MILLISECONDS[match.group(2).lower()]


def _interval(value: Any) -> int:
    return max(0, _duration(value))


def _choice(choices: tuple[str, ...], synonyms: Mapping[str, str] | None = None) -> Callable[[Any], str]:
    known = {choice.lower().replace("_", "-"): choice for choice in choices} | dict(synonyms or {})

    def read(value: Any) -> str:
        choice = known.get(str(value).strip().lower().replace("_", "-"))
        if choice is None:
            raise ValueError(f"expected {' or '.join(choices)}, found {value!r}")
        return choice

    return read


def _attempts_before_reset(value: Any) -> int:
    if str(value).strip().lower() == "infinite":
        return 0
    return _integer(1, _LARGEST)(value)


_LARGEST = (1 << 31) - 1
_any_integer = _integer(-_LARGEST - 1, _LARGEST)
_restart_type = _choice(
    RESTART_TYPES,
    {
        "off": "none",
        "disable": "none",
        "fixeddelay": "fixed-delay",
        "failurerate": "failure-rate",
        "exponentialdelay": "exponential-delay",
    },
)

OPTIONS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "execution.checkpointing.interval": (
        "checkpoints.interval_ms", _interval, "time from one checkpoint to the next, at least 10 ms; default 0: off",
    ),
    "execution.checkpointing.mode": (
        "checkpoints.mode", _choice(MODES), "EXACTLY_ONCE (default) or AT_LEAST_ONCE",
    ),
    "execution.checkpointing.timeout": (
        "checkpoints.timeout_ms", _duration,
        "a checkpoint that takes longer is given up; at least 10 ms; default 10 min",
    ),
    "execution.checkpointing.min-pause": (
        "checkpoints.min_pause_ms", _duration, "least time from the end of a checkpoint to the next start; default 0",
    ),
    "execution.checkpointing.max-concurrent-checkpoints": (
        "checkpoints.max_concurrent", _any_integer, "checkpoints that may be under way at the same time; default 1",
    ),
    "execution.checkpointing.tolerable-failed-checkpoints": (
        "checkpoints.tolerable_failures", _any_integer,
        "failed checkpoints in a row that do not fail the job; default 0",
    ),
    "execution.checkpointing.externalized-checkpoint-retention": (
        "checkpoints.retention", _choice(RETENTIONS),
        "which checkpoints outlive the job: NO_EXTERNALIZED_CHECKPOINTS (default), "  # noqa: ISC004
        "DELETE_ON_CANCELLATION or RETAIN_ON_CANCELLATION",
    ),
    "execution.checkpointing.num-retained": (
        "checkpoints.num_retained", _any_integer, "completed checkpoints that are kept; default 1",
    ),
    "execution.checkpointing.unaligned.enabled": (
        "checkpoints.unaligned", _boolean,
        "unaligned checkpoints; needs EXACTLY_ONCE and at most one checkpoint at a time; default false",
    ),
    "execution.checkpointing.aligned-checkpoint-timeout": (
        "checkpoints.aligned_timeout_ms", _duration,
        "with unaligned checkpoints: how long one may stay aligned; default 0: unaligned from the start",
    ),
    "execution.checkpointing.incremental": (
        "checkpoints.incremental", _boolean, "checkpoints share files with earlier ones; default false",
    ),
    "execution.checkpointing.storage": (
        "checkpoints.storage", _choice(STORAGES), "filesystem (default) or jobmanager",
    ),
    "execution.checkpointing.dir": ("directory", _text, "directory of all jobs; default ./cairn-data"),
    "execution.checkpointing.savepoint-dir": (
        "checkpoints.savepoint_dir", _text,
        "where savepoints go when none is named; no effect yet, there are no savepoints",
    ),
    "execution.checkpointing.data-inline-threshold": (
        "inline_threshold", _inline, "changes up to this size travel inside the manifest; default 20 kb, at most 1 mb",
    ),
    "execution.checkpointing.write-buffer-size": (
        "checkpoints.write_buffer", _size,
        "bytes written by one call to the storage, at least the inline threshold; default 4096",
    ),
    "execution.checkpointing.local-backup.enabled": (
        "checkpoints.local_recovery", _boolean,
        "a restarted job goes on with the working stores that its hosts still have; default true, false in Flink",
    ),
    "execution.checkpointing.local-backup.dirs": (
        "local_directory", _text, "where working stores live on each host; default: in the temporary folder",
    ),
    "execution.checkpointing.prefer-checkpoint-for-recovery": (
        "checkpoints.prefer_checkpoint_for_recovery", _boolean,
        "a key of Flink 1.x; no effect, since a job never recovers from a savepoint by itself; default false",
    ),
    "execution.state-recovery.path": (
        "restore_path", _text, "checkpoint (a chk-<n> folder) that the job starts from; default: none",
    ),
    "execution.state-recovery.claim-mode": (
        "claim_mode", _choice(CLAIM_MODES),
        "who owns the snapshot that the job starts from: NO_CLAIM (default, the user) or CLAIM (the job)",
    ),
    "execution.state-recovery.ignore-unclaimed-state": (
        "ignore_unclaimed", _boolean, "start although stored state belongs to operators that the job no longer has",
    ),
    "state.backend.type": ("backend", _text, "lmdb (default), hashmap, rocksdb, or an installed one"),
    "restart-strategy.type": (
        "restart.type", _restart_type,
        "none (also off, disable), fixed-delay, failure-rate or exponential-delay; default: none without "  # noqa: ISC004
        "checkpoints, exponential-delay with them",
    ),
    "restart-strategy.fixed-delay.attempts": ("restart.attempts", _any_integer, "restarts before giving up; default 1"),
    "restart-strategy.fixed-delay.delay": ("restart.delay_ms", _duration, "pause before a restart; default 1 s"),
    "restart-strategy.failure-rate.max-failures-per-interval": (
        "restart.max_failures", _any_integer, "most failures that may happen within the interval; default 1",
    ),
    "restart-strategy.failure-rate.failure-rate-interval": (
        "restart.failure_interval_ms", _duration, "the interval in which failures are counted; default 1 min",
    ),
    "restart-strategy.failure-rate.delay": (
        "restart.failure_delay_ms", _duration, "pause before a restart; default 1 s",
    ),
    "restart-strategy.exponential-delay.initial-backoff": (
        "restart.initial_backoff_ms", _duration, "pause before the first restart; default 1 s",
    ),
    "restart-strategy.exponential-delay.max-backoff": (
        "restart.max_backoff_ms", _duration, "longest pause before a restart; default 1 min",
    ),
    "restart-strategy.exponential-delay.backoff-multiplier": (
        "restart.multiplier", _decimal, "growth of the pause from restart to restart, more than 1; default 1.5",
    ),
    "restart-strategy.exponential-delay.reset-backoff-threshold": (
        "restart.reset_ms", _duration, "time without failure after which the pause is the first one again; default 1 h",
    ),
    "restart-strategy.exponential-delay.jitter-factor": (
        "restart.jitter", _decimal, "part of the pause that is random, from 0 to below 1; default 0.1",
    ),
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": (
        "restart.attempts_before_reset", _attempts_before_reset,
        "restarts without such a quiet time before giving up; default infinite",
    ),
    "parallelism.default": ("parallelism", _integer(1, 32768), "number of subtasks; default: that of Spark"),
    "pipeline.max-parallelism": (
        "max_parallelism", _integer(-1, 32768), "number of key groups, fixed for a job's life; default as in Flink",
    ),
    "pipeline.job-id": ("job_id", _text, "name of the job's directory; default: made from the job's name"),
    "pipeline.auto-generate-uids": ("auto_uids", _boolean, "false: operators must have a uid; default true"),
    "cairn.compaction.max-chain": (
        "compaction_chain", _integer(2, 10_000), "deltas after which state is compacted into a snapshot; default 32",
    ),
    "cairn.epochs.retained": ("epochs_retained", _integer(2, 100_000), "manifests that are kept; default 10"),
    "cairn.errors.show-values": ("show_values", _boolean, "show data in error messages; default false"),
}  # fmt: skip
ALIASES = {
    "execution.checkpointing.alignment-timeout": "execution.checkpointing.aligned-checkpoint-timeout",
    "execution.checkpointing.unaligned": "execution.checkpointing.unaligned.enabled",
    "execution.savepoint.ignore-unclaimed-state": "execution.state-recovery.ignore-unclaimed-state",
    "execution.savepoint.path": "execution.state-recovery.path",
    "execution.savepoint-restore-mode": "execution.state-recovery.claim-mode",
    "restart-strategy": "restart-strategy.type",
    "state.backend": "state.backend.type",
    "state.backend.incremental": "execution.checkpointing.incremental",
    "state.backend.local-recovery": "execution.checkpointing.local-backup.enabled",
    "state.checkpoint-storage": "execution.checkpointing.storage",
    "state.checkpoints.dir": "execution.checkpointing.dir",
    "state.checkpoints.num-retained": "execution.checkpointing.num-retained",
    "state.savepoints.dir": "execution.checkpointing.savepoint-dir",
    "state.storage.fs.memory-threshold": "execution.checkpointing.data-inline-threshold",
    "state.storage.fs.write-buffer-size": "execution.checkpointing.write-buffer-size",
    "taskmanager.state.local.root-dirs": "execution.checkpointing.local-backup.dirs",
}
_NO_CHANNELS = "cairn records source positions, not the buffers between tasks; leave it out"
_NO_CHANGELOG = "every epoch writes its changes durably already; leave it out, see cairn.compaction.max-chain"
_NO_TRACKING = "state is read and written in bulk, not timed or measured call by call; see the metrics of Spark's tasks"
REFUSED = {
    "execution.checkpointing.interval-during-backlog": (
        "Spark's sources do not report a backlog; set execution.checkpointing.interval"
    ),
    "execution.checkpointing.create-subdir": (
        "the files of a job are always in a directory of its own; name it with pipeline.job-id"
    ),
    "execution.checkpointing.snapshot-compression": "the format of state files is fixed; leave it out",
    "execution.checkpointing.cleaner.parallel-mode": "how old files are deleted cannot be chosen; leave it out",
    "execution.checkpointing.checkpoints-after-tasks-finish": (
        "the tasks of Spark end with every epoch, so none finishes early; leave it out"
    ),
    "execution.checkpointing.checkpoints-after-tasks-finish.*": (
        "the tasks of Spark end with every epoch, so none finishes early; leave it out"
    ),
    "execution.checkpointing.unaligned.forced": (
        "it is for iterations, which cairn does not have; set execution.checkpointing.unaligned.enabled"
    ),
    "execution.checkpointing.unaligned.max-subtasks-per-channel-state-file": _NO_CHANNELS,
    "execution.checkpointing.unaligned.interruptible-timers.*": (
        "due timers fire at the start of an epoch and belong to it as a whole; leave it out"
    ),
    "execution.checkpointing.unaligned.recover-output-on-downstream.enabled": _NO_CHANNELS,
    "execution.checkpointing.during-recovery.enabled": _NO_CHANNELS,
    "execution.checkpointing.sync-phase-timeout": (
        "a checkpoint has one time limit for all its parts; set execution.checkpointing.timeout"
    ),
    "execution.checkpointing.file-merging.*": (
        "changes that are small need no file of their own; set execution.checkpointing.data-inline-threshold"
    ),
    "pipeline.sources.pause-until-first-checkpoint": "Spark's sources cannot be paused; leave it out",
    "execution.state-recovery.from-local": (
        "copies on the host have one switch; set execution.checkpointing.local-backup.enabled"
    ),
    "execution.state-recovery.without-channel-state.checkpoint-id": _NO_CHANNELS,
    "state.backend.rocksdb.localdir": (
        "working stores of all backends are in one place; set execution.checkpointing.local-backup.dirs"
    ),
    "state.backend.rocksdb.timer-service.*": "timers are kept in the same store as all other state; leave it out",
    "state.backend.rocksdb.*": "the backend sets up RocksDB itself; leave it out, or install a backend of your own",
    "state.backend.forst.*": "there is no such backend; set state.backend.type to rocksdb for large state",
    "state.latency-track.*": _NO_TRACKING,
    "state.backend.latency-track.*": _NO_TRACKING,
    "state.size-track.*": _NO_TRACKING,
    "state.changelog.*": _NO_CHANGELOG,
    "state.backend.changelog.*": _NO_CHANGELOG,
    "pipeline.auto-watermark-interval": "the watermark moves once an epoch; set the pace with env.set_trigger",
    "web.checkpoints.history": "there is no web interface; leave it out",
    "taskmanager.network.memory.buffer-debloat.*": (
        "the network is Spark's; limit the rows of an epoch at the source, as with maxOffsetsPerTrigger"
    ),
    "jobmanager.execution.failover-strategy": "an epoch fails or commits as a whole; set restart-strategy.type",
}  # fmt: skip
"""Keys of Flink without a counterpart, and why. A key that ends in `.*` stands for all keys that begin so."""
_PARAMETER = "pipeline.global-job-parameters."


_KEYS = {name: key for key, (name, _, _) in OPTIONS.items()}


def parse(*layers: Mapping[str, Any]) -> Settings:
    """Settings from one or more maps of keys; a later map wins."""
    options: list[tuple[str, Any]] = []
    spark: dict[str, str] = {}
    parameters: dict[str, str] = {}
    for layer in layers:
        for given, value in layer.items():
            if given.startswith("spark."):
                spark[given] = str(value)
            elif given.startswith(_PARAMETER):
                parameters[given.removeprefix(_PARAMETER)] = str(value)
            else:
                options.append((given, value))
    return _changed(Settings(spark=spark, parameters=parameters), options)


def with_options(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """A checked copy of the settings in which these keys have these values."""
    return _changed(settings, options.items())


def check(settings: Settings) -> None:
    """Raise if checkpoint, restart or recovery settings are out of range or do not fit together.

    `parse` has done this for what it returns; it is for settings that were changed in code.
    """
    _check(settings, {})


def _changed(settings: Settings, options: Iterable[tuple[str, Any]]) -> Settings:
    parts: dict[str, dict[str, Any]] = {"": {}}
    given_as: dict[str, str] = {}
    for given, value in options:
        name, read = _option(given)
        part, _, inner = name.rpartition(".")
        try:
            parts.setdefault(part, {})[inner] = read(value)
        except ValueError as error:
            raise InvalidInputError(f"option {given}: {error}", option=given) from None
        given_as[name] = given
    own = parts.pop("")
    if own.get("max_parallelism") == -1:
        own["max_parallelism"] = 0
    own.update((part, replace(getattr(settings, part), **changes)) for part, changes in parts.items())
    changed = replace(settings, **own)
    _check(changed, given_as)
    return changed


def _option(given: str) -> tuple[str, Callable[[Any], Any]]:
    """Field and reader of a key, or an error that says what is wrong with the key."""
    key = ALIASES.get(given, given)
    if key in OPTIONS:
        return OPTIONS[key][:2]
    reason = _refusal(key)
    if reason is not None:
        raise InvalidInputError(f"option {given} of Flink does not exist in cairn: {reason}", option=given)
    near = difflib.get_close_matches(key, [*OPTIONS, *ALIASES], n=1)
    hint = f"did you mean {near[0]}?" if near else "docs/configuration.md lists the options."
    raise InvalidInputError(f"there is no option {given}; {hint}", option=given)


def _refusal(key: str) -> str | None:
    if key in REFUSED:
        return REFUSED[key]
    families = [family for family in REFUSED if family.endswith(".*") and key.startswith(family[:-1])]
    return REFUSED[max(families, key=len)] if families else None


def _at_least(low: int, unit: str = "") -> tuple[Callable[[Any], bool], str]:
    return lambda value: value >= low, f"at least {low}{unit}"


def _one_of(choices: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in choices, " or ".join(choice for choice in choices if choice)


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "claim_mode": _one_of(CLAIM_MODES),
    "checkpoints.interval_ms": (
        lambda ms: ms <= 0 or ms >= MIN_CHECKPOINT_MS, f"at least {MIN_CHECKPOINT_MS} ms, or 0 for no checkpoints",
    ),
    "checkpoints.mode": _one_of(MODES),
    "checkpoints.timeout_ms": _at_least(MIN_CHECKPOINT_MS, " ms"),
    "checkpoints.min_pause_ms": _at_least(0, " ms"),
    "checkpoints.max_concurrent": _at_least(1),
    "checkpoints.tolerable_failures": _at_least(0),
    "checkpoints.retention": _one_of(RETENTIONS),
    "checkpoints.num_retained": _at_least(1),
    "checkpoints.aligned_timeout_ms": _at_least(0, " ms"),
    "checkpoints.storage": _one_of(STORAGES),
    "restart.type": _one_of(("", *RESTART_TYPES)),
    "restart.attempts": _at_least(0),
    "restart.delay_ms": _at_least(0, " ms"),
    "restart.max_failures": _at_least(1),
    "restart.failure_interval_ms": _at_least(1, " ms"),
    "restart.failure_delay_ms": _at_least(0, " ms"),
    "restart.initial_backoff_ms": _at_least(1, " ms"),
    "restart.max_backoff_ms": _at_least(1, " ms"),
    "restart.multiplier": (lambda factor: factor > 1, "more than 1"),
    "restart.reset_ms": _at_least(1, " ms"),
    "restart.jitter": (lambda factor: 0 <= factor < 1, "from 0 to below 1"),
    "restart.attempts_before_reset": _at_least(0),
}  # fmt: skip


def _check(settings: Settings, given_as: Mapping[str, str]) -> None:
    """`given_as` has the names under which the user knows the fields, where these are not the usual keys."""

    def key(name: str) -> str:
        return given_as.get(name, _KEYS[name])

    def found(name: str) -> Any:
        return attrgetter(name)(settings)

    def require(name: str, fits: bool, right: str) -> None:
        if not fits:
            shown = f"{found(name)} ms" if name.endswith("_ms") else repr(found(name))
            raise InvalidInputError(f"option {key(name)}: expected {right}, found {shown}", option=key(name))

    for name, (fits, right) in _RANGES.items():
        require(name, fits(found(name)), right)
    checkpoints, restart = settings.checkpoints, settings.restart
    if checkpoints.unaligned:
        why = f"because {key('checkpoints.unaligned')} is true"
        require("checkpoints.mode", checkpoints.mode == "EXACTLY_ONCE", f"EXACTLY_ONCE {why}")
        require("checkpoints.max_concurrent", checkpoints.max_concurrent == 1, f"1 {why}")
    most = f"at most {restart.max_backoff_ms} ms, which is {key('restart.max_backoff_ms')}"
    require("restart.initial_backoff_ms", restart.initial_backoff_ms <= restart.max_backoff_ms, most)
