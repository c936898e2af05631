"""Which errors of a task end the epoch at once, and how they get through Spark."""

from __future__ import annotations

import pytest

from cairn.errors import (
    CairnError,
    CorruptFileError,
    EpochFailedError,
    FencedError,
    IncompatibleStateError,
    InternalError,
    StateMisuseError,
    StateTypeError,
    StorageError,
    UserFunctionError,
    from_traceback,
)
from cairn.spark.fail_fast import as_reason, is_lasting


@pytest.mark.parametrize("kind", [UserFunctionError, StateTypeError, StateMisuseError, IncompatibleStateError])
def test_what_comes_again_with_the_same_rows_is_not_tried_again(kind: type[CairnError]) -> None:
    assert is_lasting(kind("wrong", exception="ValueError"))


@pytest.mark.parametrize("kind", [StorageError, CorruptFileError, EpochFailedError, FencedError, InternalError])
def test_what_may_pass_is_tried_again(kind: type[CairnError]) -> None:
    assert not is_lasting(kind("wrong"))


def test_a_worker_without_memory_and_a_failure_of_sparks_own_are_tried_again() -> None:
    assert not is_lasting(UserFunctionError("wrong", exception="MemoryError"))
    assert not is_lasting(from_traceback("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"))


@pytest.mark.parametrize("facts", [{}, {"line": 7, "traceback": "Traceback:\n  File a\nValueError: no"}])
def test_an_error_is_read_again_from_what_spark_makes_of_it(facts: dict[str, object]) -> None:
    error = UserFunctionError("operator 'a', epoch 3: process_element() raised ValueError: no", **facts)
    words = f"[SPARK_JOB_CANCELLED] Job 0 cancelled {as_reason(error)} SQLSTATE: XXKDA\n\tat org.apache.spark.Some"
    again = from_traceback(words)
    assert isinstance(again, UserFunctionError)
    assert again.message == error.message
    assert {name: again.facts[name] for name in facts} == facts
