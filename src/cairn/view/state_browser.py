"""The state of snapshots for the web page: sizes, skew by key group, biggest keys, single keys, comparisons.

At most `MOST_ROWS` rows are read; the records say so if there are more. Values are shown as text of limited length, and
hidden where `cairn.web.hidden-states` says so. Pickled values are never opened.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptFileError, NotFoundError
from cairn.model.keygroups import KeyGroupRange
from cairn.quantities import shell_word
from cairn.snapshots.difference import Difference, Side, StatePair, TooManyRows, compared, state_pairs
from cairn.snapshots.key_text import format_key
from cairn.snapshots.lookup import as_python, find_rows
from cairn.snapshots.resolver import retained
from cairn.snapshots.snapshot import Snapshot, SnapshotOperator, SnapshotState, first_rows
from cairn.view.job_reader import unevenness

MOST_ROWS = 200_000
KEYS_PER_GROUP = 10
"""With fewer keys for each key group, the skew is not known."""
LONGEST_TEXT = 500
"""Characters of keys and values that are shown. What is cut off is longer than this, since it says so."""
_HIDDEN = "(hidden)"
_SAMPLES = 5
"""Samples of each kind of difference."""


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
    """None with too few keys: a handful of them is uneven by chance."""
    groups: list[int]
    """Rows by key group."""
    biggest: list[tuple[str, int]]
    """Keys with the most rows, of maps and lists; with the longest values otherwise."""


class KeyState(msgspec.Struct, frozen=True):
    """The state of one key in one snapshot."""

    checkpoint: int
    epoch: int
    time_ms: int
    value: str
    raw: str
    present: bool


class StateComparison(msgspec.Struct, frozen=True):
    """One state in two snapshots. `samples` have the key, and the value before and after."""

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
    """How unevenly rows are spread over key groups. With n keys for each, chance alone makes about 0.4 / sqrt(n)."""
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
    """A key as it can be typed into the lookup, unless its text is longer than `LONGEST_TEXT`: then it is cut off."""
    return shown(format_key(values))


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
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"


def get_command(snapshot: Snapshot, operator: SnapshotOperator, state: str, text: str) -> str:
    """The command that shows the same key in a terminal. Every word of it is quoted: keys are foreign text."""
    end = ["--"] if text.startswith("-") else []
    return " ".join(map(shell_word, ("cairn", "state", "get", *end, snapshot.path, operator.uid, state, text)))


def lookup(snapshot: Snapshot, uid: str, state_name: str, text: str, masks: Masks) -> KeyState:
    """The state of one key."""
    operator = snapshot.operator(uid)
    state = operator.state(state_name)
    rows = find_rows(snapshot, operator, state, text)
    hidden = masks.hides(uid, state.name)
    value = _HIDDEN if hidden else shown(as_python(state, rows)) if rows.num_rows else ""
    raw = _HIDDEN if hidden else shown(rows.to_pylist()) if rows.num_rows else ""
    metadata = snapshot.metadata
    return KeyState(snapshot.checkpoint_number, metadata.epoch, metadata.created_ms, value, raw, rows.num_rows > 0)


def history_of_key(job_dir: str, uid: str, state: str, text: str, masks: Masks, most: int = 20) -> list[KeyState]:
    """The state of one key in the retained checkpoints, newest first. Damaged checkpoints are left out."""
    history = []
    for snapshot in reversed(retained(job_dir)[-most:]):
        try:
            history.append(lookup(snapshot, uid, state, text, masks))
        except (NotFoundError, CorruptFileError):
            continue  # the operator or the state was not there yet, or a file is damaged
    return history


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


def compare(before: Snapshot, after: Snapshot, masks: Masks) -> list[StateComparison]:
    """Two snapshots, state by state."""
    return [_comparison(pair, masks) for pair in state_pairs(before, after)]


def _comparison(pair: StatePair, masks: Masks) -> StateComparison:
    counts = dict.fromkeys(("before", "after", "added", "removed", "changed"), 0)
    samples: dict[str, list[tuple[str, str, str]]] = {"changed": [], "added": [], "removed": []}
    try:
        for part in compared(pair, most_rows=MOST_ROWS):
            counts["before"] += part.rows_before
            counts["after"] += part.rows_after
            counts["added"] += part.added.num_rows
            counts["removed"] += part.removed.num_rows
            counts["changed"] += part.after.num_rows
            for change, shown_rows in _samples(pair, part).items():
                samples[change] = [*samples[change], *shown_rows][:_SAMPLES]
    except TooManyRows:
        counts |= {"added": 0, "removed": 0, "changed": 0}
        return StateComparison(uid=pair.uid, state=pair.name, counted=False, samples=[], **counts)
    listed = [] if masks.hides(pair.uid, pair.name) else [sample for rows in samples.values() for sample in rows]
    return StateComparison(uid=pair.uid, state=pair.name, counted=True, samples=listed, **counts)


def _samples(pair: StatePair, part: Difference) -> dict[str, list[tuple[str, str, str]]]:
    """Some rows of each kind of difference: the key, before and after."""

    def rows(side: Side | None, table: pa.Table) -> list[tuple[str, str]]:
        if side is None:
            return []
        names, value = side.state.identity, side.state.columns.value
        picked = table.slice(0, _SAMPLES).to_pylist()
        keys = [",".join(shown(row[name]) for name in names) for row in picked]  # with the keys of maps, of any type
        return [(key, shown(row[value] if value else "")) for key, row in zip(keys, picked, strict=True)]

    changed = zip(rows(pair.before, part.before), rows(pair.after, part.after), strict=True)
    return {
        "changed": [(key, before, after) for (key, before), (_, after) in changed],
        "added": [(key, "", value) for key, value in rows(pair.after, part.added)],
        "removed": [(key, value, "") for key, value in rows(pair.before, part.removed)],
    }
