"""Folders, environments and file streams around the Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.spark_lab import Lab


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(spark, tmp_path)
