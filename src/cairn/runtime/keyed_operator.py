"""One operator instance of one task: the user's function, its context, its state tables and timers.

`ProcessOperator` calls a `KeyedProcessFunction` row by row; `runtime/batch_operator.py` has the variant that calls a
function with whole Arrow batches. The states behind the handles are in `runtime/state_registry.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from inspect import isgeneratorfunction
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import (
    InvalidInputError,
    StateMisuseError,
    UserFunctionError,
)
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    RawStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from cairn.model.functions import KeyedProcessFunction, TimeDomain
from cairn.model.manifest import NO_WATERMARK
from cairn.model.output_tags import OutputTag, check_tag
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.rows import row_class
from cairn.runtime.batches import SLICE_ROWS, KeyedChunk, event_times, joined, row_columns
from cairn.runtime.function_lifecycle import FunctionLifecycle
from cairn.runtime.operator_spec import InputSpec as InputSpec
from cairn.runtime.operator_spec import OperatorSpec as OperatorSpec
from cairn.runtime.state_registry import StateRegistry
from cairn.runtime.subtask_setup import SubtaskSetup
from cairn.runtime.tagged_outputs import output_builder
from cairn.runtime.timer_service import TaskTimerService as TaskTimerService
from cairn.runtime.user_errors import Explainer
from cairn.state.codec import KeyCodec
from cairn.state.key_slots import KeySlots
from cairn.storage.state_file import Section

OUTPUT_BYTES = 16 << 20
MOST_LAST_TIMERS = 10_000_000
"""How many timers may fire in one sweep at the end of event time before they are taken for endless."""


class TaskRuntimeContext(PyFlinkNames):
    """`RuntimeContext` of one subtask."""

    def __init__(
        self, spec: OperatorSpec, subtask: int, attempt: int, registry: StateRegistry, parameters: dict[str, str]
    ) -> None:
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

    def get_raw_state(self, name: str) -> Any:
        return self._get(RawStateDescriptor(name), RawStateDescriptor)


class ElementContext:
    """`KeyedProcessFunction.Context` and `OnTimerContext` in one object, reused for every call."""

    __slots__ = ("_codec", "_domain", "_slots", "_timers", "aside", "time")

    def __init__(self, slots: KeySlots, codec: KeyCodec, timers: TaskTimerService) -> None:
        self.aside: list[Any] = []
        """What `output` was given, as it would have been yielded."""
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

    def output(self, tag: OutputTag, value: Any) -> None:
        check_tag(tag)
        self.aside.append((tag, value))

    def time_domain(self) -> TimeDomain:
        if self._domain is None:
            raise StateMisuseError("time_domain() is known in on_timer only")
        return self._domain


class ProcessOperator:
    """Runs a `KeyedProcessFunction` over the chunks of one epoch."""

    runtime_context = TaskRuntimeContext

    def __init__(self, setup: SubtaskSetup) -> None:
        spec = setup.spec
        self._setup = setup
        self._spec = spec
        self._slots = setup.registry.slots
        self._timings = setup.timings
        self._explained = Explainer(setup)
        self._function: KeyedProcessFunction = spec.function
        self._timer_service = TaskTimerService(setup.registry, setup.context)
        self._element = self._make_element()
        self._output = output_builder(spec.uid, spec.output, spec.bare_out, spec.tagged, spec.sides, setup.subtask)
        self._row: Callable[[Any], Any] = itemgetter(0) if spec.bare_in else row_class(spec.columns)
        self.fired = 0
        runtime = self.runtime_context(spec, setup.subtask, setup.attempt, setup.registry, setup.context.parameters)
        self._lifecycle = FunctionLifecycle(self._function, setup, self._explained)
        self._prepare()
        self._lifecycle.open(runtime)

    def _make_element(self) -> Any:
        return ElementContext(self._slots, self._setup.codec, self._timer_service)

    def _prepare(self) -> None:
        """What other kinds of operators make before the function is opened."""

    def fire_last_timers(self) -> Iterator[pa.RecordBatch]:
        """In the last epoch of a drained job, after its rows: fire what is left of event time, until nothing is."""
        before = -1
        self._timer_service.end_rows()
        while self._setup.context.end_of_time and self.fired != before:
            before = self.fired
            yield from self.fire_timers(after_rows=True)

    def fire_timers(self, after_rows: bool = False) -> Iterator[pa.RecordBatch]:
        """Fire what is due at the epoch's watermark, then at its processing time."""
        since = time.perf_counter()
        outputs: list[Any] = []
        element = self._element
        on_timer = self._function.on_timer
        extend = self._collector(outputs, on_timer)
        context = self._setup.context
        reached = self._timer_service.current_watermark()
        due = ((TimeDomain.EVENT_TIME, reached), (TimeDomain.PROCESSING_TIME, context.time_ms))
        for domain, now in due:
            if now == NO_WATERMARK or (after_rows and domain is TimeDomain.PROCESSING_TIME):
                continue

            def call(timestamp: int) -> None:
                element.time = timestamp
                result = on_timer(timestamp, element)
                if result is not None:
                    extend(result)

            element._domain = domain
            with self._explained("on_timer()"):
                most = MOST_LAST_TIMERS if context.end_of_time else 0
                every = context.fire_all and domain is TimeDomain.PROCESSING_TIME
                self.fired += self._setup.registry.timers[domain].fire(now, call, after_rows, most, every)
        element._domain = None
        element.time = None
        self._timings.add("timers", since)
        self._take_aside(outputs)
        if outputs:
            yield self._built(outputs)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process a chunk. Its keys are looked up at once; rows become objects a slice at a time, which stays in the
        processor's cache and takes the memory that the slice before it gave back.
        """
        since = time.perf_counter()
        slots = self._slots_of(batch)
        self._timings.add("decode", since)
        held: list[pa.RecordBatch] = []
        size = 0
        for start in range(0, batch.num_rows, SLICE_ROWS):
            try:
                outputs = self._process_slice(batch.slice(start, SLICE_ROWS), slots[start : start + SLICE_ROWS])
            except InvalidInputError as error:
                better = self._explained.explain("the rows", error)
                if better is None:
                    raise
                raise better from error
            self._take_aside(outputs)
            if outputs:
                held.append(self._built(outputs))
                size += held[-1].nbytes
            if size > OUTPUT_BYTES:
                yield joined(held)
                held, size = [], 0
        if held:
            yield joined(held)

    def _slots_of(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """The slot of every row's key."""
        slots: np.ndarray[Any, Any] = self._keyed(batch).slots
        return slots

    def _keyed(self, batch: pa.RecordBatch) -> KeyedChunk:
        """A chunk with its keys; errors in keys name the operator."""
        with self._explained("the key"):
            return KeyedChunk(batch, self._spec.key_columns, self._setup.codec, self._slots)

    def _process_slice(self, batch: pa.RecordBatch, key_slots: np.ndarray[Any, Any]) -> list[Any]:
        since = time.perf_counter()
        columns = row_columns(batch, len(self._spec.columns))
        slots = key_slots.tolist()
        times = None if self._spec.event_time < 0 else event_times(batch.column(self._spec.event_time))
        since = self._timings.add("decode", since)
        outputs: list[Any] = []
        process_element: Callable[..., Any] = self._function.process_element
        element = self._element
        current = self._slots.current
        rows = map(self._row, zip(*columns, strict=True))
        with self._explained("process_element()"):
            if isgeneratorfunction(process_element):
                append = outputs.append  # quicker than extend() where most calls yield one row
                if times is None:
                    for current[0], row in zip(slots, rows, strict=True):
                        for output in process_element(row, element):
                            append(output)
                else:
                    for current[0], element.time, row in zip(slots, times, rows, strict=True):
                        for output in process_element(row, element):
                            append(output)
            else:
                extend = self._collector(outputs, process_element)
                stamps = repeat(None, len(slots)) if times is None else times
                for current[0], element.time, row in zip(slots, stamps, rows, strict=True):
                    result = process_element(row, element)
                    if result is not None:
                        extend(result)
        current[0] = None
        element.time = None
        self._timings.add("user", since)
        return outputs

    def _collector(self, outputs: list[Any], method: Callable[..., Any]) -> Callable[[Any], None]:
        """What takes the rows of one call. A method that returns may return what only looks like rows: check that."""
        if isgeneratorfunction(method):
            return outputs.extend

        def extend(result: Any) -> None:
            if isinstance(result, (str, bytes, dict)):
                raise UserFunctionError(
                    f"operator '{self._spec.uid}': {method.__name__}() returned a {type(result).__name__}; it must "
                    "yield rows or return a list of rows, and a row is a tuple"
                )
            outputs.extend(result)

        return extend

    def _take_aside(self, outputs: list[Any]) -> None:
        """Move what went through `ctx.output` to the other outputs."""
        aside = self._element.aside
        if aside:
            outputs += aside
            aside.clear()

    def _built(self, outputs: list[Any]) -> pa.RecordBatch:
        since = time.perf_counter()
        batch = self._output.build(outputs)
        self._timings.add("encode", since)
        return batch

    def close(self) -> None:
        """After the last row: let the function snapshot its operator state, and close it."""
        self._lifecycle.close(self._element.aside)

    def drain(self) -> list[Section]:
        """The changes of the epoch."""
        with self._explained("state"):
            self._lifecycle.settle()
            return self._setup.registry.drain()

    def abandon(self) -> None:
        """Close the function after a failure."""
        self._slots.current[0] = None
        self._lifecycle.abandon()
