"""The vectorised aggregations behind `sum`, `min`, `max` and `count`: one output row per input row, the running value.

They are ordinary `process_batch` functions, and read as an example of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import UserFunctionError
from cairn.runtime.batch_operator import BatchContext

_Ints = np.ndarray[Any, Any]
_LONG_GROUP = 64
_SAFE = float(1 << 62)


def grouped_order(key_index: _Ints) -> tuple[_Ints, _Ints]:
    """Row numbers ordered by key, rows of a key in their original order, and where each key's rows begin.

    One sort of plain integers (key and row number in one) is several times faster than a stable argsort.
    """
    count = len(key_index)
    shift = np.int64(max(count - 1, 1).bit_length())
    packed = (key_index.astype(np.int64) << shift) | np.arange(count, dtype=np.int64)
    packed.sort()
    order = packed & ((np.int64(1) << shift) - 1)
    keys = packed >> shift
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return order, starts


def running(kind: str, values: _Ints, key_index: _Ints, initial: _Ints, known: _Ints) -> tuple[_Ints, _Ints]:
    """The running sum, min or max of each row's key after that row, and the final one per key.

    `initial` holds the value of each key before the batch where `known` is true.
    """
    order, starts = grouped_order(key_index)
    ordered = values[order]
    lengths = np.diff(np.append(starts, len(ordered)))
    keys = key_index[order[starts]]
    if kind == "sum" and ordered.dtype == np.int64:
        totals = np.cumsum(ordered)  # over all keys: integers wrap around and back, so differences stay right
        before = np.where(known[keys], initial[keys], 0) - (totals[starts] - ordered[starts])
        result = totals + np.repeat(before, lengths)
    else:
        pick = {"sum": np.add, "min": np.fmin, "max": np.maximum}[kind]
        first = ordered[starts]
        ordered[starts] = np.where(known[keys], pick(initial[keys], first), first)
        result = _accumulate(pick, ordered, starts, lengths)
    final = np.empty(len(initial), dtype=result.dtype)
    final[keys] = result[starts + lengths - 1]
    scattered = np.empty_like(result)
    scattered[order] = result
    return scattered, final


def _accumulate(combine: Any, ordered: _Ints, starts: _Ints, lengths: _Ints) -> _Ints:
    """Combine from left to right within each group, exactly as a loop over its rows would.

    Short groups go forward together, one row of each at a time; each long group is accumulated on its own.
    """
    result = ordered.copy()
    long = lengths > _LONG_GROUP
    for start, length in zip(starts[long].tolist(), lengths[long].tolist(), strict=True):
        combine.accumulate(result[start : start + length], out=result[start : start + length])
    starts, lengths = starts[~long], lengths[~long]
    for rank in range(1, int(lengths.max(initial=1))):
        at = starts[lengths > rank] + rank
        result[at] = combine(result[at - 1], result[at])
    return result


class RunningAggregate:
    """`fn(batch, ctx)` that appends the running aggregate of one column to the key columns."""

    def __init__(
        self, kind: str, column: str, state: str, keys: tuple[str, ...], names: tuple[str, ...], output: str
    ) -> None:
        self.kind = kind
        self.column = column
        self.state = state
        self.keys = keys
        self.names = names
        self.output = output

    def __call__(self, batch: pa.RecordBatch, ctx: BatchContext) -> pa.RecordBatch:
        before = ctx.get(self.state)
        if self.kind == "count":
            values = np.ones(batch.num_rows, dtype=np.int64)
            present = None
        else:
            column = batch.column(self.column)
            present = np.asarray(column.is_valid()) if column.null_count else None
            target = np.float64 if pa.types.is_floating(before.type) else np.int64
            values = np.asarray(column.fill_null(0) if present is not None else column).astype(target)
        known = np.asarray(before.is_valid())
        initial = np.asarray(before.fill_null(0) if before.null_count else before)
        if present is None:
            rows, final = running("sum" if self.kind == "count" else self.kind, values, ctx.key_index, initial, known)
            self._check(ctx, values, np.where(known, initial, 0))
            ctx.put(self.state, pa.array(final))
            result = pa.array(rows)
        else:
            result = self._with_nulls(ctx, values, present, initial, known)
        columns = [batch.column(name) for name in self.keys] + [result]
        return pa.RecordBatch.from_arrays(columns, names=[*self.names, self.output])

    def _with_nulls(self, ctx: BatchContext, values: _Ints, present: _Ints, initial: _Ints, known: _Ints) -> pa.Array:
        """Nulls do not count, as in SQL: a row with one repeats the value before it, null if there is none yet."""
        neutral = {"sum": 0, "min": extreme(values, high=True), "max": extreme(values, high=False)}[self.kind]
        filled = np.where(present, values, neutral)
        start = np.where(known, initial, neutral)
        everywhere = np.ones(len(known), dtype=bool)
        rows, final = running(self.kind, filled, ctx.key_index, start, everywhere)
        self._check(ctx, filled, start)
        seen, seen_final = running("max", present.astype(np.int64), ctx.key_index, known.astype(np.int64), everywhere)
        ctx.put(self.state, pa.array(final, mask=seen_final == 0))
        return pa.array(rows, mask=seen == 0)

    def _check(self, ctx: BatchContext, values: _Ints, initial: _Ints) -> None:
        if self.kind == "sum":
            check_sums(self.column, values, ctx.key_index, initial)


def check_sums(column: str, values: _Ints, key_index: _Ints, initial: _Ints) -> None:
    """64-bit sums must not wrap around in silence. `initial` is 0 where a key has no sum yet."""
    if values.dtype != np.int64 or len(values) == 0:
        return
    reach = np.abs(values.astype(np.float64))
    if reach.max() * len(values) + np.abs(initial.astype(np.float64)).max(initial=0) < _SAFE:
        return
    per_key = np.bincount(key_index, weights=reach, minlength=len(initial)) + np.abs(initial.astype(np.float64))
    for key in np.flatnonzero(per_key >= _SAFE).tolist():
        total = int(initial[key])
        for value in values[key_index == key].tolist():
            total += value
            if not -(1 << 63) <= total < 1 << 63:
                raise UserFunctionError(
                    f"the running sum of column '{column}' leaves the range of bigint; sum a double column instead"
                )


def extreme(values: _Ints, high: bool) -> Any:
    """What the minimum (`high`) or maximum of no values is combined with."""
    if values.dtype == np.float64:
        return np.nan if high else -np.inf  # the smaller of NaN and a number is the number
    info = np.iinfo(np.int64)
    return info.max if high else info.min
