"""The job that the kill tests of sinks run in a process of its own: a script through the oracle to four sinks.

Its argument is that of `tests.support.kill_child`, and:

* `postgres`, `table`, `kafka`, `topic`: where the sinks write
* `lake`: the Delta table; empty to do without
* `rows`: all rows; every twenty of them are an epoch
* `crash`: true if the driver dies amid the rows of epoch 1, once
* `kill_after`: `[uid, epoch]`: the process group is killed right after that sink has published that epoch
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.kill_child import environment, main
from tests.support.oracle import INPUT, OUTPUT, Oracle

from cairn import BaseSink, CrashMarker, DeltaSink, JdbcSink, KafkaSink, ScriptedSource

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


def run(plan: dict[str, Any], spark: SparkSession | None = None) -> None:
    folder = Path(plan["folder"])
    rows = [tuple(row) for row in plan["rows"]]
    script: list[list[Any]] = [rows[at : at + PORTION] for at in range(0, len(rows), PORTION)]
    if plan.get("crash"):
        script[1].insert(PORTION // 2, CrashMarker("driver"))
    env = environment(plan, spark)
    source = env.from_source(ScriptedSource(script, INPUT, str(folder / "crashes")))
    checked = source.key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    sinks: dict[str, BaseSink] = {"lake": DeltaSink(plan["lake"])} if plan.get("lake") else {}
    sinks |= {
        "db": JdbcSink(plan["postgres"], plan["table"]),
        "topic": KafkaSink(plan["kafka"], plan["topic"], key="key"),
        "own": own_sink(folder / "own.db"),
    }
    for uid, sink in sinks.items():
        checked.sink_to(sink, uid=uid)
        if spark is None:
            die_after(sink, plan)
    env.execute("oracle")


if __name__ == "__main__":
    main(run)
