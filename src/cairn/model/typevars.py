"""Type parameters of functions, contexts and states. They need not be given: without one, a type checker takes Any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    KEY = TypeVar("KEY", default=Any)
    VALUE = TypeVar("VALUE", default=Any)
    VALUE_OUT = TypeVar("VALUE_OUT", covariant=True, default=Any)
    VALUE_IN = TypeVar("VALUE_IN", contravariant=True, default=Any)
    IN1 = TypeVar("IN1", default=Any)
    IN2 = TypeVar("IN2", default=Any)
    OUT = TypeVar("OUT", default=Any)
else:  # Python knows no defaults before 3.13
    from typing import TypeVar

    KEY, VALUE, IN1, IN2, OUT = (TypeVar(name) for name in ("KEY", "VALUE", "IN1", "IN2", "OUT"))
    VALUE_OUT = TypeVar("VALUE_OUT", covariant=True)
    VALUE_IN = TypeVar("VALUE_IN", contravariant=True)
