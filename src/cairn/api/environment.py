"""The way in: `StreamExecutionEnvironment` collects streams, operators and sinks, and starts them as a job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cairn import config as configuration
from cairn.api.checkpoint_config import CheckpointConfig, CheckpointingMode
from cairn.api.data_source import register
from cairn.api.data_stream import DataStream, add_watermark
from cairn.api.job_handle import JobHandle
from cairn.api.state_backends import BackendChoice
from cairn.config import RestartSettings, Settings
from cairn.config.remembered_options import restart_keys
from cairn.config.settings import CONFIG_VARIABLE
from cairn.connectors.generated_sources import CollectionSource
from cairn.connectors.spark_sources import FileSource, Source
from cairn.errors import InvalidInputError
from cairn.model import keygroups
from cairn.model.descriptors import Time
from cairn.model.pyflink_names import PyFlinkNames
from cairn.spark.event_time import refuse_second_watermark
from cairn.spark.job_definition import JobDefinition
from cairn.spark.job_start import start_job
from cairn.spark.plan_checks import refuse_native_state
from cairn.spark.session import local_session
from cairn.spark.stream_graph import FrameNode
from cairn.state.backend import load_backend


class StreamExecutionEnvironment(PyFlinkNames):
    """A job in the making. Get one with `get_execution_environment`, execute it once."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.definition = JobDefinition(spark, settings)
        """What the streams of this environment have added to the job so far."""

    @staticmethod
    def get_execution_environment(
        spark: SparkSession | None = None, config: Mapping[str, Any] | None = None
    ) -> StreamExecutionEnvironment:
        """An environment on the given Spark session, on the active one, or on a local one that is started.

        `config` takes Flink's keys. The options `-D`, `-p` and `--master` of `cairn run` take precedence over it, and
        the `set_*` methods over both.
        """
        options = json.loads(os.environ.get(CONFIG_VARIABLE) or "{}")
        settings = configuration.parse(config or {}, options, origins=("config", "-D"))
        load_backend(settings.backend)
        if spark is None:
            spark = local_session(settings.spark)
        if not hasattr(spark, "_jsparkSession"):
            raise InvalidInputError("cairn needs a classic Spark session; Spark Connect has no way to reach the tasks")
        register(spark)
        return StreamExecutionEnvironment(spark, settings)

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """The number of subtasks of every operator. Call it before operators are added."""
        self.definition.refuse_operators("set_parallelism")
        keygroups.validate(parallelism, self.definition.settings.max_parallelism or keygroups.MAX_PARALLELISM_LIMIT)
        self.definition.change(parallelism=parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """The number of key groups: the highest parallelism that the job can ever have. Fixed at its first start."""
        self.definition.refuse_operators("set_max_parallelism")
        keygroups.validate(1, max_parallelism)
        self.definition.change(max_parallelism=max_parallelism)
        return self

    def get_parallelism(self) -> int:
        return self.definition.parallelism

    def get_max_parallelism(self) -> int:
        return self.definition.max_parallelism

    def set_state_backend(self, backend: BackendChoice) -> StreamExecutionEnvironment:
        """`LmdbStateBackend()`, `HashMapStateBackend()`, `EmbeddedRocksDBStateBackend()`, or a backend's name."""
        self.definition.refuse_operators("set_state_backend")
        name = backend if isinstance(backend, str) else getattr(backend, "name", "")
        load_backend(name)
        self.definition.change(backend=name)
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
            self.definition.settings = settings

        return CheckpointConfig(lambda: self.definition.settings, write)

    def set_restart_strategy(self, strategy: RestartSettings) -> StreamExecutionEnvironment:
        """What happens after a failure: `RestartStrategies.fixed_delay_restart(3, Time.seconds(10))` and others."""
        if not isinstance(strategy, RestartSettings):
            raise InvalidInputError(
                f"set_restart_strategy takes what RestartStrategies gives, not {type(strategy).__name__}"
            )
        settings = self.definition.settings
        origins = {**settings.given, **dict.fromkeys(restart_keys(strategy.type), "code")}
        settings = replace(settings, restart=strategy, given=origins)
        configuration.check(settings)
        self.definition.settings = settings
        return self

    def set_default_savepoint_directory(self, path: str) -> StreamExecutionEnvironment:
        """The directory for savepoints that are triggered without one."""
        options = {"execution.checkpointing.savepoint-dir": path}
        self.definition.settings = configuration.with_options(self.definition.settings, options)
        return self

    def set_trigger(
        self, processing_time: str | None = None, available_now: bool = False
    ) -> StreamExecutionEnvironment:
        """When epochs start: `processing_time="1 second"`, or `available_now=True` to run what is there and finish."""
        if bool(processing_time) == bool(available_now):
            raise InvalidInputError("set_trigger takes either processing_time='1 second' or available_now=True")
        self.definition.trigger = {"availableNow": True} if available_now else {"processingTime": str(processing_time)}
        return self

    def from_df(self, df: DataFrame) -> DataStream:
        """A stream of any streaming DataFrame."""
        node = _checked_frame(df)
        self.definition.unbounded = True
        return DataStream(self, node)

    def from_source(self, source: Source, watermark: tuple[str, Time | str] | None = None) -> DataStream:
        """A stream of a source such as `KafkaSource(...)`, or of any object with `load(spark)`.

        `watermark` names the column with the event time and how late rows may be: `("time", Time.seconds(10))`, or
        `"10 seconds"`.
        """
        if not isinstance(source, Source):
            raise InvalidInputError(f"from_source takes a source such as FileSource, not {type(source).__name__}")
        pair: Any = watermark
        if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise InvalidInputError(
                f"from_source: watermark is a pair such as ('time', Time.seconds(10)), not {watermark!r}"
            )
        node = _checked_frame(source.load(self.spark))
        stream = DataStream(self, node, bare=bool(getattr(source, "bare", False)))
        if not getattr(source, "bounded", False):
            self.definition.unbounded = True
        return stream if watermark is None else add_watermark(stream, *watermark, "from_source")

    def from_collection(
        self, collection: Iterable[Any], type_info: Any = None, rows_per_epoch: int | None = None
    ) -> DataStream:
        """A stream of the elements of a collection: rows (tuples, lists, dicts), or single values.

        `type_info` is DDL such as `"user string, n bigint"`, or one of `Types`; without it Spark infers the types.
        Functions get single values as they are: `env.from_collection([1, 2, 3]).map(lambda v: v + 1)`. In the
        stream's `df` they are a column `value`.
        """
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
        """Start the job and return at once. A job of this name that ran before continues where it stopped."""
        start = start_job(self.definition, job_name)
        return JobHandle(start.supervisor, start.publisher)


def _checked_frame(df: Any) -> FrameNode:
    """A streaming DataFrame as the beginning of a stream."""
    if not isinstance(df, DataFrame):
        raise InvalidInputError(f"from_df takes a Spark DataFrame, not {type(df).__name__}")
    if not df.isStreaming:
        raise InvalidInputError("the DataFrame is not a streaming one: read it with spark.readStream")
    refuse_native_state(df)
    refuse_second_watermark(df, "from_df")
    return FrameNode(df)
