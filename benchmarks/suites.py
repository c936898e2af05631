"""What is measured together in one child process, and what is checked with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks import checkpointing, jobs, savepoint_jobs, savepoints, spark_native, web
from benchmarks.measure import Bench, Plan, Variant


@dataclass(frozen=True)
class Suite:
    """Variants that share one JVM and take turns in it."""

    variants: dict[str, Variant]
    rounds: Callable[[Plan], int]
    prepare: Callable[[Bench], None] | None = None
    once: dict[str, Variant] = field(default_factory=dict)
    """Variants that are measured before the others take turns."""
    once_rounds: Callable[[Plan], int] = lambda plan: plan.cold_starts


SUITES = {
    "throughput": Suite(
        {
            "limit": jobs.limit,
            "limit-tuned": jobs.limit_tuned,
            "process-lmdb": jobs.process_lmdb,
            "process-hashmap": jobs.process_hashmap,
            "process-rocksdb": jobs.process_rocksdb,
            "process-batch": jobs.process_batch,
            "sum": jobs.builtin_sum,
            "tumbling-sum": jobs.tumbling_sum,
            "sql-sum": spark_native.sql_sum,
            "limit-nested": jobs.limit_nested,
            "limit-nested-tuned": jobs.limit_nested_tuned,
            "map-state": jobs.map_state,
            "list-state": jobs.list_state,
        },
        lambda plan: plan.rounds,
    ),
    "small": Suite({"limit-small": jobs.limit_small, "process-small": jobs.process_small}, lambda plan: plan.rounds),
    "native": Suite(
        {
            "process-lmdb-full": jobs.process_lmdb,
            "process-native-size": jobs.process_native_size,
            "transform-pandas": spark_native.transform_in_pandas,
            "transform-rows": spark_native.transform_rows,
            "apply-pandas": spark_native.apply_in_pandas,
        },
        lambda plan: plan.native_rounds,
    ),
    "stored": Suite(
        {
            "touch-few-lmdb": jobs.touch_few_lmdb,
            "touch-many-lmdb": jobs.touch_many_lmdb,
            "touch-few-rocksdb": jobs.touch_few_rocksdb,
            "touch-many-rocksdb": jobs.touch_many_rocksdb,
        },
        lambda plan: plan.touched_rounds,
        prepare=jobs.fill,
        once={"cold-start": jobs.cold_start},
    ),
    "checkpoints": Suite(checkpointing.VARIANTS, lambda plan: plan.checkpoint_rounds, prepare=checkpointing.fill),
    "savepoints": Suite(savepoint_jobs.VARIANTS, lambda plan: plan.checkpoint_rounds, prepare=savepoint_jobs.fill),
    "web": Suite(web.VARIANTS, lambda plan: plan.checkpoint_rounds),
    "offline": Suite(savepoints.VARIANTS, lambda plan: plan.checkpoint_rounds, prepare=savepoints.fill),
}


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    suite: str
    measures: str
    ours: str
    against: str
    """The series beside it; empty where the target is a plain number."""
    kind: str
    """`rate`: our rows per second by theirs. `slower`: our time by theirs. `bytes`: our bytes by theirs. `added`: our
    time less theirs, in milliseconds. `plain`: the value itself, in keys per second. `memory`: itself, in MiB.
    `millis`: itself, in milliseconds."""
    target: float
    same_size: str = ""
    """For `rate`: a series of ours on exactly their workload, told as a detail."""

    @property
    def tuned(self) -> str:
        """Theirs with the Spark settings that cairn chooses for its queries, told as a detail."""
        return f"{self.against}-tuned" if self.against in ("limit", "limit-nested") else ""

    @property
    def at_most(self) -> bool:
        return self.kind in ("slower", "bytes", "added", "memory", "millis")

    def needs(self) -> set[str]:
        return {self.ours, self.against, self.same_size, self.tuned} - {""}


def checks(plan: Plan) -> list[Check]:
    full = f"{plan.rows:,} rows, {plan.keys:,} keys"
    nested = f"{plan.rows:,} rows, {plan.nested_keys:,} keys"
    native = f"{plan.native_rows:,} rows, {plan.native_keys:,} keys"
    record = f"process with ValueState, {{}}, {full}".format
    touched = f"{plan.touched:,} keys touched, {plan.stored:,} stored vs. {plan.stored_few:,}"
    return [
        Check("process-lmdb", "throughput", record("lmdb"), "process-lmdb", "limit", "rate", 0.65),
        Check("process-hashmap", "throughput", record("hashmap"), "process-hashmap", "limit", "rate", 0.65),
        Check("process-rocksdb", "throughput", record("rocksdb"), "process-rocksdb", "limit", "rate", 0.45),
        Check("process-batch", "throughput", f"process_batch, {full}", "process-batch", "limit", "rate", 0.85),
        Check("sum", "throughput", f"built-in sum, {full}", "sum", "limit", "rate", 0.85),
        Check("tumbling-sum", "throughput", f"sum over tumbling windows, {full}", "tumbling-sum", "limit", "rate", 0.5),
        Check(
            "process-sql", "throughput", f"process vs. groupBy().agg(sum), {full}",
            "process-lmdb", "sql-sum", "rate", 1.2,
        ),
        Check("sum-sql", "throughput", f"sum vs. groupBy().agg(sum), {full}", "sum", "sql-sum", "rate", 1.6),
        Check(
            "map-state", "throughput", f"MapState get and put, {plan.map_entries} entries a key, {nested}",
            "map-state", "limit-nested", "rate", 0.35,
        ),
        Check("list-state", "throughput", f"ListState add, {nested}", "list-state", "limit-nested", "rate", 0.35),
        Check(
            "small-epoch", "small", f"overhead of cairn in an epoch of {plan.small_rows} rows",
            "process-small", "limit-small", "added", 60.0,
        ),
        Check(
            "transform-pandas", "native", f"process vs. transformWithStateInPandas ({native})",
            "process-lmdb-full", "transform-pandas", "rate", 40.0, "process-native-size",
        ),
        Check(
            "transform-rows", "native", f"process vs. transformWithState ({native})",
            "process-lmdb-full", "transform-rows", "rate", 15.0, "process-native-size",
        ),
        Check(
            "apply-pandas", "native", f"process vs. applyInPandasWithState ({native})",
            "process-lmdb-full", "apply-pandas", "rate", 25.0, "process-native-size",
        ),
        Check("touched-lmdb", "stored", f"lmdb, {touched}", "touch-many-lmdb", "touch-few-lmdb", "slower", 1.5),
        Check(
            "touched-rocksdb", "stored", f"rocksdb, {touched}",
            "touch-many-rocksdb", "touch-few-rocksdb", "slower", 1.5,
        ),
        Check(
            "cold-start", "stored", f"keys restored into an empty working store, {plan.stored:,} stored, lmdb",
            "cold-start", "", "plain", 1e6,
        ),
        Check(
            "checkpoint-duration", "checkpoints",
            f"incremental checkpoint, {plan.stored:,} stored vs. {plan.checkpoint_few:,}",
            "incremental-many", "incremental-few", "slower", 1.5,
        ),
        Check(
            "checkpoint-bytes", "checkpoints", "bytes written by an incremental checkpoint vs. bytes changed",
            "written-bytes", "encoded-bytes", "bytes", 1.3,
        ),
        Check(
            "checkpoint-stream", "checkpoints",
            f"process with a checkpoint every {plan.checkpoint_interval} vs. none, {full}",
            "stream-checkpointed", "stream-alone", "rate", 0.95,
        ),
        Check(
            "snapshot-stream", "checkpoints", f"epochs while {plan.stored:,} keys are snapshotted vs. before",
            "during-snapshot", "before-snapshot", "rate", 0.6,
        ),
        Check(
            "snapshot", "checkpoints", f"full checkpoint of {plan.stored:,} keys", "snapshot", "", "plain", 1e6,
        ),
        Check(
            "merge-memory", "checkpoints", f"peak memory, above its start, of a task that merges {plan.stored:,} keys",
            "merge-memory", "", "memory", 512.0,
        ),
        Check(
            "restart-warm", "checkpoints",
            f"restart with {plan.restart_keys:,} keys, local recovery vs. empty state",
            "restart-warm", "restart-empty", "slower", 1.5,
        ),
        Check(
            "restart-cold", "checkpoints",
            f"restart with {plan.restart_keys:,} keys, no local state vs. empty state",
            "restart-cold", "restart-empty", "slower", 3.0,
        ),
        Check(
            "restart-spark", "checkpoints",
            f"restart with {plan.restart_keys:,} keys, local recovery vs. Spark's RocksDB",
            "restart-warm", "restart-spark", "slower", 1.0,
        ),
        Check(
            "savepoint", "savepoints", f"savepoint of {plan.stored:,} keys while the stream is idle",
            "savepoint", "", "plain", 1e6,
        ),
        Check(
            "savepoint-stream", "savepoints", f"epochs during a savepoint of {plan.stored:,} keys vs. before",
            "during-savepoint", "before-savepoint", "rate", 0.6,
        ),
        Check(
            "restore-rescale", "savepoints", f"{plan.stored:,} keys restored from a savepoint, parallelism 2 to 8",
            "restore-rescale", "", "plain", 8e5,
        ),
        Check(
            "web-server", "web", f"process with an open web page vs. none, {full}",
            "web-on", "web-off", "slower", 1.02,
        ),
        Check(
            "web-history", "web", f"first paint of a page with {web.CHECKPOINTS:,} checkpoints",
            "web-history", "", "millis", 1000.0,
        ),
        Check(
            "savepoint-diff", "offline", f"diff of two savepoints of {plan.stored:,} keys vs. a full outer join",
            "savepoint-diff", "savepoint-join", "slower", 2.0,
        ),
        Check(
            "savepoint-lookup", "offline", f"lookups of single keys among {plan.stored:,}",
            "savepoint-lookup", "", "plain", 1.0,
        ),
    ]  # fmt: skip
