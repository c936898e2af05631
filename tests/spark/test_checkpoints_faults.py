"""Real jobs whose tasks are slow, whose workers vanish and which are canceled at a bad moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import TaskContext
from tests.support.checkpoint_lab import ROWS, held, outputs, processed, running
from tests.support.oracle import OUTPUT, Oracle, expected, ship
from tests.support.patience import PATIENCE, until
from tests.support.spark_lab import Lab

from cairn import CheckpointInfo, CheckpointStatus, FileSink, JobStatus, KeyedProcessFunction, RuntimeContext
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore

pytestmark = pytest.mark.spark
ship(__name__)


class OneSlow(Oracle):
    """Holds up its second subtask while a file exists."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.index = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        while self.index == 1 and Path(self.gate).exists():
            held(Path(self.gate)).touch()
            time.sleep(0.02)
        yield from super().process_element(value, ctx)


def uneven(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The second of the upstream tasks ends late."""
    rows = list(batches)
    task = TaskContext.get()
    if task is not None and task.partitionId() == 1:
        time.sleep(2)
    yield from rows


def test_acknowledgements_come_in_one_by_one_and_alignment_is_the_wait_for_the_last_task(lab: Lab) -> None:
    gate = lab.folder / "gate"
    lab.feed(ROWS[:40])
    env = lab.env(2, execution__checkpointing__incremental=True).set_trigger(processing_time="0 seconds")
    source = lab.source()
    upstream = source.repartition(2, "key").mapInArrow(uneven, source.schema)
    checked = env.from_df(upstream).key_by("key").process(OneSlow(str(gate)), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.folder / "output-oracle")), uid="out")
    job = env.execute_async("oracle")
    processed(job, 40)
    gate.touch()
    lab.feed(ROWS[40:120])
    until(held(gate).exists)
    found: list[CheckpointInfo] = []
    thread = threading.Thread(target=lambda: found.append(job.trigger_checkpoint()))
    thread.start()

    def progress() -> tuple[CheckpointStatus, int, int]:
        info = job.checkpoints()[0] if job.checkpoints() else None
        return (info.status, info.acknowledged, info.total) if info else (CheckpointStatus.FAILED, 0, 0)

    until(lambda: progress() == (CheckpointStatus.IN_PROGRESS, 1, 2))
    (operator,) = job.checkpoints()[0].operators
    assert [subtask.index for subtask in operator.subtasks] == [0], "the other one is held up"
    gate.unlink()
    thread.join(PATIENCE)
    job.cancel()
    (info,) = found
    assert (info.status, info.acknowledged, info.total) == (CheckpointStatus.COMPLETED, 2, 2)
    waits = [subtask.alignment_ms for subtask in info.operators[0].subtasks]
    assert waits[0] == waits[1]
    assert 500 <= waits[0] <= job.epochs()[1].duration_ms
    assert outputs(lab, "oracle") == expected(ROWS[:120])


def python_workers() -> list[psutil.Process]:
    """The forked workers below this process's JVM."""
    family = [process for process in psutil.Process().children(recursive=True) if _is_daemon(process)]
    daemons = {process.pid for process in family}
    return [process for process in family if process.ppid() in daemons]


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return False


@pytest.mark.parametrize("backend", ["hashmap", "lmdb"])
def test_workers_that_vanish_between_epochs_cost_a_reload_and_nothing_else(lab: Lab, backend: str) -> None:
    lab.feed(ROWS[:80], files=2)
    job = running(lab, state__backend__type=backend)
    processed(job, 80)
    for worker in python_workers():
        worker.kill()
    lab.feed(ROWS[80:160], files=2)
    processed(job, 160)
    how = [{metrics.store for _, _, metrics in report.tasks} for report in job.epochs()]
    job.cancel()
    if backend == "hashmap":
        assert "rebuilt" in how[2], "what was in memory is gone, and loaded from the durable files"
    else:
        assert how[2] <= {"warm", "caught-up"}, "stores on disk outlive their worker"
    assert outputs(lab, "oracle") == expected(ROWS[:160])


class SlowUpload(Oracle):
    """While a file exists, its worker's writes take long. The writer is told by another file that it has begun."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        gate, write = Path(self.gate), LocalFileSystem.create

        def create(files: LocalFileSystem, path: str, data: Any) -> None:
            if gate.exists() and path.startswith("shared/"):
                gate.with_name("begun").touch()
                while gate.exists():
                    time.sleep(0.02)
            write(files, path, data)

        if getattr(write, "__name__", "") != "create" or "gate" not in write.__code__.co_freevars:
            LocalFileSystem.create = create  # type: ignore[method-assign, assignment]


def test_a_cancel_while_changes_are_written_leaves_nothing_that_counts(lab: Lab) -> None:
    gate = lab.folder / "gate"
    config = {"execution.checkpointing.data-inline-threshold": "0 kb"}
    lab.feed(ROWS[:80])
    job = running(lab, function=SlowUpload(str(gate)), **config)
    processed(job, 80)
    gate.touch()
    lab.feed(ROWS[80:120])
    until(lambda: gate.with_name("begun").exists())
    job.cancel(grace=0.3)
    job.cancel(grace=0.3)  # being interrupted once more changes nothing
    until(lambda: job.status() is JobStatus.CANCELED)
    assert ManifestStore(LocalFileSystem(job.directory)).epochs() == [0]
    gate.unlink()
    again = running(lab, **config)
    processed(again, 40)
    again.cancel()
    assert outputs(lab, "oracle") == expected(ROWS[:120])
    lab.manifests()
