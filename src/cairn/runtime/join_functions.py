"""Joins of two keyed streams, as functions with two inputs.

`IntervalJoinFunction` keeps the rows of each side by event time until no row of the other side can meet them any more.
`HistoryJoin` has no bounds in time: it keeps all rows, or those that are younger than a time to live.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any

from cairn.errors import UserFunctionError
from cairn.model.ddl import parse_type
from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, Time
from cairn.model.functions import RuntimeContext
from cairn.model.output_tags import OutputTag
from cairn.model.process_functions import KeyedCoProcessFunction, ProcessJoinFunction
from cairn.runtime.map_functions import checked_rows
from cairn.state.drafts import ListDraft

LEFT, RIGHT = 0, 1


class JoinContext:
    """`ProcessJoinFunction.Context`. In an outer join the time of the side that is missing is that of the other."""

    def __init__(self, ctx: Any, left: int, right: int) -> None:
        self._ctx = ctx
        self._left = left
        self._right = right

    def get_left_timestamp(self) -> int:
        return self._left

    def get_right_timestamp(self) -> int:
        return self._right

    def get_timestamp(self) -> int:
        return max(self._left, self._right)

    def output(self, tag: OutputTag, value: Any) -> None:
        self._ctx.output(tag, value)


class IntervalJoinFunction(KeyedCoProcessFunction):
    """Pairs of a left row at time t and a right row between t + lower and t + upper, both included.

    A row that is older than the watermark is dropped, or put out to the side output for late rows of its side.
    `outer` says for each side whether a row without a partner is put out, with None for the other, when its time
    is over.
    """

    def __init__(
        self,
        function: ProcessJoinFunction,
        bounds: tuple[int, int],
        types: tuple[str, str],
        outer: tuple[bool, bool] = (False, False),
        late: tuple[OutputTag | None, OutputTag | None] = (None, None),
    ) -> None:
        self._function = function
        self._outer = outer
        self._late = late
        self._types = types
        lower, upper = bounds
        self._reach = ((lower, upper), (-upper, -lower))
        """For a row of each side at t: the times of partners, relative to t."""
        self._kept = (max(upper, 0) + 1, max(-lower, 0) + 1)
        """How long a row of each side is kept. A row at the watermark is not late, so one more millisecond."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._kept_rows = [parse_type(f"struct<row:{row_type},matched:boolean>") for row_type in self._types]
        self._rows: list[Any] = [
            runtime_context.get_map_state(MapStateDescriptor(name, "bigint", f"array<{kept.ddl}>"))
            for name, kept in zip(("left", "right"), self._kept_rows, strict=True)
        ]
        self._times: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        """For each side the times of its rows, ascending, by the slot of the key."""
        self._function.open(runtime_context)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._arrived(LEFT, value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._arrived(RIGHT, value, ctx)

    def _arrived(self, side: int, value: Any, ctx: Any) -> Iterator[Any]:
        at = ctx.timestamp()
        if at is None:
            raise UserFunctionError(
                f"a row of the {('left', 'right')[side]} side of an interval join has no event time: filter out rows "
                "whose time is null"
            )
        if at < ctx.timer_service().current_watermark():
            tag = self._late[side]
            if tag is not None:
                yield tag, value
            return
        mine, others = self._rows[side], self._rows[1 - side]
        first, last = at + self._reach[side][0], at + self._reach[side][1]
        matched = False
        times = self._times_of(1 - side)
        for other_at in times[bisect_left(times, first) : bisect_right(times, last)]:
            partners = others.get(other_at)
            for other, _ in partners:
                matched = True
                yield from self._pair(side, value, at, other, other_at, ctx)
            if self._outer[1 - side] and not all(known for _, known in partners):
                others.put(other_at, [(other, True) for other, _ in partners])
        rows = mine.draft(at, ListDraft)
        if not rows.parts:
            insort(self._times_of(side), at)
        rows.parts.append(mine.fit((value, matched), self._kept_rows[side]))
        mine.keep(at, rows)
        ctx.timer_service().register_event_time_timer(at + self._kept[side])

    def _times_of(self, side: int) -> list[int]:
        """The times of a side's rows with the current key."""
        slot = self._rows[side].slot()
        times = self._times[side].get(slot)
        if times is None:
            times = self._times[side][slot] = sorted(self._rows[side].keys())
        return times

    def _pair(self, side: int, value: Any, at: int, other: Any, other_at: int, ctx: Any) -> Iterable[Any]:
        left, right = (value, other) if side == LEFT else (other, value)
        times = (at, other_at) if side == LEFT else (other_at, at)
        result = self._function.process_element(left, right, JoinContext(ctx, *times))
        return () if result is None else checked_rows(result, "join", "process_element")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        for side in (LEFT, RIGHT):
            at = timestamp - self._kept[side]
            if self._outer[side]:
                for row, matched in self._rows[side].get(at) or ():
                    if not matched:
                        yield from self._pair(side, row, at, None, at, ctx)
            self._rows[side].remove(at)
            self._times[side].pop(self._rows[side].slot(), None)

    def close(self) -> None:
        self._function.close()


class HistoryJoin(KeyedCoProcessFunction):
    """Every pair of rows with equal keys, as long as both are kept: for good, or for a time to live."""

    def __init__(self, function: ProcessJoinFunction, types: tuple[str, str], ttl_ms: int) -> None:
        self._function = function
        self._types = types
        self._ttl_ms = ttl_ms

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows = []
        for name, row_type in zip(("left", "right"), self._types, strict=True):
            descriptor = ListStateDescriptor(name, row_type)
            if self._ttl_ms:
                config = StateTtlConfig.new_builder(Time(self._ttl_ms)).cleanup_full_snapshot().build()
                descriptor.enable_time_to_live(config)
            self._rows.append(runtime_context.get_list_state(descriptor))
        self._function.open(runtime_context)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._arrived(LEFT, value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._arrived(RIGHT, value, ctx)

    def _arrived(self, side: int, value: Any, ctx: Any) -> Iterator[Any]:
        at = ctx.timestamp() or 0
        for other in self._rows[1 - side].get():
            left, right = (value, other) if side == LEFT else (other, value)
            result = self._function.process_element(left, right, JoinContext(ctx, at, at))
            if result is not None:
                yield from checked_rows(result, "join", "process_element")
        self._rows[side].add(value)

    def close(self) -> None:
        self._function.close()


class JoinedRows(ProcessJoinFunction):
    """The columns of both sides in one row; None for those of a side that is missing."""

    def __init__(self, widths: tuple[int, int], bare: tuple[bool, bool]) -> None:
        self._widths = widths
        self._bare = bare

    def process_element(self, left: Any, right: Any, ctx: Any) -> list[tuple[Any, ...]]:
        return [self._columns(LEFT, left) + self._columns(RIGHT, right)]

    def _columns(self, side: int, row: Any) -> tuple[Any, ...]:
        if row is None:
            return (None,) * self._widths[side]
        return (row,) if self._bare[side] else tuple(row)
