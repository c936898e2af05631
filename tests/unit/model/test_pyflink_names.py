"""Every name that PyFlink offers exists here, or ends in a sentence with the way out.

The names are those of `pyflink.datastream`, `pyflink.common` and the modules that programs import from them, up to
Flink 2, with some that earlier versions had. Parts of PyFlink's implementation are left out.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import cairn
from cairn import (
    BroadcastStream,
    CairnError,
    CheckpointConfig,
    DataStream,
    JobHandle,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    UnsupportedError,
)
from cairn.errors import from_traceback, remedy
from cairn.model.pyflink_names import IMPORTS, NAMES, PyFlinkNames
from cairn.runtime.keyed_operator import TaskRuntimeContext
from cairn.runtime.map_functions import PlainRuntimeContext

EXPORTS = """
    AggregateFunction AggregatingState AggregatingStateDescriptor AllWindowFunction AllWindowedStream
    AppendingState AssignerWithPeriodicWatermarksWrapper AsyncDataStream AsyncFunction AsyncRetryPredicate
    AsyncRetryStrategy BasicArrayTypeInfo BasicType BasicTypeInfo BroadcastConnectedStream
    BroadcastProcessFunction BroadcastState BroadcastStream ByteArraySchema CheckpointConfig CheckpointStorage
    CheckpointingMode CloseableIterator CoFlatMapFunction CoMapFunction CoProcessFunction CompletableFuture
    ConfigOption ConfigOptions Configuration ConnectedStreams ContinuousEventTimeTrigger
    ContinuousProcessingTimeTrigger CountSlidingWindowAssigner CountTrigger CountTumblingWindowAssigner
    CountWindow CountWindowSerializer CustomCheckpointStorage CustomStateBackend DataStream DataStreamSink
    DateTypeInfo DeserializationSchema Duration DynamicEventTimeSessionWindows
    DynamicProcessingTimeSessionWindows EmbeddedRocksDBStateBackend Encoder EventTimeSessionWindows
    EventTimeTrigger ExecutionConfig ExternalTypeInfo ExternalizedCheckpointCleanup
    ExternalizedCheckpointRetention FileSystemCheckpointStorage FilterFunction FlatMapFunction FsStateBackend
    Function GlobalWindow GlobalWindowSerializer GlobalWindows HashMapStateBackend InputDependencyConstraint
    Instant InstantTypeInfo JobClient JobExecutionResult JobID JobManagerCheckpointStorage JobStatus KeySelector
    KeyedBroadcastProcessFunction KeyedCoProcessFunction KeyedProcessFunction KeyedStateStore KeyedStream
    ListState ListStateDescriptor ListTypeInfo LocalTimeTypeInfo MapFunction MapState MapStateDescriptor
    MapTypeInfo MemorySize MemoryStateBackend MergingState MergingWindowAssigner NeverTrigger
    ObjectArrayTypeInfo OperatorStateStore OutputTag Partitioner PassThroughAllWindowFunction
    PassThroughWindowFunction PickledBytesTypeInfo PredefinedOptions PrimitiveArrayTypeInfo
    ProcessAllWindowFunction ProcessFunction ProcessWindowFunction ProcessingTimeSessionWindows
    ProcessingTimeTrigger PurgingTrigger ReadOnlyBroadcastState ReduceFunction ReducingState
    ReducingStateDescriptor RestartStrategies RestartStrategyConfiguration RocksDBStateBackend Row RowKind
    RowTypeInfo RuntimeContext RuntimeExecutionMode SerializationSchema SessionWindowTimeGapExtractor
    SimpleStringSchema SinkFunction SlidingEventTimeWindows SlidingProcessingTimeWindows SlotSharingGroup
    SourceFunction SqlTimeTypeInfo State StateBackend StateDescriptor StateTtlConfig StreamExecutionEnvironment
    StreamTableEnvironment Time TimeCharacteristic TimeDomain TimeTypeInfo TimeWindow TimeWindowSerializer
    TimerService TimestampAssigner TimestampTypeInfo Trigger TriggerResult TumblingEventTimeWindows
    TumblingProcessingTimeWindows TupleTypeInfo TypeInformation TypeSerializer Types ValueState
    ValueStateDescriptor WatermarkStrategy Window WindowAssigner WindowFunction WindowedStream
