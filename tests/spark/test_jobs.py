"""Streams, keys and operators: what jobs compute, against plain Python."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from tests.support.oracle import OUTPUT, Oracle, expected, numbered_rows, ship
from tests.support.spark_lab import Lab

from cairn import (
    EmbeddedRocksDBStateBackend,
    FileSink,
    HashMapStateBackend,
    IncompatibleStateError,
    InvalidInputError,
    JobStatus,
    KeyedProcessFunction,
    LmdbStateBackend,
    NoopSink,
    ReduceFunction,
    RuntimeContext,
    UserFunctionError,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(300, 17)


class Keys(KeyedProcessFunction):
    """Emits the current key as text, and how many rows it has had."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        self.count.update((self.count.value() or 0) + 1)
        key = ctx.get_current_key()
        yield repr(tuple(key) if isinstance(key, tuple) else key), self.count.value()


def running(rows: list[Any], key: Callable[[Any], Any], start: Any, fold: Callable[[Any, Any], Any]) -> list[Any]:
    """What a keyed operator must emit: one result per row."""
    state: dict[Any, Any] = defaultdict(lambda: start)
    out = []
    for row in rows:
        state[key(row)] = fold(state[key(row)], row)
        out.append((key(row), state[key(row)]))
    return out


class TestProcess:
    def test_rows_state_and_output_are_exact(self, lab: Lab) -> None:
        lab.feed(ROWS, files=5)
        job = lab.oracle()
        assert job.status() is JobStatus.FINISHED
        assert lab.written() == expected(ROWS)
        assert [report.epoch for report in job.epochs()] == [0, 1, 2, 3, 4]
        assert sum(report.rows_in for report in job.epochs()) == len(ROWS)
        assert sum(report.rows_out for report in job.epochs()) == len(ROWS)
        assert [manifest.epoch for manifest in lab.manifests()] == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("backend", [LmdbStateBackend(), HashMapStateBackend(), EmbeddedRocksDBStateBackend()])
    def test_all_backends_run_the_same_job(self, lab: Lab, backend: Any) -> None:
        lab.feed(ROWS[:150], files=2)
        for more in ([], ROWS[150:]):
            if more:
                lab.feed(more, files=2)
            env = lab.env().set_state_backend(backend)
            checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
            checked.sink_to(FileSink(str(lab.output)), uid="out")
            env.execute("oracle")
        assert lab.written() == expected(ROWS)

    def test_backend_may_change_between_runs(self, lab: Lab) -> None:
        parts = [ROWS[:100], ROWS[100:200], ROWS[200:]]
        for part, backend in zip(parts, ("lmdb", "rocksdb", "hashmap"), strict=True):
            lab.feed(part)
            lab.oracle(state__backend__type=backend)
        assert lab.written() == expected(ROWS)

    def test_more_subtasks_than_keys(self, lab: Lab) -> None:
        rows = numbered_rows(20, 1)
        lab.feed(rows, files=2)
        lab.oracle(parallelism=5)
        assert lab.written() == expected(rows)

    def test_files_without_rows(self, lab: Lab) -> None:
        lab.feed(ROWS[:50])
        lab.feed([])
        lab.feed(ROWS[50:])
        job = lab.oracle()
        assert lab.written() == expected(ROWS)
        assert [report.rows_in for report in job.epochs()] == [50, 0, 250]
        assert [manifest.parent for manifest in lab.manifests()] == [-1, 0, 1]

    def test_chained_operators_with_sql_between(self, lab: Lab) -> None:
        lab.feed(ROWS, files=3)
        env = lab.env()
        first = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="first")
        even = first.df.filter("total % 2 = 0").select((F.col("total") % 5).alias("bucket"), "total")
        counted = env.from_df(even).key_by("bucket").count(uid="second")
        totals = [row[3] for row in expected(ROWS)]
        want: dict[int, int] = defaultdict(int)
        for total in totals:
            if total % 2 == 0:
                want[int(abs(total) % 5 * (1 if total >= 0 else -1))] += 1
        got: dict[int, int] = defaultdict(int)
        rows = lab.run(counted)
        for bucket, count in rows:
            got[bucket] = max(got[bucket], count)
        assert got == want
        assert len(rows) == sum(want.values())

    def test_function_attributes_do_not_outlive_an_epoch(self, lab: Lab) -> None:
        class Remembers(KeyedProcessFunction):
            def __init__(self) -> None:
                self.seen = 0

            def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int]]:
                self.seen += 1
                yield (self.seen,)

        for _ in range(3):
            lab.feed([("a", 0, 0), ("a", 1, 0)])
        env = lab.env(parallelism=1)
        assert lab.run(lab.stream(env).key_by("key").process(Remembers(), "n int", uid="p")) == sorted([(1,), (2,)] * 3)

    def test_output_may_be_mappings_or_bare_values(self, lab: Lab) -> None:
        class Mappings(KeyedProcessFunction):
            def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
                return [{"b": value.seq, "a": value.key}]

        lab.feed(ROWS[:10])
        env = lab.env()
        got = lab.run(lab.stream(env).key_by("key").process(Mappings(), "a string, b bigint", uid="p"))
        assert got == sorted((key, seq) for key, seq, _ in ROWS[:10])

    def test_workers_do_not_load_heavy_modules(self, lab: Lab) -> None:
        heavy: tuple[str, ...] = (
            "pandas",
            "fastapi",
            "uvicorn",
            "typer",
            "rich",
            "rocksdict",
            "cairn.api.environment",
            "cairn.cli",
        )

        class Loaded(KeyedProcessFunction):
            def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str]]:
                yield (",".join(name for name in heavy if name in sys.modules),)

        code = f"import sys, cairn.spark.worker_tasks; print([m for m in {heavy!r} if m in sys.modules])"
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert made.stdout.strip() == "[]"
        lab.feed(ROWS[:5])
        heavy = tuple(name for name in heavy if name not in ("pandas", "rocksdict"))  # Spark's own, other tests'
        env = lab.env()
        got = lab.run(lab.stream(env).key_by("key").process(Loaded(), "names string", uid="p"))
        assert {names for (names,) in got} == {""}


