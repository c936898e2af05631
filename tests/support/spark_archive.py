"""An archive of Spark's classes, which halves what a JVM costs until its first job has run.

Tests start dozens of JVMs. `python -m tests.support.spark_archive` runs a small streaming job and lets its JVM write
down the classes that it has loaded. It prints the options that let a JVM use that file; `scripts/test.sh` hands them to
all that the tests start, in SPARK_SUBMIT_OPTS. The file lies in the virtual environment because it is good for one Java
and one set of jars only. A JVM that it does not suit starts without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark import SparkContext, __version__
from pyspark.sql import functions as F
from tests.support.oracle import INPUT, OUTPUT, Oracle, numbered_rows, write_files

from cairn import FileSink, StreamExecutionEnvironment, Time, TumblingEventTimeWindows

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What suits JVMs that live for seconds."""
VARIABLE = "SPARK_SUBMIT_OPTS"
MAKING = "-XX:ArchiveClassesAtExit"


def archive() -> Path:
    """Where the archive for this Java and this Spark lies, or will lie."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    name = hashlib.sha256(version + __version__.encode()).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-{name}.jsa"


def options(path: Path) -> str:
    """What a JVM is started with to use the archive; nothing is said where it does not suit."""
    return f"{JAVA_OPTIONS} -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={path}"


def make(path: Path) -> None:
    """Run a job whose JVM writes the archive when it ends."""
    partial = path.with_suffix(f".{os.getpid()}")
    os.environ[VARIABLE] = f"{JAVA_OPTIONS} -Xlog:disable {MAKING}={partial}"
    with tempfile.TemporaryDirectory() as folder:
        run_job(Path(folder))
        gateway: Any = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(120)
    partial.rename(path)


def run_job(folder: Path) -> None:
    """A function and a window over files, written to files: what most tests have in common."""
    write_files(folder / "input", numbered_rows(60, 5), 3)
    config = {
        "execution.checkpointing.dir": str(folder / "jobs"),
        "execution.checkpointing.local-backup.dirs": str(folder / "stores"),
        "parallelism.default": 2,
        "cairn.web.enabled": False,
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    env = StreamExecutionEnvironment.get_execution_environment(config=config).set_trigger(available_now=True)
    source = env.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    timed = source.withColumn("at", F.timestamp_millis("seq"))
    rows = env.from_df(timed).with_watermark("at", "0 seconds")
    rows.key_by("key").process(Oracle(), OUTPUT, uid="oracle").sink_to(FileSink(str(folder / "rows")), uid="rows-out")
    windows = rows.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    windows.sum("amount", uid="sums").sink_to(FileSink(str(folder / "sums")), uid="sums-out")
    env.execute("archive")
    assert env.spark.read.parquet(str(folder / "rows")).count() == 60
    env.spark.stop()


if __name__ == "__main__":
    target = archive()
    if not target.exists():
        make(target)
    print(options(target))
