"""Streams as operators read them: rows, and the key that they are partitioned by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import NumericType, StructType

from cairn.errors import InvalidInputError
from cairn.model.ddl import as_type, parse_type
from cairn.model.types import DataType, Types
from cairn.runtime.batches import GROUP_COLUMN
from cairn.spark.stream_graph import Node
from cairn.state.codec import check_key_type

KEY_PREFIX = "__cairn_key_"
"""What the names of columns begin with that hold computed keys."""
_WATERMARK = "spark.watermarkDelayMs"


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The key of a stream: columns that it has, and expressions that are computed for every row."""

    keys: tuple[str | Column, ...]
    """The names and expressions that the stream was keyed by."""
    names: tuple[str, ...]
    """The columns that hold the key."""
    types: tuple[tuple[str, str], ...]
    """Name and DDL of each key, as state and users see them: expressions are called key_0, key_1, ..."""
    expressions: tuple[Column, ...]
    """Those of `keys` that are expressions, with the names of their columns."""

    def added_to(self, frame: DataFrame) -> DataFrame:
        """The rows with the columns of key expressions."""
        return frame.select("*", *self.expressions) if self.expressions else frame


@dataclass(frozen=True, slots=True)
class StreamInput:
    """A stream as the input of an operator."""

    node: Node
    bare: bool = False
    """Functions get the values of the only column rather than rows."""
    key: KeyColumns | None = None

    @property
    def schema(self) -> StructType:
        """The columns of the rows that functions get."""
        schema = self.node.frame().schema
        if self.key is None:
            return schema
        return StructType([field for field in schema.fields if not field.name.startswith(KEY_PREFIX)])

    def rows(self, frame: DataFrame) -> DataFrame:
        """The rows of a frame of this stream, with the columns of the key."""
        return frame if self.key is None else self.key.added_to(frame)

    def row_type(self) -> DataType:
        """The type of the stream's elements, as state keeps them."""
        fields = [(field.name, parse_type(field.dataType.simpleString())) for field in self.schema.fields]
        if self.bare:
            return fields[0][1]
        return Types.ROW_NAMED([name for name, _ in fields], [dtype for _, dtype in fields])

    def column_name(self, column: Any, call: str) -> str:
        """The column that a name or a position means."""
        return column_name(self.schema.names, column, call)

    def number_column(self, column: Any, call: str) -> tuple[str, str]:
        """A column that can be aggregated, as the stream calls it, and its type."""
        name = self.column_name(column, call)
        declared = self.schema[name].dataType
        ddl = declared.simpleString()
        if not isinstance(declared, NumericType) or ddl.startswith("decimal"):
            raise InvalidInputError(
                f"{call}('{name}'): the column has type {ddl}; {call} takes whole or floating-point numbers "
                "(cast the column, or use reduce or process)"
            )
        return name, ddl


def key_columns(frame: DataFrame, keys: Sequence[str | Column]) -> KeyColumns:
    """The key of a stream that is partitioned by the names of columns and by expressions."""
    columns = [name for name in frame.columns if not name.startswith(KEY_PREFIX)]
    if GROUP_COLUMN in columns:
        raise InvalidInputError(f"the column name {GROUP_COLUMN} is taken by cairn")
    names: list[str] = []
    expressions: list[Column] = []
    for number, key in enumerate(keys):
        if isinstance(key, str):
            names.append(key if key.startswith(KEY_PREFIX) else column_name(columns, key, "key_by"))
        elif isinstance(key, Column):
            names.append(f"{KEY_PREFIX}{number}")
            expressions.append(key.alias(names[-1]))
        else:
            raise InvalidInputError(f"a key is a column name or a Spark column, not {type(key).__name__}")
    try:
        schema = (frame.select("*", *expressions) if expressions else frame).schema
    except AnalysisException as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InvalidInputError(
            f"key_by: Spark cannot compute the key: {reason} The stream has {', '.join(columns)}"
        ) from error
    types = tuple((shown_name(name), _key_ddl(schema, name)) for name in names)
    return KeyColumns(tuple(keys), tuple(names), types, tuple(expressions))


def _key_ddl(schema: StructType, name: str) -> str:
    declared = schema[name].dataType.simpleString()
    try:
        dtype = parse_type(declared)
    except InvalidInputError:  # a type that state does not have cannot be a key either
        dtype = DataType(declared, as_type("binary").storage, _no_key, _no_key)
    check_key_type(name, dtype)
    return dtype.ddl


def _no_key(value: Any) -> Any:
    raise InvalidInputError("this type cannot be a key")


def shown_name(name: str) -> str:
    """A key column as users see it: key expressions are called key_0, key_1, ..."""
    return re.sub(r"^__cairn_", "", name)


def column_name(names: Sequence[str], column: Any, call: str) -> str:
    """The column that a name or a position means. Names are matched as Spark does: exactly, else regardless of case."""
    listed = ", ".join(names)
    if isinstance(column, int) and not isinstance(column, bool):
        if not 0 <= column < len(names):
            raise InvalidInputError(
                f"{call}: there is no column at position {column}; the stream has {len(names)}, counted from 0: "
                f"{listed}"
            )
        return names[column]
    if not isinstance(column, str):
        raise InvalidInputError(
            f"{call} takes the name or the position of a column, not {type(column).__name__}; the stream has {listed}"
        )
    if column in names:
        return column
    alike = [name for name in names if name.lower() == column.lower()]
    if len(alike) == 1:
        return alike[0]
    purpose = "to key by" if call == "key_by" else f"for {call}"
    raise InvalidInputError(f"there is no column '{column}' {purpose}; the stream has {listed}", column=column)


def event_time_of(schema: StructType) -> int:
    """The place of the column that carries the watermark, or -1."""
    return next((i for i, field in enumerate(schema.fields) if _WATERMARK in (field.metadata or {})), -1)
