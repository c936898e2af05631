"""The job that the kill tests run in a process of its own: the oracle over a folder of files, written to files.

What follows a kill runs in the Spark session of the tests, which saves a JVM. The argument is a JSON object:

* `folder`: where input, output and the job lie
* `kill`: `[step, epoch]` of the epoch loop at which the whole process group is killed
* `kill_jvm`: the same, but only Spark's JVM is killed
* `hold`: `[step, epoch, path]`: wait at that step until the path exists
* `workers`: true to have Python workers kill themselves, once amid their rows and once after writing their changes
* `options`: further options of the job
* `savepoint`: `{"after": epoch, "dir": path, "request": id, "kill": where}`: the job runs on when its input is read,
  takes a savepoint after that epoch (with `"stop": true`, stops with it), and notes its path in `<folder>/savepoint`.
  The process group is killed at `tables` (they are written), `completed` (the savepoint is, and nobody knows) or
  `stopping` (the same, and the query is still there)
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.support.oracle import INPUT, OUTPUT, Oracle, Result

from cairn import FileSink, JobHandle, JobStatus, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from cairn.coordinator.epoch_loop import EpochLoop
from cairn.job.supervisor import Supervisor
from cairn.spark.savepoint_writer import SparkSavepoints

OWN_SPARK = {
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def once(path: Path) -> bool:
    """True for the first caller of all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class SuicidalOracle(Oracle):
    """Kills its worker after some rows of epoch 1, and right after the changes of epoch 3 are durable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        from cairn.runtime import task

        write_delta: Any = task._write_delta
        folder = self.folder

        def write_and_die(uid: str, sections: Any, groups: Any, context: Any, *rest: Any) -> Any:
            written = write_delta(uid, sections, groups, context, *rest)
            if context.epoch == 3 and sections and once(folder / "died-after-writing"):
                os.kill(os.getpid(), signal.SIGKILL)
            return written

        if write_delta.__name__ != "write_and_die":
            task._write_delta = write_and_die  # type: ignore[assignment]

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        self.rows += 1
        if value.seq > 3 and self.rows > 5 and once(self.folder / "died-amid-rows"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().process_element(value, ctx)


def intercept(plan: dict[str, Any]) -> None:
    """Stop the world, or a part of it, between two steps of the epoch loop."""
    started = Path(plan["folder"]) / f"started-{os.getpid()}"

    def step(self: EpochLoop, name: str, epoch: int) -> None:
        started.touch()
        if [name, epoch] == plan.get("kill"):
            os.killpg(0, signal.SIGKILL)
        if [name, epoch] == plan.get("kill_jvm"):
            gateway: Any = SparkContext._gateway
            os.kill(gateway.proc.pid, signal.SIGKILL)
        held = plan.get("hold")
        if held and [name, epoch] == held[:2]:
            while not os.path.exists(held[2]):
                time.sleep(0.05)

    EpochLoop.step = step  # type: ignore[method-assign]


def take_savepoint(job: JobHandle, wanted: dict[str, Any], folder: Path) -> None:
    """Take the savepoint that a plan asks for, and end the job."""

    def kill(*_: Any) -> Any:
        os.killpg(0, signal.SIGKILL)

    complete = SparkSavepoints.complete
    if wanted.get("kill") == "tables":
        SparkSavepoints._sources = kill  # type: ignore[method-assign,assignment]
    if wanted.get("kill") == "completed":
        SparkSavepoints.complete = lambda *told: (complete(*told), kill())[0]  # type: ignore[method-assign]
    if wanted.get("kill") == "stopping":
        Supervisor.finish = kill  # type: ignore[method-assign,assignment]
    while job.status() is JobStatus.RUNNING:
        if max([job.restored_epoch or 0, *(report.epoch for report in job.epochs())]) >= wanted["after"]:
            break
        time.sleep(0.02)
    call = job.stop_with_savepoint if wanted.get("stop") else job.trigger_savepoint
    info = call(wanted["dir"], request_id=wanted["request"])
    (folder / "savepoint").write_text(info.path)
    job.cancel()


def environment(plan: dict[str, Any], spark: SparkSession | None) -> StreamExecutionEnvironment:
    """The environment of a job that runs what is there. One with a Spark of its own dies as planned."""
    folder = Path(plan["folder"])
    config = {
        "execution.checkpointing.dir": str(folder / "jobs"),
        "cairn.web.enabled": False,
        "execution.checkpointing.local-backup.dirs": str(folder / "stores"),
        "execution.checkpointing.data-inline-threshold": "0",
        "parallelism.default": 2,
        "pipeline.max-parallelism": 16,
        "cairn.epochs.retained": 3,
        "cairn.compaction.max-chain": 3,
        **plan.get("options", {}),
    }
    if spark is None:
        intercept(plan)
        config |= OWN_SPARK
    return StreamExecutionEnvironment.get_execution_environment(spark, config).set_trigger(available_now=True)


def run(plan: dict[str, Any], spark: SparkSession | None = None) -> None:
    """Run the job, in the session that is given or in one of its own."""
    folder = Path(plan["folder"])
    env = environment(plan, spark)
    source = env.spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    function = SuicidalOracle(folder) if plan.get("workers") else Oracle()
    checked = env.from_df(source).key_by("key").process(function, OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(folder / "output")), uid="out")
    wanted = plan.get("savepoint")
    if wanted is None:
        env.execute("oracle")
        return
    job = env.set_trigger(processing_time="0 seconds").execute_async("oracle")
    take_savepoint(job, wanted, folder)
    job.await_termination()


def main(job: Callable[[dict[str, Any]], None]) -> None:
    """What a process does that has its plan as an argument."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    job(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main(run)
