"""Looks into the state of snapshots for people: sizes, skew by key group, biggest keys, one key, two compared.

Everything has a bound: what would read more rows than `MOST_ROWS` says so instead. Values are shown as text, cut to a
length, and hidden where a rule says so. Pickled values are never opened.
"""

from __future__ import annotations

import base64
import fnmatch
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptFileError, InvalidInputError, NotFoundError
from cairn.model.ddl import INTEGER_TYPES
from cairn.model.keygroups import KeyGroupRange
from cairn.model.types import DataType
from cairn.quantities import shell_word
from cairn.snapshots.snapshot import (
    Snapshot,
    SnapshotOperator,
    SnapshotState,
    as_python,
    find_rows,
    first_rows,
    open_snapshot,
    refuse_key,
    retained,
)
from cairn.view.job_reader import unevenness

MOST_ROWS = 200_000
KEYS_PER_GROUP = 10
"""Skew is told from so many keys for a key group on."""
_SHOWN = 500
_HIDDEN = "(hidden)"


class StateSummary(msgspec.Struct, frozen=True):
    """A state of a snapshot. `rows`, `keys`, `groups` and `biggest` are those of the rows that were counted."""

    uid: str
    name: str
    kind: str
    value_type: str
    rows: int
    keys: int
    bytes: int
    counted: bool
    """False if there are more rows than are counted for a page."""
    skew: float | None
    """None with too few keys to tell: a handful of them is uneven by chance."""
    groups: list[int]
    """Rows by key group."""
    biggest: list[tuple[str, int]]
    """Keys with the most rows, of maps and lists; with the longest values otherwise."""


class Found(msgspec.Struct, frozen=True):
    """The state of one key in one snapshot."""

    checkpoint: int
    epoch: int
    time_ms: int
    value: str
    raw: str
    present: bool


class Difference(msgspec.Struct, frozen=True):
    """What differs in one state. `samples` are the key, before and after."""

    uid: str
    state: str
    before: int
    after: int
    added: int
    removed: int
    changed: int
    counted: bool
    samples: list[tuple[str, str, str]]


class Masks:
    """Which states are hidden: patterns over `uid.state`, as in a shell."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = tuple(patterns)

    def hides(self, uid: str, state: str) -> bool:
        return any(fnmatch.fnmatchcase(f"{uid}.{state}", pattern) for pattern in self._patterns)


def summaries(snapshot: Snapshot, uid: str, masks: Masks) -> list[StateSummary]:
    operator = snapshot.operator(uid)
    return [summary(snapshot, operator, state, masks) for state in operator.states.values()]


def summary(snapshot: Snapshot, operator: SnapshotOperator, state: SnapshotState, masks: Masks) -> StateSummary:
    groups = [0] * snapshot.metadata.max_parallelism
    tables: list[pa.Table] = []
    rows = 0
    counted = True
    for table in state.origin.rows(KeyGroupRange(0, len(groups) - 1)):
        rows += table.num_rows
        tables.append(table)
        if rows > MOST_ROWS:
            counted = False
            break
    joined = pa.concat_tables(tables) if tables else state.schema.empty_table()
    for entry in joined.column(state.columns.key_group).value_counts().to_pylist():
        groups[entry["values"]] = entry["counts"]
    hidden = masks.hides(operator.uid, state.name)
    biggest = [] if hidden else _biggest(state, joined)
    named = list(state.columns.keys)  # none for what belongs to subtasks
    keys = joined.group_by(named).aggregate([]).num_rows if joined.num_rows and named else 0
    return StateSummary(
        operator.uid, state.name, state.spec.kind, state.spec.value_type,
        state.rows if state.rows is not None else rows,
        keys, state.size if state.size is not None else joined.nbytes, counted, skew_of(keys, groups), groups,
        biggest,
    )  # fmt: skip


def skew_of(keys: int, groups: Sequence[int]) -> float | None:
    """How unevenly rows lie over key groups. With n keys for a group, chance alone makes about 0.4 / sqrt(n)."""
    return round(unevenness(groups), 4) if keys >= KEYS_PER_GROUP * len(groups) else None


def _biggest(state: SnapshotState, table: pa.Table, count: int = 10) -> list[tuple[str, int]]:
    """Key and number of entries, or bytes of the value where a key has one value."""
    names = list(state.columns.keys)
    if not table.num_rows or not names:
        return []
    if state.spec.has_entries:
        grouped = table.group_by(names).aggregate([([], "count_all")])
        weights = grouped.column("count_all")
    else:
        column = table.column(state.columns.value)
        if not (
            pa.types.is_binary(column.type) or pa.types.is_string(column.type) or pa.types.is_large_binary(column.type)
        ):
            return []
        grouped, weights = table, pc.fill_null(pc.binary_length(column), 0)
    order = np.argsort(-np.asarray(weights), kind="stable")[:count]
    picked = grouped.select(names).take(pa.array(order)).to_pylist()
    sizes = weights.take(pa.array(order)).to_pylist()
    return [(shown_key(list(row.values())), int(size)) for row, size in zip(picked, sizes, strict=True)]


def shown_key(values: Sequence[Any]) -> str:
    """A key as it can be typed into the lookup."""
    return shown(values[0]) if len(values) == 1 else ",".join(shown(value) for value in values)


def shown(value: Any) -> str:
    """Any value as text of bounded length."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, (bytes, bytearray)):
        text = f"{len(value)} bytes: {bytes(value[:24]).hex(' ')}"
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError):
            text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def parse_key(operator: SnapshotOperator, text: str) -> Any:
    """A key from text: the value of the only key column, or a JSON list (or values with commas) for several."""
    given = _texts(operator, text)
    if len(given) == 1:
        return _typed(operator.keys[0][1], given[0])
    return tuple(_typed(dtype, value) for (_, dtype), value in zip(operator.keys, given, strict=True))