class TestKeys:
    def test_several_keys_expressions_and_other_case(self, lab: Lab) -> None:
        lab.feed(ROWS, files=2)
        env = lab.env()
        keyed = lab.stream(env).key_by("KEY", F.col("seq") % 3, (F.col("amount") > 0).alias("ignored"))
        got = lab.run(keyed.process(Keys(), "key string, count bigint", uid="p"))
        want = running(ROWS, lambda r: repr((r[0], r[1] % 3, r[2] > 0)), 0, lambda n, _: n + 1)
        assert got == sorted(want)

    def test_key_expression_names_in_the_output(self, lab: Lab) -> None:
        lab.feed(ROWS)
        env = lab.env()
        counted = lab.stream(env).key_by(F.col("seq") % 3, "key").count(uid="c")
        assert counted.df.columns == ["key_0", "key", "count"]
        want = running(ROWS, lambda r: (r[1] % 3, r[0]), 0, lambda n, _: n + 1)
        assert lab.run(counted) == sorted((*key, count) for key, count in want)

    def test_names_that_need_quotes(self, lab: Lab) -> None:
        lab.feed(ROWS[:30])
        env = lab.env()
        odd = lab.source().select(F.col("key").alias("a.b c"), F.col("amount").alias("x-y"))
        summed = env.from_df(odd).key_by("a.b c").sum("x-y", uid="s")
        want = running(ROWS[:30], lambda r: r[0], 0, lambda n, r: n + r[2])
        assert lab.run(summed) == sorted(want)

    def test_missing_column(self, lab: Lab) -> None:
        env = lab.env()
        with pytest.raises(InvalidInputError, match=r"no column 'user' to key by; the stream has key, seq, amount"):
            lab.stream(env).key_by("user")
        with pytest.raises(InvalidInputError, match=r"key_by: Spark cannot compute the key: .*`nobody`.* key, seq"):
            lab.stream(env).key_by(F.col("nobody"))
        with pytest.raises(InvalidInputError, match="at least one column"):
            lab.stream(env).key_by()
        with pytest.raises(InvalidInputError, match="column name or a Spark column, not int"):
            lab.stream(env).key_by(7)  # type: ignore[arg-type]

    def test_null_key_is_refused_with_a_clear_error(self, lab: Lab) -> None:
        lab.feed([("a", 0, 1), (None, 0, 1)])  # type: ignore[list-item]
        env = lab.env()
        lab.stream(env).key_by("key").process(Keys(), "key string, count bigint", uid="p").sink_to(NoopSink())
        with pytest.raises(InvalidInputError, match=r"(?s)key.*null"):
            env.execute("nulls")

    def test_key_type_without_equality_is_refused(self, lab: Lab) -> None:
        env = lab.env()
        frame = lab.source().select(F.create_map("key", "seq").alias("m"))
        with pytest.raises(InvalidInputError, match="m"):
            env.from_df(frame).key_by("m")


