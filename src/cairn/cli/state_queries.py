"""`cairn state ls|show|get|diff|export`; none of them needs Spark.

PATH is a savepoint, a `chk-<n>` folder, or a job's directory or name; see `snapshots/resolver.py`.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.cli.progress_bar import progress
from cairn.errors import InvalidInputError, NotFoundError
from cairn.quantities import size, when
from cairn.snapshots.difference import Difference, StatePair, compared, state_pairs, steps
from cairn.snapshots.lookup import as_python, find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import (
    Snapshot,
    SnapshotOperator,
    SnapshotState,
    first_rows,
    pickles_allowed,
    ranges,
    reading,
)
from cairn.text import no_formula, one_line

_PIECES = 32
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}
_SHOWN = 200


# Values for people and for JSON.


def plain(value: Any) -> Any:
    """A value for JSON: bytes as base64, times as ISO text, decimals, NaN and infinities as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(inner) for key, inner in value.items()}
    if hasattr(value, "_asdict"):
        return {name: plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _line(value: Any) -> str:
    """A value for people: text and NaN without quotes."""
    shown = plain(value) if isinstance(value, float) else value
    return shown if isinstance(shown, str) else json.dumps(plain(value), ensure_ascii=False)


def _text(value: Any) -> str:
    shown = _line(value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def _table(
    out: Output, title: str, names: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[str] = ()
) -> None:
    """Print a table. Control characters in foreign text are made visible."""
    if out.as_json:
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out.line(title)
    table = Table(box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(Text(one_line(name)), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*[Text(one_line(cell if isinstance(cell, str) else _text(cell))) for cell in row])
    out.table(table)


def _head(snapshot: Snapshot) -> str:
    metadata = snapshot.metadata
    epoch = f"epoch {metadata.epoch}, " if metadata.epoch >= 0 else ""
    made = f"{epoch}{when(metadata.created_ms)} UTC, {metadata.max_parallelism} key groups"
    return f"{snapshot.kind} of {metadata.name}, {made}: {snapshot.path}"


def opened(path: str, out: Output) -> Snapshot:
    """The snapshot of a path. Prints a note if a job has no checkpoint and its newest savepoint is read instead."""
    snapshot = open_snapshot(path)
    if snapshot.note:
        out.message(snapshot.note)
    return snapshot


# cairn state


def ls(path: str, out: Output, keys: bool = False) -> int:
    """List the operators and states of a snapshot. With `keys`, read their rows for keys, skew and the biggest keys."""
    snapshot = opened(path, out)
    metadata = snapshot.metadata
    counted = _summaries(snapshot, out) if keys else {}
    out.document({
        "path": snapshot.path, "kind": snapshot.kind, "note": snapshot.note, "id": metadata.id, "job": metadata.job_id,
        "name": metadata.name, "epoch": metadata.epoch, "created_ms": metadata.created_ms,
        "max_parallelism": metadata.max_parallelism,
        "operators": [_describe(operator, counted) for operator in snapshot.operators.values()],
    })  # fmt: skip
    names = ("uid", "state", "kind", "key", "rows", "size", *(("keys", "skew", "biggest key") if keys else ()))
    rows = [
        (op.uid, state.name, state.spec.signature, _key(op, state), _count(state.rows), _size(state.size),
         *(_counted(counted[op.uid, state.name]) if keys else ()))
        for op in snapshot.operators.values()
        for state in op.states.values()
    ]  # fmt: skip
    _table(out, _head(snapshot), names, rows, ("rows", "size", "keys", "skew"))
    return ExitCode.OK


def _summaries(snapshot: Snapshot, out: Output) -> dict[tuple[str, str], Any]:
    from cairn.view.state_browser import Masks, summary

    summaries = {}
    total = sum(len(operator.states) for operator in snapshot.operators.values())
    with reading(snapshot), progress(out, "counting keys", total, "states") as advance:
        for operator in snapshot.operators.values():
            for state in operator.states.values():
                summaries[operator.uid, state.name] = summary(snapshot, operator, state, Masks())
                advance(1)
    return summaries


def _counted(summary: Any) -> tuple[str, str, str]:
    """Keys, skew and the biggest key of a state; `+` where there are more rows than are counted."""
    skew = "-" if summary.skew is None else f"{summary.skew:.0%}"
    biggest = f"{summary.biggest[0][0]} ({summary.biggest[0][1]:,})" if summary.biggest else "-"
    return f"{summary.keys:,}{'' if summary.counted else '+'}" if summary.keys else "-", skew, _text(biggest)


def _key(operator: SnapshotOperator, state: SnapshotState) -> str:
    return "-" if state.spec.of_subtask else operator.key_type


def _describe(operator: SnapshotOperator, counted: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    return {
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "key_type": operator.key_type,
        "states": [
            {
                "name": state.name,
                "kind": state.spec.kind,
                "value_type": state.spec.value_type,
                "key_type": state.spec.key_type,
                "ttl_ms": state.spec.ttl_ms,
                "pickled": state.pickled,
                "columns": state.schema.names,
                "rows": state.rows,
                "size": state.size,
                **_count_of(counted.get((operator.uid, state.name))),
            }
            for state in operator.states.values()
        ],
    }


def _count_of(summary: Any) -> dict[str, Any]:
    if summary is None:
        return {}
    biggest = [{"key": key, "weight": weight} for key, weight in summary.biggest]
    return {"keys": summary.keys, "counted": summary.counted, "skew": summary.skew, "biggest": biggest}


def _count(rows: int | None) -> str:
    return "-" if rows is None else f"{rows:,}"


def _size(count: int | None) -> str:
    return "-" if count is None else size(count)


def show(path: str, uid: str | None, state: str | None, limit: int, out: Output) -> int:
    """Some rows of a state."""
    snapshot = opened(path, out)
    operator = snapshot.operator(uid)
    stored = operator.state(state)
    with reading(snapshot):
        table = first_rows(snapshot, stored, limit)
    rows = table.to_pylist()
    out.document({"uid": operator.uid, "state": stored.name, "rows": [plain(row) for row in rows]})
    shown = [[_text(row[name]) for name in table.column_names] for row in rows]
    _table(out, f"{operator.uid}.{stored.name}: {stored.spec.signature}", table.column_names, shown)
    return ExitCode.OK


def get(path: str, uid: str, state: str, key: Sequence[str], allow_pickled: Sequence[str], out: Output) -> int:
    """The state of one key."""
    snapshot = opened(path, out)
    operator = snapshot.operator(uid)
    stored = operator.state(state)
    with reading(snapshot):
        rows = find_rows(snapshot, operator, stored, key)
    allowed = (uid, stored.name) in pickles_allowed(snapshot, allow_pickled)
    value = as_python(stored, rows, allowed)
    if stored.pickled and not allowed and rows.num_rows:
        out.message(f"the value is pickled and shown as base64; --allow-pickled {uid}.{stored.name} unpickles it")
    out.document({"uid": uid, "state": stored.name, "found": rows.num_rows > 0, "value": plain(value)})
    if not rows.num_rows:
        out.line(f"state '{stored.name}' of operator '{uid}' has no value for this key")
        return ExitCode.NOT_FOUND
    out.line(_line(value))
    return ExitCode.OK


def diff(path: str, other: str, uid: str | None, state: str | None, limit: int, out: Output) -> int:
    """What changed from one snapshot to another. As with diff(1), exit code 0 means equal and 1 means different."""
    first, second = opened(path, out), opened(other, out)
    listed = [_compared(pair, limit if state is not None else 0, out) for pair in _pairs(first, second, uid, state)]
    different = any(entry["added"] or entry["removed"] or entry["changed"] for entry in listed)
    out.document({"from": first.path, "to": second.path, "different": different, "states": listed})
    counts = ("added", "removed", "changed")
    cells = [(entry["uid"], entry["state"], *(f"{entry[count]:,}" for count in counts)) for entry in listed]
    _table(out, f"from {first.path} to {second.path}", ("uid", "state", *counts), cells, counts)
    if state is not None and listed[0]["rows"]:
        rows = listed[0]["rows"]
        names = list(dict.fromkeys(name for row in rows for name in row))
        _table(out, f"{uid}.{state}", names, [[_text(row.get(name)) for name in names] for row in rows])
    return ExitCode.FAILED if different else ExitCode.OK


def _compared(pair: StatePair, limit: int, out: Output) -> dict[str, Any]:
    """What differs in one state: counts, and at most `limit` rows."""
    added = removed = changed = 0
    rows: list[dict[str, Any]] = []
    sides = [side.snapshot for side in (pair.before, pair.after) if side is not None]
    with reading(*sides), progress(out, f"comparing {pair.uid}.{pair.name}", steps(pair)) as advance:
        for part in compared(pair, advance):
            added += part.added.num_rows
            removed += part.removed.num_rows
            changed += part.after.num_rows
            if len(rows) < limit:
                rows += _changes(part, limit - len(rows))
    counts = {"added": added, "removed": removed, "changed": changed}
    return {"uid": pair.uid, "state": pair.name, **counts, "rows": rows}


def _pairs(first: Snapshot, second: Snapshot, uid: str | None, state: str | None) -> list[StatePair]:
    """The states that are compared: all, or those of the names."""
    pairs = state_pairs(first, second)
    wanted = [pair for pair in pairs if uid in (None, pair.uid) and state in (None, pair.name)]
    if not wanted:
        names = ", ".join(f"{pair.uid}.{pair.name}" for pair in pairs) or "none"
        raise NotFoundError(f"neither snapshot has {uid or 'any operator'}.{state or 'any state'}; there are {names}")
    return wanted


def _changes(part: Difference, limit: int) -> list[dict[str, Any]]:
    rows = [{"change": "added", **plain(row)} for row in part.added.slice(0, limit).to_pylist()]
    rows += [{"change": "removed", **plain(row)} for row in part.removed.slice(0, limit).to_pylist()]
    for old, new in zip(part.before.slice(0, limit).to_pylist(), part.after.slice(0, limit).to_pylist(), strict=True):
        value = next(reversed(new))
        rows.append({"change": "changed", **plain(new), "before": plain(old[value])})
    return rows[:limit]


def export(path: str, uid: str, state: str, target: str, out: Output, raw_csv: bool = False) -> int:
    """Write all rows of a state to one file, in the format of its extension: Parquet, CSV or JSON lines.

    Text of a CSV file that a spreadsheet would take for a formula gets an apostrophe before it, unless `raw_csv`.
    """
    snapshot = opened(path, out)
    stored = snapshot.operator(uid).state(state)
    kind = _FORMATS.get(os.path.splitext(target)[1].lower())
    if kind is None:
        raise InvalidInputError(f"{target!r} has an unknown file extension; use {', '.join(_FORMATS)}")
    if os.path.lexists(target):
        raise InvalidInputError(f"{target} already exists and is not overwritten")
    if kind == "csv":
        nested = [field.name for field in stored.schema if pa.types.is_nested(field.type)]
        if nested:
            raise InvalidInputError(
                f"column {nested[0]} is nested, which CSV does not support; export to .parquet or .jsonl"
            )
    folder = os.path.dirname(os.path.abspath(target))
    if not os.path.isdir(folder):
        raise NotFoundError(f"there is no folder {folder}", path=folder)
    unfinished = os.path.join(folder, f".{os.path.basename(target)}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with reading(snapshot):
            rows = _export(snapshot, stored, unfinished, kind, raw_csv, out)
        os.link(unfinished, target)
    except FileExistsError:
        raise InvalidInputError(f"{target} already exists and is not overwritten") from None
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    out.document({"path": os.path.abspath(target), "rows": rows, "format": kind})
    out.line(f"{rows:,} rows of {uid}.{stored.name} written to {target}")
    return ExitCode.OK


def _export(snapshot: Snapshot, state: SnapshotState, path: str, kind: str, raw: bool, out: Output) -> int:
    pieces = ranges(snapshot, _PIECES)
    rows = 0
    with open(path, "xb") as file, progress(out, f"writing {state.name}", len(pieces)) as advance:
        writer: Any = None
        if kind == "parquet":
            writer = pq.ParquetWriter(file, state.schema, compression="zstd")
        elif kind == "csv":
            writer = pyarrow.csv.CSVWriter(file, _as_text(state.schema.empty_table(), raw).schema)
        for groups in pieces:
            for table in state.origin.rows(groups):
                rows += table.num_rows
                if kind == "parquet":
                    writer.write_table(table)
                elif kind == "csv":
                    writer.write_table(_as_text(table, raw))
                else:
                    lines = (json.dumps(plain(row), ensure_ascii=False) for row in table.to_pylist())
                    file.write("".join(f"{line}\n" for line in lines).encode())
            advance(1)
        if writer is not None:
            writer.close()
    return rows


def _as_text(table: pa.Table, raw: bool) -> pa.Table:
    """Columns for CSV: bytes as base64 and, unless `raw`, text that no spreadsheet takes for a formula."""
    safe = (lambda text: text) if raw else no_formula
    for at, field in enumerate(table.schema):
        column, binary = table.column(at), pa.types.is_binary(field.type)
        if binary or pa.types.is_string(field.type):
            shown = [None if value is None else safe(plain(value)) for value in column.to_pylist()]
            column = pa.array(shown, pa.string())
        table = table.set_column(at, safe(field.name), column)
    return table
