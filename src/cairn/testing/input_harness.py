"""Harnesses for functions without a key and for functions with two inputs. See `keyed_harness.KeyedProcessHarness`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import InvalidInputError
from cairn.model import keygroups
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.output_tags import OutputTag, row_columns_of
from cairn.model.process_functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ProcessFunction,
)
from cairn.model.types import DataType
from cairn.runtime.batches import GROUP_COLUMN, INPUT_COLUMN, ORDER_COLUMN
from cairn.runtime.exact_values import exact_array
from cairn.runtime.keyed_operator import InputSpec, OperatorSpec
from cairn.runtime.operator_kinds import BROADCAST, CO, PLAIN
from cairn.state.backend import load_backend
from cairn.storage.filesystem import FileSystem
from cairn.testing.keyed_harness import KeyedProcessHarness
from cairn.testing.local_cluster import Shuffle, arrow_type, output_of, sides_of

_SETTINGS = {"inline_threshold": 20 * 1024, "compaction_chain": 32, "epochs_retained": 10, "show_values": True}


def _input(declared: str | DataType) -> tuple[pa.Schema, bool]:
    columns, bare = row_columns_of(declared, "input type")
    return pa.schema([pa.field(name, arrow_type(dtype)) for name, dtype in columns]), bare


class PlainShuffle(Shuffle):
    """Rows without a key: in turn to one subtask after the other."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema, (), ())

    def batch(self, rows: Sequence[tuple[Any, ...]], max_parallelism: int) -> pa.RecordBatch:
        """All rows; the last column has the number of each, which `split` turns into a group."""
        columns = [_column([row[place] for row in rows], field) for place, field in enumerate(self.schema)]
        return pa.RecordBatch.from_arrays([*columns, pa.array(range(len(rows)), pa.int32())], schema=self._full)

    def split(self, batch: pa.RecordBatch, parallelism: int, max_parallelism: int) -> list[list[pa.RecordBatch]]:
        numbers = np.asarray(batch.column(batch.num_columns - 1))
        firsts = [keygroups.key_group_range(s, parallelism, max_parallelism).start for s in range(parallelism)]
        groups = pa.array(np.array(firsts, dtype=np.int32)[numbers % parallelism], pa.int32())
        moved = batch.set_column(batch.num_columns - 1, GROUP_COLUMN, groups)
        return super().split(moved, parallelism, max_parallelism)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return exact_array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"column '{field.name}' is {field.type}: {error}") from None


