"""The options, their older names in Flink, and the options of Flink that have no counterpart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cairn.config import option_readers as readers
from cairn.config.settings import MODES, RETENTIONS, STORAGES

OPTIONS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "execution.checkpointing.interval": (
        "checkpoints.interval_ms", readers.interval,
        "interval between checkpoints, at least 10 ms; default 0: checkpointing is off",
    ),
    "execution.checkpointing.mode": (
        "checkpoints.mode", readers.choice(MODES), "EXACTLY_ONCE (default) or AT_LEAST_ONCE",
    ),
    "execution.checkpointing.timeout": (
        "checkpoints.timeout_ms", readers.duration,
        "maximum duration of a checkpoint, at least 10 ms; default 10 min",
    ),
    "execution.checkpointing.min-pause": (
        "checkpoints.min_pause_ms", readers.duration,
        "minimum pause between the end of a checkpoint and the start of the next; default 0",
    ),
    "execution.checkpointing.max-concurrent-checkpoints": (
        "checkpoints.max_concurrent", readers.any_integer,
        "maximum number of concurrent checkpoints; default 1",
    ),
    "execution.checkpointing.tolerable-failed-checkpoints": (
        "checkpoints.tolerable_failures", readers.any_integer,
        "number of consecutive failed checkpoints that do not fail the job; default 0",
    ),
    "execution.checkpointing.externalized-checkpoint-retention": (
        "checkpoints.retention", readers.choice(RETENTIONS),
        "which checkpoints are kept when the job ends: NO_EXTERNALIZED_CHECKPOINTS (default), "  # noqa: ISC004
        "DELETE_ON_CANCELLATION or RETAIN_ON_CANCELLATION",
    ),
    "execution.checkpointing.num-retained": (
        "checkpoints.num_retained", readers.any_integer, "number of completed checkpoints to retain; default 1",
    ),
    "execution.checkpointing.unaligned.enabled": (
        "checkpoints.unaligned", readers.boolean,
        "take unaligned checkpoints; requires EXACTLY_ONCE and one checkpoint at a time; default false",
    ),
    "execution.checkpointing.aligned-checkpoint-timeout": (
        "checkpoints.aligned_timeout_ms", readers.duration,
        "how long a checkpoint stays aligned before it becomes unaligned; default 0: unaligned from the start",
    ),
    "execution.checkpointing.incremental": (
        "checkpoints.incremental", readers.boolean,
        "take incremental checkpoints, which share files with earlier ones; default false",
    ),
    "execution.checkpointing.storage": (
        "checkpoints.storage", readers.choice(STORAGES), "checkpoint storage: filesystem (default) or jobmanager",
    ),
    "execution.checkpointing.dir": (
        "directory", readers.directory,
        "directory of all jobs; each job has a directory below it; default ./cairn-data",
    ),
    "execution.checkpointing.savepoint-dir": (
        "checkpoints.savepoint_dir", readers.directory,
        "default directory of savepoints; default: none",
    ),
    "execution.checkpointing.data-inline-threshold": (
        "inline_threshold", readers.inline,
        "state changes up to this size are stored in the manifest; default 20 kb, at most 1 mb",
    ),
    "execution.checkpointing.write-buffer-size": (
        "checkpoints.write_buffer", readers.size,
        "size of the write buffer in bytes, at least the inline threshold; default 4096",
    ),
    "execution.checkpointing.local-backup.enabled": (
        "checkpoints.local_recovery", readers.boolean,
        "local recovery: a restarted job reuses the working stores on its hosts; default true (false in Flink)",
    ),
    "execution.checkpointing.local-backup.dirs": (
        "local_directory", readers.one_directory,
        "directory of the working stores on each host; default: in the temporary directory",
    ),
    "execution.checkpointing.prefer-checkpoint-for-recovery": (
        "checkpoints.prefer_checkpoint_for_recovery", readers.boolean,
        "no effect, because a job never recovers from a savepoint automatically; an option of Flink 1.x; default false",
    ),
    "execution.state-recovery.path": (
        "restore_path", readers.text,
        "savepoint, checkpoint (a chk-<n> folder) or job to start from; default: none",
    ),
    "execution.state-recovery.claim-mode": (
        "claim_mode", readers.claim_mode,
        "who owns the snapshot that the job starts from: the user (NO_CLAIM, default) or the job (CLAIM)",
    ),
    "execution.state-recovery.ignore-unclaimed-state": (
        "ignore_unclaimed", readers.boolean,
        "drop the state of operators that the job no longer has, and positions of unmatched sources; default false",
    ),
    "state.backend.type": (
        "backend", readers.text, "state backend: lmdb (default), hashmap, rocksdb, or the name of an installed backend",
    ),
    "restart-strategy.type": (
        "restart.type", readers.restart_type,
        "none (also off, disable), fixed-delay, failure-rate or exponential-delay; default: none without "  # noqa: ISC004
        "checkpoints, exponential-delay with them",
    ),
    "restart-strategy.fixed-delay.attempts": (
        "restart.attempts", readers.any_integer,
        "maximum number of restarts; default 1",
    ),
    "restart-strategy.fixed-delay.delay": ("restart.delay_ms", readers.duration, "delay before a restart; default 1 s"),
    "restart-strategy.failure-rate.max-failures-per-interval": (
        "restart.max_failures", readers.any_integer, "maximum number of failures within the interval; default 1",
    ),
    "restart-strategy.failure-rate.failure-rate-interval": (
        "restart.failure_interval_ms", readers.duration, "interval in which failures are counted; default 1 min",
    ),
    "restart-strategy.failure-rate.delay": (
        "restart.failure_delay_ms", readers.duration, "delay before a restart; default 1 s",
    ),
    "restart-strategy.exponential-delay.initial-backoff": (
        "restart.initial_backoff_ms", readers.duration, "delay before the first restart; default 1 s",
    ),
    "restart-strategy.exponential-delay.max-backoff": (
        "restart.max_backoff_ms", readers.duration, "maximum delay before a restart; default 1 min",
    ),
    "restart-strategy.exponential-delay.backoff-multiplier": (
        "restart.multiplier", readers.decimal,
        "factor by which the delay grows after each restart, more than 1; default 1.5",
    ),
    "restart-strategy.exponential-delay.reset-backoff-threshold": (
        "restart.reset_ms", readers.duration,
        "time without failures after which the delay is reset; default 1 h",
    ),
    "restart-strategy.exponential-delay.jitter-factor": (
        "restart.jitter", readers.decimal,
        "fraction of the delay that is random, at least 0 and less than 1; default 0.1",
    ),
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": (
        "restart.attempts_before_reset", readers.attempts_before_reset,
        "maximum number of restarts before the delay is reset; default infinite",
    ),
    "parallelism.default": (
        "parallelism", readers.integer(1, 32768), "number of subtasks; default: the parallelism of Spark",
    ),
    "pipeline.max-parallelism": (
        "max_parallelism", readers.integer(-1, 32768),
        "number of key groups, fixed for the life of a job; default as in Flink",
    ),
    "pipeline.job-id": ("job_id", readers.text, "name of the job directory; default: derived from the job name"),
    "pipeline.auto-generate-uids": (
        "auto_uids", readers.boolean,
        "generate missing uids of operators; if false, every operator needs a uid; default true",
    ),
    "cairn.compaction.max-chain": (
        "compaction_chain", readers.integer(2, 10_000),
        "number of deltas after which state is compacted; default 32",
    ),
    "cairn.epochs.retained": (
        "epochs_retained", readers.integer(2, 100_000),
        "number of committed epochs whose manifests are kept; default 10",
    ),
    "cairn.restore.renames": (
        "renames", readers.renames,
        "renamed uids and states of the snapshot: old=new, uid.old-state=uid.new-state; default: none",
    ),
    "cairn.restore.again": (
        "restore_again", readers.boolean,
        "restore the snapshot again if the job was already started from it; if false, the job continues; default true",
    ),
    "cairn.restore.allow-pickled": (
        "allow_pickled", readers.names,
        "comma-separated pickled states (uid.state) that may be restored from another job's snapshot; default: none",
    ),
    "rest.port": (
        "web.port", readers.integer(0, 65535),
        "port of the web page; if it is in use, the next free port; 0: any free port; default 8081",
    ),
    "rest.bind-address": (
        "web.address", readers.text,
        "address of the web page; an address other than loopback requires cairn.web.token; default 127.0.0.1",
    ),
    "web.checkpoints.history": (
        "web.history", readers.integer(1, 100_000),
        "number of finished checkpoints whose statistics are kept; default 1000 (10 in Flink)",
    ),
    "cairn.web.enabled": ("web.enabled", readers.boolean, "serve the web page in the driver; default true"),
    "cairn.web.token": (
        "web.token", readers.text,
        "token that changes require; default: a new token at every start, written to the log",
    ),
    "cairn.web.hosts": (
        "web.hosts", readers.names,
        "comma-separated additional host names of the web page, such as those of a proxy; default: none",
    ),
    "cairn.web.read-only": ("web.read_only", readers.boolean, "make the web page read-only; default false"),
    "cairn.web.hidden-states": (
        "web.hidden_states", readers.names,
        "comma-separated states (uid.state, * for any) whose values the web page hides; default: none",
    ),
    "cairn.web.savepoint-roots": (
        "web.savepoint_roots", readers.names,
        "comma-separated additional directories in which the web page may create savepoints; default: none",
    ),
    "cairn.time.max-jump": (
        "max_jump_ms", readers.duration,
        (
            "limit on how far processing time may run ahead of the elapsed time between two epochs of a driver; an "
            "epoch beyond it is refused; default 1 d"
        ),
    ),
    "cairn.time.max-downtime": (
        "max_downtime_ms", readers.duration,
        (
            "limit on how far the clock may be ahead of the newest epoch when a job is started; a first epoch beyond "
            "it is refused; default 90 d"
        ),
    ),
    "cairn.time.reset": (
        "time_reset", readers.boolean,
        (
            "set processing time back to the clock if it is ahead by more than cairn.time.max-jump, and fire all "
            "processing-time timers; default false"
        ),
    ),
    "cairn.errors.show-values": (
        "show_values", readers.boolean,
        (
            "show and store the messages of exceptions in functions and the row that failed, which may contain "
            "data; if false, only the exception type, the line, and the messages of cairn's own errors (with the key, "
            "or a value that does not fit its type); default true"
        ),
    ),
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
_NO_CHANNELS = "cairn records source positions, not the buffers between tasks; remove the option"
_NO_CHANGELOG = "every epoch already writes its changes durably; remove the option, see cairn.compaction.max-chain"
_NO_TRACKING = "state is read and written in bulk, so single calls are not measured; see the metrics of Spark's tasks"
REFUSED = {
    "execution.checkpointing.interval-during-backlog": (
        "Spark's sources do not report a backlog; set execution.checkpointing.interval"
    ),
    "execution.checkpointing.create-subdir": (
        "every job has its own directory; name it with pipeline.job-id"
    ),
    "execution.checkpointing.snapshot-compression": "the format of state files is fixed; remove the option",
    "execution.checkpointing.cleaner.parallel-mode": (
        "the deletion of old files cannot be configured; remove the option"
    ),
    "execution.checkpointing.checkpoints-after-tasks-finish": (
        "Spark's tasks end with every epoch, so none finishes early; remove the option"
    ),
    "execution.checkpointing.checkpoints-after-tasks-finish.*": (
        "Spark's tasks end with every epoch, so none finishes early; remove the option"
    ),
    "execution.checkpointing.unaligned.forced": (
        "it applies to iterations, which cairn does not support; set execution.checkpointing.unaligned.enabled"
    ),
    "execution.checkpointing.unaligned.max-subtasks-per-channel-state-file": _NO_CHANNELS,
    "execution.checkpointing.unaligned.interruptible-timers.*": (
        "due timers fire at the start of an epoch and belong to it as a whole; remove the option"
    ),
    "execution.checkpointing.unaligned.recover-output-on-downstream.enabled": _NO_CHANNELS,
    "execution.checkpointing.during-recovery.enabled": _NO_CHANNELS,
    "execution.checkpointing.sync-phase-timeout": (
        "a checkpoint has a single timeout; set execution.checkpointing.timeout"
    ),
    "execution.checkpointing.file-merging.*": (
        "small changes are stored in the manifest; set execution.checkpointing.data-inline-threshold"
    ),
    "pipeline.sources.pause-until-first-checkpoint": "Spark's sources cannot be paused; remove the option",
    "execution.state-recovery.from-local": (
        "local recovery has a single option; set execution.checkpointing.local-backup.enabled"
    ),
    "execution.state-recovery.without-channel-state.checkpoint-id": _NO_CHANNELS,
    "state.backend.rocksdb.localdir": (
        "all backends use the same directory; set execution.checkpointing.local-backup.dirs"
    ),
    "state.backend.rocksdb.timer-service.*": "timers are kept in the same store as all other state; remove the option",
    "state.backend.rocksdb.*": "cairn configures RocksDB itself; remove the option, or install your own backend",
    "state.backend.forst.*": "this backend does not exist; set state.backend.type to rocksdb for large state",
    "state.latency-track.*": _NO_TRACKING,
    "state.backend.latency-track.*": _NO_TRACKING,
    "state.size-track.*": _NO_TRACKING,
    "state.changelog.*": _NO_CHANGELOG,
    "state.backend.changelog.*": _NO_CHANGELOG,
    "pipeline.auto-watermark-interval": "the watermark advances once per epoch; set its pace with env.set_trigger",
    "taskmanager.network.memory.buffer-debloat.*": (
        "Spark manages the network; limit the rows of an epoch at the source, for example with maxOffsetsPerTrigger"
    ),
    "jobmanager.execution.failover-strategy": "an epoch fails or commits as a whole; set restart-strategy.type",
}  # fmt: skip
"""Flink options without a counterpart, and why. A key that ends in `.*` stands for all keys with this prefix."""
