"""The Spark plans under operators: how rows get to their subtasks. See docs/design/0004-streams.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cairn.runtime.batches import GROUP_COLUMN, INPUT_COLUMN, ORDER_COLUMN
from cairn.runtime.operator_spec import OperatorSpec

_KEYED_AFTER = 1 << 62
"""Added to the order of keyed rows, so that they come after all broadcast ones."""


def group_of(names: Sequence[str], groups: int) -> Column:
    """The key group of a row."""
    return F.pmod(F.hash(*[F.col(f"`{name}`") for name in names]), F.lit(groups)).cast("int")


def first_group(subtask: Column, parallelism: int, groups: int) -> Column:
    """The first key group of a subtask: where rows without a key travel."""
    return F.floor((subtask * F.lit(groups) + F.lit(parallelism - 1)) / F.lit(parallelism)).cast("int")


def group_by_partition(parallelism: int, groups: int) -> Column:
    """Rows without a key: those of one Spark partition go to one subtask, in their order."""
    return first_group(F.pmod(F.spark_partition_id(), F.lit(parallelism)), parallelism, groups)


def plain_names(df: DataFrame) -> DataFrame:
    """The same with column names that mapInArrow takes."""
    columns = df.columns
    if len(set(columns)) < len(columns) or not all(map(str.isidentifier, columns)):
        return df.toDF(*[f"c{place}" for place in range(len(columns))])
    return df


def to_subtasks(rows: DataFrame, parallelism: int, groups: int) -> DataFrame:
    """Rows to the subtasks that own their groups (the last column), with one row more for every subtask.

    That row has a negative group. It makes sure that each subtask is called in every epoch, and tells it who it is.
    """
    everywhere = rows.sparkSession.range(0, parallelism, 1, 1).select(
        *[F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields[:-1]],
        (-F.col("id") - 1).cast("int").alias(GROUP_COLUMN),
    )
    target = F.expr(
        f"int(CASE WHEN {GROUP_COLUMN} < 0 THEN -{GROUP_COLUMN} - 1 "
        f"ELSE {GROUP_COLUMN} * {parallelism} DIV {groups} END)"
    )
    return rows.union(everywhere).repartitionById(parallelism, target)


@dataclass(frozen=True, slots=True)
class InputRows:
    """One of two inputs of an operator."""

    frame: DataFrame
    keys: Sequence[str]
    """The columns of the key; none if the stream has no key, or is broadcast."""
    columns: Sequence[str]
    """The columns that the function sees."""


def two_inputs(first: InputRows, second: InputRows, spec: OperatorSpec) -> DataFrame:
    """The rows of two inputs in one shuffle: key columns, a struct per input, which input a row is of, its group.

    Without keys, rows go to subtasks by partition. The rows of a broadcast second input go to every subtask; then the
    rows of each subtask are ordered: broadcast ones first, as the source has them, and the others after them.
    """
    broadcast = bool(spec.broadcast)
    inputs = (first, second)
    structs = [F.struct(*[F.col(f"`{name}`") for name in rows.columns]) for rows in inputs]
    types = [
        rows.frame.select(struct.alias("s")).schema["s"].dataType for rows, struct in zip(inputs, structs, strict=True)
    ]
    parts = []
    for number, rows in enumerate(inputs):
        everywhere = broadcast and number == 1
        columns: list[Column] = []
        for place, name in enumerate(first.keys):
            key = F.lit(None).cast(first.frame.schema[name].dataType) if everywhere else F.col(f"`{rows.keys[place]}`")
            columns.append(key.alias(f"k{place}"))
        for other in (0, 1):
            struct = structs[other] if other == number else F.lit(None).cast(types[other])
            columns.append(struct.alias(f"i{other}"))
        columns.append(F.lit(number).cast("int").alias(INPUT_COLUMN))
        if broadcast:
            order = F.monotonically_increasing_id()
            columns.append((order if everywhere else order + F.lit(_KEYED_AFTER)).alias(ORDER_COLUMN))
        parts.append(_with_group(rows, columns, spec, everywhere))
    shuffled = to_subtasks(parts[0].union(parts[1]), spec.parallelism, spec.max_parallelism)
    return shuffled.sortWithinPartitions(ORDER_COLUMN) if broadcast else shuffled


def _with_group(rows: InputRows, columns: Sequence[Column], spec: OperatorSpec, everywhere: bool) -> DataFrame:
    """The columns of one input with the key group of each row; `everywhere` makes a copy for every subtask."""
    parallelism, groups = spec.parallelism, spec.max_parallelism
    if everywhere:
        subtasks = F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1)))
        copied = rows.frame.select(*columns).withColumn(GROUP_COLUMN, subtasks)
        return copied.withColumn(GROUP_COLUMN, first_group(F.col(GROUP_COLUMN), parallelism, groups))
    group = group_of(rows.keys, groups) if rows.keys else group_by_partition(parallelism, groups)
    return rows.frame.select(*columns, group.alias(GROUP_COLUMN))
