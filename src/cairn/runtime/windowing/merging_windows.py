"""Windows that merge, sessions for instance: which of them there are, and where the contents of each lie."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from cairn.errors import UserFunctionError
from cairn.model.assigners import SessionWindows
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.functions import RuntimeContext
from cairn.model.windows import MergingWindowAssigner, TimeWindowSerializer, WindowSerializer
from cairn.runtime.windowing.window_state import WINDOW, Numbers


class Sessions:
    """The sessions of one key, none of which overlap or touch, in the order of their times."""

    def __init__(self, windows: Mapping[Numbers, Numbers]) -> None:
        self._places = {window[0]: (window, place) for window, place in windows.items()}
        self._starts = sorted(self._places)

    @staticmethod
    def separate(windows: Iterable[Numbers]) -> bool:
        """Whether no two windows overlap or touch."""
        return all(before[1] < after[0] for before, after in pairwise(sorted(windows)))

    def meeting(self, window: Numbers) -> dict[Numbers, Numbers]:
        """The sessions that overlap or touch a window, each with the window under which its contents lie."""
        last = bisect_right(self._starts, window[1])
        first = last
        while first and self._places[self._starts[first - 1]][0][1] >= window[0]:
            first -= 1
        return dict(self._places[start] for start in self._starts[first:last])

    def put(self, window: Numbers, place: Numbers) -> None:
        if window[0] not in self._places:
            insort(self._starts, window[0])
        self._places[window[0]] = (window, place)

    def remove(self, window: Numbers) -> None:
        known = self._places.get(window[0])
        if known is not None and known[0] == window:
            del self._places[window[0]]
            del self._starts[bisect_left(self._starts, window[0])]


class MergingWindows:
    """The windows of a key that may merge, each with the window under which its contents lie.

    Assigners of users are given all windows of the key, for each element. Of sessions only those can merge that meet
    the new one: they are looked up, so that a row costs the same however many sessions its key has.
    """

    def __init__(
        self, runtime: RuntimeContext, assigner: MergingWindowAssigner[Any, Any], serializer: WindowSerializer[Any]
    ) -> None:
        self._state: Any = runtime.get_map_state(MapStateDescriptor("window-sessions", WINDOW, WINDOW))
        self._assigner = assigner
        self._serializer = serializer
        self._by_time = (
            type(assigner).merge_windows is SessionWindows.merge_windows and type(serializer) is TimeWindowSerializer
        )
        self._sessions: dict[int, Sessions | None] = {}
        """The sessions of each key that was seen, by slot; None if they must be looked at as a whole."""

    def contents_window(self, window: Numbers) -> Numbers | None:
        """Where the contents of a window lie; None if there is no such window any more."""
        found = self._state.get(window)
        return None if found is None else (found[0], found[1])

    def retire(self, window: Numbers) -> None:
        self._state.remove(window)
        sessions = self._sessions.get(self._state.slot())
        if sessions is not None:
            sessions.remove(window)

    def _put(self, window: Numbers, place: Numbers) -> None:
        self._state.put(window, place)
        sessions = self._sessions.get(self._state.slot())
        if sessions is not None:
            sessions.put(window, place)

    def _stored(self) -> dict[Numbers, Numbers]:
        return {(key[0], key[1]): (value[0], value[1]) for key, value in self._state.items()}

    def _candidates(self, window: Numbers) -> dict[Numbers, Numbers]:
        """The windows of the key that may merge with a window, or with each other."""
        if not self._by_time:
            return self._stored()
        slot = self._state.slot()
        if slot not in self._sessions:
            stored = self._stored()
            self._sessions[slot] = Sessions(stored) if Sessions.separate(stored) else None
        sessions = self._sessions[slot]
        return self._stored() if sessions is None else sessions.meeting(window)

    def add(self, window: Any, merged: Callable[[Any, list[Any], Numbers, list[Numbers]], None]) -> Any:
        """Take in a window; the one that it is part of afterwards.

        `merged(result, windows, target, sources)` is called where windows become one: `windows` are those that there
        were, the contents of `sources` are to be added to those of `target`.
        """
        numbers, revive = self._serializer.to_numbers, self._serializer.from_numbers
        mine = numbers(window)
        known = self._candidates(mine)
        if mine in known:
            return window
        groups = _Groups()
        self._assigner.merge_windows([*(revive(*key) for key in known), window], groups)
        result = window
        joined = False
        for members, made in groups.found:
            together = list(dict.fromkeys(map(numbers, members)))
            before = [key for key in together if key != mine]
            if mine in together:
                joined = True
                result = made
            unknown = [key for key in before if key not in known]
            if unknown or not before:
                raise UserFunctionError(
                    f"{type(self._assigner).__name__}.merge_windows() merged {unknown or 'no'} windows that it was "
                    "not given"
                )
            places = [known.pop(key) for key in before]
            for key in before:
                self.retire(key)
            known[numbers(made)] = places[0]
            self._put(numbers(made), places[0])
            if before != [numbers(made)]:
                merged(made, [revive(*key) for key in before], places[0], places[1:])
        if not joined:
            self._put(mine, mine)
        return result


class _Groups:
    """Collects what an assigner merges."""

    def __init__(self) -> None:
        self.found: list[tuple[list[Any], Any]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.found.append((list(to_be_merged), merge_result))
