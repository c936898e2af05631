"""Reads Spark DDL into `DataType`s, so that neither workers nor unit tests need a JVM for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from cairn.errors import InvalidInputError
from cairn.model.limits import MAX_NESTING
from cairn.model.types import PICKLE, DataType, array_type, decimal_type, map_type, scalar, struct_type

_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "str": "string",
    "bytes": "binary",
    "bool": "boolean",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")
"""From the narrowest to the widest."""
_SCALARS = {
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
}

_OLD_KEY = re.compile(
    rf"(.+?) ({'|'.join(sorted(_SCALARS))}|decimal\(\d+,\d+\))(?:, |\Z)",
    re.DOTALL,
)
"""A key column as it was written before names were quoted."""
_PLAIN = re.compile(r"[^\s<>,:()`]+")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([^\s<>,:()`]+)|([<>,:()]))")


class _Parser:
    """A reader for Spark DDL, so that neither workers nor unit tests need a JVM."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise self.wrong(f"unexpected {stripped[position:][:10]!r}")
            self.tokens.append(match.group(0).strip())
            position = match.end()
        self.at = 0
        self.depth = 0

    def wrong(self, why: str) -> InvalidInputError:
        shown = self.text if len(self.text) <= 1000 else f"{self.text[:1000]}..."
        return InvalidInputError(f"'{shown}' is not a type that cairn supports: {why}. Use Spark DDL such as 'bigint'.")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token != wanted):
            raise self.wrong(f"expected {wanted or 'more'!r}, found {token or 'the end'!r}")
        self.at += 1
        return token

    def name(self) -> str:
        token = self.take()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def type(self) -> DataType:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.wrong(f"it is nested more than {MAX_NESTING} deep")
        made = self._type()
        self.depth -= 1
        return made

    def _type(self) -> DataType:
        word = self.take().lower()
        word = _ALIASES.get(word, word)
        if word in _SCALARS:
            return scalar(word)
        if word == "pickle":
            return PICKLE
        if word == "decimal":
            precision, scale = 10, 0
            if self.peek() == "(":
                self.take("(")
                precision = self.number()
                if self.peek() == ",":
                    self.take(",")
                    scale = self.number()
                self.take(")")
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise self.wrong("decimal takes a precision of 1 to 38 and a scale no larger than it")
            return decimal_type(precision, scale)
        if word in ("varchar", "char"):
            self.take("(")
            self.number()
            self.take(")")
            return scalar("string")
        if word == "array":
            self.take("<")
            inner = self.type()
            self.take(">")
            return array_type(inner)
        if word == "map":
            self.take("<")
            key = self.type()
            self.take(",")
            value = self.type()
            self.take(">")
            return map_type(key, value)
        if word == "struct":
            self.take("<")
            fields = self.fields(">")
            self.take(">")
            return struct_type(fields)
        raise self.wrong(f"unknown type '{word}'")

    def number(self) -> int:
        token = self.take()
        if not token.isdigit():
            raise self.wrong(f"expected a number, found {token!r}")
        return int(token)

    def fields(self, end: str) -> list[tuple[str, DataType]]:
        fields: list[tuple[str, DataType]] = []
        while self.peek() != end:
            if fields:
                self.take(",")
            name = self.name()
            if self.peek() == ":":
                self.take(":")
            fields.append((name, self.type()))
            if self.peek().lower() == "not":
                self.take()
                self.take()
        return fields


@lru_cache(maxsize=512)
def parse_type(ddl: str) -> DataType:
    """The type that a DDL text names. Raises `InvalidInputError` with the offending word."""
    parser = _Parser(ddl)
    parsed = parser.type()
    if parser.peek():
        raise parser.wrong(f"unexpected {parser.peek()!r}")
    return parsed


@lru_cache(maxsize=512)
def parse_columns(ddl: str) -> tuple[tuple[str, DataType], ...]:
    """The columns of a row type such as `"user string, total bigint"` (also `"struct<...>"`)."""
    if re.match(r"\s*struct\s*<", ddl, re.IGNORECASE):
        return parse_type(ddl).fields
    parser = _Parser(ddl)
    fields = parser.fields("")
    if not fields:
        raise parser.wrong("it has no columns")
    names = [name.lower() for name, _ in fields]
    if len(set(names)) != len(names):
        raise parser.wrong("a column name appears twice")
    return tuple(fields)


@lru_cache(maxsize=512)
def parse_keys(ddl: str) -> tuple[tuple[str, DataType], ...]:
    """The key columns of an operator; none for an operator without a key, whose `key_type` is empty.

    What was stored before names were quoted is read, too.
    """
    if not ddl:
        return ()
    try:
        return parse_columns(ddl)
    except InvalidInputError:
        found, at = [], 0
        while at < len(ddl):
            match = _OLD_KEY.match(ddl, at)
            if match is None:
                raise
            found.append((match[1], parse_type(match[2])))
            at = match.end()
        return tuple(found)


def key_ddl(columns: Iterable[tuple[str, str]]) -> str:
    """The text of key columns, given as names and types: names are quoted where they must be."""
    return ", ".join(f"{name if _PLAIN.fullmatch(name) else quoted(name)} {ddl}" for name, ddl in columns)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def same_keys(one: str, other: str) -> bool:
    """Whether two texts name the same key columns, in whatever spelling."""
    if one == other:
        return True
    try:
        sides = [[(name, dtype.ddl) for name, dtype in parse_keys(text)] for text in (one, other)]
    except InvalidInputError:
        return False
    return sides[0] == sides[1]


def as_type(declared: DataType | str | None) -> DataType:
    """A declared type in any of its spellings. None is the explicit choice of PyFlink's default: pickled."""
    if declared is None:
        return PICKLE
    if isinstance(declared, DataType):
        return declared
    if isinstance(declared, str):
        return parse_type(declared)
    raise InvalidInputError(f"a type is Spark DDL or Types.*, not {type(declared).__name__}")
