"""Errors of user code, and tasks that fail once or for good."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.oracle import OUTPUT, Oracle, Result, expected, numbered_rows, ship
from tests.support.spark_lab import Lab

from cairn import (
    FileSink,
    IncompatibleStateError,
    JobStatus,
    KeyedProcessFunction,
    ListStateDescriptor,
    NoopSink,
    RuntimeContext,
    StateMisuseError,
    StateTypeError,
    UserFunctionError,
    ValueStateDescriptor,
)
from cairn.storage.filesystem import LocalFileSystem
from cairn.view.journal import Journal

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(160, 9, seed=11)


class Poisoned(Oracle):
    """Cannot stand one amount."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        if value.amount == 666_666:
            raise ValueError("secret amount 666666")
        yield from super().process_element(value, ctx)


class FailsOnce(Oracle):
    """Loses its worker late in the first attempt, after it has changed state; a file remembers that it did."""

    def __init__(self, marker: Path, seq: int) -> None:
        self.marker = marker
        self.seq = seq

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        yield from super().process_element(value, ctx)
        if value.seq == self.seq and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_poison_record(lab: Lab) -> None:
    """The error says where; the state before is intact; the corrected job loses nothing."""
    rows = list(ROWS)
    poisoned = rows[70] = (rows[70][0], rows[70][1], 666_666)
    lab.feed(rows[:60], files=2)
    lab.feed(rows[60:])
    with pytest.raises(UserFunctionError) as raised:
        lab.oracle(function=Poisoned(), cairn__errors__show_values=False)
    text = str(raised.value)
    for part in ("[user-function]", "operator 'oracle'", "epoch 2", f"key '{poisoned[0]}'", "ValueError", "intact"):
        assert part in text
    assert "secret" not in raised.value.message
    assert "Traceback" not in raised.value.message
    assert [manifest.epoch for manifest in lab.manifests()] == [0, 1]
    assert lab.written() == expected(rows[:60])
    lab.oracle()
    assert lab.written() == expected(rows)


def test_a_failure_names_the_line_of_the_function(lab: Lab) -> None:
    lab.feed([("a", 0, 666_666)])
    with pytest.raises(UserFunctionError, match="ValueError: secret amount 666666") as raised:
        lab.oracle(function=Poisoned())
    facts = raised.value.facts
    assert f"({__file__}, line {facts['line']}, in Poisoned.process_element)" in raised.value.message
    assert facts["traceback"].endswith("ValueError: secret amount 666666")
    event = next(
        event for event in Journal(LocalFileSystem(str(lab.jobs / "oracle"))).events() if event.kind == "failed"
    )
    assert event.facts["traceback"] == facts["traceback"]
    assert event.facts["line"] == facts["line"]


@pytest.mark.parametrize("backend", ["lmdb", "hashmap", "rocksdb"])
def test_failure_of_the_first_attempt_leaves_no_trace(lab: Lab, backend: str) -> None:
    lab.feed(ROWS, files=3)
    for marker, seq in (("once", 2), ("again", 12)):
        path = lab.folder / marker
        if marker == "again":
            more = [(key, seq + 1, 7) for key, seq in {key: seq for key, seq, _ in ROWS}.items()]
            lab.feed(more)
        job = lab.oracle(function=FailsOnce(path, seq), state__backend__type=backend)
        assert path.exists() or seq > 2
        assert job.status() is JobStatus.FINISHED
    assert lab.written() == expected(ROWS + more)


class Attempted(Oracle):
    """Notes every attempt of a task that raises, and when."""

    def __init__(self, log: Path, error: type[Exception], pause: float = 0.0) -> None:
        self.log = log
        self.error = error
        self.pause = pause

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        with self.log.open("a") as file:
            file.write(f"{time.time()}\n")
        if self.pause and len(self.log.read_text().splitlines()) > 1:
            time.sleep(self.pause)
        raise self.error("the same in every attempt")


def test_what_user_code_raises_fails_the_epoch_without_another_attempt_being_waited_for(lab: Lab) -> None:
    lab.feed([("a", 0, 1)])
    log = lab.folder / "attempts"
    with pytest.raises(UserFunctionError, match="ValueError: the same in every attempt") as raised:
        lab.oracle(function=Attempted(log, ValueError, pause=60.0))
    waited = time.time() - float(log.read_text().splitlines()[0])
    assert waited < 30, "the second attempt, which takes a minute, was waited for"
    assert raised.value.facts["function"] == "Attempted.process_element"
    assert raised.value.facts["traceback"].endswith("ValueError: the same in every attempt")
    assert raised.value.message.endswith("The last committed epoch is intact.")


def test_a_task_that_runs_out_of_memory_is_tried_again(lab: Lab) -> None:
    lab.feed([("a", 0, 1)])
    log = lab.folder / "attempts"
    with pytest.raises(UserFunctionError, match="MemoryError"):
        lab.oracle(function=Attempted(log, MemoryError, pause=3.0))
    assert len(log.read_text().splitlines()) == 2, "as often as spark.task.maxFailures of this session says"


