"""Which acknowledgements count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from cairn.coordinator.acks import accept, merged_states
from cairn.errors import EpochFailedError, IncompatibleStateError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import EpochContext, StateHandle, StateSpec, TaskAck, TaskMetrics
from cairn.model.types import Storage
from cairn.runtime import task
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.state_file import Section, sorted_table

CONTEXT = EpochContext("dir", "local", "j", "i", run=3, epoch=7, watermark=0, time_ms=0, parent=6, parent_commit="c6")
HANDLE = StateHandle(7, 0, 63, 100, "aa", "shared/op/x.state", rows=1)


def ack(subtask: int = 0, uid: str = "op", **changes: Any) -> TaskAck:
    made = TaskAck(uid, subtask, 7, 3, 10 + subtask, "c6", "k string", HANDLE, [], TaskMetrics())
    return msgspec.structs.replace(made, **changes)


def test_one_of_each_subtask_in_order() -> None:
    accepted = accept([ack(1), ack(0, "other"), ack(0)], CONTEXT, {"op": 2, "other": 1})
    assert [(uid, [a.subtask for a in acks]) for uid, acks in accepted.items()] == [("op", [0, 1]), ("other", [0])]


def test_the_newest_attempt_counts_whatever_the_order() -> None:
    """E6: twice, late, from an older attempt."""
    same = msgspec.structs.replace(HANDLE, path="shared/op/y.state")
    acks = [ack(attempt=5), ack(attempt=9, handle=same), ack(attempt=9, handle=same), ack(attempt=2)]
    for order in (acks, acks[::-1]):
        assert accept(order, CONTEXT, {"op": 1})["op"] == [acks[1]]


@pytest.mark.parametrize("changes", [{"epoch": 6}, {"epoch": 8}, {"run": 2}, {"run": 4}])
def test_late_ones_are_ignored_even_if_they_do_not_fit(changes: dict[str, Any]) -> None:
    late = ack(attempt=99, base_commit="another", handle=None, **changes)
    assert accept([late, ack(), late], CONTEXT, {"op": 1})["op"] == [ack()]


def test_another_base_refuses_the_epoch() -> None:
    """E7."""
    with pytest.raises(EpochFailedError, match="operator 'op', subtask 1: it started from commit old instead of c6"):
        accept([ack(0), ack(1, base_commit="old"), ack(1)], CONTEXT, {"op": 2})
    with pytest.raises(EpochFailedError, match="from commit none"):
        accept([ack(base_commit="")], CONTEXT, {"op": 1})


def test_attempts_that_disagree_refuse_the_epoch() -> None:
    for other in (None, msgspec.structs.replace(HANDLE, checksum="bb"), msgspec.structs.replace(HANDLE, rows=101)):
        with pytest.raises(EpochFailedError, match="two attempts of epoch 7 made different changes"):
            accept([ack(attempt=1), ack(attempt=2, handle=other)], CONTEXT, {"op": 1})


def test_attempts_with_the_same_changes_agree_though_their_files_name_them(tmp_path: Path) -> None:
    """A state file names the attempt that wrote it, and attempt 9 takes fewer bytes than attempt 10."""
    handles = []
    for attempt in (9, 10):
        context = msgspec.structs.replace(CONTEXT, job_id="j", incarnation="i", inline_threshold=0)
        rows = sorted_table({"key": pa.array([b"\0\0k"], pa.binary()), "value": pa.array([1], pa.int64())})
        section = Section("s", "value", Storage.INT, False, rows)
        files = LocalFileSystem(str(tmp_path))
        handle, _ = task._write_delta("op", [section], KeyGroupRange(0, 3), context, attempt, files)
        assert handle is not None
        handles.append(handle)
    assert handles[0].size != handles[1].size
    accepted = accept([ack(attempt=9, handle=handles[0]), ack(attempt=10, handle=handles[1])], CONTEXT, {"op": 1})
    assert accepted["op"][0].attempt == 10


def test_missing_ones_refuse_the_epoch() -> None:
    with pytest.raises(EpochFailedError, match=r"operator 'op': 2 of 3 subtasks did not finish epoch 7 \(first: 0\)"):
        accept([ack(1)], CONTEXT, {"op": 3})
    assert accept([], CONTEXT, {}) == {}


def test_states_of_all_subtasks_are_merged() -> None:
    one, two = StateSpec("a", "value", "int"), StateSpec("b", "list", "int")
    assert merged_states([ack(states=[two]), ack(1, states=[one, two])]) == [one, two]
    with pytest.raises(IncompatibleStateError, match="declare states alike"):
        merged_states([ack(states=[one]), ack(1, states=[StateSpec("a", "value", "string")])])
