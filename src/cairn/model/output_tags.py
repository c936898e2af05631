"""What an operator puts out: row types, side outputs, and how the rows of several outputs travel in one frame.

An operator with one reader of its one output puts out its rows as they are. Where it has side outputs, or more than
one reader, its rows are *tagged*: the number of the output, the subtask that made the row, and a struct per output
that is null in the rows of the others. See docs/design/0004-streams.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from cairn.errors import InvalidInputError
from cairn.model.ddl import parse_columns, parse_type
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.types import DataType

TAG_COLUMN = "__cairn_tag"
FROM_COLUMN = "__cairn_from"
VALUE_COLUMN = "value"
"""The one column of a stream whose type is not a row type."""


def check_tag(tag: Any) -> None:
    """Refuse what is no side output: a name alone has no type, and would be taken for a row."""
    if not isinstance(tag, OutputTag):
        raise InvalidInputError(f"a side output is named by its OutputTag, not by {tag!r} ({type(tag).__name__})")


def output_column(number: int) -> str:
    """The struct column of an output in tagged rows; number 0 is the main output."""
    return f"o{number}"


def row_columns_of(declared: str | DataType, what: str) -> tuple[tuple[tuple[str, DataType], ...], bool]:
    """The columns of a declared type, and whether its elements are bare values rather than rows.

    `"user string, total bigint"` and `Types.ROW([...])` declare rows. Any other type, `"bigint"` or
    `Types.STRING()`, declares bare values, which make one column called `value`.
    """
    dtype: DataType | None = declared if isinstance(declared, DataType) else None
    if dtype is None:
        if not isinstance(declared, str):
            raise InvalidInputError(f"{what}: a type is Spark DDL or Types.*, not {type(declared).__name__}")
        if not _is_single(declared):
            return parse_columns(declared), False
        dtype = parse_type(declared)
    if "pickle" in re.split(r"\W+", dtype.ddl):
        raise InvalidInputError(
            f"{what}: pickled values cannot be columns; declare a type, such as 'user string, total bigint' or "
            "Types.LONG()"
        )
    if dtype.fields:
        return dtype.fields, False
    return ((VALUE_COLUMN, dtype),), True


def _is_single(ddl: str) -> bool:
    """Whether a text names a type rather than columns."""
    return re.fullmatch(r"\s*(\w+|(array|map|struct)\s*<.*>|\w+\s*\([\d\s,]*\))\s*", ddl, re.DOTALL) is not None


class OutputTag(PyFlinkNames):
    """Names a side output and its type. Two tags with one name are the same output.

    `ctx.output(tag, value)` or `yield tag, value` puts a value out; `stream.get_side_output(tag)` reads it.
    """

    def __init__(self, tag_id: str, type_info: str | DataType | None = None) -> None:
        if not isinstance(tag_id, str) or not tag_id.strip():  # type: ignore[redundant-expr]
            raise InvalidInputError(f"a side output is named by a text that is not empty, not {tag_id!r}")
        if type_info is None:
            raise InvalidInputError(
                f"the side output '{tag_id}' needs a type: OutputTag('{tag_id}', 'user string, total bigint') or "
                f"OutputTag('{tag_id}', Types.LONG())"
            )
        self.tag_id = tag_id
        self.type_info = type_info
        self.columns, self.bare = row_columns_of(type_info, f"side output '{tag_id}'")

    @property
    def ddl(self) -> str:
        """The columns of the output as Spark DDL."""
        return columns_ddl(self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __reduce__(self) -> tuple[Any, ...]:
        declared = self.type_info if isinstance(self.type_info, str) else self.type_info.ddl
        return OutputTag, (self.tag_id, declared)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r}, {self.ddl!r})"


def columns_ddl(columns: tuple[tuple[str, DataType], ...]) -> str:
    return ", ".join(f"`{name.replace('`', '``')}` {dtype.ddl}" for name, dtype in columns)


def check_same_columns(tag: OutputTag, columns: Iterable[str]) -> None:
    """Refuse a side output for late rows whose columns are not of the types of the stream's own."""
    mine, theirs = tuple(columns), tuple(dtype.ddl for _, dtype in tag.columns)
    if mine != theirs:
        raise InvalidInputError(
            f"the side output '{tag.tag_id}' has columns of types ({', '.join(theirs)}); late rows go out as they "
            f"came in, and the stream has ({', '.join(mine)})"
        )
