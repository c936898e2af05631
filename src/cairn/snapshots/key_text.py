"""Reads keys from text, and writes them as such text, for `cairn state get`, the web page and `Savepoint.lookup` alike.

A key is one text for each key column. Several columns may also be one text: values with commas between them, or a JSON
list, which can hold values that contain commas. The text of a column is

- a number, `true` or `false`, or the text itself, by the type of the column,
- ISO 8601 for dates and timestamps; a timestamp without a time zone is in UTC,
- hexadecimal (`0xcafe` or `cafe`) or base64 (`base64:yv4=` or `yv4=`) for binary columns. What could be both is
  hexadecimal, unless it has the prefix `base64:`. After `0x` there is nothing but hexadecimal, without blanks.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from cairn.errors import InvalidInputError, StateTypeError
from cairn.model.types import DataType, Storage
from cairn.snapshots.snapshot import SnapshotOperator

_SHOWN = 80
_BASE64 = "base64:"
_HEX = "0x"


def parse_key(operator: SnapshotOperator, key: Any) -> list[Any]:
    """The values of the key columns from what a user gives: one value, several, or a mapping by column.

    Text is parsed where the column has another type than string.
    """
    values = [
        _parsed(operator, name, dtype, value)
        for (name, dtype), value in zip(operator.keys, _by_column(operator, key), strict=True)
    ]
    for (name, dtype), value in zip(operator.keys, values, strict=True):
        try:
            dtype.to_storage(value)
        except StateTypeError as error:
            raise StateTypeError(f"operator '{operator.uid}', key column '{name}': {error.message}") from None
    return values


def format_key(values: Sequence[Any]) -> str:
    """The values of the key columns as one text, which `parse_key` reads as the same key."""
    texts = [_text(value) for value in values]
    if len(texts) > 1 and (texts[0].startswith("[") or any("," in text for text in texts)):
        return json.dumps(texts, ensure_ascii=False)
    return ",".join(texts)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, dt.date):  # a datetime is one, too
        return value.isoformat()
    return str(value)


def _by_column(operator: SnapshotOperator, key: Any) -> Sequence[Any]:
    """One value for each key column."""
    names = [name for name, _ in operator.keys]
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise InvalidInputError(
                f"operator '{operator.uid}': a key has the columns {', '.join(names)}, not {sorted(key)}"
            )
        return [key[name] for name in names]
    values = list(key) if isinstance(key, (tuple, list)) else [key]
    if len(values) == 1 and len(names) > 1 and isinstance(values[0], str):
        values = _split(values[0])
    if len(values) != len(names):
        raise InvalidInputError(
            f"operator '{operator.uid}' has the key ({operator.key_type}): give {len(names)} values, not {len(values)}"
        )
    return values


def _split(text: str) -> list[Any]:
    """The values of several columns in one text."""
    if text.startswith("["):
        try:
            values = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
        except (ValueError, RecursionError):
            return text.split(",")
        return [str(value).lower() if isinstance(value, bool) else value for value in values]
    return text.split(",")


def _parsed(operator: SnapshotOperator, name: str, dtype: DataType, value: Any) -> Any:
    if value is None:
        raise InvalidInputError(f"operator '{operator.uid}': key column '{name}' is None; a key cannot be null")
    if not isinstance(value, str):
        return value
    try:
        return _value(dtype, value)
    except (ValueError, KeyError, ArithmeticError):
        hint = " (pass binary keys as hexadecimal or base64)" if dtype.ddl == "binary" else ""
        raise InvalidInputError(
            f"operator '{operator.uid}': {value[:_SHOWN]!r} is not a valid {dtype.ddl} for key column '{name}'{hint}"
        ) from None


def _value(dtype: DataType, text: str) -> Any:
    if dtype.ddl == "boolean":
        return {"true": True, "false": False}[text.strip().lower()]
    if dtype.ddl == "date":
        return dt.date.fromisoformat(text)
    if dtype.ddl in ("timestamp", "timestamp_ntz"):
        moment = dt.datetime.fromisoformat(text)
        return moment if dtype.ddl == "timestamp_ntz" or moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    if dtype.ddl.startswith("decimal("):
        return decimal.Decimal(text)
    if dtype.storage is Storage.INT:
        return int(text)
    if dtype.storage is Storage.FLOAT:
        return float(text)
    return _bytes(text) if dtype.ddl == "binary" else text


def _bytes(text: str) -> bytes:
    if text.startswith(_BASE64):
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    digits = text.removeprefix(_HEX)
    if not set(digits) - set(string.hexdigits) and len(digits) % 2 == 0:
        return bytes.fromhex(digits)
    if text.startswith(_HEX):
        raise ValueError("not hexadecimal")
    return base64.b64decode(text, validate=True)
