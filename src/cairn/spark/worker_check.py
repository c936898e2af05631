"""Checks before a job starts whether Spark's Python workers can run cairn, where the check is cheap."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache

from pyspark.sql import SparkSession

from cairn.errors import InvalidInputError

_IMPORTS = "import pyarrow, numpy, cairn.runtime.task"
"""What a worker needs besides PySpark, which Spark itself brings along."""


def check_workers(spark: SparkSession) -> None:
    """Refuse a local session whose workers run another Python that lacks what cairn needs.

    A session of the user's runs `python3` in its workers unless PYSPARK_PYTHON says otherwise, also if the driver runs
    in a virtual environment. Workers of a cluster are not checked, nor those that got packages by `addPyFile`.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local") and not context._python_includes:
        failure = _failure(str(context.pythonExec))
        if failure:
            raise InvalidInputError(
                f"Spark's workers run {context.pythonExec}, which cannot run cairn: {failure}. Set the environment "
                f"variable PYSPARK_PYTHON={sys.executable} before the Spark session is made, or let cairn make it: "
                "get_execution_environment() without a session.",
                python=str(context.pythonExec),
            )


@lru_cache(maxsize=8)
def _failure(python: str) -> str:
    """What keeps this Python from running cairn; empty if nothing does."""
    path = shutil.which(python)
    if path is None:
        return "there is no such program"
    if os.path.dirname(os.path.abspath(path)) == os.path.dirname(os.path.abspath(sys.executable)):
        return ""
    try:
        tried = subprocess.run([path, "-c", _IMPORTS], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["it gave no reason"])[-1]
