"""From one job to another by way of a snapshot, without Spark: every parallelism, changed code."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.evolving_job import RENAMES, ROWS, New, Old, check_same, model, run_old
from tests.support.restore_lab import checkpoint_of, harness, newest, restored, savepoint_of, shape_of

from cairn.errors import IncompatibleStateError
from cairn.model.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from cairn.model.functions import KeyedProcessFunction
from cairn.model.keygroups import key_group
from cairn.snapshots.lookup import as_python, find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.verification import verify_savepoint
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.testing.keyed_harness import UID


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 5), (8, 3), (64, 7)])
def test_rescale_by_savepoint(tmp_path: Path, before: int, after: int) -> None:
    """J1."""
    run_old(tmp_path / "a", before)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(Old(), tmp_path / "shape", after) as job:
        shape = shape_of(job)
    restored(path, tmp_path / "b", shape)
    shutil.rmtree(path)  # F12: nothing of it is needed any more
    with harness(Old(), tmp_path / "b", after) as job:
        check_same(job)
        assert newest(tmp_path / "b").epoch == 3, "above all numbers of the first job"
        job.push(("k0", 1000))
        job.run_epoch()
        assert job.state("seen", "k0") == [*model()["k0"]["seen"], 1000], "new elements come after the old ones"
        job.restart(parallelism=2)
        assert job.state("total", "k0") == model()["k0"]["total"] + 1000
    again = savepoint_of(tmp_path / "b", tmp_path / "sp2")
    assert verify_savepoint(again) == []


def test_keys_of_one_key_group_and_operators_without_state(tmp_path: Path) -> None:
    """J12."""
    keys = [f"x{n}" for n in range(5000) if key_group([f"x{n}"], ["string"], 128) == 77][:9]
    with harness(Old(), tmp_path / "a", 3) as job:
        job.push(*[(key, 1) for key in keys])
        job.run_epoch()
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with harness(Old(), tmp_path / "shape", 64) as job:
        shape = shape_of(job)
    added = msgspec.structs.replace(shape.declared[UID], uid="added", states=[])
    wider = type(shape)({**shape.operators, "added": "key string"}, {**shape.declared, "added": added}, 64, 0)
    restored(path, tmp_path / "b", wider)
    with harness(Old(), tmp_path / "b", 64) as job:
        assert [job.state("total", key) for key in keys] == [1] * len(keys)
    with harness(Old(), tmp_path / "empty", 2):
        pass
    assert ManifestStore(LocalFileSystem(str(tmp_path / "empty"))).epochs() == []


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint", "in place"])
def test_changed_types_names_and_ttl(tmp_path: Path, kind: str) -> None:
    """G4, from a savepoint and from a checkpoint, elsewhere and in place."""
    run_old(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp") if kind == "savepoint" else checkpoint_of(tmp_path / "a")
    target = tmp_path / ("a" if kind == "in place" else "b")
    with harness(New(), tmp_path / "shape", 3) as job:
        shape = shape_of(job)
    restored(path, target, shape, now_ms=9000, renames=RENAMES)
    with harness(New(), target, 3) as job:
        for key, mine in model().items():
            assert job.state("total", key) == mine["total"]
            assert tuple(job.state("row", key)) == ("first", mine["last"], None)
            assert job.state("seen", key) == [float(n) for n in mine["seen"]]
            assert job.state("days", key) == mine["days"]
            assert job.state("smallest", key) == mine["least"]
            assert job.state("fresh", key) is None
        assert len(job.timers()) == len(ROWS)
        job.advance_processing_time(9000 + 3_600_000)
        job.run_epoch()
        assert job.state("seen", "k0") == [], "time to live counts from the restore"
        specs = {spec.name: spec for spec in newest(target).operators[0].states}
        assert specs["spare"].value_type == "string", "a state that is not declared any more is carried along"
    with harness(Old(), target) as job:
        job.push(("k0", 1))
        with pytest.raises(IncompatibleStateError, match="declared is a"):
            job.run_epoch()


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_rewritten_state_keeps_the_parallelism_that_it_was_stored_with(tmp_path: Path, kind: str) -> None:
    """What belongs to subtasks is dealt out anew only where the manifest tells that the parallelism has changed."""
    run_old(tmp_path / "a", 2)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp") if kind == "savepoint" else checkpoint_of(tmp_path / "a")
    with harness(New(), tmp_path / "shape", 5) as job:
        shape = shape_of(job)
    restored(path, tmp_path / "b", shape, renames=RENAMES)
    operator = newest(tmp_path / "b").operator(UID)
    assert operator is not None
    assert operator.parallelism == 2


def test_time_to_live_is_switched_off(tmp_path: Path) -> None:
    run_old(tmp_path / "a")
    with harness(New(), tmp_path / "shape") as job:
        shape = shape_of(job)
    restored(savepoint_of(tmp_path / "a", tmp_path / "sp"), tmp_path / "b", shape, renames=RENAMES)

    class Plain(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "double"))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield (value.key, "")

    with harness(Plain(), tmp_path / "shape2") as job:
        plain = shape_of(job)
    path = savepoint_of(tmp_path / "b", tmp_path / "sp")
    restored(path, tmp_path / "c", plain)
    with harness(Plain(), tmp_path / "c") as job:
        job.advance_processing_time(10**10)
        job.run_epoch()
        assert job.state("seen", "k1") == [float(n) for n in model()["k1"]["seen"]]


class Fading(KeyedProcessFunction):
    """All kinds of state, with a time to live of a second or without one."""

    def __init__(self, ttl: bool) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        made = [
            ValueStateDescriptor("last", "bigint"),
            ListStateDescriptor("all", "bigint"),
            MapStateDescriptor("by", "bigint", "string"),
        ]
        if self.ttl:
            for descriptor in made:
                descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())
        self.last = runtime_context.get_state(made[0])
        self.all = runtime_context.get_list_state(made[1])
        self.by = runtime_context.get_map_state(made[2])

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.last.update(value.n)
        self.all.add(value.n)
        self.by.put(value.n, "x")
        yield (value.key, "")


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_what_has_expired_does_not_come_back_without_a_time_to_live(tmp_path: Path, kind: str) -> None:
    """G13: not for user code after a restore, and not for those who look up a key in the snapshot."""
    with harness(Fading(True), tmp_path / "a") as job:
        job.advance_processing_time(10_000)
        job.push(("old", 1), ("both", 1))
        job.run_epoch()
        job.advance_processing_time(11_000)
        job.push(("both", 2), ("new", 3))
        job.run_epoch()
    path = savepoint_of(tmp_path / "a", tmp_path / "sp") if kind == "savepoint" else checkpoint_of(tmp_path / "a")
    snapshot = open_snapshot(path)
    operator = snapshot.operator(UID)

    def looked_up(state: str, key: str) -> Any:
        found = operator.state(state)
        return as_python(found, find_rows(snapshot, operator, found, key))

    seen: dict[str, dict[str, Any]] = {
        "last": {"old": None, "both": 2, "new": 3},
        "all": {"old": [], "both": [2], "new": [3]},
    }
    seen["by"] = {"old": {}, "both": {2: "x"}, "new": {3: "x"}}
    assert {state: {key: looked_up(state, key) for key in keys} for state, keys in seen.items()} == seen
    with harness(Fading(False), tmp_path / "shape") as job:
        shape = shape_of(job)
    restored(path, tmp_path / "b", shape, now_ms=11_999)
    restored(path, tmp_path / "c", shape, now_ms=12_000)  # by then everything has expired
    with harness(Fading(False), tmp_path / "b") as job:
        assert {state: {key: job.state(state, key) for key in keys} for state, keys in seen.items()} == seen
    with harness(Fading(False), tmp_path / "c") as job:
        assert [job.state("last", key) for key in ("old", "both", "new")] == [None, None, None]


def test_a_renamed_operator(tmp_path: Path) -> None:
    """F9, F10: found by its uid, refused without one, taken under the new one if that is told."""
    run_old(tmp_path / "a")
    with harness(Old(), tmp_path / "shape") as job:
        shape = shape_of(job, uid="new-name")
    for path in (savepoint_of(tmp_path / "a", tmp_path / "sp"), checkpoint_of(tmp_path / "a")):
        with pytest.raises(IncompatibleStateError, match=f"holds state of '{UID}'.*it has new-name"):
            restored(path, tmp_path / "b", shape)
        assert not (tmp_path / "b").exists(), "nothing was created"
        made = restored(path, tmp_path / "b", shape, renames={UID: "new-name"})
        assert made.manifest is not None
        assert [operator.uid for operator in made.manifest.operators] == ["new-name"]
        assert all(p.startswith("shared/new-name/") for p in made.manifest.files())
        shutil.rmtree(tmp_path / "b")
        dropped = restored(path, tmp_path / "b", shape, ignore_unclaimed=True)
        assert dropped.manifest is not None
        assert dropped.manifest.operators == []
        shutil.rmtree(tmp_path / "b")
