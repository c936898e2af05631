"""Functions over whole Arrow batches: the context that they are given, and the operator that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import NotFoundError, UserFunctionError
from cairn.model.ddl import parse_type
from cairn.model.functions import KeyedProcessFunction
from cairn.model.manifest import EpochContext
from cairn.model.types import DataType
from cairn.runtime.batches import KeyedChunk
from cairn.runtime.keyed_operator import OperatorSpec, ProcessOperator
from cairn.runtime.lossless_casts import cast_exactly
from cairn.runtime.state_registry import StateRegistry, VectorTable
from cairn.runtime.subtask_setup import SubtaskSetup
from cairn.storage.state_file import ARROW_STORAGE

_STORED_AS_NUMBERS = {
    "boolean": pa.bool_(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


class BatchContext:
    """What a vectorised function sees besides its rows: the distinct keys of the batch, and their state in columns.

    `key_index[i]` says which of the `num_keys` distinct keys row `i` has. `get(state)` gives an Arrow array with one
    value per distinct key (null where unset); `put(state, values)` replaces them (null clears). Values that would have
    to be changed to fit the type of the state are refused.
    """

    def __init__(self, chunk: KeyedChunk, registry: StateRegistry, spec: OperatorSpec, context: EpochContext) -> None:
        self.key_index: np.ndarray[Any, Any] = chunk.key_index
        self.num_keys = len(chunk.key_slots)
        self.watermark = context.seen_watermark
        self.processing_time = context.time_ms
        self.epoch = context.epoch
        self._key_slots = chunk.key_slots
        self._registry = registry
        self._spec = spec
        self._declared = dict(spec.states)

    def _table(self, state: str) -> VectorTable:
        if state not in self._declared:
            raise NotFoundError(
                f"operator '{self._spec.uid}' declares no state '{state}'; declared are "
                f"{sorted(self._declared) or 'none'}: pass states={{'{state}': <type>}} to process_batch",
                state=state,
            )
        return self._registry.vector(state, parse_type(self._declared[state]))

    def get(self, state: str) -> pa.Array:
        return self._table(state).get(self._key_slots)

    def put(self, state: str, values: Any) -> None:
        table = self._table(state)
        wanted = ARROW_STORAGE[table.dtype.storage]
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        try:
            array = _fitted(values if isinstance(values, pa.Array) else pa.array(values), table.dtype, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UserFunctionError(
                f"operator '{self._spec.uid}', state '{state}': the values do not fit type {table.dtype.ddl}: {error}",
                state=state,
            ) from None
        if len(array) != self.num_keys:
            raise UserFunctionError(
                f"operator '{self._spec.uid}', state '{state}': put() got {len(array)} values for {self.num_keys} keys"
            )
        table.put(self._key_slots, array)


def _fitted(array: pa.Array, dtype: DataType, wanted: pa.DataType) -> pa.Array:
    """A column in stored form; raises what Arrow raises, or ValueError, if a value does not fit the declared type.

    Values are taken as the declared type, and also in the stored form in which `get` gives them.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if dtype.ddl.startswith("decimal("):
        precision, scale = (int(part) for part in dtype.ddl[8:-1].split(","))
        declared = pa.decimal128(precision, scale)
        exact = array.cast(declared) if pa.types.is_string(array.type) else cast_exactly(array, declared)
        return exact.cast(wanted)
    if dtype.ddl == "float":
        return cast_exactly(array, pa.float32()).cast(wanted)
    if dtype.ddl in _STORED_AS_NUMBERS and not pa.types.is_integer(array.type):
        array = cast_exactly(array, _STORED_AS_NUMBERS[dtype.ddl])
        return (array.cast(pa.int32()) if dtype.ddl == "date" else array).cast(wanted)
    array = cast_exactly(array, wanted)
    low, high = (0, 1) if dtype.ddl == "boolean" else (dtype.low, dtype.high)
    if low <= high and len(array) > array.null_count:
        found = pc.min_max(array)
        if found["min"].as_py() < low or found["max"].as_py() > high:
            raise ValueError(f"a value lies outside {low}..{high}")
    return array


class BatchOperator(ProcessOperator):
    """Runs a function `fn(batch, ctx) -> batch` over the chunks of one epoch."""

    def __init__(self, setup: SubtaskSetup) -> None:
        call: Callable[[pa.RecordBatch, BatchContext], Any] = setup.spec.function
        self._call = call
        row_wise = replace(setup.spec, function=KeyedProcessFunction())  # has open() and close(), and is given no row
        super().__init__(replace(setup, spec=row_wise))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        since = time.perf_counter()
        chunk = self._keyed(batch)
        since = self._timings.add("decode", since)
        with self._explained("process_batch()"):
            rows = batch.select(range(len(self._spec.columns))).rename_columns(list(self._spec.columns))
            result = self._call(rows, BatchContext(chunk, self._setup.registry, self._spec, self._setup.context))
        since = self._timings.add("user", since)
        if result is not None:
            checked = self._output.check(result)
            self._timings.add("encode", since)
            yield checked
