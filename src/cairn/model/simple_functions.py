"""Functions of one value at a time, with and without a key. The names are PyFlink's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.model.functions import RuntimeContext


class Function:
    """What all simple functions share. Like process functions they are made anew for every epoch."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called before the first value. On a keyed stream, get the state handles here."""

    def close(self) -> None:
        """Called after the last value of the epoch."""


class MapFunction(Function):
    """One value in, one value out."""

    def map(self, value: Any) -> Any:
        raise TypeError(f"{type(self).__name__} must define map(value)")


class FilterFunction(Function):
    """Lets a value pass or not."""

    def filter(self, value: Any) -> bool:
        raise TypeError(f"{type(self).__name__} must define filter(value)")


class FlatMapFunction(Function):
    """One value in, any number of values out: yield them, or return an iterable."""

    def flat_map(self, value: Any) -> Iterable[Any] | None:
        raise TypeError(f"{type(self).__name__} must define flat_map(value)")


class KeySelector(Function):
    """Computes the key of a value: `key_by(MySelector(), key_type=Types.STRING())`."""

    def get_key(self, value: Any) -> Any:
        raise TypeError(f"{type(self).__name__} must define get_key(value)")


class CoMapFunction(Function):
    """Two inputs, one value out for each value of either."""

    def map1(self, value: Any) -> Any:
        raise TypeError(f"{type(self).__name__} must define map1(value)")

    def map2(self, value: Any) -> Any:
        raise TypeError(f"{type(self).__name__} must define map2(value)")


class CoFlatMapFunction(Function):
    """Two inputs, any number of values out for each value of either."""

    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        raise TypeError(f"{type(self).__name__} must define flat_map1(value)")

    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        raise TypeError(f"{type(self).__name__} must define flat_map2(value)")
