"""The definition of a job: uids, parallelism, and the maximum parallelism of earlier runs."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cairn import InvalidInputError
from cairn.config import Settings
from cairn.runtime.operator_spec import OperatorSpec
from cairn.spark import job_definition
from cairn.spark.job_definition import JobDefinition


def definition(**settings: Any) -> JobDefinition:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))
    return JobDefinition(spark, Settings(**settings))


def operator(uid: str, groups: int) -> OperatorSpec:
    return OperatorSpec(uid, uid, None, False, 3, groups, (), (), (), pa.schema([]))


def test_a_uid_is_used_once() -> None:
    job = definition()
    assert job.claim_uid("totals", "sum", "operator") == "totals"
    with pytest.raises(InvalidInputError, match="'totals' is used twice"):
        job.claim_uid("totals", "files", "sink")


def test_generated_uids_are_numbered_and_the_warning_points_at_the_program() -> None:
    job = definition()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert job.claim_uid(None, "sum", "operator") == "auto-sum-1"
        assert job.claim_uid(None, "sum", "operator") == "auto-sum-2"
        assert job.claim_uid(None, "double", "map") == "auto-double-1"
    assert [warning.filename for warning in caught] == [__file__] * 2, "a function without state needs no uid"
    with pytest.raises(InvalidInputError, match="the sink 'files' has no uid"):
        definition(auto_uids=False).claim_uid(None, "files", "sink")


def test_parallelism_is_that_of_the_session_unless_it_is_set() -> None:
    job = definition()
    assert (job.parallelism, job.max_parallelism) == (3, 128)
    job.change(parallelism=2, max_parallelism=16)
    assert (job.parallelism, job.max_parallelism) == (2, 16)
    job.change(parallelism=17)
    with pytest.raises(InvalidInputError, match="17"):
        _ = job.parallelism


def test_the_maximum_parallelism_of_earlier_runs_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[Any] = []
    monkeypatch.setattr(job_definition, "forget_frames", forgotten.append)
    job = definition()
    job.add_operator(operator("totals", job.max_parallelism), timers=True)
    job.adopt_max_parallelism(128)
    assert forgotten == [], "nothing has changed"
    job.adopt_max_parallelism(256)
    assert job.max_parallelism == job.operators[0].max_parallelism == 256
    assert len(forgotten) == 1, "frames are made again"
    assert job.timers


def test_a_maximum_parallelism_that_is_set_or_built_into_a_frame_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    job = definition(max_parallelism=64)
    job.adopt_max_parallelism(256)
    assert job.max_parallelism == 64
    job = definition()
    monkeypatch.setattr(job_definition, "hidden_functions", lambda nodes: ["totals"])
    job.adopt_max_parallelism(256)
    assert job.max_parallelism == 128


def test_settings_that_operators_are_made_with_come_first() -> None:
    job = definition()
    job.refuse_operators("set_parallelism")
    job.add_operator(operator("totals", 128), timers=False)
    with pytest.raises(InvalidInputError, match="call set_parallelism before"):
        job.refuse_operators("set_parallelism")
