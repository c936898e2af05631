"""A job that a test kills and starts again, and what a reader of its files sees."""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests.support.oracle import Result, Row, expected, write_file
from tests.support.patience import PATIENCE
from tests.support.spark_lab import intact_manifests

ROOT = Path(__file__).parents[2]


class Trial:
    """An input, a job over it that may be killed, and what a reader of its files sees."""

    module = "tests.support.kill_child"
    job = "oracle"

    def __init__(self, folder: Path, rows: list[Row], files: int, held: int = 0) -> None:
        """The last `held` files are kept back until they are let out."""
        self.folder = folder
        self.rows = rows
        self.files = files
        self.starts = 0
        self._children: list[subprocess.Popen[str]] = []
        self._write(0, files - held)

    def let_out(self) -> None:
        """Write the files that were kept back."""
        self._write(len(list((self.folder / "input").iterdir())), self.files)

    def _write(self, first: int, end: int) -> None:
        if end <= first:
            return  # the test writes the input itself
        bounds = [len(self.rows) * number // self.files for number in range(self.files + 1)]
        for number in range(first, end):
            write_file(self.folder / "input", number, self.rows[bounds[number] : bounds[number + 1]])

    def start(self, **plan: Any) -> subprocess.Popen[str]:
        """Start the job as a process group of its own."""
        self.starts += 1
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        log = (self.folder / f"log-{self.starts}").open("w")
        child = subprocess.Popen(
            [sys.executable, "-m", self.module, json.dumps({"folder": str(self.folder), **plan})],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(path)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        log.close()
        self._children.append(child)
        return child

    def log(self, start: int = 0) -> str:
        return (self.folder / f"log-{start or self.starts}").read_text()

    def run(self, **plan: Any) -> int:
        """Start the job and wait for its end, whatever it is."""
        return self.start(**plan).wait(timeout=PATIENCE)

    def kill_at_random(self, rng: random.Random, **plan: Any) -> None:
        """Start the job and kill it some time after its first step, unless it has ended by then."""
        child = self.start(**plan)
        started = self.folder / f"started-{child.pid}"
        deadline = time.monotonic() + PATIENCE
        while not started.exists() and child.poll() is None:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 4))
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() in (-signal.SIGKILL, 0), self.log()

    def run_here(self, spark: SparkSession, **plan: Any) -> None:
        """Run the job in a session that is there already, which must go well."""
        self.starts += 1
        logger = logging.getLogger("cairn")
        handler = logging.FileHandler(self.folder / f"log-{self.starts}")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            importlib.import_module(self.module).run({"folder": str(self.folder), **plan}, spark)
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)
            handler.close()

    def finish(self, spark: SparkSession) -> None:
        """Run to the end without a fault, and check everything."""
        self.run_here(spark)
        assert self.read_until(self.newest()) == len(self.rows)
        assert self.visible() == expected(self.rows)

    def newest(self) -> int:
        """The newest committed epoch. All files that retained manifests name are there."""
        manifests = intact_manifests(self.folder / "jobs" / self.job, retained=3)
        return manifests[-1].epoch if manifests else -1

    def read_until(self, epoch: int) -> int:
        """How many rows all epochs to this one have read, as Spark's offset log says.

        As a rule that is a file for each. But Spark's file source notes the files of an epoch before the offset log
        does: if the driver is killed in between, the epoch takes the next file as well.
        """
        if epoch < 0:
            return 0
        offsets = (self.folder / "jobs" / self.job / "spark" / "offsets" / str(epoch)).read_text()
        (last,) = set(re.findall(r'"logOffset":(\d+)', offsets))  # the same for every place where the source is read
        return len(self.rows) * (int(last) + 1) // self.files

    def visible(self) -> list[Result]:
        """What a reader of the output sees now, sorted."""
        found = sorted((self.folder / "output").glob("part-*.parquet"))
        rows = [row for path in found for row in pq.read_table(path).to_pylist()]
        return sorted(tuple(row.values()) for row in rows)

    def until(self, epoch: int) -> list[Result]:
        """What the output must be once all epochs to this one are published."""
        return expected(self.rows[: self.read_until(epoch)])

    def stop(self) -> None:
        for child in self._children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
