"""Operator, broadcast and raw state as people meet it: asked of functions, compared, shown by command and page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.cli_call import answer, call
from tests.support.restore_lab import checkpoint_of, savepoint_of
from tests.support.subtask_states import (
    Buffer,
    buffer,
    rules,
    run_buffer,
    run_rules,
)

from cairn import (
    ListStateDescriptor,
    MapStateDescriptor,
)
from cairn.model.manifest import StateSpec
from cairn.runtime.declared_states import declared_states
from cairn.snapshots.difference import compared, state_pairs
from cairn.snapshots.resolver import open_snapshot
from cairn.testing.keyed_harness import UID

# Asking functions.


def test_functions_are_asked_for_state_of_subtasks(tmp_path: Path) -> None:
    with buffer(Buffer(), tmp_path / "a", 2) as job:
        told = declared_states(job.spec, {})
    assert told.failure == ""
    assert [state.spec for state in told.states] == [
        StateSpec("held", "operator-list", "int"),
        StateSpec("counts", "operator-union", "bigint"),
        StateSpec("raw", "operator-list", "binary"),
    ]
    with rules(tmp_path / "b", 2) as ruled:
        told = declared_states(ruled.spec, {})
    assert [state.spec for state in told.states] == [
        StateSpec("limits", "broadcast", "int", "string"), StateSpec("total", "value", "bigint"),
    ]  # fmt: skip

    class Eager(Buffer):
        """Uses what it gets at once."""

        def initialize_state(self, context: Any) -> None:
            store = context.get_operator_state_store()
            self.map = store.get_broadcast_state(MapStateDescriptor("map", "int", "struct<x:int>"))
            assert not context.is_restored()
            assert context.get_restored_checkpoint_id() is None
            assert self.map.get(1) is None
            assert 1 not in self.map
            assert dict(self.map.items()) == {}
            assert self.map.is_empty()
            self.map.put(1, (2,))
            self.list = store.get_list_state(ListStateDescriptor("list", "int"))
            self.list.add(1)
            assert list(self.list) == list(self.list.get()) == []

    with buffer(Eager(), tmp_path / "c", 1) as job:
        told = declared_states(job.spec, {})
        assert (told.failure, [state.spec.name for state in told.states]) == ("", ["map", "list"])

    class Wrong(Buffer):
        def initialize_state(self, context: Any) -> None:
            raise OSError("down")

    class Twice(Buffer):
        def initialize_state(self, context: Any) -> None:
            super().initialize_state(context)
            context.get_operator_state_store().get_union_list_state(ListStateDescriptor("held", "int"))

    with buffer(Wrong(), tmp_path / "d", 1) as job:
        assert declared_states(job.spec, {}).failure == "initialize_state() raised OSError"
    with buffer(Twice(), tmp_path / "e", 1) as job:
        failure = declared_states(job.spec, {}).failure
        assert "already in use for a operator-list of int; it cannot also be a operator-union of int" in failure


# Comparing, and the command line.


def test_what_differs(tmp_path: Path) -> None:
    run_buffer(tmp_path / "a")
    first = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with buffer(Buffer(), tmp_path / "a", 2) as job:
        job.push(7, 8)
        job.run_epoch()
    second = savepoint_of(tmp_path / "a", tmp_path / "sp")
    old, new = open_snapshot(first), open_snapshot(second)
    counted = {}
    for name in ("held", "counts"):
        pair = next(pair for pair in state_pairs(old, new) if pair.name == name)
        parts = list(compared(pair))
        counted[name] = [sum(getattr(p, which).num_rows for p in parts) for which in ("added", "removed", "after")]
    assert counted["held"] == [2, 0, 0]
    assert counted["counts"] == [0, 0, 2]
    told = answer("state", "diff", first, second, UID, "held", code=1)["states"][0]
    assert [(row["change"], row["key_group"], row["position"], row["value"]) for row in told["rows"]] == [
        ("added", 0, 5, 7), ("added", 64, 3, 8),
    ]  # fmt: skip


def test_the_command_line_shows_them(tmp_path: Path) -> None:
    run_buffer(tmp_path / "a")
    run_rules(tmp_path / "r")
    for path in (savepoint_of(tmp_path / "a", tmp_path / "sp"), checkpoint_of(tmp_path / "a")):
        (operator,) = answer("state", "ls", path)["operators"]
        assert [(s["name"], s["kind"], s["columns"]) for s in operator["states"]] == [
            ("counts", "operator-union", ["key_group", "position", "value"]),
            ("held", "operator-list", ["key_group", "position", "value"]),
            ("raw", "operator-list", ["key_group", "position", "value"]),
        ]
        assert "operator-union of bigint" in call("state", "ls", path)[1]
        shown = answer("state", "show", path, UID, "counts")["rows"]
        assert shown == [{"key_group": 0, "position": 0, "value": 5}, {"key_group": 64, "position": 0, "value": 3}]
        code, text = call("state", "get", path, UID, "held", "1")
        assert (code, "belongs to subtasks" in text, "read_operator_state" in text) == (2, True, True)
    path = savepoint_of(tmp_path / "r", tmp_path / "sp")
    target = tmp_path / "limits.jsonl"
    assert call("state", "export", path, UID, "limits", str(target))[0] == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert lines == [{"key_group": 0, "map_key": k, "value": v} for k, v in (("a", 1), ("b", 20), ("c", 3))]
    assert call("verify", path)[0] == 0


def test_the_page_shows_state_that_belongs_to_subtasks(tmp_path: Path) -> None:
    from tests.support.rest_client import client_of

    run_buffer(tmp_path / "a")
    checkpoint_of(tmp_path / "a", 1)
    web = client_of(tmp_path)
    (job,) = web.get("/api/v1/jobs").json()["jobs"]
    page = web.get(f"/jobs/{job['id']}/state")
    assert page.status_code == 200, page.text
    assert "held" in page.text
    states = web.get(f"/api/v1/jobs/{job['id']}/state/{UID}").json()["states"]
    assert {state["name"]: (state["rows"], state["keys"]) for state in states}["held"] == (8, 0)
    asked = web.get(f"/api/v1/jobs/{job['id']}/state/{UID}/held/key?key=1")
    assert (asked.status_code, "belongs to subtasks" in asked.text) == (400, True)
    assert "belongs to subtasks" in web.get(f"/jobs/{job['id']}/state?state=held&key=1").text
