"""The job of `cairn demo`: made-up payments, a total and a count per user in state, one output row per payment.

Run by `cli/demo.py` as a process of its own. Every payment follows from its row number alone, so what must come out
can be computed without Spark and without cairn. Standard output carries one JSON object per line: `started` once,
then `epoch` after every commit.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

from cairn import FileSink, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from cairn.cli.demo import AMOUNT_SQL, JOB, OPERATOR, SINK, USER_SQL

_SOCKET_PATH_LIMIT = 40


class Totals(KeyedProcessFunction):
    """Adds up the payments of each user."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
        total = (self.total.value() or 0) + value.amount
        count = (self.count.value() or 0) + 1
        self.total.update(total)
        self.count.update(count)
        yield value.n, value.user, value.amount, count, total


def main() -> None:
    parser = argparse.ArgumentParser(prog="cairn.cli.demo_job")
    parser.add_argument("--dir", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment(config=settings(options.dir))
    payments = (
        env.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", options.rows)
        .option("numPartitions", 2)
        .load()
        .where(f"value < {options.epochs * options.rows}")
        .selectExpr("value AS n", f"{USER_SQL} AS user", f"{AMOUNT_SQL} AS amount")
    )
    env.from_df(payments).key_by("user").process(
        Totals(), "n bigint, user string, amount bigint, count bigint, total bigint", uid=OPERATOR
    ).sink_to(FileSink(os.path.join(options.dir, "out")), uid=SINK)

    enough = threading.Event()
    job = env.execute_async(JOB)
    _say("started", run=job.run, restored=job.restored_epoch)

    def tell(report: Any) -> None:
        _say(
            "epoch", epoch=report.epoch, rows=report.rows_in, keys=report.keys, bytes=report.bytes_written,
            ms=round(report.duration_ms), again=report.rolled_forward,
        )  # fmt: skip
        if report.epoch >= options.epochs - 1:
            enough.set()

    for report in job.epochs():  # those that were faster than the next line
        tell(report)
    job.add_epoch_listener(tell)
    while not enough.is_set() and not job.await_termination(0.05):
        pass
    job.cancel()
    env.spark.stop()


def settings(folder: str) -> dict[str, Any]:
    """Everything that the job writes lies below `folder`, so that nothing is left when the folder goes."""
    scratch = os.path.join(folder, "tmp")
    os.makedirs(scratch, exist_ok=True)
    return {
        "execution.checkpointing.dir": os.path.join(folder, "jobs"),
        "execution.checkpointing.local-backup.dirs": os.path.join(folder, "local"),
        "parallelism.default": 2,
        "cairn.web.enabled": False,  # it would end before anyone could open it
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        "spark.driver.extraJavaOptions": (
            f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1'
        ),
        # The path of a Unix socket is limited to about a hundred characters.
        "spark.python.unix.domain.socket.enabled": str(len(scratch) <= _SOCKET_PATH_LIMIT).lower(),
    }


def _say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    main()
