"""Puts the checkpoint coordinator of a run together: what it needs of Spark, who hears of its checkpoints, and when the
job fails for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from cairn.config import Settings
from cairn.connectors.sink_base import BaseSink
from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.checkpoint_statistics import Insight
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.ports import JobFacts, OperatorPlan
from cairn.errors import CheckpointFailedError
from cairn.events import CheckpointAborted, CheckpointCompleted, EventBus
from cairn.job.job_context import JobContext
from cairn.job.job_run import JobRun
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
from cairn.storage.filesystem import FileSystem


@dataclass(frozen=True)
class RunContext:
    """What one run of a job is made of."""

    spark: SparkSession
    job: JobContext
    run: JobRun
    recovered: Recovered
    settings: Settings
    """Those of this run: a restart does not restore from a snapshot again."""
    steady: FileSystem
    """The directory of the job, asked again when it fails in passing."""
    background: Background
    plans: Sequence[OperatorPlan]
    sinks: Sequence[BaseSink]
    acks: Any
    """The accumulator that tasks acknowledge to."""
    compact_interval: int
    failover: bool = False
    """Whether the run follows a failure of the job in this process."""


def make_coordinator(context: RunContext) -> CheckpointCoordinator:
    """The checkpoint coordinator of one run, with the listeners that hear of its checkpoints."""
    settings, files, recovered = context.settings, context.job.files, context.recovered
    store = CheckpointStore(context.steady, settings.web.history)
    facts = JobFacts(context.job.job_id, context.job.name, context.run.number)
    snapshots = SparkSnapshots(context.spark, context.background, files.root, facts.run)
    progress = EpochProgress(context.spark, context.acks, facts.run)

    def intolerable(info: CheckpointInfo) -> None:
        context.run.fail(
            CheckpointFailedError(
                f"Exceeded checkpoint tolerable failure threshold: more than "
                f"{settings.checkpoints.tolerable_failures} failed in a row, the last one was checkpoint "
                f"{info.id}: {info.failure}. Raise execution.checkpointing.timeout or "
                "execution.checkpointing.tolerable-failed-checkpoints.",
                checkpoint=info.id,
            )
        )

    coordinator = CheckpointCoordinator(
        CoordinatorSetup(
            settings.checkpoints,
            store,
            facts,
            snapshots,
            recovered.manifest,
            intolerable,
            chance=random.Random(),
            savepoints=SparkSavepoints(context.spark, files, facts, context.compact_interval, context.background),
            failover=context.failover,
            published=output_is_published(files, recovered.manifest),
            insight=Insight(
                [(plan.uid, plan.name, plan.parallelism) for plan in context.plans],
                progress.acknowledged,
                snapshots.written,
                progress.alignment,
                snapshots.spent,
            ),
        )
    )

    events = coordinator.events
    events.subscribe(CheckpointCompleted, lambda event: release_claims(files, settings.checkpoints.num_retained))
    for sink in context.sinks:
        if isinstance(sink, CheckpointListener):
            _tell_sink(events, sink)
    return coordinator


def _tell_sink(events: EventBus, sink: CheckpointListener) -> None:
    events.subscribe(CheckpointCompleted, lambda event: sink.notify_checkpoint_complete(event.number))
    events.subscribe(CheckpointAborted, lambda event: sink.notify_checkpoint_aborted(event.number))
