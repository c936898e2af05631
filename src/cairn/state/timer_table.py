"""Timers: keyed state ordered by time. Kept in the same store and the same deltas as everything else.

When timers fire. At the start of an epoch, before its rows, every timer at or below the epoch's time fires, in
ascending time. A timer that `on_timer` registers at or below the epoch's time, but later than the timer that is
firing, fires in the same sweep; one that is not later waits for the next epoch, so a timer that re-arms itself cannot
keep an epoch from ending. A timer that a row registers for a time already passed fires in the next epoch. The last
epoch of a job that is drained has no next one: what is registered in it fires in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import InvalidInputError, StateMisuseError
from cairn.model.types import Storage
from cairn.model.windows import MAX_TIME
from cairn.state import codec
from cairn.state.key_slots import KeySlots
from cairn.state.working_store import WorkingStore
from cairn.storage.state_file import Section, sorted_table


class TimerTable:
    """The timers of one domain: those in the store, and this epoch's changes by (time, slot)."""

    def __init__(self, name: str, slots: KeySlots, store: WorkingStore) -> None:
        self.name = name
        self._slots = slots
        self._store = store
        self._added: set[tuple[int, int]] = set()
        self._removed: set[tuple[int, int]] = set()
        self._sweep: list[tuple[int, int]] | None = None
        self._firing = 0
        self._limit = 0

    def register(self, timestamp: int) -> None:
        timer = (_checked(timestamp), self._slot())
        if timer in self._added:
            return
        self._removed.discard(timer)
        self._added.add(timer)
        if self._sweep is not None and self._firing < timer[0] <= self._limit:
            heapq.heappush(self._sweep, timer)

    def delete(self, timestamp: int) -> None:
        timer = (_checked(timestamp), self._slot())
        self._added.discard(timer)
        self._removed.add(timer)

    def _slot(self) -> int:
        self._slots.key()
        return int(self._slots.current[0])

    def fire(
        self, now: int, call: Callable[[int], None], added: bool = False, most: int = 0, every: bool = False
    ) -> int:
        """Call `call(time)` for each due timer with its key as the current one. Returns how many fired.

        With `added`, those that this epoch registered are due as well. More than `most` of them, if given, are refused.
        With `every`, all stored timers are due, whatever their time.
        """
        due = []
        keys = []
        for raw, _ in self._store.scan(self.name):
            time = codec.time_value(raw)
            if time > now and not every:
                break
            due.append(time)
            keys.append(raw[8:])
        fresh = sorted(timer for timer in self._added if timer[0] <= now) if added else []
        if not due and not fresh:
            return 0
        distinct = list(dict.fromkeys(keys))
        places = dict(zip(distinct, self._slots.add(pa.array(distinct, pa.binary())).tolist(), strict=True))
        self._sweep = [(time, places[key]) for time, key in zip(due, keys, strict=True)] + fresh
        waiting = set(self._sweep)
        heapq.heapify(self._sweep)
        self._limit = now
        fired = 0
        last: tuple[int, int] | None = None
        while self._sweep:
            timer = heapq.heappop(self._sweep)
            if timer == last or not (timer in self._added or (timer in waiting and timer not in self._removed)):
                continue
            last = timer
            waiting.discard(timer)
            self._added.discard(timer)
            self._removed.add(timer)
            self._firing = timer[0]
            self._slots.current[0] = timer[1]
            call(timer[0])
            fired += 1
            if most and fired > most:
                raise StateMisuseError(
                    f"more than {most} timers fired at the end of event time, so they seem to register each other "
                    "endlessly; stop the job without drain, or do not register timers when the watermark has "
                    "reached its maximum"
                )
        self._slots.current[0] = None
        self._sweep = None
        return fired

    def drain(self) -> Section | None:
        changes = [(timer, b"") for timer in self._added] + [(timer, None) for timer in self._removed]
        if not changes:
            return None
        columns = {
            "key": pa.array([self._slots.keys[slot] for (_, slot), _ in changes], pa.binary()),
            "entry": pa.array([codec.time_bytes(time) for (time, _), _ in changes], pa.binary()),
            "value": pa.array([value for _, value in changes], pa.binary()),
        }
        return Section(self.name, "timer", Storage.BYTES, False, sorted_table(columns))


