"""One rule says when state is equal. The Spark half is in `tests/spark/test_offline_diff.py`."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.support.diff_lab import canonical, expected, two_savepoints
from tests.support.restore_lab import savepoint_of
from tests.support.state_lab import Lab

from cairn.cli import state_queries
from cairn.cli.output import Output
from cairn.model.ddl import parse_type
from cairn.model.descriptors import MapStateDescriptor
from cairn.snapshots.difference import StatePair, compared, equal_values, state_pairs, steps
from cairn.snapshots.resolver import open_snapshot
from cairn.state.typed_columns import typed_list
from cairn.view.state_browser import Masks, compare

SEEDS = [1, 2, 3, 4, 5]


def local_differences(pair: StatePair) -> set[tuple[tuple[Any, ...], str]]:
    side = pair.before or pair.after
    assert side is not None
    rows = set()
    for part in compared(pair):
        for change, table in (("added", part.added), ("removed", part.removed), ("changed", part.after)):
            for row in table.to_pylist():
                names = [row[name] for name in side.state.identity]
                rows.add((tuple(canonical(tuple(n.values()) if isinstance(n, dict) else n) for n in names), change))
    return rows


@pytest.mark.parametrize("seed", SEEDS)
def test_what_differs_is_what_the_rule_says(tmp_path: Path, seed: int) -> None:
    first, second, before, after = two_savepoints(tmp_path, seed)
    old, new = open_snapshot(first), open_snapshot(second)
    wanted = expected(before, after)
    pairs = {pair.name: pair for pair in state_pairs(old, new)}
    assert set(pairs) == set(wanted)
    assert {name: local_differences(pair) for name, pair in pairs.items()} == wanted
    counts = {
        name: tuple(sum(change == kind for _, change in rows) for kind in ("added", "removed", "changed"))
        for name, rows in wanted.items()
    }
    page = {shown.state: (shown.added, shown.removed, shown.changed) for shown in compare(old, new, Masks())}
    assert page == counts
    with redirect_stdout(StringIO()) as printed:
        state_queries.diff(first, second, None, None, 20, Output(as_json=True))
    states = json.loads(printed.getvalue())["states"]
    assert {shown["state"]: (shown["added"], shown["removed"], shown["changed"]) for shown in states} == counts


@pytest.mark.parametrize(
    ("ddl", "one", "other", "same"),
    [
        ("double", float("nan"), -float("nan"), True),
        ("float", 0.0, -0.0, True),
        ("double", None, None, True),
        ("double", None, float("nan"), False),
        ("double", None, 0.0, False),
        ("string", None, "", False),
        ("struct<x:double,s:string>", (float("nan"), None), (-float("nan"), None), True),
        ("struct<x:double,s:string>", (0.0, None), (None, None), False),
        ("struct<x:double,s:string>", (0.0, ""), (-0.0, None), False),
        ("array<double>", [0.0, None], [-0.0, None], True),
        ("array<double>", [1.0, 2.0], [2.0, 1.0], False),
        ("map<string,double>", {"a": 0.0, "b": 1.0}, {"b": 1.0, "a": -0.0}, True),
        ("map<string,double>", {"a": None}, {}, False),
        ("array<map<int,array<float>>>", [{1: [0.0], 2: []}], [{2: [], 1: [-0.0]}], True),
        ("pickle", 1, True, False),
        ("pickle", "a", "a", True),
    ],
)
def test_values_are_equal(ddl: str, one: Any, other: Any, same: bool) -> None:
    dtype = parse_type(ddl)
    columns = (typed_list(dtype, [None if value is None else dtype.to_storage(value)]) for value in (one, other))
    assert equal_values(dtype, *columns).tolist() == [same]


def test_a_state_of_another_type_is_removed_and_added(tmp_path: Path) -> None:
    first, second, before, after = two_savepoints(tmp_path, 1)
    old = {pair.name: pair.before for pair in state_pairs(open_snapshot(first), open_snapshot(first))}
    new = {pair.name: pair.after for pair in state_pairs(open_snapshot(second), open_snapshot(second))}
    pair = StatePair("tested", "number", old["number"], new["text"])
    assert not pair.alike
    parts = list(compared(pair))
    assert len(parts) == steps(pair)
    assert sum(part.removed.num_rows for part in parts) == len(before["number"])
    assert sum(part.added.num_rows for part in parts) == len(after["text"])
    assert sum(part.after.num_rows for part in parts) == 0


def test_keys_of_any_length_that_state_can_have_are_compared(tmp_path: Path) -> None:
    rows = MapStateDescriptor("rows", "struct<b:binary>", "int")
    names = MapStateDescriptor("names", "string", "int")
    key, paths = "k" * 20_000, []
    with Lab(rows, names, state_dir=tmp_path / "job", max_parallelism=8) as lab:
        for number in range(2):

            def put(states: Any, ctx: Any, number: int = number) -> None:
                states.rows.put((bytes(9_000),), number)
                states.names.put("n" * 20_000, number)

            lab.do(key, put)
            paths.append(savepoint_of(tmp_path / "job", tmp_path / "savepoints", token=f"s{number}"))
    for pair in state_pairs(open_snapshot(paths[0]), open_snapshot(paths[1])):
        parts = list(compared(pair))
        changes = [sum(getattr(part, kind).num_rows for part in parts) for kind in ("added", "removed", "after")]
        assert changes == [0, 0, 1], pair.name
