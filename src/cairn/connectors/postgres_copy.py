"""Arrow batches as the CSV that PostgreSQL's COPY reads, and PostgreSQL's names for Spark's types."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from typing import IO, Any

import pyarrow as pa

from cairn.errors import InvalidInputError

_NAMES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def column_types(schema: Any, owner: str) -> dict[str, str]:
    """PostgreSQL's type for each column of a Spark schema. Arrays, maps and structs become `jsonb`."""
    found: dict[str, str] = {}
    for field in schema.fields:
        if field.name in found:
            raise InvalidInputError(f"{owner}: the column '{field.name}' appears twice; give one of them another name")
        ddl = field.dataType.simpleString()
        base = ddl.split("(")[0].split("<")[0]
        if base == "decimal":
            found[field.name] = ddl.replace("decimal", "numeric")
        elif base in ("varchar", "char"):
            found[field.name] = "text"
        elif base in ("array", "map", "struct"):
            found[field.name] = "jsonb"
        elif base in _NAMES:
            found[field.name] = _NAMES[base]
        else:
            raise InvalidInputError(
                f"{owner}: column '{field.name}' has type {ddl}, which has no counterpart in PostgreSQL; cast it"
            )
    return found


def csv_text(batch: pa.RecordBatch, out: IO[bytes]) -> None:
    """Write a batch without a header: a null is nothing, an empty text is `""`."""
    from pyarrow import csv

    columns = [_as_text(column) for column in batch.columns]
    made = pa.RecordBatch.from_arrays(columns, names=[f"c{place}" for place in range(len(columns))])
    csv.write_csv(made, out, csv.WriteOptions(include_header=False, quoting_style="all_valid"))


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        return pa.array([None if v is None else json.dumps(_plain(v, kind)) for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A nested value as JSON knows it: numbers stay exact, times become ISO texts, bytes base64."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(_plain(key, kind.key_type)): _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
