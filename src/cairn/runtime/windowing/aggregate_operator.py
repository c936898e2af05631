"""The fast way of `sum`, `min`, `max`, `count` and `avg` over tumbling and sliding event-time windows.

The start of its window is a key column of each row, the last one, so that a key here is a (key, window) and its
aggregate a value state in columns. Timers say when windows are over; they are read, set and removed in whole columns.
See docs/design/0005-windows.md, "Columns instead of rows".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import InternalError, UserFunctionError
from cairn.model.ddl import INTEGER_TYPES, parse_type
from cairn.model.functions import KeyedProcessFunction, TimeDomain
from cairn.model.manifest import NO_WATERMARK
from cairn.model.output_tags import OutputTag
from cairn.model.state_names import EVENT_TIMERS
from cairn.runtime.aggregations import check_sums, extreme
from cairn.runtime.batches import KeyedChunk
from cairn.runtime.keyed_operator import ProcessOperator
from cairn.runtime.state_registry import VectorTable
from cairn.runtime.subtask_setup import SubtaskSetup
from cairn.runtime.tagged_outputs import TaggedBuilder
from cairn.state.timer_table import BulkTimers
from cairn.storage.state_file import ARROW_STORAGE

START_COLUMN = "window_start"
END_COLUMN = "window_end"
AGGREGATES = ("sum", "min", "max", "count", "avg")

_Ints = np.ndarray[Any, Any]


def result_type(kind: str, column: str) -> tuple[str, str]:
    """How values of a column's type are kept, and the type of the aggregate."""
    stored = "bigint" if kind == "count" or column in INTEGER_TYPES else "double"
    return stored, "double" if kind == "avg" else stored


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """An aggregation as it travels to the workers. `column` is a place in the row, -1 for none; `width` the number of
    columns that the stream's rows have, and `start` the place of the start of the window after them; sizes and
    lateness are milliseconds.
    """

    kind: str
    column: int
    stored: str
    width: int
    start: int
    size: int
    slide: int
    lateness: int = 0
    late: OutputTag | None = None

    @property
    def states(self) -> tuple[tuple[str, str], ...]:
        if self.kind == "avg":
            return (("sum", self.stored), ("count", "bigint"))
        return ((self.kind, self.stored),)


