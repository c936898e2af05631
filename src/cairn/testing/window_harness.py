"""Runs windows without Spark: the real window operator with real state, commits and timers, in one process."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import Any

from cairn.errors import InvalidInputError
from cairn.model.assigners import TimeWindows, millis
from cairn.model.ddl import as_type, parse_columns
from cairn.model.descriptors import Time
from cairn.model.functions import AggregateFunction
from cairn.model.output_tags import OutputTag
from cairn.model.types import EPOCH_UTC, DataType, Types
from cairn.model.windows import Trigger, WindowAssigner
from cairn.runtime.operator_kinds import WINDOW
from cairn.runtime.windowing.aggregate_operator import START_COLUMN, WindowAggregate, result_type
from cairn.runtime.windowing.window_plan import WindowPlan
from cairn.testing.keyed_harness import KeyedProcessHarness
from cairn.testing.local_cluster import Shuffle, arrow_schema


class WindowHarness(KeyedProcessHarness):
    """Tests a window of a keyed stream: an assigner, a function, and what else `keyed.window(...)` is told.

    >>> from cairn import ProcessWindowFunction, Time, TumblingEventTimeWindows
    >>> class Count(ProcessWindowFunction):
    ...     def process(self, key, context, elements):
    ...         yield key, context.window().start, len(list(elements))
    >>> with WindowHarness(
    ...     TumblingEventTimeWindows.of(Time.seconds(5)), Count(), "user", "user string, time timestamp",
    ...     "user string, start bigint, n bigint", event_time="time",
    ... ) as harness:
    ...     harness.push(("ann", harness.at(1000)), ("ann", harness.at(4999)), ("ann", harness.at(5000)))
    ...     print(harness.run_epoch())
    ...     harness.advance_watermark(5000)
    ...     print(harness.run_epoch())
    []
    [Row(user='ann', start=0, n=2)]

    `function` is a `ProcessWindowFunction` or `WindowFunction`; with `reduce` or `aggregate` it may be None. The
    watermark is Spark's: rows before it are late, a row at it is not.
    """

    def __init__(
        self,
        assigner: WindowAssigner[Any, Any],
        function: Any,
        key_by: str | Sequence[str],
        input_type: str,
        output_type: str | DataType,
        backend: str = "hashmap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        event_time: str | None = None,
        trigger: Trigger[Any, Any] | None = None,
        allowed_lateness: Time | int = 0,
        late: OutputTag | None = None,
        reduce: Any = None,
        aggregate: AggregateFunction | None = None,
        accumulator_type: str | DataType | None = None,
        side_outputs: Sequence[OutputTag] = (),
        **settings: Any,
    ) -> None:
        plan = _plan(assigner, input_type, event_time, trigger, allowed_lateness, late)
        if reduce is not None:
            operator = plan.reduce(reduce, function)
        elif aggregate is not None:
            operator = plan.aggregate(aggregate, as_type(accumulator_type).ddl, function)
        else:
            operator = plan.process(function)
        super().__init__(
            operator, key_by, input_type, output_type, backend, parallelism, max_parallelism, state_dir,
            event_time=event_time, side_outputs=[*side_outputs, *([late] if late else [])], **settings,
        )  # fmt: skip

    @staticmethod
    def at(ms: int) -> dt.datetime:
        """A moment, so many milliseconds after 1970."""
        return EPOCH_UTC + dt.timedelta(milliseconds=ms)


class WindowAggregateHarness(KeyedProcessHarness):
    """Tests `keyed.window(...).sum(column)` and its like on the way that common aggregations take.

    `kind` is `sum`, `min`, `max`, `count` or `avg`. Rows have the keys, `window_start`, `window_end` and the aggregate.
    """

    def __init__(
        self,
        assigner: TimeWindows,
        kind: str,
        column: str | None,
        key_by: str | Sequence[str],
        input_type: str,
        backend: str = "hashmap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        event_time: str,
        allowed_lateness: Time | int = 0,
        late: OutputTag | None = None,
        **settings: Any,
    ) -> None:
        plan = _plan(assigner, input_type, event_time, None, allowed_lateness, late)
        if not plan.columnar:
            raise InvalidInputError(f"{type(assigner).__name__} has no such way; test it with WindowHarness")
        columns = parse_columns(input_type)
        names = [name for name, _ in columns]
        keys = (key_by,) if isinstance(key_by, str) else tuple(key_by)
        place = names.index(column) if column is not None else -1
        value_type = columns[place][1].ddl if place >= 0 else "bigint"
        stored, result = result_type(kind, value_type)
        self._assigner = assigner
        self._moment = names.index(event_time)
        types = dict(columns)
        shown = ", ".join(f"{key} {types[key].ddl}" for key in keys)
        function: Any = WindowAggregate(
            kind, place, stored, len(columns), len(columns), assigner.size, assigner.slide, plan.lateness, late
        )
        super().__init__(
            function,
            (*keys, START_COLUMN), f"{input_type}, {START_COLUMN} timestamp",
            f"{shown}, window_start timestamp, window_end timestamp, {kind} {result}", backend, parallelism,
            max_parallelism, state_dir, event_time=event_time, side_outputs=[late] if late else [], kind=WINDOW,
            **settings,
        )  # fmt: skip
        self._given = Shuffle(arrow_schema(input_type), (), ())

    at = staticmethod(WindowHarness.at)

    def push(self, *rows: Any) -> None:
        """Add rows without the start of their window: it is computed here as Spark would."""
        for row in rows:
            given = self._given.row(row)
            moment = given[self._moment]
            starts: list[Any] = [None]
            if moment is not None:
                ms = (moment - EPOCH_UTC) // dt.timedelta(milliseconds=1)
                starts = [WindowHarness.at(w.start) for w in self._assigner.assign_windows(None, ms, None)]
            super().push(*[(*given, start) for start in starts])


def _plan(
    assigner: Any, input_type: str, event_time: str | None, trigger: Any, lateness: Time | int, late: OutputTag | None
) -> WindowPlan:
    columns = parse_columns(input_type)
    row = Types.ROW_NAMED([name for name, _ in columns], [dtype for _, dtype in columns])
    plan = WindowPlan(assigner, event_time is not None, row.ddl)
    if trigger is not None:
        plan.set_trigger(trigger)
    if lateness:
        plan.set_lateness(millis(lateness, "the allowed lateness"))
    if late is not None:
        plan.set_late(late, [dtype.ddl for _, dtype in columns])
    return plan


__all__ = ["WindowAggregateHarness", "WindowHarness"]
