"""Nested map values that change many times within an epoch: kept in parts, and made into bytes once.

The values that user code reads and writes are bytes at all times (`state/state_table.py`): a list that grows row by row
would copy all its elements at each row. A draft holds the stored forms of the parts of such a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list).decode


class Draft(ABC):
    """One value in parts. Who changes `parts` sets `changed`."""

    __slots__ = ("_origin", "changed")

    def __init__(self, stored: bytes | None) -> None:
        self._origin = stored
        self.changed = False

    @abstractmethod
    def _packed(self) -> list[Any]:
        """The parts as the type of the value lays them out."""

    def stored(self) -> bytes:
        """The stored form of the value: the very object that was read, if nothing has changed."""
        if self._origin is None or self.changed:
            self._origin = _encode(self._packed())
            self.changed = False
        return self._origin


class ListDraft(Draft):
    """A value of an array type: the stored forms of its elements."""

    __slots__ = ("parts",)

    def __init__(self, stored: bytes | None) -> None:
        super().__init__(stored)
        self.parts: list[Any] = [] if stored is None else _decode(stored)

    def _packed(self) -> list[Any]:
        return self.parts


class SetDraft(Draft):
    """A value of an array type that holds no element twice: the stored forms of its elements, in their order."""

    __slots__ = ("parts",)

    def __init__(self, stored: bytes | None) -> None:
        super().__init__(stored)
        self.parts: dict[Any, None] = {} if stored is None else dict.fromkeys(_decode(stored))

    def _packed(self) -> list[Any]:
        return list(self.parts)


class MapDraft(Draft):
    """A value of a map type: by each key as users see it, the stored forms of the key and of its value."""

    __slots__ = ("parts",)

    def __init__(self, stored: bytes | None, user_key: Callable[[Any], Any]) -> None:
        super().__init__(stored)
        pairs = [] if stored is None else _decode(stored)
        self.parts: dict[Any, tuple[Any, Any]] = {user_key(key): (key, value) for key, value in pairs}

    def _packed(self) -> list[Any]:
        return list(self.parts.values())
