"""Results of a stream in the driver: `stream.print()`, `stream.execute_and_collect()`, and what `sink_to` returns.

Both deliver the rows of committed epochs only, each epoch once in the life of this process. What a run had committed
but not delivered when its process died is not delivered by the next one: write to a sink what must not be missing.
"""

from __future__ import annotations

import datetime as dt
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import functions as F

from cairn.api.job_handle import JobHandle
from cairn.connectors.sink_base import BaseSink
from cairn.job.life_cycle import JobStatus
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.rows import row_class
from cairn.runtime.batches import row_columns
from cairn.spark.output_types import arrow_schema_of
from cairn.text import one_line

_POLL_SECONDS = 0.1
_ENDED = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)
_SUBTASK_COLUMN = "__cairn_subtask"


class DataStreamSink(PyFlinkNames):
    """A stream with its sink, as `sink_to` and `print` return it. There is nothing more to set."""

    def __init__(self, sink: BaseSink) -> None:
        self.sink = sink


class _DriverSink(BaseSink):
    """Brings the rows of an epoch to the driver, and delivers them once the epoch is committed."""

    only_writes = True

    def __init__(self, bare: bool) -> None:
        super().__init__()
        self._bare = bare
        self._held: dict[int, list[Any]] = {}

    def prepare(self, frame: Any, epoch: int, attempt: str) -> None:
        elements = self._elements(frame)
        self._held = {epoch: elements}
        self.rows = len(elements)

    def _elements(self, frame: Any) -> list[Any]:
        return elements_of(frame, self._bare)

    def commit(self, data: Any, epoch: int) -> None:
        elements = self._held.pop(epoch, [])
        if elements:
            self.deliver(elements)

    def deliver(self, elements: list[Any]) -> None:
        raise TypeError(f"{type(self).__name__} must define deliver()")


class PrintToStdout(_DriverSink):
    """Prints every element of a committed epoch as Flink's `print` does: `prefix:subtask> value`.

    The subtask is left out at parallelism 1, the prefix where there is none, and `> ` where there is neither.
    Characters that a terminal would act upon are escaped.
    """

    kind = "print"

    def __init__(self, prefix: str, bare: bool, parallelism: int) -> None:
        super().__init__(bare)
        self._prefix = prefix
        self._parallelism = parallelism

    def _elements(self, frame: Any) -> list[Any]:
        if self._parallelism == 1:
            return [(None, element) for element in elements_of(frame, self._bare)]
        subtask = F.spark_partition_id() % self._parallelism + 1
        numbered = elements_of(frame.withColumn(_SUBTASK_COLUMN, subtask), bare=False)
        row = row_class(tuple(frame.columns))
        return [(values[-1], values[0] if self._bare else row(values[:-1])) for values in numbered]

    def deliver(self, elements: list[Any]) -> None:
        out = sys.stdout
        for subtask, element in elements:
            origin = ":".join(part for part in (self._prefix, str(subtask or "")) if part)
            print(f"{origin}> {shown(element)}" if origin else shown(element), file=out)
        out.flush()


class Collect(_DriverSink):
    """Hands the elements of committed epochs to an iterator. An epoch waits until the one before it has been taken."""

    kind = "collect"

    def __init__(self, bare: bool) -> None:
        super().__init__(bare)
        self.taken: queue.Queue[list[Any]] = queue.Queue(maxsize=1)
        self.unread = threading.Event()
        """Set when nobody reads any more: what comes now is dropped instead of waiting."""
        self._stopped = threading.Event()

    def start(self, spark: Any, job_dir: str, schema: Any) -> None:
        self._stopped.clear()

    def close(self) -> None:
        self._stopped.set()  # a run that is stopped may have an epoch that waits

    def deliver(self, elements: list[Any]) -> None:
        while not self.unread.is_set() and not self._stopped.is_set():
            try:
                self.taken.put(elements, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return


class CloseableIterator(Iterator[Any]):
    """The elements of a stream while its job runs, in the order of the epochs. Ends with the job; raises its error.

    `close` cancels the job. As a context manager it does so at the end of the block.
    """

    def __init__(self, job: JobHandle, sink: Collect) -> None:
        self.job = job
        self._sink = sink
        self._elements: deque[Any] = deque()

    def __next__(self) -> Any:
        while not self._elements:
            if self._sink.unread.is_set():
                raise StopIteration
            ended = self.job.status() in _ENDED  # before the queue is read: it then holds everything that was delivered
            try:
                self._elements.extend(self._sink.taken.get(timeout=0.0 if ended else _POLL_SECONDS))
            except queue.Empty:
                if ended:
                    self.job.await_termination()  # raises the error of a failed job
                    raise StopIteration from None
        return self._elements.popleft()

    def next(self) -> Any:
        """The same as `next(iterator)`."""
        return self.__next__()

    def close(self) -> None:
        """Cancel the job if it runs. What is committed stays; elements that were not taken yet are dropped."""
        self._sink.unread.set()
        self._elements.clear()
        self.job.cancel()

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


def elements_of(frame: Any, bare: bool) -> list[Any]:
    """The rows of a DataFrame as functions get them, with timestamps in UTC."""
    row = row_class(tuple(frame.columns))
    elements: list[Any] = []
    for batch in frame.toArrow().cast(arrow_schema_of(frame.schema)).to_batches():
        columns = row_columns(batch, len(frame.columns))
        elements.extend(columns[0] if bare else map(row, zip(*columns, strict=True)))
    return elements


def shown(value: Any) -> str:
    """A value as Flink prints it: `(ann,6)` for a row, `[1, 2]` for a list, `{a=1}` for a map, `null`, `true`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"({','.join(map(shown, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{shown(key)}={shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, bytes)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    return one_line(str(value))
