"""One operator instance of one task: the user's function, its context, its state tables and timers.

Two kinds share everything but the inner loop: `ProcessOperator` calls a `KeyedProcessFunction` row by row,
`BatchOperator` calls a function with whole Arrow batches. Used by `runtime/task.py` and by the test harness.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import (
    CairnError,
    IncompatibleStateError,
    InvalidInputError,
    NotFoundError,
    StateMisuseError,
    UserFunctionError,
)
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from cairn.model.functions import KeyedProcessFunction, TimeDomain
from cairn.model.manifest import NO_WATERMARK, EpochContext, StateSpec
from cairn.model.types import DataType, Storage, parse_type, row_class
from cairn.runtime.batches import KeyedChunk, OutputBuilder, event_times, row_columns
from cairn.state.codec import KeyCodec
from cairn.state.handles import (
    AggregatingState,
    ListStateHandle,
    ListTable,
    MapStateHandle,
    MapTable,
    ReducingState,
    StateTable,
    ValueTable,
    value_state,
)
from cairn.state.slots import KeySlots
from cairn.state.store import WorkingStore
from cairn.state.timers import EVENT_TIMERS, PROCESSING_TIMERS, TimerTable
from cairn.storage.statefile import ARROW_STORAGE, Section, sorted_table


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """All that is fixed when a job is defined. Travels to the workers with the function."""

    uid: str
    name: str
    function: Any
    vectorised: bool
    parallelism: int
    max_parallelism: int
    key_columns: tuple[int, ...]
    key_types: tuple[tuple[str, str], ...]
    """Name and DDL of each key column."""
    columns: tuple[str, ...]
    """Names of the input columns, without cairn's own."""
    output: pa.Schema
    event_time: int = -1
    """Position of the column that carries the watermark, or -1."""
    backend: str = "lmdb"
    states: tuple[tuple[str, str], ...] = ()
    """Name and DDL of the value states that a vectorised function declared."""


@dataclass(slots=True)
class Timings:
    """Milliseconds by step, for `--profile`."""

    spent: dict[str, float] = field(default_factory=dict)

    def add(self, step: str, since: float) -> float:
        now = time.perf_counter()
        self.spent[step] = self.spent.get(step, 0.0) + (now - since) * 1000
        return now


