"""Which options there are, what Flink called them before, and which of Flink's have no counterpart here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cairn.config import option_readers as readers
from cairn.config.settings import MODES, RETENTIONS, STORAGES

OPTIONS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "execution.checkpointing.interval": (
        "checkpoints.interval_ms", readers.interval,
        "time from one checkpoint to the next, at least 10 ms; default 0: off",
    ),
    "execution.checkpointing.mode": (
        "checkpoints.mode", readers.choice(MODES), "EXACTLY_ONCE (default) or AT_LEAST_ONCE",
    ),
    "execution.checkpointing.timeout": (
        "checkpoints.timeout_ms", readers.duration,
        "a checkpoint that takes longer is given up; at least 10 ms; default 10 min",
    ),
    "execution.checkpointing.min-pause": (
        "checkpoints.min_pause_ms", readers.duration,
        "least time from the end of a checkpoint to the next start; default 0",
    ),
    "execution.checkpointing.max-concurrent-checkpoints": (
        "checkpoints.max_concurrent", readers.any_integer,
        "checkpoints that may be under way at the same time; default 1",
    ),
    "execution.checkpointing.tolerable-failed-checkpoints": (
        "checkpoints.tolerable_failures", readers.any_integer,
        "failed checkpoints in a row that do not fail the job; default 0",
    ),
    "execution.checkpointing.externalized-checkpoint-retention": (
        "checkpoints.retention", readers.choice(RETENTIONS),
        "which checkpoints outlive the job: NO_EXTERNALIZED_CHECKPOINTS (default), "  # noqa: ISC004
        "DELETE_ON_CANCELLATION or RETAIN_ON_CANCELLATION",
    ),
    "execution.checkpointing.num-retained": (
        "checkpoints.num_retained", readers.any_integer, "completed checkpoints that are kept; default 1",
    ),
    "execution.checkpointing.unaligned.enabled": (
        "checkpoints.unaligned", readers.boolean,
        "unaligned checkpoints; needs EXACTLY_ONCE and at most one checkpoint at a time; default false",
    ),
    "execution.checkpointing.aligned-checkpoint-timeout": (
        "checkpoints.aligned_timeout_ms", readers.duration,
        "with unaligned checkpoints: how long one may stay aligned; default 0: unaligned from the start",
    ),
    "execution.checkpointing.incremental": (
        "checkpoints.incremental", readers.boolean, "checkpoints share files with earlier ones; default false",
    ),
    "execution.checkpointing.storage": (
        "checkpoints.storage", readers.choice(STORAGES), "filesystem (default) or jobmanager",
    ),
    "execution.checkpointing.dir": ("directory", readers.directory, "directory of all jobs; default ./cairn-data"),
    "execution.checkpointing.savepoint-dir": (
        "checkpoints.savepoint_dir", readers.directory,
        "where savepoints go when the one who asks for them names no directory; default: none",
    ),
    "execution.checkpointing.data-inline-threshold": (
        "inline_threshold", readers.inline,
        "changes up to this size travel inside the manifest; default 20 kb, at most 1 mb",
    ),
    "execution.checkpointing.write-buffer-size": (
        "checkpoints.write_buffer", readers.size,
        "bytes written by one call to the storage, at least the inline threshold; default 4096",
    ),
    "execution.checkpointing.local-backup.enabled": (
        "checkpoints.local_recovery", readers.boolean,
        "a restarted job goes on with the working stores that its hosts still have; default true, false in Flink",
    ),
    "execution.checkpointing.local-backup.dirs": (
        "local_directory", readers.one_directory,
        "where working stores live on each host, one directory; default: in the temporary folder",
    ),
    "execution.checkpointing.prefer-checkpoint-for-recovery": (
        "checkpoints.prefer_checkpoint_for_recovery", readers.boolean,
        "a key of Flink 1.x; no effect, since a job never recovers from a savepoint by itself; default false",
    ),
    "execution.state-recovery.path": (
        "restore_path", readers.text,
        "savepoint or checkpoint (a chk-<n> folder) that the job starts from; default: none",
    ),
    "execution.state-recovery.claim-mode": (
        "claim_mode", readers.claim_mode,
        "who owns the snapshot that the job starts from: NO_CLAIM (default, the user) or CLAIM (the job)",
    ),
    "execution.state-recovery.ignore-unclaimed-state": (
        "ignore_unclaimed", readers.boolean,
        "drop stored state of operators that the job no longer has, and positions of sources that are not found again",
    ),
    "state.backend.type": ("backend", readers.text, "lmdb (default), hashmap, rocksdb, or an installed one"),
    "restart-strategy.type": (
        "restart.type", readers.restart_type,
        "none (also off, disable), fixed-delay, failure-rate or exponential-delay; default: none without "  # noqa: ISC004
        "checkpoints, exponential-delay with them",
    ),
    "restart-strategy.fixed-delay.attempts": (
        "restart.attempts", readers.any_integer,
        "restarts before giving up; default 1",
    ),
    "restart-strategy.fixed-delay.delay": ("restart.delay_ms", readers.duration, "pause before a restart; default 1 s"),
    "restart-strategy.failure-rate.max-failures-per-interval": (
        "restart.max_failures", readers.any_integer, "most failures that may happen within the interval; default 1",
    ),
    "restart-strategy.failure-rate.failure-rate-interval": (
        "restart.failure_interval_ms", readers.duration, "the interval in which failures are counted; default 1 min",
    ),
    "restart-strategy.failure-rate.delay": (
        "restart.failure_delay_ms", readers.duration, "pause before a restart; default 1 s",
    ),
    "restart-strategy.exponential-delay.initial-backoff": (
        "restart.initial_backoff_ms", readers.duration, "pause before the first restart; default 1 s",
    ),
    "restart-strategy.exponential-delay.max-backoff": (
        "restart.max_backoff_ms", readers.duration, "longest pause before a restart; default 1 min",
    ),
    "restart-strategy.exponential-delay.backoff-multiplier": (
        "restart.multiplier", readers.decimal, "growth of the pause from restart to restart, more than 1; default 1.5",
    ),
    "restart-strategy.exponential-delay.reset-backoff-threshold": (
        "restart.reset_ms", readers.duration,
        "time without failure after which the pause is the first one again; default 1 h",
    ),
    "restart-strategy.exponential-delay.jitter-factor": (
        "restart.jitter", readers.decimal, "part of the pause that is random, from 0 to below 1; default 0.1",
    ),
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": (
        "restart.attempts_before_reset", readers.attempts_before_reset,
        "restarts without such a quiet time before giving up; default infinite",
    ),
    "parallelism.default": ("parallelism", readers.integer(1, 32768), "number of subtasks; default: that of Spark"),
    "pipeline.max-parallelism": (
        "max_parallelism", readers.integer(-1, 32768),
        "number of key groups, fixed for a job's life; default as in Flink",
    ),
    "pipeline.job-id": ("job_id", readers.text, "name of the job's directory; default: made from the job's name"),
    "pipeline.auto-generate-uids": ("auto_uids", readers.boolean, "false: operators must have a uid; default true"),
    "cairn.compaction.max-chain": (
        "compaction_chain", readers.integer(2, 10_000),
        "deltas after which state is compacted into a snapshot; default 32",
    ),
    "cairn.epochs.retained": ("epochs_retained", readers.integer(2, 100_000), "manifests that are kept; default 10"),
    "cairn.restore.renames": (
        "renames", readers.renames,
        "what uids and states of the snapshot are called now: old=new, uid.old-state=uid.new-state; default: none",
    ),
    "cairn.restore.again": (
        "restore_again", readers.boolean,
        "go back to the snapshot also if the job started from it before; false: the job goes on then; default true",
    ),
    "cairn.restore.allow-pickled": (
        "allow_pickled", readers.names,
        "pickled states (uid.state, with commas) that may be taken from a snapshot of another job; default: none",
    ),
    "rest.port": (
        "web.port", readers.integer(0, 65535),
        "port of the web page; the next free one if it is taken; default 8081, 0: any",
    ),
    "rest.bind-address": (
        "web.address", readers.text, "address of the web page; any but a loopback one needs a token; default 127.0.0.1",
    ),
    "web.checkpoints.history": (
        "web.history", readers.integer(1, 100_000),
        "ended checkpoints whose statistics are kept; default 1000, 10 in Flink",
    ),
    "cairn.web.enabled": ("web.enabled", readers.boolean, "serve the web page in the driver; default true"),
    "cairn.web.token": (
        "web.token", readers.text, "what every change must carry; default: a new one at every start, told in the log",
    ),
    "cairn.web.hosts": (
        "web.hosts", readers.names, "further names (with commas) under which the web page may be asked; default: none",
    ),
    "cairn.web.read-only": ("web.read_only", readers.boolean, "the web page changes nothing; default false"),
    "cairn.web.hidden-states": (
        "web.hidden_states", readers.names,
        "states (uid.state, * for any, with commas) whose values the web page does not show; default: none",
    ),
    "cairn.web.savepoint-roots": (
        "web.savepoint_roots", readers.names,
        "directories (with commas) besides execution.checkpointing.savepoint-dir below which the web page may write",
    ),
    "cairn.time.max-jump": (
        "max_jump_ms", readers.duration,
        (
            "how far the clock may run ahead of the time that really passed between two epochs of a driver; an epoch "
            "beyond it is refused; default 1 d"
        ),
    ),
    "cairn.time.max-downtime": (
        "max_downtime_ms", readers.duration,
        (
            "how far the clock may be ahead of the newest epoch when a job is started again; a first epoch beyond it "
            "is refused; default 90 d"
        ),
    ),
    "cairn.time.reset": (
        "time_reset", readers.boolean,
        (
            "set the job's processing time back to the clock if it is ahead by more than cairn.time.max-jump, and fire "
            "all processing-time timers; default false"
        ),
    ),
    "cairn.errors.show-values": (
        "show_values", readers.boolean,
        (
            "show and store the text of exceptions that functions raise, and the row that they failed on, which may "
            "hold data; false leaves their type and line, and what cairn's own errors say (the key, a value that does "
            "not fit); default true"
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
    "taskmanager.network.memory.buffer-debloat.*": (
        "the network is Spark's; limit the rows of an epoch at the source, as with maxOffsetsPerTrigger"
    ),
    "jobmanager.execution.failover-strategy": "an epoch fails or commits as a whole; set restart-strategy.type",
}  # fmt: skip
"""Keys of Flink without a counterpart, and why. A key that ends in `.*` stands for all keys that begin so."""
