"""Process functions besides `KeyedProcessFunction`: without a key, with two inputs, with broadcast and operator state.

Names are PyFlink's; `CheckpointedFunction`, which PyFlink lacks, follows Flink's Java interface. All of them live as
long as an epoch: each subtask makes a fresh copy for every epoch, calls `open`, hands it the epoch's elements, and
calls `close`. What must live longer belongs in state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol

from cairn.model.functions import KeyedProcessFunction, ListState, MapState, RuntimeContext, TimeDomain, TimerService
from cairn.model.simple_functions import Function
from cairn.model.typevars import IN1, IN2, KEY, OUT, VALUE, VALUE_OUT

if TYPE_CHECKING:
    from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor
    from cairn.model.output_tags import OutputTag


class ProcessFunction(Function):
    """Processes the rows of a stream that is not keyed. It has neither keyed state nor timers."""

    class Context(Protocol):
        def timestamp(self) -> int | None: ...
        def timer_service(self) -> TimerService: ...
        def output(self, tag: OutputTag, value: Any) -> None: ...

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """As in `KeyedProcessFunction`."""
        raise TypeError(f"{type(self).__name__} must define process_element(value, ctx)")


class CoProcessFunction(Function):
    """Processes the rows of two connected streams that are not keyed."""

    class Context(ProcessFunction.Context, Protocol):
        """What both methods are given."""

    def process_element1(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """A row of the first stream."""
        raise TypeError(f"{type(self).__name__} must define process_element1(value, ctx)")

    def process_element2(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """A row of the second stream."""
        raise TypeError(f"{type(self).__name__} must define process_element2(value, ctx)")


class KeyedCoProcessFunction(Function):
    """Processes the rows of two connected keyed streams: rows of either with one key share state and timers."""

    class Context(KeyedProcessFunction.Context, Protocol):
        """What `process_element1` and `process_element2` are given."""

    class OnTimerContext(KeyedProcessFunction.OnTimerContext, Protocol):
        """What `on_timer` is given."""

    def process_element1(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """A row of the first stream."""
        raise TypeError(f"{type(self).__name__} must define process_element1(value, ctx)")

    def process_element2(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """A row of the second stream."""
        raise TypeError(f"{type(self).__name__} must define process_element2(value, ctx)")

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Called with the timer's key as current key."""
        return None


class ReadOnlyBroadcastState(Protocol[KEY, VALUE_OUT]):
    """Broadcast state as the other input sees it."""

    def get(self, key: KEY) -> VALUE_OUT: ...
    def contains(self, key: KEY) -> bool: ...
    def items(self) -> Iterator[tuple[KEY, VALUE_OUT]]: ...
    def keys(self) -> Iterator[KEY]: ...
    def values(self) -> Iterator[VALUE_OUT]: ...
    def is_empty(self) -> bool: ...
    def __getitem__(self, key: KEY) -> VALUE_OUT: ...
    def __contains__(self, key: KEY) -> bool: ...
    def __iter__(self) -> Iterator[KEY]: ...


class BroadcastState(MapState[KEY, VALUE], Protocol[KEY, VALUE]):
    """Broadcast state as `process_broadcast_element` sees it."""


class BroadcastContext(Protocol):
    """What `process_broadcast_element` is given. The state may be changed; every subtask must change it alike."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> MapState: ...
    def timestamp(self) -> int | None: ...
    def current_processing_time(self) -> int: ...
    def current_watermark(self) -> int: ...
    def output(self, tag: OutputTag, value: Any) -> None: ...


class ReadOnlyContext(Protocol):
    """What `process_element` is given: broadcast state to read."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState: ...
    def timestamp(self) -> int | None: ...
    def current_processing_time(self) -> int: ...
    def current_watermark(self) -> int: ...
    def output(self, tag: OutputTag, value: Any) -> None: ...


class BroadcastProcessFunction(Function, Generic[IN1, IN2, OUT]):
    """Processes a stream, and a broadcast stream of which every subtask sees every element.

    In every epoch a subtask sees all broadcast elements first, in the order of their source, then its own elements.
    """

    class Context(BroadcastContext, Protocol):
        """What `process_broadcast_element` is given."""

    class ReadOnlyContext(ReadOnlyContext, Protocol):
        """What `process_element` is given."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """A row of the stream. Broadcast state can be read."""
        raise TypeError(f"{type(self).__name__} must define process_element(value, ctx)")

    def process_broadcast_element(self, value: Any, ctx: BroadcastContext) -> Iterable[Any] | None:
        """A row of the broadcast stream. Broadcast state can be changed."""
        raise TypeError(f"{type(self).__name__} must define process_broadcast_element(value, ctx)")


class KeyedBroadcastProcessFunction(BroadcastProcessFunction[IN1, IN2, OUT], Generic[KEY, IN1, IN2, OUT]):
    """As `BroadcastProcessFunction` with a keyed stream, whose side has keyed state and timers."""

    class ReadOnlyContext(BroadcastProcessFunction.ReadOnlyContext, Protocol):
        """What `process_element` is given: the key and timers as well."""

        def get_current_key(self) -> Any: ...
        def timer_service(self) -> TimerService: ...

    class OnTimerContext(ReadOnlyContext, Protocol):
        """What `on_timer` is given."""

        def time_domain(self) -> TimeDomain: ...

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Called with the timer's key as current key. Broadcast state can be read."""
        return None


class ProcessJoinFunction(Function):
    """Makes output of the pairs that an interval join finds."""

    class Context(Protocol):
        def get_left_timestamp(self) -> int: ...
        def get_right_timestamp(self) -> int: ...
        def get_timestamp(self) -> int: ...
        def output(self, tag: OutputTag, value: Any) -> None: ...

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any] | None:
        """One pair. Yield, or return an iterable of, rows of the output type."""
        raise TypeError(f"{type(self).__name__} must define process_element(left, right, ctx)")


class OperatorStateStore(Protocol):
    """The operator state of a subtask: state that belongs to no key."""

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """A list of this subtask's own. When the parallelism changes, all elements are dealt out anew, evenly."""

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """A list of this subtask's own. After a restart every subtask gets the elements of all subtasks."""

    def get_raw_state(self, name: str) -> ListState:
        """A list of bytes that nobody else interprets, dealt out evenly when the parallelism changes."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """A map that must be the same in every subtask: each subtask keeps a copy of its own."""


class FunctionInitializationContext(Protocol):
    """What `initialize_state` is given."""

    def is_restored(self) -> bool:
        """Whether there is state of an earlier epoch: false in the first epoch of the operator only."""

    def get_restored_checkpoint_id(self) -> int | None:
        """The epoch that the state is of; None if there is none."""

    def get_operator_state_store(self) -> OperatorStateStore: ...
    def get_keyed_state_store(self) -> RuntimeContext: ...


class FunctionSnapshotContext(Protocol):
    """What `snapshot_state` is given."""

    def get_checkpoint_id(self) -> int:
        """The number of the epoch that ends."""

    def get_checkpoint_timestamp(self) -> int:
        """The time of the epoch, in milliseconds."""


class CheckpointedFunction:
    """Mixed into a process function that keeps operator state.

    Every epoch is durable, so both methods are called in every epoch: `initialize_state` before `open`, and
    `snapshot_state` after the last element, where the function puts what it must not forget into its states.
    """

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the states, and read them if `context.is_restored()`."""
        raise TypeError(f"{type(self).__name__} must define initialize_state(context)")

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Write to the states what must be there in the next epoch."""
        raise TypeError(f"{type(self).__name__} must define snapshot_state(context)")
