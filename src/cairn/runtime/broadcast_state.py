"""Broadcast state as functions see it: to be changed by broadcast elements, to be read by all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cairn.errors import NotFoundError
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.manifest import EpochContext
from cairn.model.output_tags import OutputTag, check_tag
from cairn.runtime.broadcast_maps import ReadOnlyMap
from cairn.runtime.keyed_operator import ElementContext, TaskTimerService
from cairn.runtime.operator_state import TaskOperatorStateStore
from cairn.state.codec import KeyCodec
from cairn.state.key_slots import KeySlots


class TaskBroadcastStates:
    """The broadcast states of an operator: those that `stream.broadcast(...)` was given."""

    def __init__(self, uid: str, declared: Sequence[MapStateDescriptor], states: TaskOperatorStateStore) -> None:
        self._uid = uid
        self._declared = {descriptor.name: descriptor for descriptor in declared}
        self._states = states
        self._found: dict[str, Any] = {}
        self._views: dict[str, ReadOnlyMap] = {}

    def of(self, descriptor: Any) -> Any:
        """The map, to be changed while a broadcast element is processed."""
        name = getattr(descriptor, "name", None)
        if name in self._found:
            return self._found[name]
        if name not in self._declared:
            raise NotFoundError(
                f"operator '{self._uid}' has no broadcast state {name or descriptor!r}; stream.broadcast(...) was "
                f"given {', '.join(sorted(self._declared)) or 'none'}",
                state=name,
            )
        self._found[name] = self._states.get_broadcast_state(descriptor)
        return self._found[name]

    def view_of(self, descriptor: Any) -> ReadOnlyMap:
        """The map, to be read only."""
        name = getattr(descriptor, "name", None)
        view = self._views.get(name) if name is not None else None
        if view is None:
            self.of(descriptor)
            view = self._views[descriptor.name] = ReadOnlyMap(descriptor.name, self._states.broadcast_map(descriptor))
        return view


class _TaskTimes:
    """The times of an epoch."""

    _context: EpochContext

    def current_processing_time(self) -> int:
        return self._context.time_ms

    def current_watermark(self) -> int:
        return self._context.seen_watermark


class WriteContext(_TaskTimes):
    """`Context` of `process_broadcast_element`."""

    def __init__(self, states: TaskBroadcastStates, context: EpochContext) -> None:
        self._states = states
        self._context = context
        self.aside: list[Any] = []
        """What `output` was given, in one list with that of the context of the other rows."""
        self.time: int | None = None

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        return self._states.of(state_descriptor)

    def timestamp(self) -> int | None:
        return self.time

    def output(self, tag: OutputTag, value: Any) -> None:
        check_tag(tag)
        self.aside.append((tag, value))


class PlainReadContext(WriteContext):
    """`ReadOnlyContext` of `process_element` without a key."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        return self._states.view_of(state_descriptor)


class KeyedReadContext(ElementContext, _TaskTimes):
    """`ReadOnlyContext` and `OnTimerContext` with a key."""

    def __init__(
        self,
        slots: KeySlots,
        codec: KeyCodec,
        timers: TaskTimerService,
        states: TaskBroadcastStates,
        context: EpochContext,
    ) -> None:
        super().__init__(slots, codec, timers)
        self._states = states
        self._context = context

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        return self._states.view_of(state_descriptor)
