"""Windows on Spark: PyFlink's window programs with their functions as they are, and jobs that restart and rescale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from tests.support.checkpoint_lab import processed
from tests.support.oracle import ship, write_file
from tests.support.spark_lab import Lab

from cairn import (
    CountSlidingWindowAssigner,
    CountTrigger,
    CountWindow,
    DataStream,
    EventTimeSessionWindows,
    FileSink,
    FileSource,
    GlobalWindows,
    InvalidInputError,
    KeyedProcessFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WindowFunction,
)
from cairn.api.windowed_stream import _with_start
from cairn.testing import WindowHarness

pytestmark = pytest.mark.spark
ship(__name__)


class MySessionWindowTimeGapExtractor(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return element[1]


class OnTimer(KeyedProcessFunction):
    """Puts nothing out but by timers."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), WindowHarness.at(timestamp)


class SumWindowFunction(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs: Iterable[tuple]) -> Any:
        result = 0
        for i in inputs:
            result += i[0]
        return [(key, result)]


class CountWindowProcessFunction(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(self, key: str, context: Any, elements: Iterable[tuple]) -> Iterable[tuple]:
        return [(key, context.window().start, context.window().end, len([e for e in elements]))]  # noqa: C416 - as it stands in PyFlink


class CountAll(ProcessAllWindowFunction[tuple, tuple, TimeWindow]):
    def process(self, context: Any, elements: Iterable[tuple]) -> Iterable[tuple]:
        return [(context.window().start, context.window().end, len(list(elements)))]


END = ("~", 1_000_000)
"""A row that moves the watermark past everything else."""
COUNTED = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.INT()])
SUMMED = Types.TUPLE([Types.STRING(), Types.INT()])


def collection(
    lab: Lab, env: StreamExecutionEnvironment, epochs: list[list[Any]], columns: str, name: str
) -> DataStream:
    """A stream with these rows, one epoch for each list, and of nothing in a last one."""
    for number, portion in enumerate([*epochs, []]):
        write_file(lab.folder / name, number, portion, columns)
    reader = lab.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return env.from_df(reader.json(str(lab.folder / name)))


def timed(stream: DataStream) -> DataStream:
    """Event time of the second column: what a timestamp assigner does in PyFlink."""
    return stream.transform(lambda df: df.withColumn("at", F.timestamp_millis("f1"))).with_watermark("at", "0 seconds")


def test_10_windows(lab: Lab) -> None:
    env = lab.env()
    pairs = "f0 string, f1 bigint"
    first = [("hi", t) for t in (1, 2, 3, 4, 8, 9, 15)]
    words = [(1, "hi"), (2, "hello"), (3, "hi"), (4, "hello"), (5, "hi"), (6, "hello"), (6, "hello")]
    times = timed(collection(lab, env, [[*first, END]], pairs, "times")).key_by("f0")
    disordered = timed(collection(lab, env, [[("hi", 0), ("hi", 8), ("hi", 4), END]], pairs, "merged"))
    merged = disordered.key_by(lambda x: x[0], key_type=Types.STRING())
    counted = collection(lab, env, [words], "f0 int, f1 string", "words").key_by("f1")
    purging = PurgingTrigger.of(CountTrigger.of(2))
    outputs = {
        "tumbling-count": counted.count_window(2).apply(SumWindowFunction(), SUMMED, uid="w1"),
        "sliding-count": counted.window(CountSlidingWindowAssigner(2, 1)).apply(SumWindowFunction(), SUMMED, uid="w2"),
        "purging": counted.window(GlobalWindows.create()).trigger(purging).apply(SumWindowFunction(), SUMMED, uid="w3"),
        "session": times.window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).process(
            CountWindowProcessFunction(), COUNTED, uid="w4"
        ),
        "dynamic": times.window(EventTimeSessionWindows.with_dynamic_gap(MySessionWindowTimeGapExtractor())).process(
            CountWindowProcessFunction(), COUNTED, uid="w5"
        ),
        "late-merge": merged.window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).process(
            CountWindowProcessFunction(), COUNTED, uid="w6"
        ),
        "tumbling": times.window(TumblingEventTimeWindows.of(Time.milliseconds(5))).process(
            CountWindowProcessFunction(), COUNTED, uid="w7"
        ),
        "all": times.stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(10))).process(
            CountAll(), "first bigint, last bigint, n bigint", uid="w8"
        ),
    }  # fmt: skip
    for name, stream in outputs.items():
        stream.sink_to(FileSink(str(lab.folder / name)), uid=f"to-{name}")
    env.execute("windows")
    found = {name: lab.written(lab.folder / name) for name in outputs}
    assert found == {
        "tumbling-count": [("hello", 6), ("hello", 12), ("hi", 4)],
        "sliding-count": [("hello", 6), ("hello", 10), ("hello", 12), ("hi", 4), ("hi", 8)],
        "purging": [("hello", 6), ("hello", 12), ("hi", 4)],
        "session": [("hi", 1, 14, 6), ("hi", 15, 20, 1)],
        "dynamic": [("hi", 1, 30, 7)],
        "late-merge": [("hi", 0, 13, 3)],
        "tumbling": [("hi", 0, 5, 4), ("hi", 5, 10, 2), ("hi", 15, 20, 1)],
        "all": [(0, 10, 6), (10, 20, 1)],
    }


