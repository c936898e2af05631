"""PyFlink's names that cairn does not have, each with the way out.

A class that derives from `PyFlinkNames`, and every object of it, raises an error with that sentence for a name in its
table; `hasattr` is false for it, as for every other name that is missing. For the names of the package an `ImportError`
is raised: of an AttributeError `from cairn import X` would not show the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cairn.errors import UnsupportedAttributeError, UnsupportedImportError

_NAME = "operators take it as an argument, as in map(f, name='...')"
_UID = "operators and sinks take it as an argument, as in map(f, uid='...') and sink_to(sink, uid='...')"
_SINK_NAME = "sinks are shown by their uid, as in sink_to(sink, uid='...')"
_BEFORE_KEY = "call it on the stream in front of key_by"
_ONLY_CONNECTED = "a broadcast stream can only be connected, as in other.connect(stream.broadcast(descriptor))"
_PARALLELISM = "all operators have the parallelism of the job; call env.set_parallelism(n), or run with -p n"
_REPARTITION = "Spark distributes rows; to do it by hand, call transform(lambda df: df.repartition(n))"
_CHAINING = "Spark decides which steps run in one task; leave the call out"
_BUFFER = "rows travel by epoch; how often one begins is set by env.set_trigger(processing_time='1 second')"
_SLOTS = "Spark has no slots to share; resources are set by Spark's own options, as in -D spark.executor.cores=2"
_ENVIRONMENT = "use the attribute env"
_TYPE = "use df.schema, the columns of the stream"
_JAVA = "there is no Java object behind it"
_METRICS = "functions have no metrics of their own; the metrics of the job are described in docs/web.md"
_ASYNC = "call the client in map or process, or in process_batch for a whole batch of rows at a time"
_WATERMARKS = "call with_watermark('time', Time.seconds(10)), which takes the name of a timestamp column and the delay"
_UNALIGNED = "epochs have no barriers to align; leave the call out"
_TOLERABLE = "use set_tolerable_checkpoint_failure_number and get_tolerable_checkpoint_failure_number"
_CHANGELOG = "every epoch writes its changes already; leave the call out"
_CHECKPOINTS = "use get_checkpoint_config()"
_ROCKSDB = "the working store needs no tuning by hand; see docs/state.md, and docs/configuration.md for its directories"
_TTL = "read the attributes ttl, update_type, visibility and enabled"
_CLEANUP = "expired values go when they are touched, and at compaction after cleanup_full_snapshot()"
_NO_RESULT = "keep it in state, and read that with Savepoint or 'cairn state get'"
_STORAGE = "use FileSystemCheckpointStorage, or set execution.checkpointing.dir"
_EXECUTION_CONFIG = "set options on the environment, or as configuration: see docs/configuration.md"
_TYPE_INFO = "use Types.*, or a type in Spark's DDL such as 'bigint' or 'user string, n bigint'"
_INTERNAL = "it is a part of PyFlink's implementation"
_DELAY = "use Time, as in Time.seconds(10)"

_STREAM = {
    "assign_timestamps_and_watermarks": _WATERMARKS,
    "cache": "what is read more than once is computed once in an epoch; leave the call out",
    "disable_chaining": _CHAINING,
    "force_non_parallel": _PARALLELISM,
    "forward": "rows stay in their partition unless they are keyed; leave the call out",
    "get_execution_config": _EXECUTION_CONFIG,
    "get_execution_environment": _ENVIRONMENT,
    "get_name": "operators are named by the argument name, and listed on the job's page",
    "get_type": _TYPE,
    "iterate": "Spark's plans have no cycles; write to a topic or table, and read it as another source",
    "name": _NAME,
    "partition_custom": _REPARTITION,
    "project": "call transform(lambda df: df.select('a', 'c'))",
    "rebalance": _REPARTITION,
    "rescale": _REPARTITION,
    "set_buffer_timeout": _BUFFER,
    "set_description": _NAME,
    "set_max_parallelism": "all operators have the key groups of the job; call env.set_max_parallelism(n)",
    "set_parallelism": _PARALLELISM,
    "set_uid_hash": _UID,
    "shuffle": _REPARTITION,
    "slot_sharing_group": _SLOTS,
    "start_new_chain": _CHAINING,
    "uid": _UID,
    "uid_hash": _UID,
}
_WINDOWED = {
    "evictor": "leave out rows in the window function; all rows of a window are given to it",
    "get_execution_environment": _ENVIRONMENT,
    "get_input_type": _TYPE,
}
_SINK = {
    "disable_chaining": _CHAINING,
    "name": _SINK_NAME,
    "set_description": _SINK_NAME,
    "set_parallelism": _PARALLELISM,
    "set_uid_hash": _UID,
    "slot_sharing_group": _SLOTS,
    "uid": _UID,
}
_ENV = {
    "add_classpaths": "start with -D spark.jars=... or -D spark.jars.packages=...",
    "add_jars": "start with -D spark.jars=... or -D spark.jars.packages=...",
    "add_python_archive": "start with -D spark.archives=...",
    "add_python_file": "start with -D spark.submit.pyFiles=..., or call env.spark.sparkContext.addPyFile(path)",
    "add_source": "call from_source(source), with an object whose load(spark) makes a streaming DataFrame, or from_df",
    "clear_job_listeners": "ask the JobHandle that execute_async returns",
    "close": "the Spark session stays open for other jobs; env.spark.stop() ends it",
    "configure": "pass options to get_execution_environment(config={...}), or -D key=value to 'cairn run'",
    "create_input": "call from_source(source) or from_df(df)",
    "disable_operator_chaining": _CHAINING,
    "enable_changelog_state_backend": _CHANGELOG,
    "generate_sequence": "use from_source(GeneratorSource(lambda i: (i,), 'n bigint', count=n))",
    "get_buffer_timeout": _BUFFER,
    "get_checkpoint_interval": _CHECKPOINTS,
    "get_checkpointing_consistency_mode": _CHECKPOINTS,
    "get_checkpointing_mode": _CHECKPOINTS,
    "get_config": _EXECUTION_CONFIG,
    "get_default_local_parallelism": "use get_parallelism()",
    "get_default_savepoint_directory": "it is what execution.checkpointing.savepoint-dir is set to",
    "get_execution_plan": "the job's page shows the graph; 'cairn plan' shows what a start would do",
    "get_state_backend": "it is what state.backend.type is set to",
    "get_stream_graph": "the job's page shows the graph",
    "is_chaining_enabled": _CHAINING,
    "is_chaining_of_operators_with_different_max_parallelism_enabled": _CHAINING,
    "is_changelog_state_backend_enabled": _CHANGELOG,
    "is_force_unaligned_checkpoints": _UNALIGNED,
    "is_unaligned_checkpoints_enabled": _CHECKPOINTS,
    "register_cached_file": "call env.spark.sparkContext.addFile(path), and SparkFiles.get(name) in open()",
    "register_job_listener": "ask the JobHandle that execute_async returns, or call its add_epoch_listener",
    "register_slot_sharing_group": _SLOTS,
    "set_buffer_timeout": _BUFFER,
    "set_default_local_parallelism": "call set_parallelism(n), or run with -p n",
    "set_python_executable": "set the environment variable PYSPARK_PYTHON, or start with -D spark.pyspark.python=...",
    "set_python_requirements": "install them on the workers, or pack an environment for -D spark.archives=...",
    "set_runtime_mode": "call set_trigger(available_now=True) to run what is there and finish",
    "set_stream_time_characteristic": "a stream with with_watermark has event time; timers and windows name their own",
    "socket_text_stream": "use from_source(SocketSource(host, port))",
}
_JOB = {
    "get_accumulator_result": _NO_RESULT,
    "get_accumulators": _NO_RESULT,
    "get_all_accumulator_results": _NO_RESULT,
    "get_job_execution_result": "call await_termination(); epochs() has a report of every epoch",
    "get_job_id": "use the attribute job_id",
    "get_job_status": "call status()",
    "get_net_runtime": "epochs() has a report of every epoch with its duration",
    "is_job_execution_result": "call status()",
}
_CHECKPOINT_CONFIG = {
    "get_alignment_timeout": "use get_aligned_checkpoint_timeout()",
    "is_externalized_checkpoints_enabled": "call get_externalized_checkpoint_retention()",
    "is_fail_on_checkpointing_errors": _TOLERABLE,
    "is_force_unaligned_checkpoints": _UNALIGNED,
    "set_alignment_timeout": "use set_aligned_checkpoint_timeout()",
    "set_fail_on_checkpointing_errors": _TOLERABLE,
    "set_force_unaligned_checkpoints": _UNALIGNED,
    "enable_externalized_checkpoints": "use set_externalized_checkpoint_retention()",
}
_RUNTIME_CONTEXT = {"get_metrics_group": _METRICS}

NAMES: dict[str, dict[str, str]] = {
    "DataStream": _STREAM,
    "KeyedStream": _STREAM
    | {"AccumulateType": _INTERNAL, "broadcast": _BEFORE_KEY, "get_side_output": _BEFORE_KEY},
    "BroadcastStream": dict.fromkeys(
        ("add_sink", "filter", "flat_map", "key_by", "map", "print", "process", "sink_to", "union"), _ONLY_CONNECTED
    ),
    "WindowedStream": _WINDOWED,
    "DataStreamSink": _SINK,
    "StreamExecutionEnvironment": _ENV,
    "JobHandle": _JOB,
    "CheckpointConfig": _CHECKPOINT_CONFIG,
    "TaskRuntimeContext": _RUNTIME_CONTEXT,
    "PlainRuntimeContext": _RUNTIME_CONTEXT,
    "_View": {"get_metric_group": _METRICS},
    "OutputTag": {"get_java_output_tag": _JAVA},
    "ReducingStateDescriptor": {"get_reduce_function": "use the attribute reduce, a function of two values"},
    "AggregatingStateDescriptor": {"get_agg_function": "use the attribute aggregate"},
    "StateTtlConfig": dict.fromkeys(
        ("get_state_visibility", "get_ttl", "get_ttl_time_characteristic", "get_update_type", "is_enabled"), _TTL
    )
    | {
        "Builder": "call StateTtlConfig.new_builder(Time.hours(1))",
        "CleanupStrategies": _CLEANUP,
        "TtlTimeCharacteristic": "a time to live counts in processing time; leave it out",
        "get_cleanup_strategies": _CLEANUP,
    },
    "StateTtlConfigBuilder": {
        "set_ttl_time_characteristic": "a time to live counts in processing time; leave the call out",
    },
    "Types": {
        "SQL_TIME": "Spark's columns have no time without a date; use Types.SQL_TIMESTAMP() or Types.LONG()",
        "ENUM": "use Types.STRING()",
        "LOCAL_DATE": "use Types.SQL_DATE()",
        "LOCAL_DATE_TIME": "use Types.SQL_TIMESTAMP()",
        "LOCAL_TIME": "Spark's columns have no time without a date; use Types.SQL_TIMESTAMP() or Types.LONG()",
    },
    "RestartStrategies": {
        "fall_back_restart": "leave set_restart_strategy out: then the configuration decides (restart-strategy.type)",
    }
    | dict.fromkeys(
        (
            "FailureRateRestartStrategyConfiguration", "FallbackRestartStrategyConfiguration",
            "FixedDelayRestartStrategyConfiguration", "NoRestartStrategyConfiguration",
        ),
        "call the functions of RestartStrategies, as in RestartStrategies.fixed_delay_restart(3, Time.seconds(10))",
    ),
    "EmbeddedRocksDBStateBackend": {
        "is_incremental_checkpoints_enabled": "use get_checkpoint_config().is_incremental_checkpoints_enabled()",
    }
    | dict.fromkeys(
        (
            "get_db_storage_paths", "get_number_of_transfer_threads", "get_options", "get_predefined_options",
            "set_db_storage_paths", "set_number_of_transfer_threads", "set_options", "set_predefined_options",
        ),
        _ROCKSDB,
    ),
    "JobManagerCheckpointStorage": {
        "DEFAULT_MAX_STATE_SIZE": "call get_max_state_size() of an object",
        "get_checkpoint_path": "checkpoints are held by the driver, and have no path",
        "get_savepoint_path": "call env.set_default_savepoint_directory(path)",
    },
    "FileSystemCheckpointStorage": {
        "MAX_FILE_STATE_THRESHOLD": "small state is kept in the manifest; there is no threshold to set",
        "get_min_file_size_threshold": "small state is kept in the manifest; there is no threshold to set",
        "get_savepoint_path": "call env.set_default_savepoint_directory(path)",
        "get_write_buffer_size": "there is no buffer to set",
    },
}  # fmt: skip
"""Names of attributes by the class that has them in PyFlink."""

IMPORTS: dict[str, str] = {
    "AppendingState": "use ListState, ReducingState or AggregatingState",
    "AssignerWithPeriodicWatermarksWrapper": _WATERMARKS,
    "AsyncDataStream": _ASYNC,
    "AsyncFunction": _ASYNC,
    "AsyncRetryPredicate": _ASYNC,
    "AsyncRetryStrategy": _ASYNC,
    "BasicType": _TYPE_INFO,
    "BasicTypeInfo": _TYPE_INFO,
    "ByteArraySchema": "KafkaSource(..., format='raw') gives bytes",
    "CheckpointStorage": _STORAGE,
    "CompletableFuture": "JobHandle.await_termination() waits for a job",
    "ConfigOption": _EXECUTION_CONFIG,
    "ConfigOptions": _EXECUTION_CONFIG,
    "Configuration": "a dict will do, as in get_execution_environment(config={'parallelism.default': 2})",
    "CustomCheckpointStorage": _STORAGE,
    "CustomStateBackend": "a custom state backend is an entry point: see docs/state.md",
    "DeserializationSchema": "KafkaSource(..., format='json', schema='...') parses records; or use Spark's functions",
    "Duration": _DELAY,
    "DynamicEventTimeSessionWindows": "use EventTimeSessionWindows.with_dynamic_gap(extractor)",
    "DynamicProcessingTimeSessionWindows": "use ProcessingTimeSessionWindows.with_dynamic_gap(extractor)",
    "Encoder": "FileSink(path, format='json') writes Parquet, JSON or CSV",
    "ExecutionConfig": _EXECUTION_CONFIG,
    "ExternalizedCheckpointCleanup": "use ExternalizedCheckpointRetention",
    "FsStateBackend": "use HashMapStateBackend with FileSystemCheckpointStorage",
    "InputDependencyConstraint": _CHAINING,
    "Instant": "use datetime, with a time zone",
    "JobClient": "execute_async returns a JobHandle",
    "JobExecutionResult": "execute returns a JobHandle",
    "JobID": "the id of a job is a text, JobHandle.job_id",
    "MemorySize": _SLOTS,
    "MemoryStateBackend": "use HashMapStateBackend with JobManagerCheckpointStorage",
    "NullByteKeySelector": _INTERNAL,
    "Partitioner": _REPARTITION,
    "PassThroughAllWindowFunction": _INTERNAL,
    "PassThroughWindowFunction": _INTERNAL,
    "PredefinedOptions": _ROCKSDB,
    "RestartStrategyConfiguration": "use RestartStrategies",
    "RocksDBStateBackend": "use EmbeddedRocksDBStateBackend",
    "Row": "rows are named tuples; a plain tuple or a dict does wherever a row is expected",
    "RowKind": "streams hold insertions only; put the kind of a change into a column",
    "RuntimeExecutionMode": "call env.set_trigger(available_now=True) to run what is there and finish",
    "SerializationSchema": "KafkaSink writes text, bytes or JSON: see docs/connectors.md",
    "SimpleStringSchema": "KafkaSource(..., format='string') and KafkaSink read and write text",
    "SinkFunction": "use ForeachEpochSink(function), or a BaseSink with two phases: see docs/sinks.md",
    "SlotSharingGroup": _SLOTS,
    "SourceFunction": "use GeneratorSource, or an object whose load(spark) makes a streaming DataFrame",
    "State": "use ValueState, ListState, MapState, ReducingState or AggregatingState",
    "StateBackend": "use LmdbStateBackend, HashMapStateBackend or EmbeddedRocksDBStateBackend",
    "StreamTableEnvironment": "use stream.transform(...) with Spark SQL, and env.spark",
    "TimeCharacteristic": "a stream with with_watermark has event time; timers and windows name their own",
    "TimestampAssigner": _WATERMARKS,
    "TypeInformation": _TYPE_INFO,
    "TypeSerializer": _TYPE_INFO,
    "WatermarkStrategy": _WATERMARKS,
}
IMPORTS |= dict.fromkeys(
    (
        "BasicArrayTypeInfo", "DateTypeInfo", "ExternalTypeInfo", "InstantTypeInfo", "ListTypeInfo",
        "LocalTimeTypeInfo", "MapTypeInfo", "ObjectArrayTypeInfo", "PickledBytesTypeInfo", "PrimitiveArrayTypeInfo",
        "RowTypeInfo", "SqlTimeTypeInfo", "TimeTypeInfo", "TimestampTypeInfo", "TupleTypeInfo",
    ),
    _TYPE_INFO,
)  # fmt: skip
"""Names that PyFlink's packages have."""


