"""The simulated job, twice: as a function that the real code runs, and as plain dicts that say what it must come to.

The job adds up what it gets for each key. In some histories it also depends on processing time: every row sets an
alarm, which puts out how the sums stand, and a count of the rows is forgotten if it is not changed for a while.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import xxhash

from cairn.model.descriptors import StateTtlConfig, Time, ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.model.manifest import Manifest
from cairn.runtime.keyed_operator import OperatorSpec
from cairn.runtime.operator_kinds import PROCESS
from cairn.testing.local_cluster import arrow_schema

UID = "totals"
GROUPS = 4
INPUT = "key string, n bigint"
OUTPUT = "key string, total bigint"
ALARM_MS = 150
RECENT_MS = 100
_COUNTS = 64
Row = tuple[str, int]
State = dict[str, Any]
"""By key the sum; by `<key> recent` a count and when it was changed; and under `<key> @<time>` the alarms."""


class KeyTotals(KeyedProcessFunction):
    """Adds up what it gets: every row that is lost or counted twice shows in the sums."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.key, self.total.value()


class TimedTotals(KeyTotals):
    """Depends on processing time, too: an alarm that fires early, late, twice or never shows in the output."""

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        recent = ValueStateDescriptor("recent", "bigint")
        ttl = StateTtlConfig.new_builder(Time.milliseconds(RECENT_MS)).cleanup_full_snapshot().build()
        recent.enable_time_to_live(ttl)
        self.recent = runtime_context.get_state(recent)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from super().process_element(value, ctx)
        self.recent.update((self.recent.value() or 0) + 1)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + ALARM_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), -(self.total.value() * _COUNTS + (self.recent.value() or 0))


@functools.cache
def operator(parallelism: int, timed: bool) -> OperatorSpec:
    """The operator of the simulated job."""
    return OperatorSpec(
        uid=UID, name="Totals", function=TimedTotals() if timed else KeyTotals(), vectorised=False,
        parallelism=parallelism, max_parallelism=GROUPS, key_columns=(0,), key_types=(("key", "string"),),
        columns=("key", "n"), output=arrow_schema(OUTPUT), event_time=-1, backend="hashmap", bare_out=False,
        tagged=False, sides=(), kind=PROCESS,
    )  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """The processing time of an epoch."""

    now: int
    reset: int = 0
    """To what time it was set back last, if ever: what was stored at a later time counts as stored then."""
    fire_all: bool = False
    """It is set back just now, and all alarms fire."""


def moment_of(manifest: Manifest, before: int) -> Moment:
    """The time of an epoch that follows one whose last reset was at `before`."""
    fire_all = manifest.time_reset_ms != before and manifest.time_reset_ms == manifest.time_ms
    return Moment(manifest.time_ms, manifest.time_reset_ms, fire_all and not manifest.restored)


def living(state: State, at: Moment) -> State:
    """The state without what has expired: whether that is still stored makes no difference."""
    return {name: value for name, value in state.items() if not name.endswith(" recent") or _fresh(value, at)}


def _fresh(recent: tuple[int, int], at: Moment) -> bool:
    changed = recent[1]
    return (changed if changed <= at.now else at.reset or at.now) + RECENT_MS > at.now


class SimulatedSource:
    """Rows by their number, and what they come to."""

    def __init__(self, seed: int, keys: int, timed: bool) -> None:
        self._seed = seed
        self._keys = keys
        self.timed = timed

    def row(self, number: int) -> Row:
        drawn = xxhash.xxh3_64_intdigest(f"{self._seed}/row/{number}".encode())
        return f"k{drawn % self._keys}", 1 + (drawn >> 8) % (1 << 40)

    def rows(self, start: int, end: int) -> list[Row]:
        return [self.row(number) for number in range(start, end)]

    def after(self, state: State, start: int, end: int, at: Moment) -> tuple[State, list[Row]]:
        """What plain dicts say: the state after these rows, and what they put out."""
        made = living(state, at) if self.timed else dict(state)
        outputs = self._alarms(made, at) if self.timed else []
        for key, n in self.rows(start, end):
            made[key] = made.get(key, 0) + n
            outputs.append((key, made[key]))
            if self.timed:
                made[f"{key} recent"] = (made.get(f"{key} recent", (0, 0))[0] + 1, at.now)
                made[f"{key} @{at.now + ALARM_MS}"] = 0
        return made, outputs

    def _alarms(self, made: State, at: Moment) -> list[Row]:
        outputs = []
        for name in [name for name in made if " @" in name]:
            key, _, time = name.partition(" @")
            if at.fire_all or int(time) <= at.now:
                del made[name]
                outputs.append((key, -(made[key] * _COUNTS + made.get(f"{key} recent", (0, 0))[0])))
        return outputs