"""
MEMBERS = {
    "AggregateFunction": """
        add create_accumulator get_result merge
    """,
    "AggregatingStateDescriptor": """
        get_agg_function
    """,
    "AllWindowFunction": """
        apply
    """,
    "AllWindowedStream": """
        aggregate allowed_lateness apply evictor get_execution_environment get_input_type process reduce
        side_output_late_data trigger
    """,
    "BroadcastConnectedStream": """
        process
    """,
    "BroadcastProcessFunction": """
        Context ReadOnlyContext process_broadcast_element process_element
    """,
    "BroadcastState": """
        put put_all remove
    """,
    "CheckpointConfig": """
        disable_unaligned_checkpoints enable_externalized_checkpoints enable_unaligned_checkpoints
        get_aligned_checkpoint_timeout get_alignment_timeout get_checkpoint_interval get_checkpoint_storage
        get_checkpoint_timeout get_checkpointing_mode get_externalized_checkpoint_retention
        get_max_concurrent_checkpoints get_min_pause_between_checkpoints
        get_tolerable_checkpoint_failure_number is_checkpointing_enabled is_externalized_checkpoints_enabled
        is_fail_on_checkpointing_errors is_force_unaligned_checkpoints is_unaligned_checkpoints_enabled
        set_aligned_checkpoint_timeout set_alignment_timeout set_checkpoint_interval set_checkpoint_storage
        set_checkpoint_storage_dir set_checkpoint_timeout set_checkpointing_mode
        set_externalized_checkpoint_retention set_fail_on_checkpointing_errors
        set_force_unaligned_checkpoints set_max_concurrent_checkpoints set_min_pause_between_checkpoints
        set_tolerable_checkpoint_failure_number
    """,
    "CloseableIterator": """
        close next
    """,
    "CoFlatMapFunction": """
        flat_map1 flat_map2
    """,
    "CoMapFunction": """
        map1 map2
    """,
    "CoProcessFunction": """
        Context process_element1 process_element2
    """,
    "ConnectedStreams": """
        flat_map key_by map process
    """,
    "CountWindow": """
        max_timestamp
    """,
    "DataStream": """
        add_sink assign_timestamps_and_watermarks broadcast cache connect disable_chaining
        execute_and_collect filter flat_map force_non_parallel forward get_execution_config
        get_execution_environment get_name get_side_output get_type iterate key_by map name partition_custom
        print process project rebalance rescale set_buffer_timeout set_description set_max_parallelism
        set_parallelism set_uid_hash shuffle sink_to slot_sharing_group start_new_chain uid uid_hash union
        window_all
    """,
    "DataStreamSink": """
        disable_chaining name set_description set_parallelism set_uid_hash slot_sharing_group uid
    """,
    "EmbeddedRocksDBStateBackend": """
        get_db_storage_paths get_number_of_transfer_threads get_options get_predefined_options
        is_incremental_checkpoints_enabled set_db_storage_paths set_number_of_transfer_threads set_options
        set_predefined_options
    """,
    "FileSystemCheckpointStorage": """
        MAX_FILE_STATE_THRESHOLD get_checkpoint_path get_min_file_size_threshold get_savepoint_path
        get_write_buffer_size
    """,
    "FilterFunction": """
        filter
    """,
    "FlatMapFunction": """
        flat_map
    """,
    "Function": """
        close open
    """,
    "GlobalWindow": """
        get max_timestamp
    """,
    "JobHandle": """
        cancel get_accumulator_result get_accumulators get_all_accumulator_results get_job_execution_result
        get_job_id get_job_status get_net_runtime is_job_execution_result stop_with_savepoint
        trigger_savepoint
    """,
    "JobManagerCheckpointStorage": """
        DEFAULT_MAX_STATE_SIZE get_checkpoint_path get_max_state_size get_savepoint_path
    """,
    "KeySelector": """
        get_key
    """,
    "KeyedBroadcastProcessFunction": """
        Context OnTimerContext ReadOnlyContext on_timer process_broadcast_element process_element
    """,
    "KeyedCoProcessFunction": """
        Context OnTimerContext on_timer process_element1 process_element2
    """,
    "KeyedProcessFunction": """
        Context OnTimerContext on_timer process_element
    """,
    "KeyedStateStore": """
        get_aggregating_state get_list_state get_map_state get_reducing_state get_state
    """,
    "KeyedStream": """
        AccumulateType add_sink broadcast cache connect count_window disable_chaining filter flat_map
        force_non_parallel forward get_name key_by map max max_by min min_by name partition_custom print
        process project rebalance reduce rescale set_buffer_timeout set_max_parallelism set_parallelism
        set_uid_hash shuffle slot_sharing_group start_new_chain sum uid union window
    """,
    "ListState": """
        add_all update
    """,
    "MapFunction": """
        map
    """,
    "MapState": """
        contains get is_empty items keys put put_all remove values
    """,
    "MergingWindowAssigner": """
        MergeCallback merge_windows
    """,
    "OperatorStateStore": """
        get_broadcast_state
    """,
    "OutputTag": """
        get_java_output_tag
    """,
    "ProcessAllWindowFunction": """
        Context clear process
    """,
    "ProcessFunction": """
        Context process_element
    """,
    "ProcessWindowFunction": """
        Context clear process
    """,
    "ReadOnlyBroadcastState": """
        contains get is_empty items keys values
    """,
    "ReduceFunction": """
        reduce
    """,
    "ReducingStateDescriptor": """
        get_reduce_function
    """,
    "RestartStrategies": """
        FailureRateRestartStrategyConfiguration FallbackRestartStrategyConfiguration
        FixedDelayRestartStrategyConfiguration NoRestartStrategyConfiguration failure_rate_restart
        fall_back_restart fixed_delay_restart no_restart
    """,
    "RuntimeContext": """
        get_attempt_number get_index_of_this_subtask get_job_parameter get_max_number_of_parallel_subtasks
        get_metrics_group get_number_of_parallel_subtasks get_task_name get_task_name_with_subtasks
    """,
    "SessionWindowTimeGapExtractor": """
        extract
    """,
    "StateDescriptor": """
        enable_time_to_live get_name
    """,
    "StateTtlConfig": """
        Builder CleanupStrategies StateVisibility TtlTimeCharacteristic UpdateType get_cleanup_strategies
        get_state_visibility get_ttl get_ttl_time_characteristic get_update_type is_enabled new_builder
    """,
    "StreamExecutionEnvironment": """
        add_classpaths add_jars add_python_archive add_python_file add_source clear_job_listeners close
        configure create_input disable_operator_chaining enable_changelog_state_backend enable_checkpointing
        execute execute_async from_collection from_source generate_sequence get_buffer_timeout
        get_checkpoint_config get_checkpoint_interval get_checkpointing_consistency_mode
        get_checkpointing_mode get_config get_default_local_parallelism get_default_savepoint_directory
        get_execution_environment get_execution_plan get_max_parallelism get_parallelism get_state_backend
        get_stream_graph is_chaining_enabled is_chaining_of_operators_with_different_max_parallelism_enabled
        is_changelog_state_backend_enabled is_force_unaligned_checkpoints is_unaligned_checkpoints_enabled
        read_text_file register_cached_file register_job_listener register_slot_sharing_group
        set_buffer_timeout set_default_local_parallelism set_default_savepoint_directory set_max_parallelism
        set_parallelism set_python_executable set_python_requirements set_restart_strategy set_runtime_mode
        set_state_backend set_stream_time_characteristic socket_text_stream
    """,
    "Time": """
        days hours milliseconds minutes seconds to_milliseconds
    """,
    "TimeDomain": """
        EVENT_TIME PROCESSING_TIME
    """,
    "TimeWindow": """
        cover get_window_start_with_offset intersects max_timestamp merge_windows
    """,
    "TimerService": """
        current_processing_time current_watermark delete_event_time_timer delete_processing_time_timer
        register_event_time_timer register_processing_time_timer
    """,
    "Trigger": """
        OnMergeContext TriggerContext can_merge clear on_element on_event_time on_merge on_processing_time
    """,
    "TriggerResult": """
        CONTINUE FIRE FIRE_AND_PURGE PURGE is_fire is_purge
    """,
    "Types": """
        BASIC_ARRAY BIG_DEC BIG_INT BOOLEAN BYTE CHAR DOUBLE FLOAT INSTANT INT LIST LONG MAP OBJECT_ARRAY
        PICKLED_BYTE_ARRAY PRIMITIVE_ARRAY ROW ROW_NAMED SHORT SQL_DATE SQL_TIME SQL_TIMESTAMP STRING TUPLE
    """,
    "ValueState": """
        update value
    """,
    "Window": """
        max_timestamp
    """,
    "WindowAssigner": """
        WindowAssignerContext assign_windows get_default_trigger get_window_serializer is_event_time
    """,
    "WindowFunction": """
        apply
    """,
    "WindowedStream": """
        aggregate allowed_lateness apply evictor get_execution_environment get_input_type process reduce
        side_output_late_data trigger
    """,
}
"""Methods, constants and nested classes, by their class. `JobHandle` has those of JobClient and JobExecutionResult."""


def names_of(owner: str) -> list[tuple[str, str]]:
    return [(owner, name) for name in MEMBERS[owner].split()]


@pytest.mark.parametrize("name", EXPORTS.split())
def test_a_name_of_the_packages_can_be_imported_or_says_the_way_out(name: str) -> None:
    if name in cairn.__all__:
        assert getattr(cairn, name) is not None
        return
    with pytest.raises(UnsupportedError, match=f"cairn has no '{name}', which PyFlink has: [a-zA-Z].{{8}}") as error:
        exec(f"from cairn import {name}", {})  # as a program does it
    assert isinstance(error.value, ImportError)


@pytest.mark.parametrize(("owner", "name"), [pair for owner in MEMBERS for pair in names_of(owner)])
def test_a_name_of_a_class_exists_or_says_the_way_out(owner: str, name: str) -> None:
    kind = getattr(cairn, owner)
    if owner == "RuntimeContext":
        kind = TaskRuntimeContext  # what functions are given
    if hasattr(kind, name):
        return
    assert issubclass(kind, PyFlinkNames)
    with pytest.raises(UnsupportedError, match=f"has no '{name}', which PyFlink has: [a-zA-Z].{{8}}") as error:
        getattr(object.__new__(kind), name)
    assert isinstance(error.value, AttributeError)


def test_no_sentence_stands_for_a_name_that_exists() -> None:
    assert not set(IMPORTS) & set(cairn.__all__)
    classes = {kind.__name__: kind for kind in subclasses(PyFlinkNames)}
    assert set(NAMES) <= set(classes)
    for owner, names in NAMES.items():
        assert [name for name in names if hasattr(classes[owner], name)] == [], owner


def subclasses(kind: type[Any]) -> list[type[Any]]:
    direct: list[type[Any]] = kind.__subclasses__()
    return [kind, *[deeper for below in direct for deeper in subclasses(below)]]


def test_other_missing_names_end_in_pythons_own_error() -> None:
    things: list[Any] = [object.__new__(DataStream), Types, object.__new__(StreamExecutionEnvironment)]
    for thing in things:
        assert not hasattr(thing, "no_such_name")
        with pytest.raises(AttributeError, match="no attribute 'no_such_name'") as error:
            thing.no_such_name  # noqa: B018
        assert not isinstance(error.value, CairnError)
    with pytest.raises(ImportError, match="cannot import name 'NoSuchName' from 'cairn'"):
        exec("from cairn import NoSuchName", {})


def test_an_attribute_error_in_a_property_stays_what_it_is() -> None:
    class Broken(PyFlinkNames):
        @property
        def df(self) -> object:
            return None.lost  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'lost'"):
        Broken().df  # noqa: B018


def test_the_sentence_is_an_error_of_cairn_that_travels() -> None:
    with pytest.raises(UnsupportedError) as caught:
        object.__new__(DataStream).rebalance()  # type: ignore[attr-defined]
    error = caught.value
    assert str(error) == (
        "[unsupported] DataStream has no 'rebalance', which PyFlink has: Spark distributes rows; to do it by hand, "
        "call transform(lambda df: df.repartition(n))"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert isinstance(from_traceback(f"cairn.errors.{type(error).__name__}: {error}"), UnsupportedError)
    assert "docs/pyflink.md" in str(remedy(error))


def test_objects_with_sentences_are_copied_and_pickled_as_before() -> None:
    config = StateTtlConfig.new_builder(Time.hours(1)).cleanup_incrementally(10, True).build()
    assert config.cleanup_at_snapshot
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    tag = cairn.OutputTag("side", Types.LONG())
    assert copy.deepcopy(tag) == tag
    assert not hasattr(object.__new__(PlainRuntimeContext), "get_metrics_group")
    assert not hasattr(object.__new__(BroadcastStream), "map")
    assert not hasattr(object.__new__(CheckpointConfig), "set_fail_on_checkpointing_errors")
    assert not hasattr(object.__new__(JobHandle), "get_job_status")
