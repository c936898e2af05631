"""`keyed.reduce(...)` as a process function: the combined row of each key is its state.

`sum(0)`, `min_by("n")` and the like are such reductions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cairn.model.descriptors import ReducingStateDescriptor
from cairn.model.functions import KeyedProcessFunction, ReduceFunction, RuntimeContext, no_value_to_reduce


class Accumulate(ReduceFunction):
    """Combines rows by one of their columns, or bare values. Nulls do not count.

    `sum`, `min` and `max` put their result into that column of the key's first row. `min_by` and `max_by` keep the
    whole row that has the smallest or largest value, of several such rows the first.
    """

    def __init__(self, kind: str, place: int, bare: bool) -> None:
        self._kind = kind
        self._place = place
        self._bare = bare

    def reduce(self, value1: Any, value2: Any) -> Any:
        if self._bare:
            return self._of(value1, value2)
        place = self._place
        if self._kind.endswith("_by"):
            return value2 if self._of(value1[place], value2[place]) is not value1[place] else value1
        return (*value1[:place], self._of(value1[place], value2[place]), *value1[place + 1 :])

    def _of(self, first: Any, second: Any) -> Any:
        if first is None or second is None:
            return second if first is None else first
        if self._kind == "sum":
            return first + second
        return second if (second < first if self._kind.startswith("min") else second > first) else first


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