class BulkTimers(TimerTable):
    """Timers of one domain in whole columns, for operators that handle many at a time. A key has one timer at most."""

    def __init__(self, name: str, slots: KeySlots, store: WorkingStore) -> None:
        super().__init__(name, slots, store)
        self._times: list[np.ndarray[Any, Any]] = []
        self._places: list[np.ndarray[Any, Any]] = []
        self._set = np.zeros(0, dtype=bool)
        self._taken: list[tuple[pa.Array, pa.Array]] = []
        self._reached: int | None = None
        """Up to where the stored timers are taken."""

    def take(self, now: int, added: bool = False) -> tuple[np.ndarray[Any, Any], pa.Array]:
        """Remove the timers at or below a time: their times, ascending, and their keys. It may be called again for a
        later time.

        Those that this epoch set are not among them, except with `added`, which is for the last call.
        """
        found = []
        for raw, _ in self._store.scan(self.name):
            time = codec.time_value(raw)
            if time > now:
                break
            if self._reached is None or time > self._reached:
                found.append(raw)
        self._reached = now
        if added:
            found = self._with_added(found, now)
        entries, keys = _columns(found)
        if found:
            self._taken.append((entries, keys))
        if added:  # a key may have two then: what was stored, and what was set; the first of them counts
            entries, keys = _columns({raw[8:]: raw for raw in reversed(found)}.values())
        return codec.ordered_numbers(entries), keys

    def _with_added(self, stored: list[bytes], now: int) -> list[bytes]:
        """Stored timers, and those that were set in this epoch, which are forgotten."""
        names = self._slots.keys
        fresh = [
            codec.time_bytes(time) + names[place]
            for times, places in zip(self._times, self._places, strict=True)
            for time, place in zip(times.tolist(), places.tolist(), strict=True)
            if time <= now
        ]
        self._times, self._places = [], []
        return sorted({*stored, *fresh})

    def register_many(self, times: np.ndarray[Any, Any], slots: np.ndarray[Any, Any]) -> None:
        """Set timers of distinct slots; a slot for which one was set in this epoch is left out."""
        if len(self._set) < len(self._slots):
            self._set = np.concatenate([self._set, np.zeros(len(self._slots) - len(self._set), dtype=bool)])
        fresh = ~self._set[slots]
        self._set[slots] = True
        self._times.append(times[fresh])
        self._places.append(slots[fresh])

    def drain(self) -> Section | None:
        entries = [codec.group_order(times) for times in self._times if len(times)]
        names = self._slots.all_keys()
        keys = [names.take(pa.array(places)) for places in self._places if len(places)]
        count = sum(map(len, keys))
        for taken, owners in self._taken:
            entries.append(taken)
            keys.append(owners)
        if not keys:
            return None
        total = sum(map(len, keys))
        values = pa.array([b""] * count + [None] * (total - count), pa.binary())
        columns = {"key": pa.concat_arrays(keys), "entry": pa.concat_arrays(entries), "value": values}
        return Section(self.name, "timer", Storage.BYTES, False, sorted_table(columns))


def _columns(timers: Iterable[bytes]) -> tuple[pa.Array, pa.Array]:
    """Times and keys of timers as the store has them, in their order."""
    ordered = sorted(timers)
    return pa.array([raw[:8] for raw in ordered], pa.binary()), pa.array([raw[8:] for raw in ordered], pa.binary())


def _checked(timestamp: int) -> int:
    if timestamp.__class__ is not int:
        if isinstance(timestamp, (bool, float, str)) or not hasattr(timestamp, "__index__"):
            raise InvalidInputError(f"a timer's time is a whole number of milliseconds, not {timestamp!r}")
        timestamp = timestamp.__index__()
    if not -MAX_TIME - 1 <= timestamp <= MAX_TIME:
        raise InvalidInputError(f"a timer's time must fit 64 bits, not {timestamp}")
    return timestamp
