"""The Spark plans under operators: how rows get to their subtasks. See docs/design/0004-streams.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cairn.errors import InvalidInputError
from cairn.model.output_tags import OutputTag, columns_ddl, row_columns_of
from cairn.model.types import DataType
from cairn.runtime.batches import GROUP_COLUMN, INPUT_COLUMN, ORDER_COLUMN
from cairn.runtime.operator_spec import OperatorSpec
from cairn.runtime.tagged_outputs import SideSpec
from cairn.spark.stream_graph import tagged_schema
from cairn.spark.worker_tasks import OperatorTask

_WATERMARK = "spark.watermarkDelayMs"
_KEYED_AFTER = 1 << 62
"""Added to the order of keyed rows, so that they come after all broadcast ones."""


@dataclass(frozen=True, slots=True)
class OutputType:
    """The declared output of a function: columns, and whether it puts out bare values of the only one."""

    schema: StructType
    bare: bool


def output_type_of(declared: str | DataType | StructType) -> OutputType:
    """The columns that an output type declares. Rows: Spark DDL, `Types.ROW` or a StructType; else bare values."""
    if isinstance(declared, StructType):
        return OutputType(_distinct(declared), False)
    if isinstance(declared, str):
        try:
            columns, bare = row_columns_of(declared, "output type")
        except InvalidInputError:
            return OutputType(_spark_schema(declared), False)  # a type that Spark has and state has not
        return OutputType(_spark_schema(columns_ddl(columns) if bare else declared), bare)
    if not isinstance(declared, DataType):
        raise InvalidInputError(
            f"an output type is Spark DDL such as 'user string, total bigint', a StructType or Types.*, not "
            f"{type(declared).__name__}"
        )
    columns, bare = row_columns_of(declared, "output type")
    return OutputType(_spark_schema(columns_ddl(columns)), bare)


def _spark_schema(ddl: str) -> StructType:
    try:
        schema = StructType.fromDDL(ddl)
        if not isinstance(schema, StructType):
            raise TypeError("it names a single type, not columns")
    except Exception as error:
        raise InvalidInputError(
            f"output type {ddl!r} is no Spark DDL such as 'user string, total bigint': {error}"
        ) from error
    return _distinct(schema)


def _distinct(schema: StructType) -> StructType:
    """Refuse two columns of one name here: no sink could write them."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"the output would have the column '{twice[0]}' twice ({', '.join(schema.names)}): rename the one that is "
            f"yours, as in transform(lambda df: df.withColumnRenamed('{twice[0]}', 'my_{twice[0]}'))"
        )
    return schema


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema in which a function puts out rows of a Spark schema. Timestamps are in UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # older ones mean UTC by default


def side_schema(tag: OutputTag) -> StructType:
    return _spark_schema(tag.ddl)


def side_specs(sides: Sequence[OutputTag]) -> tuple[SideSpec, ...]:
    return tuple(SideSpec(tag.tag_id, arrow_schema_of(side_schema(tag)), tag.bare) for tag in sides)


def raw_schema(main: StructType, tagged: bool, sides: Sequence[OutputTag]) -> StructType:
    """What a function's frame looks like."""
    return tagged_schema([main, *map(side_schema, sides)]) if tagged else main


def check_pickles(function: Any, uid: str) -> None:
    """A function that cannot travel to the workers is refused where it is defined."""
    try:
        cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidInputError(
            f"operator '{uid}': its function cannot be sent to the Spark workers ({type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else error!r}). Do not keep a Spark session, "
            "lock, socket or open file in it; make such things in open().",
            uid=uid,
        ) from error


def event_time_of(schema: StructType) -> int:
    """The place of the column that carries the watermark, or -1."""
    return next((i for i, field in enumerate(schema.fields) if _WATERMARK in (field.metadata or {})), -1)


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


def run_operator(
    spec: OperatorSpec, shuffled: DataFrame, main: StructType, tagged: bool, sides: Sequence[OutputTag], acks: Any
) -> DataFrame:
    """The operator over rows that are where they belong."""
    told = replace(spec, tagged=tagged, sides=side_specs(sides)) if tagged else spec
    return shuffled.mapInArrow(OperatorTask(told, acks), raw_schema(main, tagged, sides))


def two_inputs(
    first: DataFrame, second: DataFrame, keys: Sequence[tuple[str, str]], user: tuple[Sequence[str], Sequence[str]],
    parallelism: int, groups: int, broadcast: bool = False,
) -> DataFrame:  # fmt: skip
    """The rows of two inputs in one shuffle: key columns, a struct per input, which input a row is of, its group.

    Without keys, rows go to subtasks by partition. The rows of a broadcast second input go to every subtask; then the
    rows of each subtask are ordered: broadcast ones first, as the source has them, and the others after them.
    """
    shapes = [F.struct(*[F.col(f"`{name}`") for name in names]) for names in user]
    types = [
        df.select(shape.alias("s")).schema["s"].dataType for df, shape in zip((first, second), shapes, strict=True)
    ]
    parts = []
    for number, df in enumerate((first, second)):
        everywhere = broadcast and number == 1
        columns: list[Column] = []
        for place, pair in enumerate(keys):
            key = F.lit(None).cast(first.schema[pair[0]].dataType) if everywhere else F.col(f"`{pair[number]}`")
            columns.append(key.alias(f"k{place}"))
        for other in (0, 1):
            struct = shapes[other] if other == number else F.lit(None).cast(types[other])
            columns.append(struct.alias(f"i{other}"))
        columns.append(F.lit(number).cast("int").alias(INPUT_COLUMN))
        if broadcast:
            order = F.monotonically_increasing_id()
            columns.append((order if everywhere else order + F.lit(_KEYED_AFTER)).alias(ORDER_COLUMN))
        if everywhere:
            subtasks = F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1)))
            copied = df.select(*columns).withColumn(GROUP_COLUMN, subtasks)
            group = first_group(F.col(GROUP_COLUMN), parallelism, groups)
            parts.append(copied.withColumn(GROUP_COLUMN, group))
            continue
        group = group_of([pair[number] for pair in keys], groups) if keys else group_by_partition(parallelism, groups)
        parts.append(df.select(*columns, group.alias(GROUP_COLUMN)))
    shuffled = to_subtasks(parts[0].union(parts[1]), parallelism, groups)
    return shuffled.sortWithinPartitions(ORDER_COLUMN) if broadcast else shuffled
