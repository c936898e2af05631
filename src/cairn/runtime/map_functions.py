"""`map`, `filter` and `flat_map`: on a plain stream as a step of their own, on a keyed one as process functions.

On a plain stream they keep no state, so there is nothing to commit: they run in whatever tasks Spark has for the rows,
and are repeated with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import pyarrow as pa

from cairn.errors import CairnError, InvalidInputError, StateMisuseError, UserFunctionError
from cairn.model.functions import KeyedProcessFunction, RuntimeContext
from cairn.model.manifest import EpochContext
from cairn.model.process_functions import KeyedCoProcessFunction
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.rows import row_class
from cairn.model.simple_functions import FilterFunction, FlatMapFunction, Function, KeySelector, MapFunction
from cairn.runtime.batches import SLICE_ROWS, OutputBuilder, row_columns
from cairn.runtime.exact_values import exact_array
from cairn.runtime.tagged_outputs import SideSpec, output_builder
from cairn.runtime.user_errors import explained

NOT_KEYED = "This state is only accessible by functions executed on a KeyedStream."
_METHODS: dict[str, tuple[type[Function], str]] = {
    "map": (MapFunction, "map"),
    "filter": (FilterFunction, "filter"),
    "flat_map": (FlatMapFunction, "flat_map"),
    "key": (KeySelector, "get_key"),
}
"""The class whose instances each kind of simple function takes, and the method that is called for every value."""


def method_of(kind: str, function: Any) -> Callable[[Any], Any] | None:
    """What is called for every value: the method of a PyFlink-like function, or the callable itself."""
    base, method = _METHODS[kind]
    if isinstance(function, base):
        return getattr(function, method)  # type: ignore[no-any-return]
    if isinstance(function, Function) or not callable(function):
        return None
    return function  # type: ignore[no-any-return]


def checked_rows(result: Any, label: str, call: str) -> Iterable[Any]:
    """What a function returned that must be rows. Text and mappings can be iterated, too, and never mean rows."""
    if isinstance(result, (str, bytes, dict)) or not hasattr(result, "__iter__"):
        raise UserFunctionError(
            f"operator '{label}': {call}() returned a {type(result).__name__}; it must yield values or return a list "
            "of them"
        )
    return result  # type: ignore[no-any-return]


class KeyedSimple(KeyedProcessFunction):
    """A simple function on a keyed stream: it may have keyed state."""

    def __init__(self, kind: str, function: Any, label: str) -> None:
        self._kind = kind
        self._function = function
        self._label = label

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self._function, Function):
            self._function.open(runtime_context)
        self._call = method_of(self._kind, self._function)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        assert self._call is not None
        result = self._call(value)
        if self._kind == "map":
            return [result]
        if self._kind == "filter":
            return [value] if result else None
        return None if result is None else checked_rows(result, self._label, "flat_map")

    def close(self) -> None:
        if isinstance(self._function, Function):
            self._function.close()


@dataclass(frozen=True, slots=True)
class SimpleSpec:
    """A simple function on a plain stream. Travels to the workers."""

    uid: str
    kind: str
    function: Any
    columns: tuple[str, ...]
    output: pa.Schema
    parallelism: int = 0
    bare_in: bool = False
    bare_out: bool = False
    tagged: bool = False
    sides: tuple[SideSpec, ...] = ()


class PlainRuntimeContext(PyFlinkNames):
    """`RuntimeContext` where there is no key: all but state."""

    def __init__(
        self, name: str, subtask: int, parallelism: int, groups: int, attempt: int, told: EpochContext
    ) -> None:
        self._name = name
        self._subtask = subtask
        self._parallelism = parallelism
        self._groups = groups
        self._attempt = attempt
        self._parameters = told.parameters

    def get_task_name(self) -> str:
        return self._name

    def get_task_name_with_subtasks(self) -> str:
        return f"{self._name} ({self._subtask + 1}/{self._parallelism})"

    def get_number_of_parallel_subtasks(self) -> int:
        return self._parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._groups

    def get_index_of_this_subtask(self) -> int:
        return self._subtask

    def get_attempt_number(self) -> int:
        return self._attempt

    def get_job_parameter(self, key: str, default_value: str) -> str:
        return self._parameters.get(key, default_value)

    def get_state(self, state_descriptor: Any) -> Any:
        raise StateMisuseError(
            f"operator '{self._name}': {NOT_KEYED} Call key_by(...) first, or keep operator state with a "
            "CheckpointedFunction."
        )

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state

    def get_raw_state(self, name: str) -> Any:
        return self.get_state(name)


def run_simple(
    spec: SimpleSpec, batches: Iterable[pa.RecordBatch], context: EpochContext, subtask: int, attempt: int
) -> Iterator[pa.RecordBatch]:
    """Run a simple function over the rows of one Spark task."""
    builder = output_builder(spec.uid, spec.output, spec.bare_out, spec.tagged, spec.sides, subtask)
    function = spec.function
    values: list[Any] = []
    unread: Iterator[Any] = iter(values)
    try:
        if isinstance(function, Function):
            parallelism = max(spec.parallelism, subtask + 1)
            function.open(PlainRuntimeContext(spec.uid, subtask, parallelism, parallelism, attempt, context))
        call = method_of(spec.kind, function)
        assert call is not None
        for batch in batches:
            for start in range(0, batch.num_rows, SLICE_ROWS):
                rows = batch.slice(start, SLICE_ROWS)
                values = _values(rows, spec)
                unread = iter(values)
                made = _called(spec, call, rows, unread, builder)
                values = []
                if made is not None:
                    yield made
        if isinstance(function, Function):
            function.close()
    except BaseException as error:
        if isinstance(function, Function):
            with suppress(Exception):  # the user must hear of the failure, not of what this may raise
                function.close()
        if isinstance(error, InvalidInputError) and not error.message.startswith("operator"):
            raise type(error)(
                f"operator '{spec.uid}', epoch {context.epoch}: {error.message}", **error.facts
            ) from error
        if isinstance(error, CairnError) or not isinstance(error, Exception):
            raise
        taken = len(values) - length_hint(unread)  # a list's iterator knows how many it has left
        raise explained(spec.uid, f"{spec.kind}()", context, error, values[taken - 1 : taken]) from error


def _called(
    spec: SimpleSpec,
    call: Callable[[Any], Any],
    rows: pa.RecordBatch,
    values: Iterator[Any],
    builder: OutputBuilder,
) -> pa.RecordBatch | None:
    """What the function makes of some rows."""
    if spec.kind == "filter":
        passed = rows.filter(pa.array([bool(call(value)) for value in values], pa.bool_()))
        return builder.check(passed.rename_columns(list(spec.output.names))) if passed.num_rows else None
    if spec.kind == "key":
        return builder.check(_with_key(rows, [call(value) for value in values], spec))
    outputs: list[Any] = []
    if spec.kind == "map":
        outputs.extend(map(call, values))
    else:
        for value in values:
            result = call(value)
            if result is not None:
                outputs.extend(checked_rows(result, spec.uid, "flat_map"))
    return builder.build(outputs) if outputs else None


def _with_key(rows: pa.RecordBatch, keys: list[Any], spec: SimpleSpec) -> pa.RecordBatch:
    """The rows with the keys that a function computed as their last column."""
    field = spec.output.field(len(spec.output) - 1)
    try:
        column = exact_array(keys, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserFunctionError(
            f"operator '{spec.uid}': a key is not of the type {field.type} that key_by was told: {error}"
        ) from None
    return pa.RecordBatch.from_arrays([*rows.columns, column], names=list(spec.output.names))


def _values(batch: pa.RecordBatch, spec: SimpleSpec) -> list[Any]:
    columns = row_columns(batch, len(spec.columns))
    if spec.bare_in:
        return columns[0]
    return list(map(row_class(spec.columns), zip(*columns, strict=True)))


class CoSimple(KeyedCoProcessFunction):
    """A `CoMapFunction` or `CoFlatMapFunction` as a process function, with a key or without."""

    def __init__(self, kind: str, function: Any, label: str) -> None:
        self._kind = kind
        self._function = function
        self._label = label

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)
        self._calls = (getattr(self._function, f"{self._kind}1"), getattr(self._function, f"{self._kind}2"))

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self._call(0, value)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self._call(1, value)

    def _call(self, number: int, value: Any) -> Iterable[Any] | None:
        result = self._calls[number](value)
        if self._kind == "map":
            return [result]
        return None if result is None else checked_rows(result, self._label, f"flat_map{number + 1}")

    def close(self) -> None:
        self._function.close()
