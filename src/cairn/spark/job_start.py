"""The start of a job: checks, directory and settings, recovery, and the run that begins.

`start_job` has the steps in their order. A restart after a failure repeats the last two of them: it recovers the job,
and starts another run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from cairn.config import DEFAULT_DIRECTORY, Settings
from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.checkpoint_thread import CheckpointThread
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.control import Control
from cairn.coordinator.epoch_loop import EpochLoop, EpochLoopSetup, OperatorPlan
from cairn.coordinator.epoch_time import TimeKeeper
from cairn.coordinator.offset_log import LocalOffsets
from cairn.coordinator.run_watch import RunWatch
from cairn.errors import InvalidInputError
from cairn.job.actions import JobActions
from cairn.job.idle_start import NothingNew, tell_start
from cairn.job.job_context import JobContext
from cairn.job.job_directory import jobmanager_directory, sweep_leftovers
from cairn.job.job_run import JobRun, RunParts
from cairn.job.publisher import Publisher
from cairn.job.start_configuration import announce_discards, recall
from cairn.job.stopping import tell_of_unfinished_stops
from cairn.job.supervisor import RunStarter, Supervisor
from cairn.logs import get_logger
from cairn.model.ddl import key_ddl
from cairn.restore.pinned_snapshot import pinned
from cairn.restore.planned_epoch import complete_plan
from cairn.restore.recovery import Recovered, plan_restore, recover
from cairn.restore.restore_plan import JobShape, RestorePlan
from cairn.restore.source_logs import COMPACT_INTERVAL, COMPACT_SETTING
from cairn.restore.source_matching import COLLECTION, TICKS, is_again
from cairn.restore.start_request import Restorer, StartRequest
from cairn.spark.arrow_batches import ArrowBatches
from cairn.spark.background_snapshots import compaction_job
from cairn.spark.background_tasks import Background
from cairn.spark.cluster import SparkCluster
from cairn.spark.fail_fast import FailFast
from cairn.spark.final_frame import final_frame, with_ticks
from cairn.spark.function_probe import probe
from cairn.spark.graph_facts import topology
from cairn.spark.job_definition import JobDefinition
from cairn.spark.logical_plan import source_names
from cairn.spark.run_wiring import RunContext, make_coordinator
from cairn.spark.session import query_settings
from cairn.spark.spark_query import SparkQuery
from cairn.spark.state_mover import SparkMover
from cairn.spark.task_progress import SourceRows
from cairn.spark.worker_check import check_workers
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem, as_url, local_root
from cairn.storage.manifest_store import load_identity
from cairn.storage.promise_check import check_promises
from cairn.storage.retrying import RetryingFileSystem
from cairn.storage.run_records import Runs

_log = get_logger("cairn.api")

plan_hooks: list[Callable[[RestorePlan], None]] = []
"""Set by `cairn plan`: the last one gets the plan of a start, and ends the script before anything is started."""


@dataclass(frozen=True, slots=True)
class JobStart:
    """What all runs of a started job have in common."""

    definition: JobDefinition
    supervisor: Supervisor
    publisher: Publisher

    @property
    def context(self) -> JobContext:
        """Its settings are those of the first run. A restart does not restore the snapshot that they name once more."""
        return self.supervisor.context


def start_job(definition: JobDefinition, name: str) -> JobStart:
    """Start a job. Returns once the first run has begun."""
    # 1. Is the job complete, and can the workers run it?
    _check(definition, name)
    # 2. Settle where the job is kept, its settings, and the maximum parallelism that its state has.
    start = _settle(definition, name)
    # 3. `cairn plan` ends here.
    if plan_hooks:
        plan_hooks[-1](plan_restore(_request(start, start.context.settings)))
    # 4. Take the job over, and find what it continues from.
    began = time.perf_counter()
    recovered = _recover(start, start.context.settings)
    definition.executed = True
    spent_ms = (time.perf_counter() - began) * 1000
    _report_start(start, recovered)
    # 5. Start the first run, and let the supervisor start others when this one has failed.
    graph = _graph(definition)
    settings = start.context.settings
    again = replace(settings, restore_path="")

    def restart(thorough: bool) -> None:
        since = time.perf_counter()
        next_recovered = _recover(start, again, thorough)
        _publish(start, next_recovered, graph, (time.perf_counter() - since) * 1000)
        _start_run(start, next_recovered, again, graph)

    start.supervisor.starter = RunStarter(restart, lambda: _close_sinks(definition))
    _publish(start, recovered, graph, spent_ms)
    announce_discards(CheckpointStore(start.context.files), name, recovered, settings.checkpoints)
    _start_run(start, recovered, settings, graph)
    return start


# Steps 1 and 2: checks, directory and settings.


def _check(definition: JobDefinition, name: str) -> None:
    if not name:
        raise InvalidInputError(
            "a job needs a name, as in env.execute('totals'): its state is stored under this name, and the next run "
            "with the same name resumes from it"
        )
    if definition.executed:
        raise InvalidInputError("this environment was executed already; make a new one for another job")
    if not definition.sinks:
        raise InvalidInputError("the job has no sink; add one with stream.sink_to(...), NoopSink() if need be")
    check_workers(definition.spark)


def _settle(definition: JobDefinition, name: str) -> JobStart:
    parallelism = definition.parallelism
    directory = _directory(definition.settings)
    job_id = layout.checked(definition.settings.job_id or layout.slug(name), "job id")
    files = LocalFileSystem(os.path.join(local_root(directory), job_id))
    definition.settings = recall(files, name, definition.settings)
    settings = replace(definition.settings, directory=directory, parallelism=parallelism)
    identity = load_identity(files)
    if identity is not None:
        definition.adopt_max_parallelism(identity.max_parallelism)
    publisher = Publisher(files, job_id, settings)
    supervisor = Supervisor(JobContext(name, job_id, files, settings, definition.timers))
    publisher.follow(supervisor.events)
    return JobStart(definition, supervisor, publisher)


def _directory(settings: Settings) -> str:
    """The directory that holds the job's own."""
    if settings.checkpoints.storage == "jobmanager":
        return jobmanager_directory()
    if not settings.directory:
        _log.warning(
            "no directory is configured; using %s (set execution.checkpointing.dir to choose another)",
            os.path.abspath(DEFAULT_DIRECTORY),
        )
    return settings.directory or DEFAULT_DIRECTORY