class Emits(KeyedProcessFunction):
    def __init__(self, row: Any) -> None:
        self.row = row

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        return [self.row]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", "b"), r"column 'n' is int64"),
        (("a",), r"it has 1 values instead of 2"),
        ({"key": "a"}, r"column 'n' is missing"),
        (7, r"it is a int, not a tuple"),
    ],
)
def test_wrong_output_rows(lab: Lab, row: Any, message: str) -> None:
    lab.feed(ROWS[:1])
    env = lab.env(parallelism=1)
    lab.stream(env).key_by("key").process(Emits(row), "key string, n bigint", uid="emits").sink_to(NoopSink())
    with pytest.raises(UserFunctionError, match=f"operator 'emits' emitted.*{message}"):
        env.execute("wrong")


class Misuses(KeyedProcessFunction):
    """Does one wrong thing with its state."""

    def __init__(self, how: str) -> None:
        self.how = how

    def open(self, runtime_context: RuntimeContext) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", "int"))
        self.items = runtime_context.get_list_state(ListStateDescriptor("items", "string"))
        if self.how == "in open":
            self.n.update(1)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if self.how == "type":
            self.n.update("seven")
        if self.how == "null":
            self.items.add(None)
        return ()


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("type", StateTypeError, r"state 'n'.*'seven' \(str\) does not fit type 'int'"),
        ("null", StateTypeError, r"state 'items'"),
        ("in open", StateMisuseError, r"key"),
    ],
)
def test_wrong_use_of_state(lab: Lab, how: str, error: type[Exception], message: str) -> None:
    lab.feed(ROWS[:1])
    env = lab.env(parallelism=1)
    lab.stream(env).key_by("key").process(Misuses(how), "n int", uid="misuses").sink_to(NoopSink())
    with pytest.raises(error, match=f"operator 'misuses'.*{message}"):
        env.execute("wrong")
    assert lab.manifests("wrong") == []


class Exits(Oracle):
    """Ends the worker process in the middle of its rows, once."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        if value.seq == 3 and not self.marker.exists():
            self.marker.touch()
            os._exit(3)
        yield from super().process_element(value, ctx)


def test_worker_that_exits(lab: Lab) -> None:
    lab.feed(ROWS, files=2)
    lab.oracle(function=Exits(lab.folder / "exited"))
    assert (lab.folder / "exited").exists()
    assert lab.written() == expected(ROWS)


class Closes(Oracle):
    def close(self) -> None:
        raise RuntimeError("cannot close")


def test_error_in_close(lab: Lab) -> None:
    lab.feed(ROWS[:100])
    lab.oracle()
    lab.feed(ROWS[100:])
    with pytest.raises(UserFunctionError, match=r"operator 'oracle'.*epoch 1: close\(\) raised RuntimeError"):
        lab.oracle(function=Closes())
    lab.oracle()
    assert lab.written() == expected(ROWS)


class Opens(Oracle):
    def open(self, runtime_context: RuntimeContext) -> None:
        if runtime_context.get_job_parameter("broken", "no") == "yes":
            raise RuntimeError("cannot open")
        super().open(runtime_context)


def test_error_in_open_and_job_parameters(lab: Lab) -> None:
    lab.feed(ROWS)
    with pytest.raises(UserFunctionError, match=r"operator 'oracle'.*epoch 0: open\(\) raised RuntimeError"):
        lab.oracle(function=Opens(), pipeline__global_job_parameters__broken="yes")
    lab.oracle(function=Opens(), pipeline__global_job_parameters__broken="no")
    assert lab.written() == expected(ROWS)


def test_states_that_differ_between_subtasks(lab: Lab) -> None:
    class Differs(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            kind = "int" if runtime_context.get_index_of_this_subtask() else "string"
            runtime_context.get_state(ValueStateDescriptor("n", kind))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
            return ()

    lab.feed(ROWS[:10])
    env = lab.env()
    lab.stream(env).key_by("key").process(Differs(), "n int", uid="differs").sink_to(NoopSink())
    with pytest.raises(IncompatibleStateError, match="operator 'differs', state 'n'"):
        env.execute("differs")


def test_cancel_and_go_on(lab: Lab) -> None:
    lab.feed(ROWS[:100], files=5)
    env = lab.env()
    env.set_trigger(processing_time="100 milliseconds")
    checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.output)), uid="out")
    job = env.execute_async("oracle")
    assert job.status() is JobStatus.RUNNING
    assert job.await_termination(0.3) is False
    job.cancel()
    assert job.status() is JobStatus.CANCELED
    assert job.exception() is None
    lab.feed(ROWS[100:])
    lab.oracle()
    assert lab.written() == expected(ROWS)
