"""Which operator runs which kind of function. Imported by the task, so that a worker loads what it needs only."""

from __future__ import annotations

from cairn.errors import InternalError
from cairn.runtime.keyed_operator import OperatorSpec, ProcessOperator

PROCESS = "process"
"""One keyed input, row by row."""
PLAIN = "plain"
"""One input without a key."""
CO = "co"
"""Two inputs; without a key if the operator has no key types."""
BROADCAST = "broadcast"
"""A broadcast second input; without a key if the operator has no key types."""

WINDOW = "window"
"""An aggregation over event-time windows, in columns."""


def operator_kind(spec: OperatorSpec) -> type[ProcessOperator]:
    """The class that runs an operator."""
    if spec.kind == WINDOW:
        from cairn.runtime.windowing.aggregate_operator import WindowAggregateOperator

        return WindowAggregateOperator
    if spec.vectorised:
        from cairn.runtime.batch_operator import BatchOperator

        return BatchOperator
    if spec.kind == PROCESS:
        return ProcessOperator
    from cairn.runtime import input_operators

    found = input_operators.KINDS.get((spec.kind, bool(spec.key_types)))
    if found is None:
        raise InternalError(f"operator '{spec.uid}': nothing runs a function of kind '{spec.kind}'")
    return found
