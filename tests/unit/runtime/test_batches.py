"""Batches of rows that come to a task, before their keys are looked at."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import InternalError
from cairn.model.ddl import parse_type
from cairn.model.keygroups import KeyGroupRange
from cairn.runtime import batches
from cairn.runtime.batches import GROUP_COLUMN, KeyedChunk, check_groups, chunks, subtask_of_batch
from cairn.state.codec import KeyCodec
from cairn.state.key_slots import KeySlots


def batch(*groups: int | None) -> pa.RecordBatch:
    columns = [pa.array(range(len(groups)), pa.int64()), pa.array(groups, pa.int32())]
    return pa.RecordBatch.from_arrays(columns, names=["n", GROUP_COLUMN])


def test_the_row_that_every_subtask_gets_is_left_out_wherever_it_stands() -> None:
    made = list(chunks([batch(-2), batch(4, -2, 5), batch(), batch(6), batch(7, -2)]))
    assert [row[GROUP_COLUMN] for chunk in made for row in chunk.to_pylist()] == [4, 5, 6, 7]
    assert list(chunks([batch(-2), batch()])) == []


@pytest.mark.parametrize("rows", [batch(4, 5), batch(-2), batch(5, -2, 4)])
def test_a_subtask_is_known_by_its_key_groups_or_by_the_row_that_every_subtask_gets(rows: pa.RecordBatch) -> None:
    assert subtask_of_batch(rows, 2, 8) == 1


def test_rows_of_two_subtasks_in_one_task_are_refused() -> None:
    with pytest.raises(InternalError, match=r"rows of subtasks \[0, 1\] arrived in one task"):
        subtask_of_batch(batch(3, 4), 2, 8)
    with pytest.raises(InternalError, match="rows of key groups 3 to 4 came to the task that owns 4 to 7"):
        check_groups(batch(3, 4), KeyGroupRange(4, 7))


def test_a_row_without_a_key_group_is_refused_in_every_batch() -> None:
    with pytest.raises(InternalError, match="1 rows have no key group"):
        subtask_of_batch(batch(4, None), 2, 8)
    with pytest.raises(InternalError, match="1 rows have no key group"):
        list(chunks([batch(4), batch(5, None)]))


def test_batches_are_joined_up_to_a_number_of_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_ROWS", 5)
    made = chunks([batch(1, 2), batch(3), batch(4, 5), batch(6), batch(7, 8, 9, 10), batch(11)])
    assert [chunk.num_rows for chunk in made] == [5, 5, 1]
    monkeypatch.setattr(batches, "CHUNK_ROWS", 100)
    monkeypatch.setattr(batches, "CHUNK_BYTES", batch(1, 2, 3).nbytes)
    made = chunks([batch(1), batch(2), batch(3), batch(4), batch(5, 6), batch(7, 8, 9), batch(10, 11, 12, 13)])
    assert [chunk.num_rows for chunk in made] == [3, 3, 3, 4]


@given(st.lists(st.lists(st.sampled_from(["", "a", "b", "é"]), min_size=1, max_size=9), min_size=1, max_size=3))
def test_the_keys_of_few_rows_get_the_slots_that_those_of_many_get(names: list[list[str]]) -> None:
    codec = KeyCodec([("name", parse_type("string"))])
    made = []
    for few in (64, -1):
        slots = KeySlots()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches, "FEW_ROWS", few)
            for portion in names:
                groups = pa.array([len(name.encode()) * 300 for name in portion], pa.int32())
                rows = pa.RecordBatch.from_arrays([pa.array(portion), groups], names=["name", GROUP_COLUMN])
                assert batches._bounds(groups) == (min(groups.to_pylist()), max(groups.to_pylist()))
                chunk = KeyedChunk(rows, [0], codec, slots)
                made.append((few, chunk.key_index.tolist(), chunk.key_slots.tolist(), chunk.slots.tolist()))
        made.append((few, slots.keys, slots.all_keys().to_pylist(), slots.rows))
    half = len(made) // 2
    assert [row[1:] for row in made[:half]] == [row[1:] for row in made[half:]]
