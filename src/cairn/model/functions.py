"""What users extend, and the contexts that their functions are given. The names are PyFlink's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cairn.errors import UserFunctionError
from cairn.model.typevars import KEY, VALUE, VALUE_IN, VALUE_OUT

if TYPE_CHECKING:
    from cairn.model.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
    from cairn.model.output_tags import OutputTag


class TimeDomain(Enum):
    EVENT_TIME = 0
    PROCESSING_TIME = 1


class ReduceFunction(ABC):
    """Combines two values into one of the same type."""

    def open(self, runtime_context: RuntimeContext) -> None:  # noqa: B027 - need not be defined
        """Called before the first row by `keyed.reduce(...)`. Get the state handles here."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any: ...

    def close(self) -> None:  # noqa: B027 - need not be defined
        """Called after the last row of the epoch by `keyed.reduce(...)`."""


def reducing(function: ReduceFunction | Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """How two values become one. A None is refused: as state it would mean that there was no value at all."""
    if isinstance(function, ReduceFunction):
        return partial(_combined, function.reduce, f"{type(function).__name__}.reduce()")
    name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    return partial(_combined, function, f"the reduce function {name}")


def _combined(function: Callable[[Any, Any], Any], name: str, value1: Any, value2: Any) -> Any:
    result = function(value1, value2)
    if result is None:
        raise none_returned(name, "the combined value")
    return result


def none_returned(name: str, wanted: str) -> UserFunctionError:
    return UserFunctionError(
        f"{name} returned None, which would forget all values so far; it must return {wanted} (does a branch of it "
        "lack its return?)"
    )


def no_value_to_reduce() -> UserFunctionError:
    return UserFunctionError("reduce was given a null, which cannot be combined; filter out nulls in front of it")


class AggregateFunction(ABC):
    """Folds values into an accumulator of another type."""

    @abstractmethod
    def create_accumulator(self) -> Any: ...

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any: ...

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any: ...

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Needed only where accumulators meet, as in merging windows."""
        raise TypeError(f"{type(self).__name__} has no merge(); define it to combine accumulators")


class ValueState(Protocol[VALUE]):
    """One value of the current key. `value()` is None when unset; `update(None)` clears."""

    def value(self) -> VALUE: ...
    def update(self, value: VALUE) -> None: ...
    def clear(self) -> None: ...


class ListState(Protocol[VALUE]):
    """A list of the current key, in insertion order. `add` costs the element, not the list."""

    def get(self) -> Iterator[VALUE]: ...
    def add(self, value: VALUE) -> None: ...
    def add_all(self, values: Iterable[VALUE]) -> None: ...
    def update(self, values: Iterable[VALUE]) -> None: ...
    def clear(self) -> None: ...
    def __iter__(self) -> Iterator[VALUE]: ...


class MapState(Protocol[KEY, VALUE]):
    """A map of the current key. Each call costs the entries that it touches, not the map."""

    def get(self, key: KEY) -> VALUE: ...
    def put(self, key: KEY, value: VALUE) -> None: ...
    def put_all(self, entries: Any) -> None: ...
    def remove(self, key: KEY) -> None: ...
    def contains(self, key: KEY) -> bool: ...
    def items(self) -> Iterator[tuple[KEY, VALUE]]: ...
    def keys(self) -> Iterator[KEY]: ...
    def values(self) -> Iterator[VALUE]: ...
    def is_empty(self) -> bool: ...
    def clear(self) -> None: ...
    def __getitem__(self, key: KEY) -> VALUE: ...
    def __setitem__(self, key: KEY, value: VALUE) -> None: ...
    def __delitem__(self, key: KEY) -> None: ...
    def __contains__(self, key: KEY) -> bool: ...
    def __iter__(self) -> Iterator[KEY]: ...


class MergingState(Protocol[VALUE_IN, VALUE_OUT]):
    """Reducing and aggregating state: `add` folds a value in, `get` gives the result or None."""

    def get(self) -> VALUE_OUT: ...
    def add(self, value: VALUE_IN) -> None: ...
    def clear(self) -> None: ...


class ReducingState(MergingState[VALUE, VALUE], Protocol[VALUE]):
    """State that a `ReduceFunction` combines."""


class AggregatingState(MergingState[VALUE_IN, VALUE_OUT], Protocol[VALUE_IN, VALUE_OUT]):
    """State that an `AggregateFunction` folds."""


class RuntimeContext(Protocol):
    """Given to `open`: where this instance runs, and the state of the operator."""

    def get_task_name(self) -> str: ...
    def get_task_name_with_subtasks(self) -> str: ...
    def get_number_of_parallel_subtasks(self) -> int: ...
    def get_max_number_of_parallel_subtasks(self) -> int: ...
    def get_index_of_this_subtask(self) -> int: ...
    def get_attempt_number(self) -> int: ...
    def get_job_parameter(self, key: str, default_value: str) -> str: ...
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState: ...
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState: ...
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState: ...
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState: ...
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState: ...
    def get_raw_state(self, name: str) -> ValueState:
        """Bytes of the current key that nobody else interprets."""


class TimerService(Protocol):
    """Times are milliseconds. One timer exists per key, time and domain; deleting one that is not there is fine."""

    def current_processing_time(self) -> int: ...
    def current_watermark(self) -> int: ...
    def register_event_time_timer(self, timestamp: int) -> None: ...
    def register_processing_time_timer(self, timestamp: int) -> None: ...
    def delete_event_time_timer(self, timestamp: int) -> None: ...
    def delete_processing_time_timer(self, timestamp: int) -> None: ...


class CheckpointListener:
    """Mixed into a process function or a sink: hears how checkpoints ended. Meanings are Flink's.

    A function hears of it in every subtask, at the beginning of the next epoch, after `open`; a sink hears of it in the
    driver, at once. It is a best effort: after a failure a call may be left out or come twice. That checkpoint n is
    complete means that all before it are, too; that one was aborted means nothing was lost, the next covers more.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up."""


class KeyedProcessFunction:
    """Processes the rows of a keyed stream one by one, with state and timers of the row's key.

    For every epoch each subtask makes a fresh copy of the function, calls `open` once, fires the timers that are
    due, calls `process_element` for every row, and calls `close`. What must live longer than an epoch belongs in
    state: attributes set while processing are gone with the epoch.
    """

    class Context(Protocol):
        def get_current_key(self) -> Any: ...
        def timestamp(self) -> int | None: ...
        def timer_service(self) -> TimerService: ...
        def output(self, tag: OutputTag, value: Any) -> None: ...

    class OnTimerContext(Context, Protocol):
        def time_domain(self) -> TimeDomain: ...

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state handles here."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """`value` is a named tuple of the row. Yield (or return an iterable of) tuples of the output type.

        `yield tag, value` and `ctx.output(tag, value)` put a value out to the side output of an `OutputTag`.
        """
        raise TypeError(f"{type(self).__name__} must define process_element(value, ctx)")

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Called with the timer's key as current key."""
        return None

    def close(self) -> None:
        """Called after the last row of the epoch."""
