"""What Spark calls in a Python worker. A worker imports this module, so it must stay quick to import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from cairn.errors import EpochFailedError
from cairn.model.manifest import EpochContext, TaskAck
from cairn.runtime.map_functions import SimpleSpec, run_simple
from cairn.runtime.operator_spec import OperatorSpec
from cairn.runtime.task import run_task

CONTEXT_PROPERTY = "cairn.epoch"
"""The Spark local property that carries the `EpochContext` to the tasks."""
FUNCTION_PREFIX = "cairn:"
"""What the names of our functions begin with in Spark's plans."""


class _Collected(AccumulatorParam[list[bytes]]):
    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:
        value1.extend(value2)
        return value1


def collector(context: SparkContext) -> Accumulator[list[bytes]]:
    """The accumulator that the tasks of a job send their acknowledgements to."""
    return context.accumulator([], _Collected())


class OperatorTask:
    """The function of `mapInArrow` for an operator. Pickled with the operator's specification."""

    def __init__(self, spec: OperatorSpec, acks: Accumulator[list[bytes]]) -> None:
        self.spec = spec
        self.acks = acks
        self.__name__ = FUNCTION_PREFIX + spec.uid  # what Spark's plans call it

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, context = _running_task(self.spec.uid)

        def acknowledge(ack: TaskAck) -> None:
            metrics = msgspec.structs.replace(ack.metrics, stage=task.stageId())
            self.acks.add([msgspec.msgpack.encode(msgspec.structs.replace(ack, metrics=metrics))])

        yield from run_task(self.spec, batches, context, task.taskAttemptId(), acknowledge)


class SimpleTask:
    """The function of `mapInArrow` for `map`, `filter` and `flat_map` on a stream without key."""

    def __init__(self, spec: SimpleSpec) -> None:
        self.spec = spec
        self.__name__ = FUNCTION_PREFIX + spec.uid

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, context = _running_task(self.spec.uid)
        yield from run_simple(self.spec, batches, context, task.partitionId(), task.taskAttemptId())


def _running_task(uid: str) -> tuple[TaskContext, EpochContext]:
    """The running task, and the context of its epoch, which the driver sets."""
    task = TaskContext.get()
    context = task.getLocalProperty(CONTEXT_PROPERTY) if task is not None else None
    if task is None or context is None:
        raise EpochFailedError(
            f"operator '{uid}' was run outside of a cairn job: its output can be read only by the sinks of a job that "
            "env.execute() started"
        )
    return task, msgspec.msgpack.decode(bytes.fromhex(context), type=EpochContext)
