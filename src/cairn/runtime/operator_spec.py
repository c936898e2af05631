"""What is fixed of an operator when a job is defined, and travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cairn.model.descriptors import MapStateDescriptor
from cairn.runtime.tagged_outputs import SideSpec


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """All that is fixed when a job is defined. Travels to the workers with the function."""

    uid: str
    name: str
    function: Any
    vectorised: bool
    parallelism: int
    max_parallelism: int
    key_columns: tuple[int, ...]
    key_types: tuple[tuple[str, str], ...]
    """Name and DDL of each key column."""
    columns: tuple[str, ...]
    """Names of the input columns, without cairn's own."""
    output: pa.Schema
    event_time: int = -1
    """Position of the column that carries the watermark, or -1."""
    backend: str = "lmdb"
    states: tuple[tuple[str, str], ...] = ()
    """Name and DDL of the value states that a vectorised function declared."""
    kind: str = "process"
    """Which operator runs the function, by its name in `runtime/operator_kinds.py`."""
    bare_in: bool = False
    """Elements are the values of the one input column rather than rows."""
    bare_out: bool = False
    """The function puts out values of the one output column rather than rows."""
    tagged: bool = False
    """Rows go out tagged (`model/output_tags.py`), because the output is read more than once or has side outputs."""
    sides: tuple[SideSpec, ...] = ()
    second: InputSpec | None = None
    """The second input of an operator that has two; the first one is described by the operator itself."""
    broadcast: tuple[MapStateDescriptor, ...] = ()
    """The states of a broadcast second input."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One of two inputs: the names of its columns, where its event time is, and whether its elements are bare."""

    columns: tuple[str, ...]
    event_time: int = -1
    bare: bool = False