def _texts(operator: SnapshotOperator, text: str) -> list[str]:
    """The texts of the key columns."""
    columns = operator.keys
    if len(columns) == 1:
        return [text]
    try:
        given = json.loads(text) if text.startswith("[") else text.split(",")
    except ValueError:
        given = text.split(",")
    if len(given) != len(columns):
        names = ", ".join(name for name, _ in columns)
        raise InvalidInputError(f"operator '{operator.uid}': a key is {names}; give {len(columns)} values with commas")
    return [str(value) for value in given]


def get_command(snapshot: Snapshot, operator: SnapshotOperator, state: str, text: str) -> str:
    """The command that shows the same key in a terminal. Every word of it is quoted: keys are foreign text."""
    columns = zip(operator.keys, _texts(operator, text), strict=True)
    key = [_for_terminal(dtype, value) for (_, dtype), value in columns]
    given = ["--"] if any(value.startswith("-") for value in key) else []
    return " ".join(map(shell_word, ("cairn", "state", "get", *given, snapshot.path, operator.uid, state, *key)))


def _for_terminal(dtype: DataType, text: str) -> str:
    """A key column as commands take it: bytes are base64 there, and hexadecimal here."""
    return base64.b64encode(bytes.fromhex(text)).decode() if dtype.ddl == "binary" else text


def _typed(dtype: DataType, text: str) -> Any:
    import datetime as dt
    import decimal

    try:
        if dtype.ddl in INTEGER_TYPES:
            return int(text)
        if dtype.ddl in ("float", "double"):
            return float(text)
        if dtype.ddl == "boolean":
            return {"true": True, "false": False}[text.strip().lower()]
        if dtype.ddl == "date":
            return dt.date.fromisoformat(text)
        if dtype.ddl.startswith("timestamp"):
            return dt.datetime.fromisoformat(text)
        if dtype.ddl.startswith("decimal"):
            return decimal.Decimal(text)
        if dtype.ddl == "binary":
            return bytes.fromhex(text)
    except (ValueError, KeyError, ArithmeticError):
        raise InvalidInputError(f"the key {text[:80]!r} is no {dtype.ddl}") from None
    return text


