"""Which states a function declares: its `open()` run once with a context that only takes notes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from cairn.errors import CairnError, InvalidInputError
from cairn.model.descriptors import StateDescriptor, StateKind
from cairn.model.evolution import StateDeclaration, paths
from cairn.model.manifest import StateSpec
from cairn.runtime.operator import OperatorSpec, TaskRuntimeContext
from cairn.runtime.registry import spec_of
from cairn.state.convert import pack_default
from cairn.state.slots import no_current_key


class Declared(msgspec.Struct, frozen=True, omit_defaults=True):
    """The states of one operator as its code declares them; unknown if `open()` failed, with the reason."""

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


class _Notes:
    """Stands in for the registry of an operator's states."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self.declared: dict[str, StateDeclaration] = {}

    def handle(self, descriptor: StateDescriptor) -> Any:
        made = declaration(descriptor)
        known = self.declared.get(descriptor.name)
        if known is not None and known.spec.signature != made.spec.signature:
            raise InvalidInputError(
                f"operator '{self._uid}': state name '{descriptor.name}' is already in use for a "
                f"{known.spec.signature}; it cannot also be a {made.spec.signature}",
                state=descriptor.name,
            )
        self.declared[descriptor.name] = made
        return _Handle()


def declaration(descriptor: StateDescriptor) -> StateDeclaration:
    """A descriptor as plain data."""
    types = dict(paths(descriptor.value_type))
    defaults = {path: pack_default(types[path], value) for path, value in descriptor.field_defaults.items()}
    return StateDeclaration(spec_of(descriptor), defaults)


def declared_states(spec: OperatorSpec, parameters: Mapping[str, str]) -> Declared:
    """What an operator declares. Runs `open()` and `close()` of its function; a failure is told, not raised."""
    if spec.vectorised:
        made = [StateDeclaration(StateSpec(name, StateKind.VALUE.value, ddl)) for name, ddl in spec.states]
        return Declared(spec.uid, made)
    notes = _Notes(spec.uid)
    context: Any = TaskRuntimeContext(spec, 0, 0, notes, dict(parameters))  # type: ignore[arg-type]
    try:
        spec.function.open(context)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        text = error.message if isinstance(error, CairnError) else type(error).__name__
        return Declared(spec.uid, [], f"open() raised {text}")
    finally:
        with suppress(Exception):
            spec.function.close()
    return Declared(spec.uid, list(notes.declared.values()))
