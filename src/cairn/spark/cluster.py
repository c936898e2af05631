"""Spark as the epoch loop sees it: how it reaches the tasks of an epoch, and the rows that the sinks take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from cairn.connectors.sink_base import BaseSink
from cairn.spark.final_frame import Reader
from cairn.spark.worker_tasks import CONTEXT_PROPERTY


class SparkCluster:
    """`Cluster` of the epoch loop."""

    def __init__(self, spark: SparkSession, acks: Accumulator[list[bytes]], readers: Mapping[str, Reader]) -> None:
        self._spark = spark
        self._acks = acks
        self._readers = readers

    def announce(self, context: bytes) -> None:
        self._acks.value = []
        self._spark.sparkContext.setLocalProperty(CONTEXT_PROPERTY, context.hex())

    def acknowledgements(self) -> list[bytes]:
        return list(self._acks.value)

    def frames(self, frame: DataFrame, sinks: Sequence[Any]) -> SparkFrames:
        return SparkFrames(frame, sinks, self._readers)


class SparkFrames:
    """The rows of each sink. With several readers the rows are computed once and kept until the epoch ends."""

    def __init__(self, frame: DataFrame, sinks: Sequence[BaseSink], readers: Mapping[str, Reader]) -> None:
        self._frame = frame
        self._readers = readers
        self._kept = len(sinks) > 1 or any(sink.materialised for sink in sinks)
        if self._kept:
            self._frame = frame.persist()
            try:
                self._frame.write.format("noop").mode("overwrite").save()
            except BaseException:
                self.release()
                raise

    def of(self, sink: Any) -> DataFrame:
        reader = self._readers.get(sink.uid)
        return self._frame if reader is None else reader(self._frame)

    def release(self) -> None:
        if self._kept:
            self._frame.unpersist()
