"""Broadcast maps as functions hold them: one that is only read, and one that can be changed at times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cairn.errors import StateMisuseError


class ReadOnlyMap:
    """A broadcast map where it must not be changed."""

    __slots__ = ("_name", "_state")

    def __init__(self, name: str, state: Any) -> None:
        self._name = name
        self._state = state

    def get(self, key: Any) -> Any:
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        return bool(self._state.contains(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._state.items())

    def keys(self) -> Iterator[Any]:
        return iter(self._state.keys())

    def values(self) -> Iterator[Any]:
        return iter(self._state.values())

    def is_empty(self) -> bool:
        return bool(self._state.is_empty())

    def __getitem__(self, key: Any) -> Any:
        return self._state.get(key)

    def __contains__(self, key: Any) -> bool:
        return bool(self._state.contains(key))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state.keys())

    def _refuse(self, *given: Any) -> Any:
        raise StateMisuseError(
            f"broadcast state '{self._name}' can be changed in process_broadcast_element only: elsewhere each subtask "
            "sees other rows, and its copies would no longer be the same",
            state=self._name,
        )

    put = put_all = remove = clear = _refuse
    __setitem__ = __delitem__ = _refuse


class Gate:
    """Whether broadcast state can be changed now. Functions may keep a map for longer than they may write to it."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True


class GuardedMap(ReadOnlyMap):
    """A broadcast map that can be changed while its gate is open."""

    __slots__ = ("_gate",)

    def __init__(self, name: str, state: Any, gate: Gate) -> None:
        super().__init__(name, state)
        self._gate = gate

    def _writable(self) -> Any:
        return self._state if self._gate.open else self._refuse()

    def put(self, key: Any, value: Any) -> None:
        self._writable().put(key, value)

    def put_all(self, entries: Any) -> None:
        self._writable().put_all(entries)

    def remove(self, key: Any) -> None:
        self._writable().remove(key)

    def clear(self) -> None:
        self._writable().clear()

    __setitem__ = put
    __delitem__ = remove
