"""The Spark session of a job: a local one if there is none, and the settings that a query is started with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from cairn.spark.arrow_batches import LIMITED_ROWS, ROWS

_QUERY_CONF = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.exchange.reuse": "true",  # an operator runs once for all its readers
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    ROWS: LIMITED_ROWS,
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Set while a query starts (it takes a copy then), and put back: other queries of the user keep their own."""


def local_session(settings: Mapping[str, str]) -> SparkSession:
    """The active session, or a local one with settings that suit short epochs."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("cairn")
    defaults = {
        "spark.master": "local[*,4]",
        "spark.scheduler.mode": "FAIR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
    }
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def query_settings(spark: SparkSession) -> Iterator[None]:
    """Spark settings as the query needs them while it starts."""
    before: dict[str, str | None] = {key: spark.conf.get(key, None) for key in _QUERY_CONF}
    try:
        for key, value in _QUERY_CONF.items():
            if key != ROWS or before[key] is None:  # that number is the user's to choose
                spark.conf.set(key, value)
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)
