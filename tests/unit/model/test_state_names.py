"""Names of states where uids and states have dots: never a guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cairn.config import Settings
from cairn.errors import InvalidInputError, NotFoundError
from cairn.model.manifest import StateSpec
from cairn.model.savepoint_records import SavepointMetadata
from cairn.restore.restore_plan import JobShape, RestorePlan, make_plan
from cairn.snapshots.snapshot import Snapshot, SnapshotOperator, SnapshotState, pickles_allowed
from cairn.storage.filesystem import LocalFileSystem

STATES = {"a": "b.c", "a.b": "c", "plain": "state"}


def plan(tmp_path: Path, jobs: tuple[str, ...] = tuple(STATES), **settings: Any) -> RestorePlan:
    return make_plan(stored(tmp_path), JobShape(dict.fromkeys(jobs, "k string"), {}, 1, 0), Settings(**settings))


def stored(folder: Path) -> Snapshot:
    """A savepoint with the states."""
    operators = {}
    for uid, name in STATES.items():
        state = SnapshotState(StateSpec(name, "value", "pickle"), "k string", None)
        operators[uid] = SnapshotOperator(uid, uid, 1, "k string", {name: state}, rows=1)
    metadata = SavepointMetadata(1, "job", "job", 1, 16, [])
    return Snapshot("sp", LocalFileSystem(str(folder)), metadata, operators)


def test_pickles_are_allowed_by_a_name_that_means_one_state(tmp_path: Path) -> None:
    refused = plan(tmp_path).problems
    assert [problem.rpartition("allow-pickled=")[2] for problem in refused] == ["a/b.c.", "a.b/c.", "plain.state."]
    unclear = plan(tmp_path, allow_pickled=("a.b.c", "plain.state")).problems
    assert len(unclear) == 3
    assert "'a.b.c' may mean state 'b.c' of operator 'a' ('a/b.c') or state 'c' of operator 'a.b'" in unclear[0]
    assert plan(tmp_path, allow_pickled=("a/b.c", "a.b/c", "plain/state")).problems == ()


def test_states_are_renamed_by_a_name_that_means_one_state(tmp_path: Path) -> None:
    allowed = {"allow_pickled": ("a/b.c", "a/x", "a.b/c", "plain.state", "a.b/y", "new.b/y")}
    unclear = plan(tmp_path, renames={"a.b.c": "a.x"}, **allowed).problems
    assert ["may mean" in problem for problem in unclear] == [True]
    for old, new, uid, name in (("a/b.c", "a/x", "a", "x"), ("a.b/c", "a.b.y", "a.b", "y")):
        made = plan(tmp_path, renames={old: new}, **allowed)
        operator = made.operator(uid)
        assert operator is not None
        assert (made.problems, [state.becomes.name for state in operator.states]) == ((), [name])
    moved = {"a.b": "new.b", "new.b/c": "new.b/y"}  # a uid wins over a state of the same spelling
    made = plan(tmp_path, ("a", "new.b", "plain"), renames=moved, **allowed)
    operator = made.operator("new.b")
    assert operator is not None
    assert (made.problems, [state.becomes.name for state in operator.states]) == ((), ["y"])


def test_readers_allow_pickles_in_the_same_way(tmp_path: Path) -> None:
    savepoint = stored(tmp_path)
    assert pickles_allowed(savepoint, ["a/b.c", "plain.state"]) == {("a", "b.c"), ("plain", "state")}
    with pytest.raises(InvalidInputError, match=r"'a.b.c' may mean"):
        pickles_allowed(savepoint, ["a.b.c"])
    with pytest.raises(NotFoundError, match=r"has a/b.c, a.b/c, plain.state"):
        pickles_allowed(savepoint, ["other"])