class StateRegistry:
    """The states of one operator instance: made on demand, checked against what is stored, drained at the end."""

    def __init__(self, uid: str, slots: KeySlots, store: WorkingStore, stored: Iterable[StateSpec], context: EpochContext) -> None:
        self.uid = uid
        self.slots = slots
        self.store = store
        self._context = context
        self._stored = {spec.name: spec for spec in stored}
        self._tables: dict[str, StateTable | VectorTable] = {}
        self._handles: dict[str, Any] = {}
        self.specs: dict[str, StateSpec] = dict(self._stored)
        self.timers = {
            TimeDomain.EVENT_TIME: TimerTable(EVENT_TIMERS, slots, store),
            TimeDomain.PROCESSING_TIME: TimerTable(PROCESSING_TIMERS, slots, store),
        }

    def handle(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state. The same name gives the same handle; another kind or type under it is an error."""
        spec = spec_of(descriptor)
        self._check(spec)
        if descriptor.name in self._handles:
            return self._handles[descriptor.name]
        arguments = (self.uid, descriptor, self.slots, self.store, self._context.time_ms)
        handle: Any
        if isinstance(descriptor, ListStateDescriptor):
            table: StateTable = ListTable(*arguments, epoch=self._context.epoch)
            handle = ListStateHandle(table)  # type: ignore[arg-type]
        elif isinstance(descriptor, MapStateDescriptor):
            table = MapTable(*arguments)
            handle = MapStateHandle(table)
        else:
            table = ValueTable(*arguments)
            if isinstance(descriptor, ReducingStateDescriptor):
                handle = ReducingState(table, descriptor)
            elif isinstance(descriptor, AggregatingStateDescriptor):
                handle = AggregatingState(table, descriptor)
            else:
                handle = value_state(table)
        self._tables[descriptor.name] = table
        self._handles[descriptor.name] = handle
        self.specs[spec.name] = spec
        return handle

    def vector(self, name: str, dtype: DataType) -> VectorTable:
        """The columnar table of a value state, for vectorised functions."""
        table = self._tables.get(name)
        if isinstance(table, VectorTable):
            return table
        spec = StateSpec(name, StateKind.VALUE.value, dtype.ddl)
        self._check(spec)
        self.specs[name] = spec
        table = self._tables[name] = VectorTable(name, dtype, self.slots, self.store)
        return table

    def _check(self, spec: StateSpec) -> None:
        known = self.specs.get(spec.name)
        if known is None or known.signature == spec.signature:
            return
        if spec.name in self._tables:
            raise InvalidInputError(
                f"operator '{self.uid}': state name '{spec.name}' is already in use for a {known.signature}; "
                f"it cannot also be a {spec.signature}",
                state=spec.name,
            )
        raise IncompatibleStateError(
            f"operator '{self.uid}', state '{spec.name}': stored is a {known.signature}, declared is a "
            f"{spec.signature}. Declare it as it was, or give the new state another name; the stored state is intact.",
            state=spec.name,
            stored=known.signature,
            declared=spec.signature,
        )

    def drain(self) -> list[Section]:
        tables: list[StateTable | VectorTable | TimerTable] = [*self._tables.values(), *self.timers.values()]
        return [section for section in (table.drain() for table in tables) if section is not None]


def spec_of(descriptor: StateDescriptor) -> StateSpec:
    ttl = descriptor.ttl
    return StateSpec(
        name=descriptor.name,
        kind=descriptor.kind.value,
        value_type=descriptor.value_type.ddl,
        key_type=descriptor.key_type.ddl if descriptor.key_type is not None else "",
        ttl_ms=ttl.milliseconds if ttl is not None else 0,
        cleanup_at_snapshot=ttl is not None and ttl.cleanup_at_snapshot,
    )


class TaskRuntimeContext:
    """`RuntimeContext` of one subtask."""

    def __init__(self, spec: OperatorSpec, subtask: int, attempt: int, registry: StateRegistry, parameters: dict[str, str]) -> None:
        self._spec = spec
        self._subtask = subtask
        self._attempt = attempt
        self._registry = registry
        self._parameters = parameters

    def get_task_name(self) -> str:
        return self._spec.name

    def get_task_name_with_subtasks(self) -> str:
        return f"{self._spec.name} ({self._subtask + 1}/{self._spec.parallelism})"

    def get_number_of_parallel_subtasks(self) -> int:
        return self._spec.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._spec.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        return self._subtask

    def get_attempt_number(self) -> int:
        return self._attempt

    def get_job_parameter(self, key: str, default_value: str) -> str:
        return self._parameters.get(key, default_value)

    def _get(self, descriptor: Any, kind: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, kind):
            raise InvalidInputError(
                f"operator '{self._spec.uid}': expected a {kind.__name__}, got {type(descriptor).__name__}"
            )
        return self._registry.handle(descriptor)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> Any:
        return self._get(state_descriptor, ValueStateDescriptor)

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> Any:
        return self._get(state_descriptor, ListStateDescriptor)

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> Any:
        return self._get(state_descriptor, MapStateDescriptor)

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> Any:
        return self._get(state_descriptor, ReducingStateDescriptor)

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> Any:
        return self._get(state_descriptor, AggregatingStateDescriptor)


class TaskTimerService:
    """`TimerService` of one task. Watermark and processing time are those of the epoch, and stand still within it."""

    def __init__(self, registry: StateRegistry, context: EpochContext) -> None:
        self._event = registry.timers[TimeDomain.EVENT_TIME]
        self._processing = registry.timers[TimeDomain.PROCESSING_TIME]
        self._watermark = context.watermark
        self._time = context.time_ms

    def current_processing_time(self) -> int:
        return self._time

    def current_watermark(self) -> int:
        return self._watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._event.register(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._processing.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._event.delete(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._processing.delete(timestamp)


class ElementContext:
    """`KeyedProcessFunction.Context` and `OnTimerContext` in one object, reused for every call."""

    __slots__ = ("_codec", "_domain", "_slots", "_timers", "time")

    def __init__(self, slots: KeySlots, codec: KeyCodec, timers: TaskTimerService) -> None:
        self._slots = slots
        self._codec = codec
        self._timers = timers
        self._domain: TimeDomain | None = None
        self.time: int | None = None

    def get_current_key(self) -> Any:
        return self._codec.decode(self._slots.key()[2:])

    def timestamp(self) -> int | None:
        return self.time

    def timer_service(self) -> TaskTimerService:
        return self._timers

    def time_domain(self) -> TimeDomain:
        if self._domain is None:
            raise StateMisuseError("time_domain() is known in on_timer only")
        return self._domain


class ProcessOperator:
    """Runs a `KeyedProcessFunction` over the chunks of one epoch."""

    def __init__(
        self, spec: OperatorSpec, codec: KeyCodec, registry: StateRegistry, context: EpochContext,
        subtask: int, attempt: int, timings: Timings,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._codec = codec
        self._registry = registry
        self._slots = registry.slots
        self._context = context
        self._subtask = subtask
        self._timings = timings
        self._function: KeyedProcessFunction = spec.function
        timers = TaskTimerService(registry, context)
        self._element = ElementContext(self._slots, codec, timers)
        self._output = OutputBuilder(spec.uid, spec.output)
        self._make_row = partial(tuple.__new__, row_class(spec.columns))
        self.fired = 0
        runtime = TaskRuntimeContext(spec, subtask, attempt, registry, context.parameters)
        with self._explained("open()"):
            self._function.open(runtime)

    def fire_timers(self) -> Iterator[pa.RecordBatch]:
        """Fire what is due at the epoch's watermark, then at its processing time."""
        since = time.perf_counter()
        outputs: list[Any] = []
        element = self._element
        on_timer = self._function.on_timer
        due = ((TimeDomain.EVENT_TIME, self._context.watermark), (TimeDomain.PROCESSING_TIME, self._context.time_ms))
        for domain, now in due:
            if now == NO_WATERMARK:
                continue

            def call(timestamp: int) -> None:
                element.time = timestamp
                result = on_timer(timestamp, element)
                if result is not None:
                    outputs.extend(result)

            element._domain = domain
            with self._explained("on_timer()"):
                self.fired += self._registry.timers[domain].fire(now, call)
        element._domain = None
        element.time = None
        self._timings.add("timers", since)
        if outputs:
            yield self._built(outputs)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        since = time.perf_counter()
        chunk = KeyedChunk(batch, self._spec.key_columns, self._codec, self._slots)
        columns = row_columns(batch, len(self._spec.columns))
        slots = chunk.slots.tolist()
        since = self._timings.add("decode", since)
        outputs: list[Any] = []
        extend = outputs.extend
        process_element = self._function.process_element
        element = self._element
        current = self._slots.current
        rows = map(self._make_row, zip(*columns, strict=True))
        with self._explained("process_element()"):
            if self._spec.event_time < 0:
                for current[0], row in zip(slots, rows, strict=True):
                    result = process_element(row, element)
                    if result is not None:
                        extend(result)
            else:
                times = event_times(batch.column(self._spec.event_time))
                for current[0], element.time, row in zip(slots, times, rows, strict=True):
                    result = process_element(row, element)
                    if result is not None:
                        extend(result)
        current[0] = None
        element.time = None
        since = self._timings.add("user", since)
        if outputs:
            yield self._built(outputs)

    def _built(self, outputs: list[Any]) -> pa.RecordBatch:
        since = time.perf_counter()
        batch = self._output.build(outputs)
        self._timings.add("encode", since)
        return batch

    def close(self) -> None:
        with self._explained("close()"):
            self._function.close()

    def _explained(self, where: str) -> _Explained:
        return _Explained(self, where)

    def explain(self, where: str, error: BaseException) -> CairnError | None:
        """The error to raise instead of one that came out of user code."""
        slot = self._slots.current[0]
        at = f"operator '{self._spec.uid}', subtask {self._subtask}, epoch {self._context.epoch}"
        if slot is not None:
            at += f", key {self._codec.decode(self._slots.keys[slot][2:])!r:.200}"
        if isinstance(error, CairnError):
            if isinstance(error, UserFunctionError):
                return None
            return type(error)(f"{at}: {error.message}", **error.facts)
        what = f"{type(error).__name__}: {error}" if self._context.show_values else type(error).__name__
        hint = "" if self._context.show_values else (
            " (the message may hold data and is in the worker's traceback; set cairn.errors.show-values for it here)"
        )
        return UserFunctionError(f"{at}: {where} raised {what}{hint}. The last committed epoch is intact.")


class _Explained:
    """Turns what user code raises into an error that says where it happened."""

    __slots__ = ("_operator", "_where")

    def __init__(self, operator: ProcessOperator, where: str) -> None:
        self._operator = operator
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            better = self._operator.explain(self._where, error)
            if better is not None:
                raise better from error


class VectorTable:
    """A value state in columns: one place per slot, for functions that work on whole batches."""

    def __init__(self, name: str, dtype: DataType, slots: KeySlots, store: WorkingStore) -> None:
        if dtype.storage not in (Storage.INT, Storage.FLOAT, Storage.TEXT, Storage.BYTES) or dtype.pickled:
            raise InvalidInputError(f"state '{name}': a vectorised state cannot be of type {dtype.ddl}")
        self.name = name
        self.dtype = dtype
        self._slots = slots
        self._store = store
        self._values: pa.Array = pa.array([], ARROW_STORAGE[dtype.storage])
        self._dirty = np.zeros(0, dtype=bool)

    def get(self, key_slots: np.ndarray[Any, Any]) -> pa.Array:
        self._load()
        if len(key_slots) == len(self._values) and _is_range(key_slots):
            return self._values
        return self._values.take(pa.array(key_slots))

    def put(self, key_slots: np.ndarray[Any, Any], values: pa.Array) -> None:
        self._load()
        total = len(self._values)
        if len(key_slots) == total and _is_range(key_slots):
            self._values = values
            self._dirty[:] = True
            return
        places = np.arange(total)
        places[key_slots] = total + np.arange(len(values))
        self._values = pa.concat_arrays([self._values, values]).take(pa.array(places))
        self._dirty[key_slots] = True

    def _load(self) -> None:
        missing = len(self._slots) - len(self._values)
        if missing:
            values, _ = self._store.read(self.name, self._slots.from_slot(len(self._values)), self.dtype.storage, False)
            self._values = values if not len(self._values) else pa.concat_arrays([self._values, values])
            self._dirty = np.concatenate([self._dirty, np.zeros(missing, dtype=bool)])

    def drain(self) -> Section | None:
        if not self._dirty.any():
            return None
        keys = self._slots.all_keys()[: len(self._values)]
        values = self._values
        if not self._dirty.all():
            changed = pa.array(self._dirty)
            keys, values = keys.filter(changed), values.filter(changed)
        return Section(self.name, "value", self.dtype.storage, False, sorted_table({"key": keys, "value": values}))


def _is_range(slots: np.ndarray[Any, Any]) -> bool:
    return len(slots) == 0 or (slots[0] == 0 and slots[-1] == len(slots) - 1 and bool((np.diff(slots) == 1).all()))


class BatchContext:
    """What a vectorised function sees besides its rows: the distinct keys of the batch, and their state in columns.

    `key_index[i]` says which of the `num_keys` distinct keys row `i` has. `get(state)` gives an Arrow array with one
    value per distinct key (null where unset); `put(state, values)` replaces them (null clears).
    """

    def __init__(self, chunk: KeyedChunk, registry: StateRegistry, spec: OperatorSpec, context: EpochContext) -> None:
        self.key_index: np.ndarray[Any, Any] = chunk.key_index
        self.num_keys = len(chunk.key_slots)
        self.watermark = context.watermark
        self.processing_time = context.time_ms
        self.epoch = context.epoch
        self._key_slots = chunk.key_slots
        self._registry = registry
        self._spec = spec
        self._declared = dict(spec.states)

    def _table(self, state: str) -> VectorTable:
        if state not in self._declared:
            raise NotFoundError(
                f"operator '{self._spec.uid}' declares no state '{state}'; declared are "
                f"{sorted(self._declared) or 'none'}: pass states={{'{state}': <type>}} to process_batch",
                state=state,
            )
        return self._registry.vector(state, parse_type(self._declared[state]))

    def get(self, state: str) -> pa.Array:
        return self._table(state).get(self._key_slots)

    def put(self, state: str, values: Any) -> None:
        table = self._table(state)
        wanted = ARROW_STORAGE[table.dtype.storage]
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        try:
            array = values if isinstance(values, pa.Array) else pa.array(values)
            array = array if array.type == wanted else array.cast(wanted)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UserFunctionError(
                f"operator '{self._spec.uid}', state '{state}': the values do not fit type {table.dtype.ddl}: {error}"
            ) from None
        if len(array) != self.num_keys:
            raise UserFunctionError(
                f"operator '{self._spec.uid}', state '{state}': put() got {len(array)} values for {self.num_keys} keys"
            )
        table.put(self._key_slots, array)


class BatchOperator(ProcessOperator):
    """Runs a function `fn(batch, ctx) -> batch` over the chunks of one epoch."""

    def __init__(
        self, spec: OperatorSpec, codec: KeyCodec, registry: StateRegistry, context: EpochContext,
        subtask: int, attempt: int, timings: Timings,
    ) -> None:  # fmt: skip
        call: Callable[[pa.RecordBatch, BatchContext], Any] = spec.function
        self._call = call
        super().__init__(_with_function(spec, KeyedProcessFunction()), codec, registry, context, subtask, attempt, timings)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        since = time.perf_counter()
        chunk = KeyedChunk(batch, self._spec.key_columns, self._codec, self._slots)
        since = self._timings.add("decode", since)
        with self._explained("process_batch()"):
            rows = batch.select(range(len(self._spec.columns)))
            result = self._call(rows, BatchContext(chunk, self._registry, self._spec, self._context))
        since = self._timings.add("user", since)
        if result is not None:
            checked = self._output.check(result)
            self._timings.add("encode", since)
            yield checked


def _with_function(spec: OperatorSpec, function: Any) -> OperatorSpec:
    return replace(spec, function=function)
