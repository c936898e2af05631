"""A job that a test kills and starts again, and what a reader of its files sees."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.support.oracle import Result, Row, expected, write_files
from tests.support.patience import PATIENCE
from tests.support.spark_lab import intact_manifests

ROOT = Path(__file__).parents[2]


class Trial:
    """An input, a job over it that may be killed, and what a reader of its files sees."""

    module = "tests.support.kill_child"
    job = "oracle"

    def __init__(self, folder: Path, rows: list[Row], files: int) -> None:
        self.folder = folder
        self.rows = rows
        self.files = files
        self.starts = 0
        self._children: list[subprocess.Popen[str]] = []
        write_files(folder / "input", rows, files)

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

    def finish(self) -> None:
        """Run to the end without a fault, and check everything."""
        assert self.run() == 0, self.log()
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
