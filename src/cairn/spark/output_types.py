"""The declared output of functions, as Spark and Arrow schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cairn.errors import InvalidInputError
from cairn.model.output_tags import OutputTag, columns_ddl, row_columns_of
from cairn.model.types import DataType
from cairn.runtime.tagged_outputs import SideSpec
from cairn.spark.stream_graph import tagged_schema

Declared = str | DataType | StructType
"""An output type: Spark DDL, `Types.*`, or a Spark StructType."""


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
            f"output type {ddl!r} is not a valid Spark DDL, such as 'user string, total bigint': {error}"
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
