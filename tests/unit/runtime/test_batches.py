"""Batches of rows that come to a task, before their keys are looked at."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cairn.errors import InternalError
from cairn.model.keygroups import KeyGroupRange
from cairn.runtime.batches import GROUP_COLUMN, check_groups, chunks, subtask_of_batch


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
    with pytest.raises(InternalError, match=r"rows of subtasks \[0, 1\] came to one task"):
        subtask_of_batch(batch(3, 4), 2, 8)
    with pytest.raises(InternalError, match="rows of key groups 3 to 4 came to the task that owns 4 to 7"):
        check_groups(batch(3, 4), KeyGroupRange(4, 7))


def test_a_row_without_a_key_group_is_refused_in_every_batch() -> None:
    with pytest.raises(InternalError, match="1 rows came without a key group"):
        subtask_of_batch(batch(4, None), 2, 8)
    with pytest.raises(InternalError, match="1 rows came without a key group"):
        list(chunks([batch(4), batch(5, None)]))