def test_10_late_data_goes_to_a_side_output_from_rows_and_from_columns(lab: Lab) -> None:
    env = lab.env()
    tag = OutputTag("late-data", "f0 string, f1 bigint, at timestamp")
    rows = timed(collection(lab, env, [[("a", 0), ("a", 8)], [("a", 4), ("a", 6), END]], "f0 string, f1 bigint", "in"))
    windows = TumblingEventTimeWindows.of(Time.milliseconds(5))
    by_row = rows.key_by("f0").window(windows).allowed_lateness(0).side_output_late_data(tag).process(
        CountWindowProcessFunction(), COUNTED, uid="rows"
    )  # fmt: skip
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(5))
    by_function = rows.key_by(lambda x: x[0], key_type=Types.STRING())
    in_columns = by_function.window(sliding).side_output_late_data(tag).sum("f1", uid="columns")
    by_row.sink_to(FileSink(str(lab.folder / "main")), uid="main")
    by_row.get_side_output(tag).sink_to(FileSink(str(lab.folder / "late")), uid="late")
    in_columns.sink_to(FileSink(str(lab.folder / "sums")), uid="sums")
    env.execute("late")
    assert lab.written(lab.folder / "main") == [("a", 0, 5, 1), ("a", 5, 10, 2)]
    assert [row[:2] for row in lab.written(lab.folder / "late")] == [("a", 4)]
    sums = {(row[0], round(row[1].timestamp() * 1000), row[3]) for row in lab.written(lab.folder / "sums")}
    assert sums == {("a", -5, 0), ("a", 0, 18), ("a", 5, 14)}


def test_windows_go_on_after_a_restart_at_another_parallelism(lab: Lab) -> None:
    """Sums in columns and sessions row by row; contents, timers and merging survive, each window fires once."""
    columns = "f0 string, f1 bigint"
    users = [f"u{n}" for n in range(20)]
    portions = (
        [(user, 1000 + n) for n, user in enumerate(users)],
        [(user, 1500) for user in users] + [("u0", 3999)],
        [("u0", 5100), ("u1", 2400)],
        [("z", 100_000)],
        [("z", 100_001)],
    )
    for number, parallelism in ((0, 2), (1, 3), (2, 1), (3, 2)):
        end = 5 if number == 3 else number + 1
        for at in range(number, end):
            lab.feed_file(portions[at], columns)
        env = lab.env(parallelism)
        keyed = timed(lab.stream(env, columns)).key_by("f0")
        keyed.window(TumblingEventTimeWindows.of(Time.seconds(2))).sum("f1", uid="sums").sink_to(
            FileSink(str(lab.folder / "sums")), uid="to-sums"
        )
        keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(1))).process(
            CountWindowProcessFunction(), COUNTED, uid="sessions"
        ).sink_to(FileSink(str(lab.folder / "sessions")), uid="to-sessions")
        env.execute("windows")
    sums = [(row[0], int(row[1].timestamp()), row[3]) for row in lab.written(lab.folder / "sums")]
    want = [(user, 0, 1000 + n + 1500) for n, user in enumerate(users)]
    assert sums == sorted([*want, ("u0", 2, 3999), ("u0", 4, 5100), ("u1", 2, 2400)])
    sessions = [(user, 1000 + n, 2500, 2) for n, user in enumerate(users)]
    # The watermark was 3,999 when 2,400 came: its window was open, but the session of u1 was over.
    assert lab.written(lab.folder / "sessions") == sorted([*sessions, ("u0", 3999, 4999, 1), ("u0", 5100, 6100, 1)])


