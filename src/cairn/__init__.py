"""cairn: Flink's keyed state, checkpoints and rollback for PySpark Structured Streaming.

The public names are loaded on first use, so that importing the package costs nothing where only a part is needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "cairn.api.environment": ("StreamExecutionEnvironment",),
    "cairn.api.connected_streams": ("BroadcastConnectedStream", "BroadcastStream", "ConnectedStreams"),
    "cairn.api.keyed_stream": ("KeyedStream",),
    "cairn.api.data_stream": ("DataStream",),
    "cairn.api.interval_join": ("IntervalJoin",),
    "cairn.api.windowed_stream": ("AllWindowedStream", "WindowedStream"),
    "cairn.api.job_handle": ("JobHandle",),
    "cairn.job.life_cycle": ("JobStatus",),
    "cairn.api.savepoint": ("Savepoint",),
    "cairn.api.data_source": ("register",),
    "cairn.api.state_backends": ("EmbeddedRocksDBStateBackend", "HashMapStateBackend", "LmdbStateBackend"),
    "cairn.api.checkpoint_config": (
        "CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointRetention", "FileSystemCheckpointStorage",
        "JobManagerCheckpointStorage", "RestartStrategies",
    ),
    "cairn.connectors.delta": ("DeltaSink",),
    "cairn.connectors.file_sink": ("FileSink",),
    "cairn.connectors.generated_sources": ("CollectionSource", "CrashMarker", "GeneratorSource", "ScriptedSource"),
    "cairn.connectors.jdbc": ("JdbcSink",),
    "cairn.connectors.kafka": ("DeliveryGuarantee", "KafkaSink"),
    "cairn.connectors.simple_sinks": ("ForeachEpochSink", "NoopSink", "PrintSink"),
    "cairn.connectors.sink_base": ("BaseSink",),
    "cairn.connectors.table_sink": ("TableSink",),
    "cairn.connectors.target_retry": ("Retry",),
    "cairn.connectors.staging": ("Staging",),
    "cairn.connectors.spark_sources": ("FileSource", "KafkaSource", "SocketSource"),
    "cairn.errors": (
        "CairnError", "CheckpointFailedError", "CorruptFileError", "EpochFailedError", "FencedError",
        "IncompatibleStateError", "InternalError", "InvalidInputError", "MissingPackageError", "NotFoundError",
        "StateMisuseError", "StateTypeError", "StorageError", "UnsupportedError", "UserFunctionError",
    ),
    "cairn.model.checkpoint_records": ("CheckpointInfo", "CheckpointStatus", "CheckpointType"),
    "cairn.model.assigners": (
        "CountSlidingWindowAssigner", "CountTumblingWindowAssigner", "EventTimeSessionWindows", "GlobalWindows",
        "ProcessingTimeSessionWindows", "SlidingEventTimeWindows", "SlidingProcessingTimeWindows",
        "TumblingEventTimeWindows", "TumblingProcessingTimeWindows",
    ),
    "cairn.model.descriptors": (
        "AggregatingStateDescriptor", "ListStateDescriptor", "MapStateDescriptor", "ReducingStateDescriptor",
        "StateDescriptor", "StateTtlConfig", "Time", "ValueStateDescriptor",
    ),
    "cairn.model.functions": (
        "AggregateFunction", "AggregatingState", "CheckpointListener", "KeyedProcessFunction", "ListState", "MapState",
        "MergingState", "ReduceFunction", "ReducingState", "RuntimeContext", "TimeDomain", "TimerService", "ValueState",
    ),
    "cairn.model.output_tags": ("OutputTag",),
    "cairn.model.process_functions": (
        "BroadcastProcessFunction", "BroadcastState", "CheckpointedFunction", "CoProcessFunction",
        "KeyedBroadcastProcessFunction", "KeyedCoProcessFunction", "OperatorStateStore", "ProcessFunction",
        "ProcessJoinFunction", "ReadOnlyBroadcastState",
    ),
    "cairn.model.simple_functions": (
        "CoFlatMapFunction", "CoMapFunction", "FilterFunction", "FlatMapFunction", "Function", "KeySelector",
        "MapFunction",
    ),
    "cairn.model.triggers": (
        "ContinuousEventTimeTrigger", "ContinuousProcessingTimeTrigger", "CountTrigger", "EventTimeTrigger",
        "NeverTrigger", "ProcessingTimeTrigger", "PurgingTrigger",
    ),
    "cairn.model.types": ("Types",),
    "cairn.model.windows": (
        "AllWindowFunction", "CountWindow", "CountWindowSerializer", "GlobalWindow", "GlobalWindowSerializer",
        "KeyedStateStore", "MergingWindowAssigner", "ProcessAllWindowFunction", "ProcessWindowFunction",
        "SessionWindowTimeGapExtractor", "TimeWindow", "TimeWindowSerializer", "Trigger", "TriggerResult", "Window",
        "WindowAssigner", "WindowFunction", "WindowSerializer",
    ),
    "cairn.api.results": ("CloseableIterator", "DataStreamSink"),
    "cairn.runtime.batch_operator": ("BatchContext",),
}  # fmt: skip
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from cairn.api.checkpoint_config import (
        CheckpointConfig,
        CheckpointingMode,
        ExternalizedCheckpointRetention,
        FileSystemCheckpointStorage,
        JobManagerCheckpointStorage,
        RestartStrategies,
    )
    from cairn.api.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from cairn.api.data_source import register
    from cairn.api.data_stream import DataStream
    from cairn.api.environment import StreamExecutionEnvironment
    from cairn.api.interval_join import IntervalJoin
    from cairn.api.job_handle import JobHandle
    from cairn.api.keyed_stream import KeyedStream
    from cairn.api.results import CloseableIterator, DataStreamSink
    from cairn.api.savepoint import Savepoint
    from cairn.api.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend, LmdbStateBackend
    from cairn.api.windowed_stream import AllWindowedStream, WindowedStream
    from cairn.connectors.delta import DeltaSink
    from cairn.connectors.file_sink import FileSink
    from cairn.connectors.generated_sources import CollectionSource, CrashMarker, GeneratorSource, ScriptedSource
    from cairn.connectors.jdbc import JdbcSink
    from cairn.connectors.kafka import DeliveryGuarantee, KafkaSink
    from cairn.connectors.simple_sinks import ForeachEpochSink, NoopSink, PrintSink
    from cairn.connectors.sink_base import BaseSink
    from cairn.connectors.spark_sources import FileSource, KafkaSource, SocketSource
    from cairn.connectors.staging import Staging
    from cairn.connectors.table_sink import TableSink
    from cairn.connectors.target_retry import Retry
    from cairn.errors import (
        CairnError,
        CheckpointFailedError,
        CorruptFileError,
        EpochFailedError,
        FencedError,
        IncompatibleStateError,
        InternalError,
        InvalidInputError,
        MissingPackageError,
        NotFoundError,
        StateMisuseError,
        StateTypeError,
        StorageError,
        UnsupportedError,
        UserFunctionError,
    )
    from cairn.job.life_cycle import JobStatus
    from cairn.model.assigners import (
        CountSlidingWindowAssigner,
        CountTumblingWindowAssigner,
        EventTimeSessionWindows,
        GlobalWindows,
        ProcessingTimeSessionWindows,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
    )
    from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType
    from cairn.model.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        StateTtlConfig,
        Time,
        ValueStateDescriptor,
    )
    from cairn.model.functions import (
        AggregateFunction,
        AggregatingState,
        CheckpointListener,
        KeyedProcessFunction,
        ListState,
        MapState,
        MergingState,
        ReduceFunction,
        ReducingState,
        RuntimeContext,
        TimeDomain,
        TimerService,
        ValueState,
    )
    from cairn.model.output_tags import OutputTag
    from cairn.model.process_functions import (
        BroadcastProcessFunction,
        BroadcastState,
        CheckpointedFunction,
        CoProcessFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        OperatorStateStore,
        ProcessFunction,
        ProcessJoinFunction,
        ReadOnlyBroadcastState,
    )
    from cairn.model.simple_functions import (
        CoFlatMapFunction,
        CoMapFunction,
        FilterFunction,
        FlatMapFunction,
        Function,
        KeySelector,
        MapFunction,
    )
    from cairn.model.triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        CountTrigger,
        EventTimeTrigger,
        NeverTrigger,
        ProcessingTimeTrigger,
        PurgingTrigger,
    )
    from cairn.model.types import Types
    from cairn.model.windows import (
        AllWindowFunction,
        CountWindow,
        CountWindowSerializer,
        GlobalWindow,
        GlobalWindowSerializer,
        KeyedStateStore,
        MergingWindowAssigner,
        ProcessAllWindowFunction,
        ProcessWindowFunction,
        SessionWindowTimeGapExtractor,
        TimeWindow,
        TimeWindowSerializer,
        Trigger,
        TriggerResult,
        Window,
        WindowAssigner,
        WindowFunction,
        WindowSerializer,
    )
    from cairn.runtime.batch_operator import BatchContext

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowFunction",
    "AllWindowedStream",
    "BaseSink",
    "BatchContext",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CairnError",
    "CheckpointConfig",
    "CheckpointFailedError",
    "CheckpointInfo",
    "CheckpointListener",
    "CheckpointStatus",
    "CheckpointType",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectionSource",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CorruptFileError",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "CountWindowSerializer",
    "CrashMarker",
    "DataStream",
    "DataStreamSink",
    "DeliveryGuarantee",
    "DeltaSink",
    "EmbeddedRocksDBStateBackend",
    "EpochFailedError",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "ExternalizedCheckpointRetention",
    "FencedError",
    "FileSink",
    "FileSource",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FlatMapFunction",
    "ForeachEpochSink",
    "Function",
    "GeneratorSource",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "GlobalWindows",
    "HashMapStateBackend",
    "IncompatibleStateError",
    "InternalError",
    "IntervalJoin",
    "InvalidInputError",
    "JdbcSink",
    "JobHandle",
    "JobManagerCheckpointStorage",
    "JobStatus",
    "KafkaSink",
    "KafkaSource",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "LmdbStateBackend",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "MergingWindowAssigner",
    "MissingPackageError",
    "NeverTrigger",
    "NoopSink",
    "NotFoundError",
    "OperatorStateStore",
    "OutputTag",
    "PrintSink",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "Retry",
    "RuntimeContext",
    "Savepoint",
    "ScriptedSource",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SocketSource",
    "Staging",
    "StateDescriptor",
    "StateMisuseError",
    "StateTtlConfig",
    "StateTypeError",
    "StorageError",
    "StreamExecutionEnvironment",
    "TableSink",
    "Time",
    "TimeDomain",
    "TimeWindow",
    "TimeWindowSerializer",
    "TimerService",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Types",
    "UnsupportedError",
    "UserFunctionError",
    "ValueState",
    "ValueStateDescriptor",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowSerializer",
    "WindowedStream",
    "register",
]


def __getattr__(name: str) -> Any:
    home = _WHERE.get(name)
    if home is None:
        from cairn.model.pyflink_names import import_error

        error = import_error(name)
        if error is not None:
            raise error
        raise AttributeError(f"module 'cairn' has no attribute {name!r}")
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        from cairn.errors import MissingPackageError

        raise MissingPackageError(
            f"cairn.{name} needs PySpark, which is not installed for {sys.executable}. "
            "Install it with: pip install 'cairn-streaming[spark]'",
            remedy="Run: pip install 'cairn-streaming[spark]'",
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
