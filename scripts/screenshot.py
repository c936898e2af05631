"""Makes the picture of the README: a job on local Spark for half a minute, and its Overview in Chromium.

Run in the project's root: `.venv/bin/python scripts/screenshot.py [FILE.png]`. Needs Chromium and Playwright.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from cairn import FileSink, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor

SECONDS = 30


class Totals(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.total.value() or 0) + value.amount
        self.total.update(total)
        yield value.user, total


def main(target: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cairn-screenshot-"))
    config = {
        "execution.checkpointing.dir": str(folder / "jobs"),
        "execution.checkpointing.local-backup.dirs": str(folder / "local"),
        "execution.checkpointing.savepoint-dir": str(folder / "savepoints"),
        "execution.checkpointing.interval": "3 s",
        "execution.checkpointing.incremental": "true",
        "parallelism.default": 2,
        "rest.port": 0,
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    env = StreamExecutionEnvironment.get_execution_environment(config=config)
    env.set_trigger(processing_time="1 second")
    payments = (
        env.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 20_000)
        .load()
        .selectExpr("concat('user-', value * 48271 % 20000) AS user", "value % 97 AS amount")
    )
    totals = (
        env.from_df(payments).key_by("user").process(Totals(), "user string, total bigint", uid="totals", name="Totals")
    )
    totals.sink_to(FileSink(str(folder / "out")), uid="payments")
    job = env.execute_async("Payments")
    time.sleep(SECONDS)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1180, "height": 1000}, color_scheme="light")
        page.goto(str(job.web_url), wait_until="load")
        target.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(target))
        browser.close()
    job.cancel()
    env.spark.stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/overview.png"))
