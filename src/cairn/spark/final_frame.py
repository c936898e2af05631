"""The one frame of a job: everything that its sinks read, such that every Python function runs once in an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cairn.logs import get_logger
from cairn.spark.job_definition import AttachedSink
from cairn.spark.stream_graph import Build, OutputNode, functions_of, hidden_functions, shared_functions

_log = get_logger("cairn.api")
_SINK_COLUMN = "__cairn_sink"

Reader = Callable[[DataFrame], DataFrame]
"""Takes the rows of one sink out of those of the epoch."""


def final_frame(sinks: Sequence[AttachedSink]) -> tuple[DataFrame, dict[str, Reader]]:
    """The frame of the whole job, and how each sink takes its rows out of it."""
    nodes = list(dict.fromkeys(attached.node for attached in sinks))
    for uid, times in Counter([*hidden_functions(nodes), *[f.uid for f in functions_of(nodes)]]).items():
        if times > 1:
            _log.warning(
                "operator %s runs %d times in every epoch, because its output was taken out as a DataFrame (.df) "
                "more than once or is read as a stream, too; use stream.transform(...) to have it run once",
                uid, times,
            )  # fmt: skip
    first = nodes[0]
    if (
        isinstance(first, OutputNode)
        and first.function.sides
        and all(isinstance(node, OutputNode) and node.function is first.function for node in nodes)
    ):
        # The sinks take their rows out of what the operator puts out.
        raw = Build().frame(first.function)
        return raw, {attached.sink.uid: cast(OutputNode, attached.node).read for attached in sinks}
    shared = shared_functions(nodes)
    again = shared or any(function.sides for function in functions_of(nodes))
    plan = Build(shared)
    frames = [plan.frame(node) if again else node.frame() for node in nodes]
    if len(frames) == 1:
        return frames[0], {}
    readers = {attached.sink.uid: sink_reader(nodes.index(attached.node)) for attached in sinks}
    return tagged_union(frames), readers


def with_ticks(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """The frame and a source without rows, which makes an epoch at every trigger.

    Timers need time to advance when no data arrives.
    """
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    nothing = ticks.filter(F.col("value") < 0).select(
        *[F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    )
    return frame.union(nothing)


def tagged_union(frames: Sequence[DataFrame]) -> DataFrame:
    """Several streams as one: a tag, and a struct column for each of them that is null in the rows of the others."""
    parts = []
    for mine, frame in enumerate(frames):
        columns = [F.lit(mine).alias(_SINK_COLUMN)]
        for other, foreign in enumerate(frames):
            if other == mine:
                columns.append(F.struct(*[F.col(f"`{name}`") for name in frame.columns]).alias(f"sink{other}"))
            else:
                columns.append(F.lit(None).cast(foreign.schema).alias(f"sink{other}"))
        parts.append(frame.select(*columns))
    united = parts[0]
    for part in parts[1:]:
        united = united.unionByName(part)
    return united


def sink_reader(tag: int) -> Reader:
    """Takes one stream out of a tagged union."""
    return lambda frame: frame.filter(F.col(_SINK_COLUMN) == tag).select(f"sink{tag}.*")
