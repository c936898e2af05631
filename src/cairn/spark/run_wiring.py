"""Puts the checkpoint coordinator of a run together: what it asks Spark for, whom it tells, when a job fails for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from cairn.api.job_handle import JobHandle
from cairn.config import Settings
from cairn.connectors.sink_base import BaseSink
from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.checkpoint_statistics import Insight
from cairn.coordinator.epoch_loop import OperatorPlan
from cairn.coordinator.ports import JobFacts
from cairn.errors import CheckpointFailedError
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.model.functions import CheckpointListener
from cairn.restore.claims import release_claims
from cairn.restore.log_agreement import output_is_published
from cairn.restore.recovery import Recovered
from cairn.spark.background_snapshots import SparkSnapshots
from cairn.spark.background_tasks import Background
from cairn.spark.savepoint_writer import SparkSavepoints
from cairn.spark.task_progress import EpochProgress
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem, LocalFileSystem


def make_coordinator(
    spark: SparkSession,
    handle: JobHandle,
    files: LocalFileSystem,
    steady: FileSystem,
    background: Background,
    recovered: Recovered,
    settings: Settings,
    plans: Sequence[OperatorPlan],
    sinks: Sequence[BaseSink],
    acks: Any,
    compact_interval: int,
) -> CheckpointCoordinator:
    """The coordinator of one run. `steady` is the same directory as `files`, asked again when it fails in passing."""
    store = CheckpointStore(steady, settings.web.history)
    run = recovered.run.run
    facts = JobFacts(handle.job_id, handle.name, run)
    snapshots = SparkSnapshots(spark, background, files.root, run)
    progress = EpochProgress(spark, acks, run)

    def intolerable(info: CheckpointInfo) -> None:
        handle._fail(
            CheckpointFailedError(
                f"Exceeded checkpoint tolerable failure threshold: more than "
                f"{settings.checkpoints.tolerable_failures} failed in a row, the last one was checkpoint "
                f"{info.id}: {info.failure}. Raise execution.checkpointing.timeout or "
                "execution.checkpointing.tolerable-failed-checkpoints.",
                checkpoint=info.id,
            )
        )

    coordinator = CheckpointCoordinator(
        settings.checkpoints,
        store,
        facts,
        snapshots,
        recovered.manifest,
        intolerable,
        chance=random.Random(),
        savepoints=SparkSavepoints(spark, files, facts, compact_interval, background),
        failover=handle.restarts > 0,
        published=output_is_published(files, recovered.manifest),
        insight=Insight(
            [(plan.uid, plan.name, plan.parallelism) for plan in plans],
            progress.acknowledged,
            snapshots.written,
            progress.alignment,
            snapshots.spent,
        ),
    )

    def completed(number: int) -> None:
        release_claims(files, settings.checkpoints.num_retained)

    coordinator.listeners.completed.append(completed)
    for sink in sinks:
        if isinstance(sink, CheckpointListener):
            coordinator.listeners.completed.append(sink.notify_checkpoint_complete)
            coordinator.listeners.aborted.append(sink.notify_checkpoint_aborted)
    return coordinator