def test_a_savepoint_of_open_windows_goes_on_at_another_parallelism(lab: Lab) -> None:
    """Sums in columns, sessions and count windows, stopped with all of them open, and started as another job."""
    columns = "f0 string, f1 bigint"
    users = [f"u{n}" for n in range(20)]
    lives: tuple[list[list[Any]], ...] = (
        [[(user, 1000 + n) for n, user in enumerate(users)], [*[(user, 1500) for user in users], ("u0", 1900)]],
        [[*[(user, 1950) for user in users[::2]], ("u0", 3100)], [("z", 100_000)], [("z", 100_001)]],
    )
    settings: dict[str, Any] = {}
    for life, (portions, parallelism) in enumerate(zip(lives, (2, 3), strict=True)):
        for portion in portions:
            lab.feed_file(portion, columns)
        env = lab.env(parallelism, **settings)
        keyed = timed(lab.stream(env, columns)).key_by("f0")
        outputs = {
            "sums": keyed.window(TumblingEventTimeWindows.of(Time.seconds(2))).sum("f1", uid="sums"),
            "sessions": keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(1))).process(
                CountWindowProcessFunction(), COUNTED, uid="sessions"
            ),
            "threes": keyed.count_window(3).sum("f1", uid="threes"),
        }
        for name, stream in outputs.items():
            stream.sink_to(FileSink(str(lab.folder / f"{name}-{life}")), uid=f"to-{name}")
        if life == 0:
            job = env.set_trigger(processing_time="0 seconds").execute_async("first")
            processed(job, 41)
            settings = {"execution.state-recovery.path": job.stop_with_savepoint(str(lab.folder / "sp")).path}
        else:
            env.execute("second")
    found = {name: lab.written(lab.folder / name) for name in ("sums-1", "sessions-1", "threes-0", "threes-1")}
    assert lab.written(lab.folder / "sums-0") == lab.written(lab.folder / "sessions-0") == []
    sums = {user: 2500 + n + (0 if n % 2 else 1950) + (0 if n else 1900) for n, user in enumerate(users)}
    assert [(row[0], int(row[1].timestamp()), row[3]) for row in found["sums-1"]] == sorted(
        [*[(user, 0, total) for user, total in sums.items()], ("u0", 2, 3100)]
    )
    sessions = [(user, 1000 + n, 2500 if n % 2 else 2950, 2 if n % 2 else 3) for n, user in enumerate(users) if n]
    assert found["sessions-1"] == sorted([*sessions, ("u0", 1000, 2950, 4), ("u0", 3100, 4100, 1)])
    assert found["threes-0"] == [("u0", 1000 + 1500 + 1900)]
    assert found["threes-1"] == sorted((user, 4450 + n) for n, user in enumerate(users) if n and n % 2 == 0)


def test_starts_that_spark_computes_are_those_of_the_assigner(lab: Lab) -> None:
    """Also before 1970, with offsets, with gaps between windows; a row without time stays, so that it can be told."""
    times = [-1001, -1, 0, 1, 999, 1000, 12_345]
    rows: list[Any] = [(ms,) for ms in (*times, None)]
    frame = lab.spark.createDataFrame(rows, "ms bigint").withColumn("a `t", F.timestamp_millis("ms"))
    for size, slide, offset in ((10, 10, 0), (10, 10, -3), (10, 4, 0), (10, 5, 2), (2, 10, 0), (7, 3, -2)):
        started = _with_start(frame, "a `t", size, slide, offset).select("ms", F.unix_millis("window_start"))
        found = {tuple(row) for row in started.collect()}
        assigner = SlidingEventTimeWindows.of(size, slide, offset)
        want = {(ms, window.start) for ms in times for window in assigner.assign_windows(None, ms, None)}
        assert found == want | {(None, None)}, (size, slide, offset)


