"""Operators without a key, and operators with two inputs. The keyed one with one input is `ProcessOperator` itself.

The rows of two inputs arrive in one shuffle (`spark/operator_plan.py`, `two_inputs`): key columns, a struct per input
that is null in the rows of the other, the number of the input, and the group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import StateMisuseError
from cairn.model.manifest import EpochContext
from cairn.model.output_tags import OutputTag, check_tag
from cairn.model.rows import row_class
from cairn.runtime.batches import INPUT_COLUMN, SLICE_ROWS, event_times, row_columns
from cairn.runtime.broadcast_state import KeyedReadContext, PlainReadContext, TaskBroadcastStates, WriteContext
from cairn.runtime.keyed_operator import InputSpec, ProcessOperator, TaskRuntimeContext
from cairn.runtime.map_functions import NOT_KEYED
from cairn.runtime.operator_kinds import BROADCAST, CO, PLAIN
from cairn.runtime.subtask_setup import SubtaskSetup


class UnkeyedTimerService:
    """`TimerService` where there is no key: it tells the time."""

    def __init__(self, uid: str, context: EpochContext) -> None:
        self._uid = uid
        self._context = context

    def current_processing_time(self) -> int:
        return self._context.time_ms

    def current_watermark(self) -> int:
        return self._context.seen_watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        raise StateMisuseError(
            f"operator '{self._uid}': timers belong to keys, and this stream has none; call key_by(...) first"
        )

    register_processing_time_timer = register_event_time_timer
    delete_event_time_timer = register_event_time_timer
    delete_processing_time_timer = register_event_time_timer


class UnkeyedContext:
    """`ProcessFunction.Context`, reused for every call."""

    __slots__ = ("_timers", "aside", "time")

    def __init__(self, timers: UnkeyedTimerService) -> None:
        self._timers = timers
        self.aside: list[Any] = []
        self.time: int | None = None

    def timestamp(self) -> int | None:
        return self.time

    def timer_service(self) -> UnkeyedTimerService:
        return self._timers

    def output(self, tag: OutputTag, value: Any) -> None:
        check_tag(tag)
        self.aside.append((tag, value))


class UnkeyedRuntimeContext(TaskRuntimeContext):
    """`RuntimeContext` of a subtask without keys: all but keyed state."""

    def _get(self, descriptor: Any, kind: Any) -> Any:
        raise StateMisuseError(
            f"operator '{self._spec.uid}': {NOT_KEYED} Call key_by(...) first, or keep operator state with a "
            "CheckpointedFunction."
        )


class UnkeyedOperator(ProcessOperator):
    """Runs a `ProcessFunction` over the rows of one epoch."""

    runtime_context = UnkeyedRuntimeContext

    def _make_element(self) -> Any:
        return UnkeyedContext(UnkeyedTimerService(self._spec.uid, self._setup.context))

    def fire_timers(self, after_rows: bool = False) -> Iterator[pa.RecordBatch]:
        yield from ()

    def _slots_of(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        return np.zeros(batch.num_rows, dtype=np.int64)

    def _process_slice(self, batch: pa.RecordBatch, key_slots: np.ndarray[Any, Any]) -> list[Any]:
        since = time.perf_counter()
        rows, times = _elements(batch.columns, InputSpec(self._spec.columns, self._spec.event_time, self._spec.bare_in))
        since = self._timings.add("decode", since)
        outputs: list[Any] = []
        call = self._function.process_element
        extend = self._collector(outputs, call)
        element = self._element
        with self._explained("process_element()"):
            for row, element.time in zip(rows, times, strict=True):
                result = call(row, element)
                if result is not None:
                    extend(result)
        element.time = None
        self._timings.add("user", since)
        return outputs


def _elements(columns: list[pa.Array], spec: InputSpec) -> tuple[list[Any], list[Any]]:
    """The elements of one input and their event times."""
    count = len(columns[0]) if columns else 0
    names = [*spec.columns, *map(str, range(len(spec.columns), len(columns)))]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    values = row_columns(batch, len(spec.columns))
    rows = values[0] if spec.bare else list(map(row_class(spec.columns), zip(*values, strict=True)))
    times: list[Any] = [None] * count if spec.event_time < 0 else list(event_times(columns[spec.event_time]))
    return rows, times


class TwoInputs:
    """What the operators with two inputs share: taking a batch apart."""

    def __init__(self, first: InputSpec, second: InputSpec, keys: int) -> None:
        self._specs = (first, second)
        self._keys = keys

    def numbers(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Which input each row is of."""
        return np.asarray(batch.column(batch.schema.get_field_index(INPUT_COLUMN)))

    def elements(self, batch: pa.RecordBatch, number: int) -> tuple[list[Any], list[Any]]:
        """The elements of one input in their order, and their event times."""
        mine = pc.equal(batch.column(batch.schema.get_field_index(INPUT_COLUMN)), number)
        return _elements(batch.column(self._keys + number).filter(mine).flatten(), self._specs[number])


