"""The job of the window kill tests, in a process of its own: windows in columns and windows row by row, over files.

Its argument is that of `tests.support.kill_child`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.support.kill_child import environment, main
from tests.support.oracle import ship

from cairn import (
    EventTimeSessionWindows,
    FileSink,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Time,
    TumblingEventTimeWindows,
)

SIZE, SLIDE, GAP, COUNT = 1500, 500, 120, 3
INPUT = "user string, v bigint, ms bigint"


class Numbers(ProcessWindowFunction[Any, Any, str, Any]):
    """The values of a session, sorted, as text: one that is lost or doubled is seen."""

    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        values = sorted(element.v for element in elements)
        yield key, context.window().start, context.window().end, " ".join(map(str, values))


class Few(ProcessWindowFunction[Any, Any, str, Any]):
    """The values of a count window."""

    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, [element.v for element in elements]


def run(plan: dict[str, Any], spark: SparkSession | None = None) -> None:
    folder = Path(plan["folder"])
    env = environment(plan, spark)
    source = env.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    rows = env.from_df(source.withColumn("at", F.timestamp_millis("ms"))).with_watermark("at", "0 seconds")
    keyed = rows.key_by("user")
    sums = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(SIZE))).sum("v", uid="sums")
    sums.sink_to(FileSink(str(folder / "sums")), uid="to-sums")
    sessions = keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(GAP)))
    sessions.process(Numbers(), "user string, first bigint, last bigint, numbers string", uid="sessions").sink_to(
        FileSink(str(folder / "sessions")), uid="to-sessions"
    )
    size, slide = Time.milliseconds(SIZE), Time.milliseconds(SLIDE)
    keyed.window(SlidingEventTimeWindows.of(size, slide)).sum("v", uid="sliding").sink_to(
        FileSink(str(folder / "sliding")), uid="to-sliding"
    )
    keyed.count_window(COUNT).process(Few(), "user string, values array<bigint>", uid="counted").sink_to(
        FileSink(str(folder / "counted")), uid="to-counted"
    )
    env.execute("windows")


ship(__name__)
if __name__ == "__main__":
    main(run)