def lookup(snapshot: Snapshot, uid: str, state_name: str, text: str, masks: Masks) -> Found:
    """The state of one key."""
    operator = snapshot.operator(uid)
    state = operator.state(state_name)
    refuse_key(operator, state)
    rows = find_rows(snapshot, operator, state, parse_key(operator, text))
    hidden = masks.hides(uid, state.name)
    value = _HIDDEN if hidden else shown(as_python(state, rows)) if rows.num_rows else ""
    raw = _HIDDEN if hidden else shown(rows.to_pylist()) if rows.num_rows else ""
    told = snapshot.metadata
    return Found(snapshot.checkpoint, told.epoch, told.created_ms, value, raw, rows.num_rows > 0)


def history_of_key(job_dir: str, uid: str, state: str, text: str, masks: Masks, most: int = 20) -> list[Found]:
    """The state of one key in the retained checkpoints, newest first; those that are damaged are passed over."""
    found = []
    for snapshot in reversed(retained(job_dir)[-most:]):
        try:
            found.append(lookup(snapshot, uid, state, text, masks))
        except (NotFoundError, CorruptFileError):
            continue  # the operator or the state was not there yet, or a file is damaged
    return found


def sample(snapshot: Snapshot, uid: str, state_name: str, limit: int, masks: Masks) -> list[tuple[str, str]]:
    """Some keys and their rows."""
    operator = snapshot.operator(uid)
    state = operator.state(state_name)
    hidden = masks.hides(uid, state.name)
    shown_rows = []
    for row in first_rows(snapshot, state, limit).to_pylist():
        key = shown_key([row[name] for name in state.columns.keys])
        rest = {n: v for n, v in row.items() if n not in state.columns.keys and n != state.columns.key_group}
        value = rest[state.columns.value] if list(rest) == [state.columns.value] else rest
        shown_rows.append((_HIDDEN if hidden else key, _HIDDEN if hidden else shown(value)))
    return shown_rows


def compare(before: str, after: str, masks: Masks) -> list[Difference]:
    """Two snapshots, state by state."""
    left, right = open_snapshot(before), open_snapshot(after)
    names: dict[tuple[str, str], None] = {}
    for side in (left, right):
        for uid, operator in side.operators.items():
            names.update({(uid, state.name): None for state in operator.states.values()})
    return [_difference(left, right, uid, state, masks) for uid, state in names]


def _difference(left: Snapshot, right: Snapshot, uid: str, name: str, masks: Masks) -> Difference:
    rows_before, whole_before = _rows_by_identity(left, uid, name)
    rows_after, whole_after = _rows_by_identity(right, uid, name)
    added = [key for key in rows_after if key not in rows_before]
    removed = [key for key in rows_before if key not in rows_after]
    changed = [key for key, row in rows_after.items() if key in rows_before and repr(rows_before[key]) != repr(row)]
    samples: list[tuple[str, str, str]] = []
    if not masks.hides(uid, name):
        for key in [*changed[:5], *added[:5], *removed[:5]]:
            before, after = rows_before.get(key), rows_after.get(key)
            told = shown_key((before or after or ([""], ""))[0])
            samples.append((told, shown(before[1]) if before else "", shown(after[1]) if after else ""))
    counted = whole_before and whole_after
    return Difference(
        uid, name, len(rows_before), len(rows_after), len(added) if counted else 0, len(removed) if counted else 0,
        len(changed) if counted else 0, counted, samples if counted else [],
    )  # fmt: skip


def _rows_by_identity(snapshot: Snapshot, uid: str, name: str) -> tuple[dict[str, tuple[list[Any], Any]], bool]:
    """Key and value of every row, by a text that no two keys share: what is shown of a value may be cut."""
    try:
        state = snapshot.operator(uid).state(name)
    except NotFoundError:
        return {}, True
    found: dict[str, tuple[list[Any], Any]] = {}
    for table in state.origin.rows(KeyGroupRange(0, snapshot.metadata.max_parallelism - 1)):
        if len(found) + table.num_rows > MOST_ROWS:
            return found, False
        keys = table.select(state.identity).to_pylist()
        values = table.column(state.columns.value).to_pylist() if state.columns.value else [""] * table.num_rows
        for key, value in zip(keys, values, strict=True):
            identity = list(key.values())
            found[repr(identity)] = (identity, value)
    return found, True