def attribute_error(owner: type, name: str) -> UnsupportedAttributeError | None:
    """The error for a name of PyFlink that a class lacks; None for any other name."""
    for kind in owner.__mro__:
        way_out = NAMES.get(kind.__name__, {}).get(name)
        if way_out is not None:
            return UnsupportedAttributeError(
                f"{owner.__name__} has no '{name}', which PyFlink has: {way_out}", name=name
            )
    return None


def import_error(name: str) -> UnsupportedImportError | None:
    """The error for a name of PyFlink that the package lacks; None for any other name."""
    way_out = IMPORTS.get(name)
    if way_out is None:
        return None
    return UnsupportedImportError(f"cairn has no '{name}', which PyFlink has: {way_out}", name=name)


class _Meta(type):
    """Names that are used without an object, such as those of `Types`."""

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(cls, name: str) -> Any:
            error = attribute_error(cls, name)
            if error is not None:
                raise error
            return type.__getattribute__(cls, name)  # raises Python's own error


class PyFlinkNames(metaclass=_Meta):
    """A class that PyFlink has, too: a name that only PyFlink's has ends in an error with the way out."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            error = attribute_error(type(self), name)
            if error is not None:
                raise error
            return object.__getattribute__(self, name)  # raises Python's own error, or that of a property
