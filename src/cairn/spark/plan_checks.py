"""Refuses plans with Spark's own stateful operators, whose state cairn neither commits nor restores."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from cairn.errors import InvalidInputError
from cairn.spark.logical_plan import plan_nodes


def refuse_native_state(frame: DataFrame) -> None:
    """Refuse the first stateful operator of Spark's own, with the method of a stream to use instead."""
    for node in plan_nodes(frame):
        name = node.nodeName().replace(" ", "")  # Spark writes "Except All"
        if name in _NATIVE and _keeps_state(node):
            raise InvalidInputError(
                f"the plan has Spark's own stateful operator {name}, whose state would not be covered by cairn's "
                f"epochs; {_NATIVE[name]}",
                operator=name,
            )


def _keeps_state(node: Any) -> bool:
    """A join with a static table keeps nothing; any other operator of the list does once its input is a stream."""
    if node.nodeName() == "Sort":
        return bool(node.isStreaming() and getattr(node, "global")())
    if node.nodeName() != "Join":
        return bool(node.isStreaming())
    return bool(node.left().isStreaming() and node.right().isStreaming())


_KEYED = "use stream.key_by(...) with sum, min, max, count, reduce or process instead of groupBy().agg()"
_DEDUP = "use stream.key_by(...).process(...) with a ValueState that remembers what was seen (see examples/dedup.py)"
_PROCESS = "use stream.key_by(...).process(...) instead"
_NATIVE = {
    "Aggregate": _KEYED,
    "Distinct": _DEDUP,
    "Deduplicate": _DEDUP,
    "DeduplicateWithinWatermark": _DEDUP,
    "Join": "join a static table, or key both streams alike and keep one side in state",
    "GlobalLimit": "a limit over a stream is state; filter by a column instead",
    "Offset": "an offset into a stream is state; filter by a column instead",
    "Tail": "a stream has no end; filter by a column instead",
    "Window": "a window function would start from scratch in every epoch; " + _PROCESS,
    "Sort": "a stream has no order as a whole; sort what a sink has written, or use sortWithinPartitions()",
    "Sample": "a sample would differ when an epoch is repeated; filter by a hash of a column instead",
    "Except": _DEDUP,
    "ExceptAll": _DEDUP,
    "Intersect": _DEDUP,
    "IntersectAll": _DEDUP,
    "FlatMapGroupsWithState": _PROCESS,
    "FlatMapGroupsInPandasWithState": _PROCESS,
    "TransformWithState": _PROCESS,
    "TransformWithStateInPySpark": _PROCESS,
    "TransformWithStateInPandas": _PROCESS,
}