# Steps 3 and 4: what the job continues from.


def _request(start: JobStart, settings: Settings) -> StartRequest:
    job, context = start.definition, start.context
    return StartRequest(
        context.files, context.job_id, context.name, settings, settings.parallelism, job.max_parallelism,
        [spec.uid for spec in job.operators], compact_interval=_compact_interval(job),
        restorer=Restorer(lambda: _shape(job), SparkMover(job.spark)),
        sources=lambda: _sources(job, final_frame(job.sinks)[0]),
    )  # fmt: skip


def _recover(start: JobStart, settings: Settings, thorough: bool = False) -> Recovered:
    files = start.context.files

    def prepare() -> None:
        check_promises(files)
        _start_sinks(start.definition, files.root)

    with pinned(_request(start, settings)) as request:
        return recover(request, int(time.time() * 1000), prepare, thorough)


def _shape(job: JobDefinition) -> JobShape:
    """The job as a restore compares it with a snapshot. Runs `open()` of its functions once, in a Spark task."""
    return JobShape(
        operators={spec.uid: key_ddl(spec.key_types) for spec in job.operators},
        declared=probe(job.spark, job.operators, job.settings.parameters),
        parallelism=job.parallelism,
        max_parallelism=job.settings.max_parallelism,
        sources=_sources(job, final_frame(job.sinks)[0]),
    )


def _sources(job: JobDefinition, frame: DataFrame) -> list[str]:
    """The names of the job's sources, in the order of the positions that Spark logs."""
    return source_names(frame) + ([TICKS] if job.timers else [])


def _compact_interval(job: JobDefinition) -> int:
    return int(job.spark.conf.get(COMPACT_SETTING, None) or COMPACT_INTERVAL)


def _start_sinks(job: JobDefinition, job_dir: str) -> None:
    for attached in job.sinks:
        attached.sink.may_repeat = job.settings.checkpoints.mode == "AT_LEAST_ONCE"
        attached.sink.start(job.spark, job_dir, attached.node.frame().schema)


def _close_sinks(job: JobDefinition) -> None:
    for attached in job.sinks:
        try:
            attached.sink.close()
        except Exception:  # noqa: BLE001 - the run has ended; what a sink leaves open does no harm
            _log.exception("sink %s could not be closed", attached.sink.uid)


def _report_start(start: JobStart, recovered: Recovered) -> None:
    """Clear what earlier runs have left behind, and log what the job continues from."""
    context = start.context
    sweep_leftovers(context.files)
    newest = recovered.manifest.epoch if recovered.manifest is not None else -1
    if recovered.manifest is not None and recovered.manifest.run != recovered.run.run:
        tell_start(context.name, recovered.run.run, newest)
    tell_of_unfinished_stops(context.files, context.job_id, newest)


# Step 5: a run.


def _graph(job: JobDefinition) -> list[dict[str, Any]]:
    """The job graph for pages, the same in every run."""
    ends = [(attached.node, attached.sink.uid, attached.sink.kind) for attached in job.sinks]
    return topology(ends, job.operators, job.functions)