class TwoInputShuffle:
    """Rows of two inputs, each `(number of the input, row)`, to the batches of each subtask, as the plan does it."""

    def __init__(
        self, inputs: Sequence[pa.Schema], keys: Sequence[Sequence[str]], key_types: Sequence[str], broadcast: bool
    ) -> None:
        self._inputs = [Shuffle(schema, (), ()) for schema in inputs]
        self._keys = [[schema.names.index(k) for k in names] for schema, names in zip(inputs, keys, strict=True)]
        self._key_types = key_types
        self._broadcast = broadcast
        fields = [pa.field(f"k{i}", inputs[0].field(name).type) for i, name in enumerate(keys[0])]
        self.schema = pa.schema([inputs[0].field(name) for name in keys[0]])
        fields += [pa.field(f"i{number}", pa.struct(list(schema))) for number, schema in enumerate(inputs)]
        fields += [pa.field(INPUT_COLUMN, pa.int32())]
        fields += [pa.field(ORDER_COLUMN, pa.int64())] if broadcast else []
        self._full = pa.schema([*fields, pa.field(GROUP_COLUMN, pa.int32())])

    def row(self, given: tuple[int, Any]) -> tuple[int, tuple[Any, ...]]:
        number, row = given
        return number, self._inputs[number].row(row)

    def batch(self, rows: Sequence[tuple[int, tuple[Any, ...]]], max_parallelism: int) -> list[Any]:
        """The rows with their key and group; fails if a value does not fit its column."""
        for number, shuffle in enumerate(self._inputs):
            mine = [row for of, row in rows if of == number]
            for place, field in enumerate(shuffle.schema):
                _column([row[place] for row in mine], field)
        found = []
        for order, (number, row) in enumerate(rows):
            everywhere = self._broadcast and number == 1
            key = tuple(row[place] for place in self._keys[number]) if not everywhere else ()
            group = keygroups.key_group(key, self._key_types, max_parallelism) if key else -1
            found.append((number, row, key, order, group))
        return found

    def split(self, rows: list[Any], parallelism: int, max_parallelism: int) -> list[list[pa.RecordBatch]]:
        firsts = [keygroups.key_group_range(s, parallelism, max_parallelism).start for s in range(parallelism)]
        parts: list[list[Any]] = [[] for _ in range(parallelism)]
        for number, row, key, order, group in rows:
            if self._broadcast and number == 1:
                for subtask, part in enumerate(parts):
                    part.append((number, row, key, order, firsts[subtask]))
            elif group < 0:
                part = parts[order % parallelism]
                part.append((number, row, key, order + (1 << 62), firsts[order % parallelism]))
            else:
                parts[keygroups.subtask_of(group, parallelism, max_parallelism)].append(
                    (number, row, key, order + (1 << 62), group)
                )
        return [[self._made(part, subtask)] for subtask, part in enumerate(parts)]

    def _made(self, part: list[Any], subtask: int) -> pa.RecordBatch:
        part = [*sorted(part, key=lambda row: row[3]), (None, None, (), None, -subtask - 1)]
        columns: list[list[Any]] = [[] for _ in self._full]
        for number, row, key, order, group in part:
            values: list[Any] = list(key) if key else [None] * len(self.schema)
            for other, shuffle in enumerate(self._inputs):
                mine = number == other
                values.append(dict(zip(shuffle.schema.names, row, strict=True)) if mine else None)
            values += [number, order, group] if self._broadcast else [number, group]
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        arrays = [exact_array(column, field.type) for column, field in zip(columns, self._full, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._full)


class ProcessHarness(KeyedProcessHarness):
    """Tests a `ProcessFunction`, with operator state or without. Rows go to the subtasks in turn."""

    def __init__(
        self,
        function: ProcessFunction,
        input_type: str | DataType,
        output_type: str | DataType,
        backend: str = "hashmap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        side_outputs: Sequence[OutputTag] = (),
        files: FileSystem | None = None,
        **settings: Any,
    ) -> None:
        keygroups.validate(parallelism, max_parallelism)
        load_backend(backend)
        schema, bare_in = _input(input_type)
        output, bare_out = output_of(output_type)
        spec = OperatorSpec(
            uid="tested", name=type(function).__name__, function=function, vectorised=False, parallelism=parallelism,
            max_parallelism=max_parallelism, key_columns=(), key_types=(), columns=tuple(schema.names), output=output,
            backend=backend, kind=PLAIN, bare_in=bare_in, bare_out=bare_out, tagged=bool(side_outputs),
            sides=sides_of(side_outputs),
        )  # fmt: skip
        self._begin(spec, PlainShuffle(schema), state_dir, files, **{**_SETTINGS, **settings})


class TwoInputHarness(KeyedProcessHarness):
    """Tests a function with two inputs: `push1` and `push2` add rows of the first and of the second.

    `key_by` is a pair, the key columns of the first input and those of the second, or None for a function without a
    key. For broadcast functions the second input is the broadcast one, and `broadcast` has its descriptors; it has
    no key. `event_time` is a pair of column names or Nones.
    """

    def __init__(
        self,
        function: KeyedCoProcessFunction | CoProcessFunction | BroadcastProcessFunction,
        key_by: tuple[str | Sequence[str], str | Sequence[str] | None] | None,
        input_types: tuple[str | DataType, str | DataType],
        output_type: str | DataType,
        backend: str = "hashmap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        broadcast: Sequence[MapStateDescriptor] = (),
        event_time: tuple[str | None, str | None] = (None, None),
        side_outputs: Sequence[OutputTag] = (),
        files: FileSystem | None = None,
        **settings: Any,
    ) -> None:
        keygroups.validate(parallelism, max_parallelism)
        load_backend(backend)
        everywhere = isinstance(function, BroadcastProcessFunction)
        keyed = isinstance(function, (KeyedCoProcessFunction, KeyedBroadcastProcessFunction)) and key_by is not None
        inputs = [_input(declared) for declared in input_types]
        names: list[tuple[str, ...]] = [(), ()]
        if keyed and key_by is not None:
            names = [(k,) if isinstance(k, str) else tuple(k or ()) for k in key_by]
        columns = dict(row_columns_of(input_types[0], "input type")[0])
        for number, wanted in enumerate(names):
            for name in wanted:
                if name not in inputs[number][0].names:
                    raise InvalidInputError(f"input {number + 1} has no column '{name}'")
        times = [schema.names.index(t) if t else -1 for (schema, _), t in zip(inputs, event_time, strict=True)]
        output, bare_out = output_of(output_type)
        key_types = tuple((name, columns[name].ddl) for name in names[0])
        spec = OperatorSpec(
            uid="tested", name=type(function).__name__, function=function, vectorised=False, parallelism=parallelism,
            max_parallelism=max_parallelism, key_columns=tuple(range(len(key_types))), key_types=key_types,
            columns=tuple(inputs[0][0].names), output=output, event_time=times[0], backend=backend,
            kind=BROADCAST if everywhere else CO, bare_in=inputs[0][1], bare_out=bare_out, tagged=bool(side_outputs),
            sides=sides_of(side_outputs), second=InputSpec(tuple(inputs[1][0].names), times[1], inputs[1][1]),
            broadcast=tuple(broadcast),
        )  # fmt: skip
        shuffle = TwoInputShuffle([s for s, _ in inputs], names, [ddl for _, ddl in key_types], everywhere)
        self._begin(spec, shuffle, state_dir, files, **{**_SETTINGS, **settings})

    def push1(self, *rows: Any) -> None:
        """Add rows of the first input to the next epoch."""
        self.push(*[(0, row) for row in rows])

    def push2(self, *rows: Any) -> None:
        """Add rows of the second input to the next epoch."""
        self.push(*[(1, row) for row in rows])


__all__ = ["ProcessHarness", "TwoInputHarness"]
