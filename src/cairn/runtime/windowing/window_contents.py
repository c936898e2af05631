"""What a window operator keeps in the windows of a key.

It is ordinary map state whose map keys are windows as two numbers. What is stored under which name is told in
docs/design/0005-windows.md. Timers of windows are in `window_timers.py`, windows that merge in `merging_windows.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cairn.errors import UserFunctionError
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.functions import RuntimeContext, no_value_to_reduce, reducing
from cairn.model.windows import WindowSerializer
from cairn.runtime.windowing.window_state import WINDOW, Numbers, Scope, WindowAggregating, WindowReducing

ELEMENT = "struct<start:bigint,end:bigint,position:bigint>"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a window holds: `kind` is reduce, aggregate or elements; `type` that of an accumulator, row or element."""

    kind: str
    type: str
    function: Any = None


class MergedValue:
    """Contents of reduce and aggregate: one value."""

    def __init__(self, contents: Contents, runtime: RuntimeContext) -> None:
        state = runtime.get_map_state(MapStateDescriptor("window-contents", WINDOW, contents.type))
        self._scope = Scope()
        self._value: WindowReducing | WindowAggregating
        self._reduces = contents.kind == "reduce"
        if self._reduces:
            self._value = WindowReducing(state, self._scope, reducing(contents.function))
        else:
            self._value = WindowAggregating(state, self._scope, contents.function)

    def add(self, window: Numbers, value: Any) -> None:
        if value is None and self._reduces:
            raise no_value_to_reduce()
        self._scope.window = window
        self._value.add(value)

    def get(self, window: Numbers) -> list[Any] | None:
        """What the window function is given, or None if the window is empty."""
        self._scope.window = window
        if self._value.value() is None:
            return None
        return [self._value.get()]

    def clear(self, window: Numbers) -> None:
        self._scope.window = window
        self._value.clear()

    def merge(self, target: Numbers, sources: Sequence[Numbers]) -> None:
        self._scope.window = target
        self._value.merge(sources)


class Elements:
    """Contents of process and apply: the elements in the order in which they came, one entry each."""

    def __init__(self, contents: Contents, runtime: RuntimeContext) -> None:
        self._elements = runtime.get_map_state(MapStateDescriptor("window-elements", ELEMENT, contents.type))
        self._sizes = runtime.get_map_state(MapStateDescriptor("window-sizes", WINDOW, "bigint"))

    def add(self, window: Numbers, value: Any) -> None:
        size = self._sizes.get(window) or 0
        self._elements.put((*window, size), value)
        self._sizes.put(window, size + 1)

    def get(self, window: Numbers) -> list[Any] | None:
        size = self._sizes.get(window)
        if not size:
            return None
        return [self._elements.get((*window, position)) for position in range(size)]

    def clear(self, window: Numbers) -> None:
        for position in range(self._sizes.get(window) or 0):
            self._elements.remove((*window, position))
        self._sizes.remove(window)

    def merge(self, target: Numbers, sources: Sequence[Numbers]) -> None:
        for source in sources:
            for element in self.get(source) or ():
                self.add(target, element)
            self.clear(source)


def contents_of(contents: Contents, runtime: RuntimeContext) -> MergedValue | Elements:
    return Elements(contents, runtime) if contents.kind == "elements" else MergedValue(contents, runtime)


def checked_window(window: Any, serializer: WindowSerializer[Any]) -> Numbers:
    """The numbers of a window that user code made."""
    try:
        first, second = serializer.to_numbers(window)
    except (AttributeError, TypeError, ValueError) as error:
        raise UserFunctionError(
            f"{type(serializer).__name__} cannot store {window!r} ({error}); an assigner with windows of its own gives "
            "a serializer for them in get_window_serializer()"
        ) from None
    return int(first), int(second)