class TestAggregates:
    NUMBERS = (3, None, -5, None, 0, 7, -5, None, 2**40, -(2**41))

    @pytest.mark.parametrize("ddl", ["bigint", "double"])
    @pytest.mark.parametrize("kind", ["sum", "min", "max"])
    def test_against_plain_python(self, lab: Lab, kind: str, ddl: str) -> None:
        scale = 1 if ddl == "bigint" else 0.5
        rows = [
            (f"k{i % 7}", None if n is None or (i % 7 == 6 and i < 40) else n * scale)
            for i, n in enumerate(self.NUMBERS * 9)
        ]
        for part in (rows[:30], rows[30:31], rows[31:]):
            lab.feed_file(part, "key string, n number")
        env = lab.env()
        keyed = lab.stream(env, f"key string, n {ddl}").key_by("key")
        result = {"sum": keyed.sum, "min": keyed.min, "max": keyed.max}[kind]("n", uid="a")
        pick: Any = {"sum": lambda a, b: a + b, "min": min, "max": max}[kind]

        def fold(before: Any, row: Any) -> Any:
            if row[1] is None:
                return before
            return row[1] if before is None else pick(before, row[1])

        want = running(rows, lambda r: r[0], None, fold)
        assert result.df.columns == ["key", kind]
        assert lab.run(result) == sorted(want, key=lambda row: (row[0], row[1] is not None, row[1]))

    def test_count(self, lab: Lab) -> None:
        lab.feed(ROWS, files=3)
        env = lab.env()
        want = running(ROWS, lambda r: r[0], 0, lambda n, _: n + 1)
        assert lab.run(lab.stream(env).key_by("key").count(uid="c")) == sorted(want)

    def test_wrong_columns_are_refused(self, lab: Lab) -> None:
        env = lab.env()
        keyed = lab.stream(env).key_by("seq")
        with pytest.raises(InvalidInputError, match=r"sum\('key'\): the column has type string"):
            keyed.sum("key", uid="a")
        with pytest.raises(InvalidInputError, match="no column 'nothing'"):
            keyed.max("nothing", uid="b")

    def test_sum_out_of_range_is_an_error(self, lab: Lab) -> None:
        lab.feed([("a", 0, 2**62), ("a", 1, 2**62)])
        env = lab.env()
        lab.stream(env).key_by("key").sum("amount", uid="s").sink_to(NoopSink())
        with pytest.raises(UserFunctionError, match="leaves the range of bigint"):
            env.execute("large")


