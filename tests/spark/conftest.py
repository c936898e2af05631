"""One Spark session for all tests of this folder: local, two cores, two attempts per task."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.spark_lab import Lab

from cairn.spark.session import local_session

SETTINGS = {
    "spark.master": "local[2,2]",
    "spark.app.name": "cairn-tests",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "OFF",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = local_session({**SETTINGS, "spark.sql.warehouse.dir": warehouse})
    yield session
    session.stop()


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(spark, tmp_path)