def test_definitions_that_cannot_work_are_refused(lab: Lab) -> None:
    env = lab.env()
    stream = lab.stream(env, "user string, v bigint, at timestamp, window_start int")
    keyed = stream.key_by("user")
    window = TumblingEventTimeWindows.of(Time.seconds(1))
    wrong: Any = SumWindowFunction
    number: Any = 5
    source: Any = FileSource(str(lab.folder), "json", "user string, v bigint, at timestamp")
    timed = env.from_source(source, ("at", Time.seconds(3)))
    assert timed.df.schema[2].metadata == {"spark.watermarkDelayMs": 3000}
    assert len(timed.union(timed).transform(lambda df: df.union(df)).df.schema) == 3, "side by side is no matter"
    silent = timed.key_by("user").process(OnTimer(), "user string, at timestamp", uid="silent")
    with pytest.raises(AnalysisException, match="nothing"):  # what is wrong otherwise, Spark says itself
        stream.transform(lambda df: df.select("nothing"))
    counts = stream.with_watermark("at", "1 second").key_by("user").window(window).process(
        CountWindowProcessFunction(), "user string, first timestamp, last timestamp, n bigint", uid="counts"
    )  # fmt: skip
    for make, message in (
        (lambda: stream.with_watermark("v", "1 second"), "column 'v' has type bigint, which is not a time"),
        (lambda: stream.with_watermark("w", "1 second"), "there is no column 'w'"),
        (lambda: stream.with_watermark("at", number), "5 is not a valid delay, such as Time.seconds"),
        (lambda: env.from_source(source, ("v", "1 second")),
         r"from_source: column 'v' has type bigint, which is not a time.*F.timestamp_millis\('v'\)"),
        (lambda: env.from_source(source, ("user", Time.seconds(1))), r"has type string.*F.to_timestamp\('user'\)"),
        (lambda: env.from_source(source, ("at", "soon")), "from_source: 'soon' is not a valid delay"),
        (lambda: env.from_source(source, number), "watermark is a pair such as"),
        (lambda: env.from_source(source, ("nowhere", "1 second")), "there is no column 'nowhere'; the stream has user"),
        (lambda: stream.transform(lambda df: df.withWatermark("v", "1 second")),
         r"transform: column 'v' has type bigint, which is not a time.*F.timestamp_millis\('v'\)"),
        (lambda: stream.with_watermark("at", "soon"), "'soon' is not a valid delay"),
        (lambda: keyed.window(window), "works on event time, and the stream has none"),
        (lambda: stream.window_all(window), "works on event time, and the stream has none"),
        (lambda: keyed.count_window(0), "from 1 on"),
        (lambda: keyed.count_window(2).sum("user"), "has type string; sum takes whole or floating-point numbers"),
        (lambda: keyed.window(TumblingProcessingTimeWindows.of(5)).allowed_lateness(5), "nothing is late"),
        (lambda: keyed.count_window(2).process(CountWindowProcessFunction()), "needs an output_type"),
        (lambda: keyed.count_window(2).process(CountWindowProcessFunction(), "n nonsense"), "nonsense"),
        (lambda: keyed.count_window(2).process(wrong, "n int"), "takes a ProcessWindowFunction"),
        (lambda: stream.with_watermark("at", "1 second").key_by("user").window(window).sum("v", uid="s"),
         "the stream has a column 'window_start'"),
        (lambda: counts.with_watermark("last", "1 second"), "event-time windows of 'counts', which wait for the water"),
        (lambda: counts.map(lambda row: row).transform(lambda df: df.withWatermark("last", "1 second")),
         "transform: the rows come from the event-time windows of 'counts'.*second job"),
        (lambda: silent.with_watermark("at", "1 second"), "with_watermark: these rows have come through a watermark"),
        (lambda: timed.transform(lambda df: df.select("user", "at").withWatermark("at", "1 second")),
         "transform: these rows have come through a watermark before.*second job"),
        (lambda: env.from_df(timed.df.withWatermark("at", "2 seconds")), "from_df: these rows have come through"),
        (lambda: counts.key_by("user").window(window), "works on event time, and the stream has none"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=message):
            make()