class Larger(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 if value1.amount >= value2.amount else value2


class TestReduce:
    def test_against_plain_python(self, lab: Lab) -> None:
        lab.feed(ROWS, files=3)
        env = lab.env()
        got = lab.run(lab.stream(env).key_by("key").reduce(Larger(), uid="r"))
        want = running(ROWS, lambda r: r[0], None, lambda a, b: a if a is not None and a[2] >= b[2] else b)
        assert got == sorted(row for _, row in want)

    def test_by_function(self, lab: Lab) -> None:
        lab.feed(ROWS, files=2)
        env = lab.env()
        added = lab.stream(env).key_by("key").reduce(lambda a, b: (b.key, b.seq, a.amount + b.amount), uid="r")
        assert lab.run(added) == sorted((key, seq, total) for key, seq, _, total, _ in expected(ROWS))


class TestProcessBatch:
    def test_state_in_columns(self, lab: Lab) -> None:
        def longest(batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
            best = ctx.get("best").to_pylist()
            out = []
            for place, amount in zip(ctx.key_index.tolist(), batch.column("amount").to_pylist(), strict=True):
                known = best[place]
                best[place] = amount if known is None else max(known, amount)
                out.append(best[place])
            ctx.put("best", best)
            return pa.RecordBatch.from_arrays([batch.column("key"), pa.array(out)], names=["key", "best"])

        lab.feed(ROWS, files=4)
        env = lab.env()
        stream = lab.stream(env).key_by("key")
        got = lab.run(stream.process_batch(longest, "key string, best bigint", {"best": "bigint"}, uid="b"))
        want = running(ROWS, lambda r: r[0], None, lambda a, r: r[2] if a is None else max(a, r[2]))
        assert got == sorted(want)

    def test_wrong_results_are_refused(self, lab: Lab) -> None:
        lab.feed(ROWS[:5])

        def renamed(batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
            return batch.select(["key"]).rename_columns(["other"])

        def undeclared(batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
            return ctx.get("total")

        def short(batch: pa.RecordBatch, ctx: Any) -> None:
            ctx.put("n", [])

        cases = [(renamed, r"returned columns \['other'\]"), (undeclared, "'total'"), (short, r"got 0 values for")]
        for number, (function, message) in enumerate(cases):
            env = lab.env()
            stream = lab.stream(env).key_by("key").process_batch(function, "key string", {"n": "int"}, uid="b")
            stream.sink_to(NoopSink())
            with pytest.raises(Exception, match=message):
                env.execute(f"wrong {number}")


class TestUids:
    def test_missing_uid_warns_and_doubled_uid_is_refused(self, lab: Lab) -> None:
        env = lab.env()
        keyed = lab.stream(env).key_by("key")
        with pytest.warns(UserWarning, match=r"operator 'count' has no uid and is called 'auto-count-1'"):
            keyed.count()
        keyed.count(uid="same")
        with pytest.raises(InvalidInputError, match="uid 'same' is used twice"):
            keyed.sum("amount", uid="same")
        with pytest.raises(InvalidInputError, match="cannot be used"):
            keyed.count(uid="../other")

    def test_missing_uid_is_an_error_if_told_so(self, lab: Lab) -> None:
        env = lab.env(pipeline__auto_generate_uids="false")
        with pytest.raises(InvalidInputError, match="has no uid"):
            lab.stream(env).key_by("key").count()


class TestRefused:
    """Plans and calls that cannot work are refused where they are written."""

    @pytest.mark.parametrize(
        ("operator", "plan"),
        [
            ("Aggregate", lambda df, _: df.groupBy("key").count()),
            ("Deduplicate", lambda df, _: df.dropDuplicates(["key"])),
            ("Deduplicate", lambda df, _: df.distinct()),
            (
                "DeduplicateWithinWatermark",
                lambda df, _: df.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["key"]),
            ),
            ("Join", lambda df, other: df.join(other.withColumnRenamed("ts", "ts2"), "key")),
            ("GlobalLimit", lambda df, _: df.limit(3)),
            ("Offset", lambda df, _: df.offset(3)),
            ("Window", lambda df, _: df.withColumn("n", F.row_number().over(Window.partitionBy("key").orderBy("ts")))),
            ("Sort", lambda df, _: df.orderBy("ts")),
            ("Sample", lambda df, _: df.sample(0.5)),
            ("Except", lambda df, other: df.subtract(other)),
            ("ExceptAll", lambda df, other: df.exceptAll(other)),
            ("Intersect", lambda df, other: df.intersect(other)),
            ("IntersectAll", lambda df, other: df.intersectAll(other)),
            (
                "FlatMapGroupsInPandasWithState",
                lambda df, _: df.groupBy("key").applyInPandasWithState(
                    lambda key, frames, state: frames, "key string", "n int", "append", "NoTimeout"
                ),
            ),
        ],
    )
    def test_native_state(self, lab: Lab, operator: str, plan: Callable[[DataFrame, DataFrame], DataFrame]) -> None:
        columns = "key string, ts timestamp"
        frame = plan(lab.source(columns), lab.source(columns))
        env = lab.env()
        with pytest.raises(InvalidInputError, match=f"stateful operator {operator}, "):
            env.from_df(frame)

    def test_native_state_after_an_operator(self, lab: Lab) -> None:
        env = lab.env()
        counted = lab.stream(env).key_by("key").count(uid="c")
        with pytest.raises(InvalidInputError, match="stateful operator Aggregate"):
            env.from_df(counted.df.groupBy("key").max("count"))

    def test_joins_and_aggregations_of_static_tables_are_fine(self, lab: Lab) -> None:
        lab.feed(ROWS)
        env = lab.env()
        names = lab.spark.createDataFrame(
            [(f"k{i}", f"name {i % 3}") for i in range(17)] * 2, "key string, name string"
        )
        joined = lab.source().join(names.groupBy("key").agg(F.first("name").alias("name")), "key")
        got = lab.run(env.from_df(joined).key_by("name").count(uid="c"))
        want = running(ROWS, lambda r: f"name {int(r[0][1:]) % 3}", 0, lambda n, _: n + 1)
        assert got == sorted(want)

    def test_calls(self, lab: Lab) -> None:
        env = lab.env()
        with pytest.raises(InvalidInputError, match="not a streaming one"):
            env.from_df(lab.spark.range(3))
        with pytest.raises(InvalidInputError, match="not list"):
            env.from_df([1])  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="has no sink"):
            env.execute("nothing")
        keyed = lab.stream(env).key_by("key")
        with pytest.raises(InvalidInputError, match="takes a KeyedProcessFunction, not function"):
            keyed.process(lambda value, ctx: [], "a int")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="is not a valid Spark DDL"):
            keyed.process(Keys(), "a nonsense", uid="x")
        with pytest.raises(InvalidInputError, match="either processing_time"):
            env.set_trigger()
        keyed.count(uid="c").sink_to(NoopSink())
        with pytest.raises(InvalidInputError, match="before the first operator"):
            env.set_parallelism(3)
        env.execute("once")
        with pytest.raises(InvalidInputError, match="executed already"):
            env.execute("once")

    def test_function_that_cannot_travel(self, lab: Lab) -> None:
        import threading

        lock = threading.Lock()
        session = lab.spark

        class Locked(KeyedProcessFunction):
            def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
                lock.acquire()

        class Sessions(KeyedProcessFunction):
            def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
                session.range(1)

        env = lab.env()
        for number, function in enumerate((Locked(), Sessions())):
            with pytest.raises(InvalidInputError, match=r"operator 'p\d': its function cannot be sent"):
                lab.stream(env).key_by("key").process(function, "a int", uid=f"p{number}")


class TestSession:
    def test_settings_of_the_session_are_put_back(self, lab: Lab, spark: SparkSession) -> None:
        names = (
            "spark.sql.adaptive.enabled",
            "spark.sql.streaming.unsupportedOperationCheck",
            "spark.sql.execution.arrow.maxRecordsPerBatch",
            "spark.sql.streaming.checkpointFileManagerClass",
        )
        spark.conf.set(names[2], "777")
        try:
            before = {name: spark.conf.get(name, None) for name in names}
            lab.feed(ROWS[:20])
            lab.oracle()
            assert {name: spark.conf.get(name, None) for name in names} == before
            assert before[names[2]] == "777"
            assert spark.sparkContext.getLocalProperty("cairn.epoch") is None
        finally:
            spark.conf.unset(names[2])

    def test_output_read_outside_of_a_job_is_refused(self, lab: Lab) -> None:
        lab.feed(ROWS[:20])
        env = lab.env()
        counted = lab.stream(env).key_by("key").count(uid="c")
        query = (
            counted.df.writeStream.format("noop")
            .option("checkpointLocation", str(lab.folder / "foreign"))
            .trigger(availableNow=True)
        )
        with pytest.raises(Exception, match=r"outside of a cairn job|not supported"):
            query.start().awaitTermination()


def test_max_parallelism_is_fixed(lab: Lab) -> None:
    lab.feed(ROWS[:20])
    lab.oracle()
    with pytest.raises(IncompatibleStateError, match=r"started with 16 key groups.*asks for 32"):
        lab.oracle(pipeline__max_parallelism=32)
    lab.feed(ROWS[20:40])
    lab.oracle(pipeline__max_parallelism=-1)  # left open: that of the job, not the default of 128
    assert lab.written() == expected(ROWS[:40])
