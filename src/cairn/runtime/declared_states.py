"""Which states a function declares: `initialize_state()` and `open()` run once with a context that takes notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from cairn.errors import CairnError, InvalidInputError
from cairn.model.descriptors import ListStateDescriptor, StateDescriptor, StateKind
from cairn.model.evolution import StateDeclaration, paths
from cairn.model.manifest import BROADCAST, LIST, UNION, StateSpec
from cairn.model.process_functions import CheckpointedFunction
from cairn.runtime.keyed_operator import OperatorSpec
from cairn.runtime.operator_kinds import operator_kind
from cairn.runtime.operator_state import spec_of_operator_state
from cairn.runtime.state_registry import spec_of
from cairn.state.key_slots import no_current_key
from cairn.state.type_conversion import pack_default


class Declared(msgspec.Struct, frozen=True, omit_defaults=True):
    """The states of one operator as its code declares them; unknown if it failed when it was asked, with the reason."""

    uid: str
    states: list[StateDeclaration]
    failure: str = ""

    def state(self, name: str) -> StateDeclaration | None:
        return next((declared for declared in self.states if declared.spec.name == name), None)


class _Handle:
    """What a state is in `open()`: its methods can be taken hold of, not called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Any:
            raise no_current_key()

        return call


class _EmptyList:
    """A list of operator state where nothing is stored. What is written to it is forgotten."""

    def get(self) -> Iterator[Any]:
        return iter(())

    __iter__ = get

    def _forget(self, *given: Any) -> None:
        return None

    add = add_all = update = clear = _forget


class _EmptyMap:
    """A broadcast map where nothing is stored. What is written to it is forgotten."""

    def items(self) -> Iterator[Any]:
        return iter(())

    keys = values = __iter__ = items

    def contains(self, key: Any) -> bool:
        return False

    __contains__ = contains

    def is_empty(self) -> bool:
        return True

    def _forget(self, *given: Any) -> None:
        return None

    get = __getitem__ = put = put_all = remove = clear = __setitem__ = __delitem__ = _forget


class _Notes:
    """Stands in for the registry of an operator's states."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self.declared: dict[str, StateDeclaration] = {}

    def handle(self, descriptor: StateDescriptor) -> Any:
        self._note(descriptor, declaration(descriptor))
        return _Handle()

    def of_subtask(self, descriptor: Any, kind: str) -> Any:
        """A state that belongs to subtasks. Functions read such state as soon as they have it."""
        spec = spec_of_operator_state(self._uid, descriptor, kind)
        self._note(descriptor, declaration(descriptor, spec))
        return _EmptyMap() if kind == BROADCAST else _EmptyList()

    def _note(self, descriptor: StateDescriptor, made: StateDeclaration) -> None:
        known = self.declared.get(descriptor.name)
        if known is not None and known.spec.signature != made.spec.signature:
            raise InvalidInputError(
                f"operator '{self._uid}': state name '{descriptor.name}' is already in use for a "
                f"{known.spec.signature}; it cannot also be a {made.spec.signature}",
                state=descriptor.name,
            )
        self.declared[descriptor.name] = made


class _Initialization:
    """`FunctionInitializationContext` and its operator state store: a beginning without stored state."""

    def __init__(self, notes: _Notes, keyed: Any) -> None:
        self._notes = notes
        self._keyed = keyed

    def is_restored(self) -> bool:
        return False

    def get_restored_checkpoint_id(self) -> int | None:
        return None

    def get_operator_state_store(self) -> _Initialization:
        return self

    def get_keyed_state_store(self) -> Any:
        return self._keyed

    def get_list_state(self, state_descriptor: Any) -> Any:
        return self._notes.of_subtask(state_descriptor, LIST)

    def get_union_list_state(self, state_descriptor: Any) -> Any:
        return self._notes.of_subtask(state_descriptor, UNION)

    def get_raw_state(self, name: str) -> Any:
        return self._notes.of_subtask(ListStateDescriptor(name, "binary"), LIST)

    def get_broadcast_state(self, state_descriptor: Any) -> Any:
        return self._notes.of_subtask(state_descriptor, BROADCAST)


def declaration(descriptor: StateDescriptor, spec: StateSpec | None = None) -> StateDeclaration:
    """A descriptor as plain data; `spec` is what it declares where that is not keyed state."""
    types = dict(paths(descriptor.value_type))
    defaults = {path: pack_default(types[path], value) for path, value in descriptor.field_defaults.items()}
    return StateDeclaration(spec or spec_of(descriptor), defaults)


def declared_states(spec: OperatorSpec, parameters: Mapping[str, str]) -> Declared:
    """What an operator declares. Runs `initialize_state()`, `open()` and `close()` of its function; a failure is told,
    not raised."""
    if spec.vectorised:
        made = [StateDeclaration(StateSpec(name, StateKind.VALUE.value, ddl)) for name, ddl in spec.states]
        return Declared(spec.uid, made)
    notes = _Notes(spec.uid)
    stand_in: Any = notes
    context: Any = operator_kind(spec).runtime_context(spec, 0, 0, stand_in, dict(parameters))
    step = "its broadcast state"
    try:
        for descriptor in spec.broadcast:
            notes.of_subtask(descriptor, BROADCAST)
        if isinstance(spec.function, CheckpointedFunction):
            step = "initialize_state()"
            given: Any = _Initialization(notes, context)
            spec.function.initialize_state(given)
        step = "open()"
        spec.function.open(context)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        text = error.message if isinstance(error, CairnError) else type(error).__name__
        return Declared(spec.uid, [], f"{step} raised {text}")
    finally:
        with suppress(Exception):
            spec.function.close()
    return Declared(spec.uid, list(notes.declared.values()))
