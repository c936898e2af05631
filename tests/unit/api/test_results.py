"""Results in the driver: what `execute_and_collect` and `print` deliver of committed epochs, and what not."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from cairn.api.results import CloseableIterator, Collect, PrintToStdout
from cairn.errors import EpochFailedError
from cairn.job.life_cycle import JobStatus


class Frame:
    """A DataFrame as far as these sinks use one."""

    def __init__(self, *rows: tuple[str, int]) -> None:
        self.schema = StructType().add("name", "string").add("n", "long")
        self.columns = self.schema.names
        self._rows = rows

    def toArrow(self) -> pa.Table:
        names, numbers = zip(*self._rows, strict=True) if self._rows else ((), ())
        return pa.table({"name": pa.array(names, pa.string()), "n": pa.array(numbers, pa.int64())})


class Job:
    def __init__(self, status: JobStatus = JobStatus.RUNNING, error: Exception | None = None) -> None:
        self._status = status
        self._error = error
        self.canceled = 0

    def status(self) -> JobStatus:
        return self._status

    def await_termination(self) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def cancel(self) -> None:
        self.canceled += 1


def iterator(sink: Collect, job: Job) -> CloseableIterator:
    handle: Any = job
    return CloseableIterator(handle, sink)


def test_only_the_last_attempt_of_an_epoch_is_delivered_and_only_once() -> None:
    sink = Collect(bare=False)
    sink.prepare(Frame(("abandoned", 1)), 0, "0-1-a")
    sink.prepare(Frame(("ann", 1), ("bob", 2)), 0, "0-1-b")
    assert sink.rows == 2
    sink.commit(None, 0)
    sink.commit(None, 0)  # rolled forward after a restart
    sink.prepare(Frame(("never committed", 3)), 1, "1-1-a")
    elements = list(iterator(sink, Job(JobStatus.FINISHED)))
    assert elements == [("ann", 1), ("bob", 2)]
    assert elements[0].name == "ann"


def test_an_epoch_of_an_earlier_process_has_nothing_to_deliver() -> None:
    sink = Collect(bare=False)
    sink.commit(None, 7)
    assert list(iterator(sink, Job(JobStatus.FINISHED))) == []


def test_the_error_of_the_job_is_raised_after_the_elements_that_were_delivered() -> None:
    sink = Collect(bare=False)
    sink.prepare(Frame(("ann", 1)), 0, "a")
    sink.commit(None, 0)
    elements = iterator(sink, Job(JobStatus.FAILED, EpochFailedError("epoch 1 failed")))
    assert next(elements) == ("ann", 1)
    with pytest.raises(EpochFailedError, match="epoch 1 failed"):
        next(elements)


@pytest.mark.parametrize("end", ["reader closes", "run is stopped"])
def test_an_epoch_that_waits_for_its_reader_goes_on_when_there_is_none_any_more(end: str) -> None:
    sink = Collect(bare=False)
    job = Job()
    elements = iterator(sink, job)
    for epoch in (0, 1):
        sink.prepare(Frame(("ann", epoch)), epoch, str(epoch))
        if epoch == 0:
            sink.commit(None, 0)
    waiting = threading.Thread(target=sink.commit, args=(None, 1), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive(), "epoch 0 was not taken yet"
    if end == "reader closes":
        elements.close()
        assert job.canceled == 1
        assert list(elements) == []
    else:
        sink.close()
    waiting.join(10)
    assert not waiting.is_alive()


def test_nothing_is_printed_before_the_commit(capsys: pytest.CaptureFixture[str]) -> None:
    sink = PrintToStdout("people", bare=False, parallelism=1)
    sink.prepare(Frame(("ann", 1)), 0, "a")
    assert capsys.readouterr().out == ""
    sink.commit(None, 0)
    assert capsys.readouterr().out == "people> (ann,1)\n"
    sink.commit(None, 0)
    assert capsys.readouterr().out == ""
