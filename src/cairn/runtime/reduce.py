"""`keyed.reduce(...)` as a process function: the combined row of each key is its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cairn.model.descriptors import ReducingStateDescriptor
from cairn.model.functions import KeyedProcessFunction, ReduceFunction, RuntimeContext, no_value_to_reduce


class Reduce(KeyedProcessFunction):
    def __init__(self, function: ReduceFunction | Callable[[Any, Any], Any], row_type: str) -> None:
        self._function = function
        self._row_type = row_type

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self._function, ReduceFunction):
            self._function.open(runtime_context)
        self._state = runtime_context.get_reducing_state(
            ReducingStateDescriptor("reduced", self._function, self._row_type)
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if value is None:
            raise no_value_to_reduce()
        self._state.add(value)
        return (self._state.get(),)

    def close(self) -> None:
        if isinstance(self._function, ReduceFunction):
            self._function.close()
