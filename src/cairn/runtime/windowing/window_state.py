"""State of a window, as triggers and window functions have it: handles of every kind, by descriptor.

Behind each handle is ordinary map state of the current key, whose map key is the window as two numbers. What windows
hold is in `runtime/windowing/window_contents.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cairn.errors import InvalidInputError, StateMisuseError
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from cairn.model.functions import AggregateFunction, MapState, RuntimeContext, none_returned
from cairn.model.types import DataType, Types
from cairn.state.drafts import ListDraft, MapDraft
from cairn.state.map_state import MapStateHandle, MapSyntax

WINDOW = "struct<start:bigint,end:bigint>"

Numbers = tuple[int, int]
"""A window as it is stored."""


class Scope:
    """The window whose state the handles of a `WindowStates` show."""

    __slots__ = ("window",)

    def __init__(self) -> None:
        self.window: Numbers = (0, 0)


class WindowValue:
    """`ValueState` of a window."""

    def __init__(self, state: MapState, scope: Scope) -> None:
        self._state = state
        self._scope = scope

    def value(self) -> Any:
        return self._state.get(self._scope.window)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._state.put(self._scope.window, value)

    def clear(self) -> None:
        self._state.remove(self._scope.window)

    def merge(self, sources: Sequence[Numbers]) -> None:
        raise StateMisuseError(
            "only list, reducing and aggregating state can be merged with merge_partitioned_state; merge other state "
            "by what it means"
        )


class WindowReducing(WindowValue):
    """`ReducingState` of a window."""

    def __init__(self, state: MapState, scope: Scope, reduce: Callable[[Any, Any], Any]) -> None:
        super().__init__(state, scope)
        self._reduce = reduce

    def get(self) -> Any:
        return self.value()

    def add(self, value: Any) -> None:
        before = self.value()
        self.update(value if before is None or value is None else self._reduce(before, value))

    def merge(self, sources: Sequence[Numbers]) -> None:
        for source in sources:
            value = self._state.get(source)
            if value is not None:
                self._state.remove(source)
                self.add(value)


class WindowAggregating(WindowValue):
    """`AggregatingState` of a window."""

    def __init__(self, state: MapState, scope: Scope, function: AggregateFunction) -> None:
        super().__init__(state, scope)
        self._function = function

    def get(self) -> Any:
        accumulator = self.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        accumulator = self.value()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._keep(self._function.add(value, accumulator), "add")

    def _keep(self, accumulator: Any, method: str) -> None:
        if accumulator is None:
            raise none_returned(f"{type(self._function).__name__}.{method}()", "the accumulator")
        self.update(accumulator)

    def merge(self, sources: Sequence[Numbers]) -> None:
        for source in sources:
            other = self._state.get(source)
            if other is not None:
                self._state.remove(source)
                mine = self.value()
                self._keep(other if mine is None else self._function.merge(mine, other), "merge")


class WindowList(WindowValue):
    """`ListState` of a window, stored as one value."""

    def __init__(self, state: MapStateHandle, scope: Scope, element: DataType) -> None:
        super().__init__(state, scope)
        self._state: MapStateHandle = state
        self._element = element

    def get(self) -> Iterator[Any]:
        return iter(self.value() or [])

    def __iter__(self) -> Iterator[Any]:
        return self.get()

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        added = list(values)
        if any(value is None for value in added):
            raise StateMisuseError("None cannot be an element of a list state")
        if added:
            parts = [self._state.fit(value, self._element) for value in added]
            window = self._scope.window
            draft = self._state.draft(window, ListDraft)
            draft.parts += parts
            self._state.keep(window, draft)

    def update(self, value: Any) -> None:
        super().update(list(value) or None)

    def merge(self, sources: Sequence[Numbers]) -> None:
        for source in sources:
            self.add_all(self._state.get(source) or [])
            self._state.remove(source)


class WindowMap(MapSyntax, WindowValue):
    """`MapState` of a window, stored as one value."""

    def __init__(self, state: MapStateHandle, scope: Scope, key: DataType, value: DataType) -> None:
        super().__init__(state, scope)
        self._state: MapStateHandle = state
        self._key = key
        self._value = value

    def _draft(self) -> MapDraft:
        return self._state.draft(self._scope.window, self._made)

    def _made(self, stored: bytes | None) -> MapDraft:
        return MapDraft(stored, self._key.from_storage)

    def _user_key(self, key: Any) -> Any:
        return self._key.from_storage(self._state.fit(key, self._key))

    def get(self, key: Any) -> Any:
        pair = self._draft().parts.get(self._user_key(key))
        return None if pair is None else self._value.from_storage(pair[1])

    def put(self, key: Any, value: Any) -> None:
        self.put_all([(key, value)])

    def put_all(self, entries: Any) -> None:
        added = list(entries.items() if isinstance(entries, Mapping) else entries)
        if any(key is None or value is None for key, value in added):
            raise StateMisuseError("None is neither a key nor a value of a map state; use remove() to take one out")
        fit = self._state.fit
        pairs = [(fit(key, self._key), fit(value, self._value)) for key, value in added]
        if pairs:
            draft = self._draft()
            for stored_key, stored in pairs:
                key = self._key.from_storage(stored_key)
                known = draft.parts.get(key)  # 0.0 and -0.0 are equal: the key that is there stays
                draft.parts[key] = (stored_key if known is None else known[0], stored)
            self._state.keep(self._scope.window, draft)

    def remove(self, key: Any) -> None:
        draft = self._draft()
        if draft.parts.pop(self._user_key(key), None) is None:
            return
        if draft.parts:
            self._state.keep(self._scope.window, draft)
        else:
            self.clear()

    def contains(self, key: Any) -> bool:
        return self._user_key(key) in self._draft().parts

    def items(self) -> Iterator[tuple[Any, Any]]:
        decode = self._value.from_storage
        return iter([(key, decode(value)) for key, (_, value) in self._draft().parts.items()])

    def keys(self) -> Iterator[Any]:
        return iter(list(self._draft().parts))

    def values(self) -> Iterator[Any]:
        return iter([value for _, value in self.items()])

    def is_empty(self) -> bool:
        return not self._draft().parts


class WindowStates:
    """States of the current key and window by descriptor, under names that begin with a prefix."""

    def __init__(self, runtime: RuntimeContext, scope: Scope, prefix: str) -> None:
        self._runtime = runtime
        self._scope = scope
        self._prefix = prefix
        self._known: dict[tuple[str, type], Any] = {}

    def of(self, descriptor: Any) -> Any:
        """The handle of a state."""
        if not isinstance(descriptor, StateDescriptor):
            raise InvalidInputError(f"a state is named by its descriptor, not by a {type(descriptor).__name__}")
        known = self._known.get((descriptor.name, type(descriptor)))
        if known is None:
            known = self._known[descriptor.name, type(descriptor)] = self._made(descriptor)
        return known

    def _made(self, descriptor: StateDescriptor) -> Any:
        value_type = descriptor.value_type
        if isinstance(descriptor, ListStateDescriptor):
            value_type = Types.LIST(value_type)
        elif isinstance(descriptor, MapStateDescriptor):
            assert descriptor.key_type is not None
            value_type = Types.MAP(descriptor.key_type, value_type)
        stored = MapStateDescriptor(f"{self._prefix}.{descriptor.name}", WINDOW, value_type)
        if descriptor.ttl is not None:
            stored.enable_time_to_live(descriptor.ttl)
        state: Any = self._runtime.get_map_state(stored)
        if isinstance(descriptor, ReducingStateDescriptor):
            return WindowReducing(state, self._scope, descriptor.reduce)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return WindowAggregating(state, self._scope, descriptor.aggregate)
        if isinstance(descriptor, ListStateDescriptor):
            return WindowList(state, self._scope, descriptor.value_type)
        if isinstance(descriptor, MapStateDescriptor):
            assert descriptor.key_type is not None
            return WindowMap(state, self._scope, descriptor.key_type, descriptor.value_type)
        if isinstance(descriptor, ValueStateDescriptor):
            return WindowValue(state, self._scope)
        raise InvalidInputError(f"a window keeps no state of a {type(descriptor).__name__}")

    get_state = get_list_state = get_map_state = get_reducing_state = get_aggregating_state = of


class NoWindowState:
    """`window_state()` of merging windows, which have none: nobody could say what becomes of it when they merge."""

    def _refuse(self, state_descriptor: Any) -> Any:
        raise StateMisuseError(
            "windows that merge have no state of their own, since it could not be merged; use global_state(), which "
            "is that of the key"
        )

    get_state = get_list_state = get_map_state = get_reducing_state = get_aggregating_state = _refuse