class WindowAggregateOperator(ProcessOperator):
    """Runs a `WindowAggregate` over the chunks of one epoch."""

    def __init__(self, setup: SubtaskSetup) -> None:
        self._plan: WindowAggregate = setup.spec.function
        row_wise = replace(setup.spec, function=KeyedProcessFunction())  # has open() and close(), and is given no row
        super().__init__(replace(setup, spec=row_wise))

    def _prepare(self) -> None:
        registry = self._setup.registry
        self._due = BulkTimers(EVENT_TIMERS, self._slots, registry.store)
        registry.timers[TimeDomain.EVENT_TIME] = self._due
        self._ended = False
        self._tables: list[VectorTable] = [registry.vector(name, parse_type(ddl)) for name, ddl in self._plan.states]

    # Windows that are over.

    def fire_timers(self, after_rows: bool = False) -> Iterator[pa.RecordBatch]:
        """Put out the windows that ended before the watermark, and let those go that no late row can reach.

        In the last epoch of a drained job all windows are over, but not before its rows: first those go out that the
        rows find over, as in every epoch, and the rest after the rows.
        """
        since = time.perf_counter()
        watermark = self._setup.context.watermark if after_rows else self._setup.context.seen_watermark
        if watermark == NO_WATERMARK or self._ended:
            return
        self._ended = after_rows
        times, keys = self._due.take(watermark, after_rows)
        if len(times) == 0:
            return
        plan = self._plan
        slots = self._slots.add(keys)
        columns = self._setup.codec.decode_columns(keys)
        ends = _millis(columns[-1]) + plan.size
        self.fired += len(times)
        # A timer that is not that of the clean-up is one of the end, also if the size of windows was another then:
        # a result that is put out once more does less harm than one that is lost.
        fired_before = (times == ends + plan.lateness) & (plan.lateness > 0)
        over = (ends <= watermark) & ~fired_before
        result = None
        if over.any():
            result = self._results(slots[over], [_picked(column, over) for column in columns], ends[over])
        gone = ends + plan.lateness <= watermark
        for table in self._tables:
            table.put(slots[gone], pa.nulls(int(gone.sum()), ARROW_STORAGE[table.dtype.storage]))
        self._due.register_many(np.where(ends > watermark, ends, ends + plan.lateness)[~gone], slots[~gone])
        self._timings.add("timers", since)
        if result is not None:
            yield result

    def _results(self, slots: _Ints, keys: list[pa.Array], ends: _Ints) -> pa.RecordBatch:
        """One row for each of these windows."""
        values = [table.get(slots) for table in self._tables]
        result = values[0]
        if self._plan.kind == "avg":
            count = np.asarray(values[1].fill_null(0))
            total = np.asarray(values[0].fill_null(0)).astype(np.float64)
            result = pa.array(total / np.maximum(count, 1), mask=count == 0)
        schema = self._spec.output
        stamps = [_stamps(ends - self._plan.size), _stamps(ends)]
        columns = [*keys[:-1], *stamps, result]
        fitted = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        return self._output.check(pa.RecordBatch.from_arrays(fitted, names=schema.names))

    # Rows.

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        since = time.perf_counter()
        plan = self._plan
        watermark = self._setup.context.seen_watermark
        column = batch.column(plan.start)
        if column.null_count:
            raise UserFunctionError(
                f"operator '{self._spec.uid}': a row has no event time, so no event-time window: filter out rows whose "
                "time is null"
            )
        ends = _millis(column) + plan.size
        late = ends + plan.lateness <= watermark
        if late.any():
            if plan.late is not None:
                yield from self._late_rows(batch, ends, late)
            batch = batch.filter(pa.array(~late))
            ends = ends[~late]
            if batch.num_rows == 0:
                return
        chunk = self._keyed(batch)
        since = self._timings.add("decode", since)
        slots = chunk.key_slots
        end_of = np.empty(len(slots), dtype=np.int64)
        end_of[chunk.key_index] = ends
        known = np.asarray(self._tables[-1].get(slots).is_valid())
        with self._explained("the aggregation"):
            self._fold(batch, chunk)
        new = ~known
        due = np.where(end_of > watermark, end_of, end_of + plan.lateness)
        self._due.register_many(due[new], slots[new])
        self._timings.add("user", since)
        again = end_of <= watermark
        if again.any():  # late rows of windows that are still kept: their results are put out once more
            mine = slots[again]
            keys = self._setup.codec.decode_columns(self._slots.all_keys().take(pa.array(mine)))
            yield self._results(mine, keys, end_of[again])

    def _late_rows(self, batch: pa.RecordBatch, ends: _Ints, late: _Ints) -> Iterator[pa.RecordBatch]:
        """Rows of which all windows are over, each once: where windows overlap, with the last of them."""
        plan = self._plan
        moments = _millis(batch.column(self._spec.event_time))
        last = late & (ends - plan.size + plan.slide > moments)
        if last.any() and plan.late is not None:
            if not isinstance(self._output, TaggedBuilder):
                raise InternalError(f"operator '{self._spec.uid}' has late rows, but no side output")
            rows = batch.filter(pa.array(last)).select(range(plan.width))
            yield self._output.aside(plan.late.tag_id, rows)

    def _fold(self, batch: pa.RecordBatch, chunk: KeyedChunk) -> None:
        """Add the values of a chunk to the aggregates of its windows. Nulls do not count, as in SQL."""
        plan = self._plan
        index, slots = chunk.key_index, chunk.key_slots
        values = present = None
        if plan.column >= 0:
            column = batch.column(plan.column)
            target = np.int64 if plan.stored == "bigint" else np.float64
            values = np.asarray(column.fill_null(0) if column.null_count else column).astype(target)
            present = np.asarray(column.is_valid()) if column.null_count else None
        for table, (name, _) in zip(self._tables, plan.states, strict=True):
            before = table.get(slots)
            known = np.asarray(before.is_valid())
            initial = np.asarray(before.fill_null(0) if before.null_count else before)
            if name == "count":
                counted = index if plan.kind == "count" or present is None else index[present]
                table.put(slots, pa.array(np.where(known, initial, 0) + np.bincount(counted, minlength=len(slots))))
                continue
            assert values is not None
            picked, where = (values, index) if present is None else (values[present], index[present])
            if name == "sum":
                check_sums(self._spec.columns[plan.column], picked, where, np.where(known, initial, 0))
                final = np.where(known, initial, 0).astype(values.dtype)
                np.add.at(final, where, picked)
            else:
                combine = np.fmin if name == "min" else np.maximum
                final = np.where(known, initial, extreme(values, high=name == "min")).astype(values.dtype)
                with np.errstate(invalid="ignore"):  # NaN is a number like others
                    combine.at(final, where, picked)
            seen = known.copy()
            seen[where] = True
            table.put(slots, pa.array(final) if seen.all() else pa.array(final, mask=~seen))


def _millis(column: pa.Array) -> _Ints:
    """A timestamp column without nulls as milliseconds."""
    micros = np.asarray(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()))
    return micros // 1000


def _stamps(ms: _Ints) -> pa.Array:
    return pa.array(ms * 1000).cast(pa.timestamp("us", "UTC"))


def _picked(column: pa.Array, which: _Ints) -> pa.Array:
    return column if which.all() else column.filter(pa.array(which))
