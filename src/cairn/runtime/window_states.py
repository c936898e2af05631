"""State of a window: contents, what triggers and functions keep for it, its timers, and which windows have merged.

Everything is ordinary map state of the current key whose map keys begin with the window, as two numbers. What is stored
under which name is told in docs/design/0005-windows.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cairn.errors import InvalidInputError, StateMisuseError, UserFunctionError
from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from cairn.model.functions import AggregateFunction, MapState, ReduceFunction, RuntimeContext, TimeDomain, TimerService
from cairn.model.types import Types
from cairn.model.windows import MAX_TIME, MergingWindowAssigner, WindowSerializer

WINDOW = "struct<start:bigint,end:bigint>"
ELEMENT = "struct<start:bigint,end:bigint,position:bigint>"
TIMERS = {TimeDomain.EVENT_TIME: "window-timers-event", TimeDomain.PROCESSING_TIME: "window-timers-processing"}

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
        self.update(self._function.add(value, accumulator))

    def merge(self, sources: Sequence[Numbers]) -> None:
        for source in sources:
            other = self._state.get(source)
            if other is not None:
                self._state.remove(source)
                mine = self.value()
                self.update(other if mine is None else self._function.merge(mine, other))


class WindowList(WindowValue):
    """`ListState` of a window, stored as one value."""

    def get(self) -> Iterator[Any]:
        return iter(self.value() or [])

    def __iter__(self) -> Iterator[Any]:
        return self.get()

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        added = list(values)
        if any(value is None for value in added):
            raise StateMisuseError("None is no element of a list state")
        if added:
            super().update([*(self.value() or []), *added])

    def update(self, value: Any) -> None:
        super().update(list(value) or None)

    def merge(self, sources: Sequence[Numbers]) -> None:
        for source in sources:
            self.add_all(self._state.get(source) or [])
            self._state.remove(source)


class WindowMap(WindowValue):
    """`MapState` of a window, stored as one value."""

    def _all(self) -> dict[Any, Any]:
        return dict(self.value() or {})

    def get(self, key: Any) -> Any:
        return self._all().get(key)

    def put(self, key: Any, value: Any) -> None:
        self.put_all({key: value})

    def put_all(self, entries: Any) -> None:
        added = dict(entries.items() if isinstance(entries, Mapping) else entries)
        if any(key is None or value is None for key, value in added.items()):
            raise StateMisuseError("None is neither a key nor a value of a map state; use remove() to take one out")
        self.update((self._all() | added) or None)

    def remove(self, key: Any) -> None:
        entries = self._all()
        if entries.pop(key, None) is not None:
            self.update(entries or None)

    def contains(self, key: Any) -> bool:
        return key in self._all()

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._all().items())

    def keys(self) -> Iterator[Any]:
        return iter(self._all())

    def values(self) -> Iterator[Any]:
        return iter(self._all().values())

    def is_empty(self) -> bool:
        return not self._all()

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()


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
        state = self._runtime.get_map_state(stored)
        if isinstance(descriptor, ReducingStateDescriptor):
            return WindowReducing(state, self._scope, descriptor.reduce)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return WindowAggregating(state, self._scope, descriptor.aggregate)
        if isinstance(descriptor, ListStateDescriptor):
            return WindowList(state, self._scope)
        if isinstance(descriptor, MapStateDescriptor):
            return WindowMap(state, self._scope)
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
        if contents.kind == "reduce":
            self._value = WindowReducing(state, self._scope, reducing(contents.function))
        else:
            self._value = WindowAggregating(state, self._scope, contents.function)

    def add(self, window: Numbers, value: Any) -> None:
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


def reducing(function: Any) -> Callable[[Any, Any], Any]:
    """How two elements become one."""
    return function.reduce if isinstance(function, ReduceFunction) else function


def contents_of(contents: Contents, runtime: RuntimeContext) -> MergedValue | Elements:
    return Elements(contents, runtime) if contents.kind == "elements" else MergedValue(contents, runtime)


class WindowTimers:
    """Timers that belong to windows: for each time of a key, the windows that asked for it.

    The times that are given are Flink's. A timer is set a millisecond later, because rows at the time itself may
    still come: see the design note.
    """

    def __init__(self, runtime: RuntimeContext) -> None:
        self._windows = {
            domain: runtime.get_map_state(MapStateDescriptor(name, "bigint", f"array<{WINDOW}>"))
            for domain, name in TIMERS.items()
        }

    def register(self, domain: TimeDomain, time: int, window: Numbers, service: TimerService) -> None:
        if time >= MAX_TIME:
            return  # never
        state = self._windows[domain]
        windows = state.get(time + 1)
        if windows is None:
            state.put(time + 1, [window])
        elif window in windows:
            return
        else:
            state.put(time + 1, [*windows, window])
        if domain is TimeDomain.EVENT_TIME:
            service.register_event_time_timer(time + 1)
        else:
            service.register_processing_time_timer(time + 1)

    def delete(self, domain: TimeDomain, time: int, window: Numbers, service: TimerService) -> None:
        if time >= MAX_TIME:
            return
        state = self._windows[domain]
        windows = state.get(time + 1)
        if windows is None or window not in windows:
            return
        left = [other for other in windows if other != window]
        if left:
            state.put(time + 1, left)
            return
        state.remove(time + 1)
        if domain is TimeDomain.EVENT_TIME:
            service.delete_event_time_timer(time + 1)
        else:
            service.delete_processing_time_timer(time + 1)

    def take(self, domain: TimeDomain, timestamp: int) -> list[Numbers]:
        """The windows whose timer has fired; it is gone."""
        state = self._windows[domain]
        windows = state.get(timestamp) or []
        state.remove(timestamp)
        return [(start, end) for start, end in windows]


class MergingWindows:
    """The windows of a key that may merge, each with the window under which its contents lie."""

    def __init__(
        self, runtime: RuntimeContext, assigner: MergingWindowAssigner[Any, Any], serializer: WindowSerializer[Any]
    ) -> None:
        self._state = runtime.get_map_state(MapStateDescriptor("window-sessions", WINDOW, WINDOW))
        self._assigner = assigner
        self._serializer = serializer

    def contents_window(self, window: Numbers) -> Numbers | None:
        """Where the contents of a window lie; None if there is no such window any more."""
        found = self._state.get(window)
        return None if found is None else (found[0], found[1])

    def retire(self, window: Numbers) -> None:
        self._state.remove(window)

    def add(self, window: Any, merged: Callable[[Any, list[Any], Numbers, list[Numbers]], None]) -> Any:
        """Take in a window; the one that it is part of afterwards.

        `merged(result, windows, target, sources)` is called where windows become one: `windows` are those that there
        were, the contents of `sources` are to be added to those of `target`.
        """
        numbers, revive = self._serializer.to_numbers, self._serializer.from_numbers
        known = {(key[0], key[1]): (value[0], value[1]) for key, value in self._state.items()}
        mine = numbers(window)
        if mine in known:
            return window
        groups = _Groups()
        self._assigner.merge_windows([*(revive(*key) for key in known), window], groups)
        result = window
        joined = False
        for members, made in groups.found:
            together = list(dict.fromkeys(map(numbers, members)))
            before = [key for key in together if key != mine]
            if mine in together:
                joined = True
                result = made
            unknown = [key for key in before if key not in known]
            if unknown or not before:
                raise UserFunctionError(
                    f"{type(self._assigner).__name__}.merge_windows() merged {unknown or 'no'} windows that it was "
                    "not given"
                )
            places = [known.pop(key) for key in before]
            for key in before:
                self._state.remove(key)
            known[numbers(made)] = places[0]
            self._state.put(numbers(made), places[0])
            if before != [numbers(made)]:
                merged(made, [revive(*key) for key in before], places[0], places[1:])
        if not joined:
            self._state.put(mine, mine)
        return result


class _Groups:
    """Collects what an assigner merges."""

    def __init__(self) -> None:
        self.found: list[tuple[list[Any], Any]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.found.append((list(to_be_merged), merge_result))


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


__all__ = [
    "Contents",
    "MergingWindows",
    "NoWindowState",
    "Scope",
    "WindowStates",
    "WindowTimers",
    "checked_window",
    "contents_of",
]
