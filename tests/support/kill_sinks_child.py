"""The job that the kill tests of sinks run in a process of its own: a script through the oracle to four sinks.

Its one argument is a JSON object:

* `folder`: where the job and the crash notes lie; `postgres`, `kafka`, `topic`: where the sinks write
* `lake`: the Delta table; empty to do without
* `rows`: all rows; every twenty of them are an epoch, and the driver dies amid those of epoch 1, once
* `kill`: `[step, epoch]` of the epoch loop at which the whole process group is killed
* `kill_after`: `[uid, epoch]`: the same right after that sink has published that epoch
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.oracle import INPUT, OUTPUT, Oracle

from cairn import BaseSink, CrashMarker, DeltaSink, JdbcSink, KafkaSink, ScriptedSource, StreamExecutionEnvironment
from cairn.coordinator.epoch_loop import EpochLoop

PORTION = 20
PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"


def own_sink(database: Path) -> BaseSink:
    """The sink that the documentation shows."""
    names: dict[str, Any] = {"__name__": "docs"}
    (found,) = [
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "SqliteSink" in text
    ]
    exec(found, names)
    sink: BaseSink = names["SqliteSink"](str(database), "oracle")
    return sink


def die_after(sink: BaseSink, plan: dict[str, Any]) -> None:
    commit = sink.commit

    def commit_and_die(data: Any, epoch: int) -> None:
        commit(data, epoch)
        if [sink.uid, epoch] == plan.get("kill_after"):
            os.killpg(0, signal.SIGKILL)

    sink.commit = commit_and_die  # type: ignore[method-assign]


def main() -> None:
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])

    def step(self: EpochLoop, name: str, epoch: int) -> None:
        if [name, epoch] == plan.get("kill"):
            os.killpg(0, signal.SIGKILL)

    EpochLoop.step = step  # type: ignore[method-assign]
    rows = [tuple(row) for row in plan["rows"]]
    script: list[list[Any]] = [rows[at : at + PORTION] for at in range(0, len(rows), PORTION)]
    script[1].insert(PORTION // 2, CrashMarker("driver"))
    config = {
        "execution.checkpointing.dir": str(folder / "jobs"),
        "execution.checkpointing.local-backup.dirs": str(folder / "stores"),
        "parallelism.default": 2,
        "pipeline.max-parallelism": 16,
        "spark.master": "local[2,4]",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    env = StreamExecutionEnvironment.get_execution_environment(config=config).set_trigger(available_now=True)
    source = env.from_source(ScriptedSource(script, INPUT, str(folder / "crashes")))
    checked = source.key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    sinks: dict[str, BaseSink] = {"lake": DeltaSink(plan["lake"])} if plan.get("lake") else {}
    sinks |= {
        "db": JdbcSink(plan["postgres"], "oracle"),
        "topic": KafkaSink(plan["kafka"], plan["topic"], key="key"),
        "own": own_sink(folder / "own.db"),
    }
    for uid, sink in sinks.items():
        checked.sink_to(sink, uid=uid)
        die_after(sink, plan)
    env.execute("oracle")


if __name__ == "__main__":
    main()