class CoOperator(ProcessOperator):
    """Runs a `KeyedCoProcessFunction`: rows of both inputs in the order of arrival, with the state of their key."""

    def _prepare(self) -> None:
        spec = self._spec
        assert spec.second is not None
        self._inputs = TwoInputs(
            InputSpec(spec.columns, spec.event_time, spec.bare_in), spec.second, len(spec.key_types)
        )

    def _process_slice(self, batch: pa.RecordBatch, key_slots: np.ndarray[Any, Any]) -> list[Any]:
        since = time.perf_counter()
        numbers = self._inputs.numbers(batch).tolist()
        elements = [zip(*self._inputs.elements(batch, number), strict=True) for number in (0, 1)]
        slots = key_slots.tolist() if self._spec.key_types else [None] * len(numbers)
        since = self._timings.add("decode", since)
        outputs: list[Any] = []
        calls = (self._function.process_element1, self._function.process_element2)  # type: ignore[attr-defined]
        extends = [self._collector(outputs, call) for call in calls]
        element = self._element
        current = self._slots.current
        number = 0
        try:
            for current[0], number in zip(slots, numbers, strict=True):
                row, element.time = next(elements[number])
                result = calls[number](row, element)
                if result is not None:
                    extends[number](result)
        except Exception as error:
            better = self._explained.explain(f"process_element{number + 1}()", error)
            if better is None:
                raise
            raise better from error
        current[0] = None
        element.time = None
        self._timings.add("user", since)
        return outputs


class UnkeyedCoOperator(CoOperator, UnkeyedOperator):
    """Runs a `CoProcessFunction`."""


class BroadcastOperator(ProcessOperator):
    """Runs a `KeyedBroadcastProcessFunction`. The rows come in order: all broadcast ones before all others."""

    def __init__(self, setup: SubtaskSetup) -> None:
        super().__init__(setup)
        self._lifecycle.operator_states.gate.open = False  # from now on for broadcast elements only

    def _prepare(self) -> None:
        spec = self._spec
        assert spec.second is not None
        self._inputs = TwoInputs(
            InputSpec(spec.columns, spec.event_time, spec.bare_in), spec.second, len(spec.key_types)
        )
        self._broadcast = TaskBroadcastStates(spec.uid, spec.broadcast, self._lifecycle.operator_states)
        self._writing = WriteContext(self._broadcast, self._setup.context)
        self._element = self._reading()
        self._writing.aside = self._element.aside

    def _reading(self) -> Any:
        return KeyedReadContext(
            self._slots, self._setup.codec, self._timer_service, self._broadcast, self._setup.context
        )

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        everywhere = self._inputs.numbers(batch) == 1
        if everywhere.any():
            outputs = self._process_broadcast(batch.filter(pa.array(everywhere)))
            if outputs:
                yield self._built(outputs)
            batch = batch.filter(pa.array(~everywhere))
        if batch.num_rows:
            yield from super().process(batch)

    def _process_broadcast(self, batch: pa.RecordBatch) -> list[Any]:
        outputs: list[Any] = []
        call: Callable[..., Any] = self._function.process_broadcast_element  # type: ignore[attr-defined]
        extend = self._collector(outputs, call)
        context = self._writing
        gate = self._lifecycle.operator_states.gate
        gate.open = True
        with self._explained("process_broadcast_element()"):
            for start in range(0, batch.num_rows, SLICE_ROWS):
                for row, context.time in zip(*self._inputs.elements(batch.slice(start, SLICE_ROWS), 1), strict=True):
                    result = call(row, context)
                    if result is not None:
                        extend(result)
        gate.open = False
        context.time = None
        self._take_aside(outputs)
        return outputs

    def _process_slice(self, batch: pa.RecordBatch, key_slots: np.ndarray[Any, Any]) -> list[Any]:
        since = time.perf_counter()
        rows, times = self._inputs.elements(batch, 0)
        slots = key_slots.tolist() if self._spec.key_types else [None] * len(rows)
        since = self._timings.add("decode", since)
        outputs: list[Any] = []
        call = self._function.process_element
        extend = self._collector(outputs, call)
        element = self._element
        current = self._slots.current
        with self._explained("process_element()"):
            for current[0], row, element.time in zip(slots, rows, times, strict=True):
                result = call(row, element)
                if result is not None:
                    extend(result)
        current[0] = None
        element.time = None
        self._timings.add("user", since)
        return outputs


class UnkeyedBroadcastOperator(BroadcastOperator, UnkeyedOperator):
    """Runs a `BroadcastProcessFunction`."""

    def _reading(self) -> Any:
        return PlainReadContext(self._broadcast, self._setup.context)


KINDS: dict[tuple[str, bool], type[ProcessOperator]] = {
    (PLAIN, False): UnkeyedOperator,
    (CO, True): CoOperator,
    (CO, False): UnkeyedCoOperator,
    (BROADCAST, True): BroadcastOperator,
    (BROADCAST, False): UnkeyedBroadcastOperator,
}
