"""The way in: `StreamExecutionEnvironment` collects streams, operators and sinks, and starts them as a job."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

from cairn import config as configuration
from cairn.api.checkpoint_config import CheckpointConfig, CheckpointingMode
from cairn.api.data_source import register
from cairn.api.data_stream import DataStream
from cairn.api.job_handle import JobHandle
from cairn.api.sinks import BaseSink, TableSink
from cairn.api.state_backends import BackendChoice
from cairn.config import DEFAULT_DIRECTORY, RestartSettings, Settings
from cairn.config.remembered_options import restart_keys
from cairn.config.settings import CONFIG_VARIABLE
from cairn.connectors.spark_sources import FileSource, Source
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.control import CheckpointThread, Control, RunWatch
from cairn.coordinator.epoch_loop import EpochLoop, OperatorPlan
from cairn.coordinator.epoch_time import TimeKeeper
from cairn.coordinator.offset_log import LocalOffsets
from cairn.coordinator.restart_policy import RestartPolicy
from cairn.errors import InvalidInputError, NotFoundError
from cairn.job.actions import actions_of
from cairn.job.idle_start import NothingNew, tell_start
from cairn.job.job_directory import driver_directory, jobmanager_directory, sweep_leftovers
from cairn.job.publisher import Publisher
from cairn.job.start_configuration import announce_discards, recall
from cairn.job.stopping import tell_of_unfinished_stops
from cairn.logs import get_logger
from cairn.model import keygroups
from cairn.model.ddl import key_ddl
from cairn.model.descriptors import Time
from cairn.model.pyflink_names import PyFlinkNames
from cairn.restore.planned_epoch import complete_plan
from cairn.restore.recovery import Recovered, plan_restore, recover
from cairn.restore.restore_plan import JobShape, RestorePlan
from cairn.restore.source_logs import COMPACT_INTERVAL, COMPACT_SETTING
from cairn.restore.source_matching import COLLECTION, TICKS, is_again
from cairn.restore.start_request import Restorer, StartRequest
from cairn.runtime.operator_spec import OperatorSpec
from cairn.snapshots.restorable import find
from cairn.spark.arrow_batches import ArrowBatches
from cairn.spark.background_snapshots import compaction_job
from cairn.spark.background_tasks import Background
from cairn.spark.cluster import SparkCluster
from cairn.spark.event_time import refuse_second_watermark
from cairn.spark.fail_fast import FailFast
from cairn.spark.final_frame import final_frame, with_ticks
from cairn.spark.function_probe import probe
from cairn.spark.graph_facts import topology
from cairn.spark.logical_plan import source_names
from cairn.spark.plan_checks import refuse_native_state
from cairn.spark.run_wiring import make_coordinator
from cairn.spark.session import local_session, query_settings
from cairn.spark.state_mover import SparkMover
from cairn.spark.stream_graph import FunctionNode, forget_frames, hidden_functions
from cairn.spark.task_progress import SourceRows
from cairn.spark.worker_check import check_workers
from cairn.spark.worker_tasks import collector
from cairn.state.backend import load_backend
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore, held
from cairn.storage.filesystem import LocalFileSystem, as_url, local_root
from cairn.storage.manifest_store import Runs, load_identity
from cairn.storage.promise_check import check_promises
from cairn.storage.retrying import RetryingFileSystem

_log = get_logger("cairn.api")


class StreamExecutionEnvironment(PyFlinkNames):
    """A job in the making. Get one with `get_execution_environment`, execute it once."""

    plan_hooks: ClassVar[list[Callable[[RestorePlan], None]]] = []
    """Of `cairn plan`: the last one is given the plan of a start, and ends the script before anything is started."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self._settings = settings
        self._uids: set[str] = set()
        self._operators: list[OperatorSpec] = []
        self._functions: dict[str, FunctionNode] = {}
        self._graph: list[dict[str, Any]] | None = None
        self._sinks: list[tuple[DataStream, BaseSink]] = []
        self._timers = False
        self._trigger: dict[str, Any] = {}
        self._executed = False
        self._collector: Any = None
        self._stored_groups = 0
        self._endless = False
        """A source was added that is not known to end."""

    @staticmethod
    def get_execution_environment(
        spark: SparkSession | None = None, config: Mapping[str, Any] | None = None
    ) -> StreamExecutionEnvironment:
        """An environment on the given Spark session, on the active one, or on a local one that is started.

        `config` takes Flink's keys; what `cairn run` was told by `-D`, `-p` and `--master` wins over it, and the
        `set_*` methods win over both.
        """
        told = json.loads(os.environ.get(CONFIG_VARIABLE) or "{}")
        settings = configuration.parse(config or {}, told, origins=("config", "-D"))
        load_backend(settings.backend)
        if spark is None:
            spark = local_session(settings.spark)
        if not hasattr(spark, "_jsparkSession"):
            raise InvalidInputError("cairn needs a classic Spark session; Spark Connect has no way to reach the tasks")
        register(spark)
        return StreamExecutionEnvironment(spark, settings)

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """The number of subtasks of every operator. Call it before operators are added."""
        self._no_operators_yet("set_parallelism")
        keygroups.validate(parallelism, self._settings.max_parallelism or keygroups.MAX_PARALLELISM_LIMIT)
        self._settings = replace(self._settings, parallelism=parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """The number of key groups: the highest parallelism that the job can ever have. Fixed at its first start."""
        self._no_operators_yet("set_max_parallelism")
        keygroups.validate(1, max_parallelism)
        self._settings = replace(self._settings, max_parallelism=max_parallelism)
        return self

    def get_parallelism(self) -> int:
        return self._parallelism()[0]

    def get_max_parallelism(self) -> int:
        return self._parallelism()[1]

    def set_state_backend(self, backend: BackendChoice) -> StreamExecutionEnvironment:
        """`LmdbStateBackend()`, `HashMapStateBackend()`, `EmbeddedRocksDBStateBackend()`, or a backend's name."""
        self._no_operators_yet("set_state_backend")
        name = backend if isinstance(backend, str) else getattr(backend, "name", "")
        load_backend(name)
        self._settings = replace(self._settings, backend=name)
        return self

    def enable_checkpointing(
        self, interval: int | Time, mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    ) -> StreamExecutionEnvironment:
        """Take a checkpoint every `interval` milliseconds, at least 10. More is set in `get_checkpoint_config()`."""
        self.get_checkpoint_config()._enable(interval, mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The checkpoint settings of this environment; a change through them is a change of the environment."""

        def write(settings: Settings) -> None:
            self._settings = settings

        return CheckpointConfig(lambda: self._settings, write)

    def set_restart_strategy(self, strategy: RestartSettings) -> StreamExecutionEnvironment:
        """What happens after a failure: `RestartStrategies.fixed_delay_restart(3, Time.seconds(10))` and others."""
        if not isinstance(strategy, RestartSettings):
            raise InvalidInputError(
                f"set_restart_strategy takes what RestartStrategies gives, not {type(strategy).__name__}"
            )
        given = {**self._settings.given, **dict.fromkeys(restart_keys(strategy.type), "code")}
        settings = replace(self._settings, restart=strategy, given=given)
        configuration.check(settings)
        self._settings = settings
        return self

    def set_default_savepoint_directory(self, path: str) -> StreamExecutionEnvironment:
        """Where savepoints go when the one who asks for them names no directory."""
        options = {"execution.checkpointing.savepoint-dir": path}
        self._settings = configuration.with_options(self._settings, options)
        return self

    def set_trigger(
        self, processing_time: str | None = None, available_now: bool = False
    ) -> StreamExecutionEnvironment:
        """When epochs start: `processing_time="1 second"`, or `available_now=True` to run what is there and finish."""
        if bool(processing_time) == bool(available_now):
            raise InvalidInputError("set_trigger takes either processing_time='1 second' or available_now=True")
        self._trigger = {"availableNow": True} if available_now else {"processingTime": str(processing_time)}
        return self

    def from_df(self, df: DataFrame) -> DataStream:
        """A stream of any streaming DataFrame."""
        if not isinstance(df, DataFrame):
            raise InvalidInputError(f"from_df takes a Spark DataFrame, not {type(df).__name__}")
        if not df.isStreaming:
            raise InvalidInputError("the DataFrame is not a streaming one: read it with spark.readStream")
        refuse_native_state(df)
        refuse_second_watermark(df, "from_df")
        self._endless = True
        return DataStream(self, df)

    def from_source(self, source: Source, watermark: tuple[str, Time | str] | None = None) -> DataStream:
        """A stream of a source such as `KafkaSource(...)`, or of any object with `load(spark)`.

        `watermark` names the column with the event time and how late rows may be: `("time", Time.seconds(10))`, or
        `"10 seconds"`.
        """
        if not isinstance(source, Source):
            raise InvalidInputError(f"from_source takes a source such as FileSource, not {type(source).__name__}")
        given: Any = watermark
        if given is not None and not (isinstance(given, (tuple, list)) and len(given) == 2):
            raise InvalidInputError(
                f"from_source: watermark is a pair such as ('time', Time.seconds(10)), not {watermark!r}"
            )
        endless = self._endless or not getattr(source, "bounded", False)
        stream = self.from_df(source.load(self.spark))
        self._endless = endless
        stream.bare = bool(getattr(source, "bare", False))
        return stream if watermark is None else stream._with_watermark(*watermark, "from_source")

    def from_collection(
        self, collection: Iterable[Any], type_info: Any = None, rows_per_epoch: int | None = None
    ) -> DataStream:
        """A stream of the elements of a collection: rows (tuples, lists, dicts), or single values.

        `type_info` is DDL such as `"user string, n bigint"`, or one of `Types`; without it Spark infers the types.
        Functions are given single values as they are: `env.from_collection([1, 2, 3]).map(lambda v: v + 1)`. In the
        stream's `df` they are a column `value`.
        """
        from cairn.connectors.generated_sources import (
            CollectionSource,  # its base classes cost the start of every worker
        )

        return self.from_source(CollectionSource(collection, type_info, rows_per_epoch))

    def read_text_file(self, path: str) -> DataStream:
        """The lines of the files in a directory, also of those that come later, in a column `value`."""
        return self.from_source(FileSource(path))

    def execute(self, job_name: str = "") -> JobHandle:
        """Run the job until it finishes or fails; an error of the job is raised here."""
        job = self.execute_async(job_name)
        job.await_termination()
        return job

    def execute_async(self, job_name: str = "") -> JobHandle:
        """Start the job and return at once. A job of this name that ran before goes on where it stopped."""
        if not job_name:
            raise InvalidInputError(
                "a job needs a name, as in env.execute('totals'): its state is kept under it, and the next run under "
                "the same name goes on from there"
            )
        if self._executed:
            raise InvalidInputError("this environment was executed already; make a new one for another job")
        if not self._sinks:
            raise InvalidInputError("the job has no sink; add one with stream.sink_to(...), NoopSink() if need be")
        check_workers(self.spark)
        parallelism, groups = self._parallelism()
        settings = self._settings
        if settings.checkpoints.storage == "jobmanager":
            settings = replace(settings, directory=jobmanager_directory())
        elif not settings.directory:
            settings = replace(settings, directory=DEFAULT_DIRECTORY)
            _log.warning(
                "no directory is configured; using %s (set execution.checkpointing.dir to choose another)",
                os.path.abspath(DEFAULT_DIRECTORY),
            )
        job_id = layout.checked(settings.job_id or layout.slug(job_name), "job id")
        files = LocalFileSystem(os.path.join(local_root(settings.directory), job_id))
        self._settings = recall(files, job_name, self._settings)
        settings = replace(self._settings, directory=settings.directory, parallelism=parallelism)
        policy = RestartPolicy(settings.restart, settings.checkpoints)
        publisher = Publisher(files, job_id, settings)
        handle = JobHandle(
            job_name, job_id, files.root, policy, settings.checkpoints.retention,
            settings.checkpoints.savepoint_dir, self._timers, publisher,
        )  # fmt: skip
        groups = self._take_stored_groups(files, groups)
        if self.plan_hooks:
            self.plan_hooks[-1](self._plan(files, settings, job_name))
        began = time.perf_counter()
        recovered = self._recover(handle, files, settings, groups)
        self._executed = True
        spent = (time.perf_counter() - began) * 1000
        sweep_leftovers(files)
        newest = recovered.manifest.epoch if recovered.manifest is not None else -1
        if recovered.manifest is not None and recovered.manifest.run != recovered.run.run:
            tell_start(job_name, recovered.run.run, newest)
        tell_of_unfinished_stops(files, job_id, newest)
        again = replace(settings, restore_path="")

        def restart(thorough: bool) -> None:
            since = time.perf_counter()
            found = self._recover(handle, files, again, groups, thorough)
            self._tell(publisher, found, "", (time.perf_counter() - since) * 1000)
            self._start(handle, files, found, again)

        handle._restart = restart
        handle._release = self._close_sinks
        self._tell(publisher, recovered, settings.restore_path, spent)
        announce_discards(CheckpointStore(files), job_name, recovered, settings.checkpoints)
        self._start(handle, files, recovered, settings)
        return handle

    def _execute_once(self, job_name: str) -> JobHandle:
        """Start a job that nothing is kept of once the driver ends, so that the next run starts anew."""
        self._settings = replace(self._settings, directory=driver_directory())
        return self.execute_async(job_name)

    def _tell(self, publisher: Publisher, recovered: Recovered, path: str, spent_ms: float) -> None:
        sinks = [{"uid": sink.uid, "kind": sink.kind} for _, sink in self._sinks]
        if self._graph is None:  # the same in every run
            ends = [(stream.node, sink.uid, sink.kind) for stream, sink in self._sinks]
            self._graph = topology(ends, self._operators, self._functions)
        publisher.started(recovered, sinks, self._graph, path, spent_ms)

    def _recover(
        self, handle: JobHandle, files: LocalFileSystem, settings: Settings, groups: int, thorough: bool = False
    ) -> Recovered:
        def prepare() -> None:
            check_promises(files)
            self._start_sinks(files.root)

        with held(settings.restore_path):
            start = StartRequest(
                files, handle.job_id, handle.name, settings, settings.parallelism, groups,
                [spec.uid for spec in self._operators], compact_interval=self._compact_interval(),
                restorer=Restorer(self._shape, SparkMover(self.spark)),
                sources=lambda: self._source_names(final_frame(self._sinks)[0]),
            )  # fmt: skip
            return recover(start, int(time.time() * 1000), prepare, thorough)

    def _compact_interval(self) -> int:
        return int(self.spark.conf.get(COMPACT_SETTING, None) or COMPACT_INTERVAL)

    def _shape(self) -> JobShape:
        """What the job looks like to a restore. Runs `open()` of its functions once, in a Spark task."""
        return JobShape(
            operators={spec.uid: key_ddl(spec.key_types) for spec in self._operators},
            declared=probe(self.spark, self._operators, self._settings.parameters),
            parallelism=self._parallelism()[0],
            max_parallelism=self._settings.max_parallelism,
            sources=self._source_names(final_frame(self._sinks)[0]),
        )

    def _plan(self, files: LocalFileSystem, settings: Settings, job_name: str) -> RestorePlan:
        """What a start from the snapshot that the settings name would do."""
        return plan_restore(files, job_name, settings, self._shape, self._compact_interval())

    def _source_names(self, frame: DataFrame) -> list[str]:
        return source_names(frame) + ([TICKS] if self._timers else [])

    def _start(self, handle: JobHandle, files: LocalFileSystem, recovered: Recovered, settings: Settings) -> None:
        spark = self.spark
        frame, readers = final_frame(self._sinks)
        names = self._source_names(frame)
        manifest = recovered.manifest
        spark_folder = os.path.join(files.root, manifest.spark if manifest is not None else layout.SPARK)
        run = recovered.run.run
        steady = RetryingFileSystem(files)
        background = Background(spark, idle=lambda: handle._gate.idle)
        compactor = Compactor(compaction_job(background, files.root, run), settings.compaction_chain)
        plans = [OperatorPlan(spec.uid, spec.name, spec.parallelism) for spec in self._operators]
        sinks = [sink for _, sink in self._sinks]
        coordinator = make_coordinator(
            spark, handle, files, steady, background, recovered, settings, plans, sinks, self._acks(),
            self._compact_interval(),
        )  # fmt: skip
        batches = ArrowBatches(spark, frame, [plan.uid for plan in plans], sinks)
        loop = EpochLoop(
            files=steady,
            identity=recovered.identity,
            run=recovered.run,
            operators=plans,
            sinks=sinks,
            cluster=SparkCluster(spark, self._acks(), readers),
            offsets=LocalOffsets(spark_folder),
            settings=settings,
            current=recovered.manifest,
            compactor=compactor,
            listener=batches.listening(handle._on_epoch),
            checkpoints=coordinator,
            source_names=names,
            timekeeper=TimeKeeper(steady, settings.max_jump_ms, settings.max_downtime_ms, settings.time_reset),
        )
        complete_plan(spark_folder, names, int(time.time() * 1000))
        with query_settings(spark):
            frame = with_ticks(spark, frame) if self._timers else frame
            writer = frame.writeStream.foreachBatch(handle._guarded(batches.between(loop.run_epoch)))
            writer = writer.option("checkpointLocation", as_url(spark_folder)).trigger(**self._effective_trigger(names))
            query = writer.start()
        if handle._publisher is not None:
            vertices = [(v["id"], v["name"]) for v in self._graph or () if v["kind"] == "source"]
            handle._publisher.watch(SourceRows(query, names, vertices))
        control = Control(steady, coordinator, actions_of(handle))

        failing = FailFast(spark, str(query.runId))

        resumed = manifest.epoch if manifest is not None and handle._query is None else None
        idle = NothingNew(handle.name, resumed, query, lambda: len(handle.epochs()))

        def between() -> None:
            failing.look()
            idle.look()
            control.serve()
            if handle._publisher is not None:
                handle._publisher.look()
                handle._publisher.recorder.due()

        watch = RunWatch(Runs(files), run, lambda error: handle._fail(error, query))
        thread = CheckpointThread(coordinator, between, watch)
        handle._attach(recovered, query, compactor, coordinator, thread, control, loop)

    def _start_sinks(self, job_dir: str) -> None:
        for stream, sink in self._sinks:
            sink.may_repeat = self._settings.checkpoints.mode == CheckpointingMode.AT_LEAST_ONCE.value
            sink.start(self.spark, job_dir, stream.df.schema)

    def _close_sinks(self) -> None:
        for _, sink in self._sinks:
            try:
                sink.close()
            except Exception:  # noqa: BLE001 - a run has ended; what it leaves open hurts nobody
                _log.exception("sink %s could not be closed", sink.uid)

    def _effective_trigger(self, sources: Sequence[str]) -> dict[str, Any]:
        """The trigger that is set; a job whose sources are all collections ends with them, as in Flink."""
        if self._trigger:
            return self._trigger
        if not self._endless and all(name in (TICKS, COLLECTION) or is_again(name) for name in sources):
            return {"availableNow": True}
        return {"processingTime": "1 second" if self._timers else "0 seconds"}

    # Used by streams.

    def _parallelism(self) -> tuple[int, int]:
        settings = self._settings
        parallelism = settings.parallelism or self.spark.sparkContext.defaultParallelism
        if settings.restore_path and not settings.max_parallelism and not self._stored_groups:
            with suppress(NotFoundError):  # told of later; a job that it has started may go on without it
                self._stored_groups = find(settings.restore_path).max_parallelism  # as in Flink, unless it is set
        groups = settings.max_parallelism or self._stored_groups or keygroups.default_max_parallelism(parallelism)
        keygroups.validate(parallelism, groups)
        return parallelism, groups

    def _take_stored_groups(self, files: LocalFileSystem, groups: int) -> int:
        """The key groups of a job that ran before, unless they are set: only now is it known which job this is.

        All frames are made again then. What was made of a stream's `df` cannot be, and is refused at the start.
        """
        identity = load_identity(files)
        stored = identity.max_parallelism if identity is not None else groups
        nodes = [stream.node for stream, _ in self._sinks]
        if stored == groups or self._settings.max_parallelism or self._stored_groups or hidden_functions(nodes):
            return groups
        keygroups.validate(self._parallelism()[0], stored)
        self._stored_groups = stored
        self._operators = [self._settled(spec) for spec in self._operators]
        forget_frames(nodes)
        return stored

    def _settled(self, spec: OperatorSpec) -> OperatorSpec:
        """An operator with the number of key groups that the job has."""
        return replace(spec, max_parallelism=self._parallelism()[1])

    def _claim_uid(self, uid: str | None, base: str, what: str) -> str:
        if uid is None:
            if not self._settings.auto_uids and what in ("operator", "sink"):  # the others keep nothing under it
                raise InvalidInputError(f"the {what} '{base}' has no uid, and pipeline.auto-generate-uids is false")
            number = 1 + sum(1 for known in self._uids if known.startswith(f"auto-{base}-"))
            uid = f"auto-{base}-{number}"
            if what == "operator":
                warnings.warn(
                    f"operator '{base}' has no uid and is called '{uid}' by its place in the job. Set uid=...: its "
                    "state is found by the uid, and a generated one changes when operators are added or removed.",
                    stacklevel=4,
                )
        layout.checked(uid, f"{what} uid")
        if uid in self._uids:
            raise InvalidInputError(f"the uid '{uid}' is used twice; every operator and sink needs its own", uid=uid)
        self._uids.add(uid)
        return uid

    def _no_operators_yet(self, call: str) -> None:
        if self._operators:
            raise InvalidInputError(f"call {call} before the first operator is added")

    def _add_operator(self, spec: OperatorSpec, timers: bool) -> None:
        self._operators.append(spec)
        self._timers = self._timers or timers

    def _add_sink(self, stream: DataStream, sink: BaseSink) -> None:
        tables = [known.name for _, known in self._sinks if isinstance(known, TableSink)]
        if isinstance(sink, TableSink) and sink.name in tables:
            raise InvalidInputError(f"the table '{sink.name}' has a sink already; give this one another name")
        self._sinks.append((stream, sink))

    def _acks(self) -> Any:
        if self._collector is None:
            self._collector = collector(self.spark.sparkContext)
        return self._collector