def _publish(start: JobStart, recovered: Recovered, graph: Sequence[dict[str, Any]], spent_ms: float) -> None:
    sinks = [{"uid": attached.sink.uid, "kind": attached.sink.kind} for attached in start.definition.sinks]
    start.publisher.started(recovered, sinks, graph, spent_ms)


def _start_run(start: JobStart, recovered: Recovered, settings: Settings, graph: Sequence[dict[str, Any]]) -> None:
    """Start one run: coordinator and epoch loop, the streaming query, and the thread that looks after both."""
    job, supervisor, files = start.definition, start.supervisor, start.context.files
    manifest = recovered.manifest
    spark_folder = os.path.join(files.root, manifest.spark if manifest is not None else layout.SPARK)
    frame, readers = final_frame(job.sinks)
    names = _sources(job, frame)
    run = JobRun(start.context, supervisor.gate, recovered.run.run, manifest.epoch if manifest is not None else None)
    context = RunContext(
        spark=job.spark,
        job=start.context,
        run=run,
        recovered=recovered,
        settings=settings,
        steady=RetryingFileSystem(files),
        background=Background(job.spark, idle=lambda: supervisor.gate.idle),
        plans=[OperatorPlan(spec.uid, spec.name, spec.parallelism) for spec in job.operators],
        sinks=[attached.sink for attached in job.sinks],
        acks=job.acks(),
        compact_interval=_compact_interval(job),
        failover=supervisor.restarts > 0,
    )
    compactor = Compactor(compaction_job(context.background, files.root, run.number), settings.compaction_chain)
    coordinator = make_coordinator(context)
    batches = ArrowBatches(job.spark, frame, [plan.uid for plan in context.plans], context.sinks)
    loop = EpochLoop(
        EpochLoopSetup(
            files=context.steady,
            identity=recovered.identity,
            run=recovered.run,
            operators=context.plans,
            sinks=context.sinks,
            cluster=SparkCluster(job.spark, context.acks, readers),
            offsets=LocalOffsets(spark_folder),
            settings=settings,
            current=manifest,
            compactor=compactor,
            listener=batches.listening(supervisor.epoch_committed),
            checkpoints=coordinator,
            source_names=names,
            timekeeper=TimeKeeper(context.steady, settings.max_jump_ms, settings.max_downtime_ms, settings.time_reset),
        )
    )
    complete_plan(spark_folder, names, int(time.time() * 1000))
    query = _start_query(job, frame, spark_folder, names, run.guarded(batches.between(loop.run_epoch)))
    run.started(SparkQuery(start.context.name, query))
    vertices = [(vertex["id"], vertex["name"]) for vertex in graph if vertex["kind"] == "source"]
    start.publisher.watch(SourceRows(query, names, vertices))
    control = Control(context.steady, coordinator, JobActions(supervisor).of_requests())
    thread = _start_checkpoint_thread(start, run, coordinator, control, FailFast(job.spark, str(query.runId)))
    supervisor.attach(run, RunParts(coordinator, thread, control, compactor, loop))


def _start_checkpoint_thread(
    start: JobStart, run: JobRun, coordinator: CheckpointCoordinator, control: Control, failing: FailFast
) -> CheckpointThread:
    """Start the coordinator's thread. Between its steps it looks at requests, failed tasks, sources and newer runs."""
    supervisor, publisher = start.supervisor, start.publisher
    resumed = run.restored_epoch if supervisor.current is None else None
    idle = NothingNew(start.context.name, resumed, run.query, lambda: len(supervisor.reports))

    def between_checkpoints() -> None:
        failing.look()
        idle.look()
        control.serve()
        publisher.look()
        publisher.recorder.due()

    watch = RunWatch(Runs(start.context.files), run.number, run.fail)
    return CheckpointThread(coordinator, between_checkpoints, watch)


def _start_query(
    job: JobDefinition, frame: DataFrame, folder: str, sources: Sequence[str], run_epoch: Callable[[Any, int], None]
) -> Any:
    """Start the streaming query, which calls `run_epoch` with the rows of every epoch."""
    with query_settings(job.spark):
        frame = with_ticks(job.spark, frame) if job.timers else frame
        writer = frame.writeStream.foreachBatch(run_epoch)
        return writer.option("checkpointLocation", as_url(folder)).trigger(**_trigger(job, sources)).start()


def _trigger(job: JobDefinition, sources: Sequence[str]) -> dict[str, Any]:
    """The trigger that is set. Without one, a job whose sources are all collections ends with them, as in Flink."""
    if job.trigger:
        return job.trigger
    if not job.unbounded and all(name in (TICKS, COLLECTION) or is_again(name) for name in sources):
        return {"availableNow": True}
    return {"processingTime": "1 second" if job.timers else "0 seconds"}
