"""What the delta of an epoch has in it: what changed, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.state_lab import Lab, ttl, with_ttl
from tests.support.window_lab import counting, row

from cairn import EventTimeSessionWindows, TumblingEventTimeWindows
from cairn.model.descriptors import MapStateDescriptor
from cairn.runtime.state_registry import StateRegistry

Delta = dict[str, list[tuple[Any, Any]]]


@pytest.fixture
def deltas(monkeypatch: pytest.MonkeyPatch) -> list[Delta]:
    """The deltas of all epochs: entries and values of every state that has changed."""
    made: list[Delta] = []
    drain = StateRegistry.drain

    def noted(registry: StateRegistry) -> Any:
        sections = drain(registry)
        columns = {
            section.table: [section.data[name].to_pylist() for name in ("entry", "value")] for section in sections
        }
        made.append({name: list(zip(*both, strict=True)) for name, both in columns.items()})
        return sections

    monkeypatch.setattr(StateRegistry, "drain", noted)
    return made


def passing(states: Any, ctx: Any) -> None:
    """Puts an entry and takes it out again, with the map known as a whole."""
    list(states.m.items())
    states.m.put("passing", 1)
    states.m.remove("passing")


def test_an_entry_that_came_and_went_within_an_epoch_leaves_nothing_in_the_delta(deltas: list[Delta]) -> None:
    with Lab(MapStateDescriptor("m", "string", "bigint")) as lab:
        lab.do("a", passing)
        lab.do("a", lambda s, c: s.m.put("stays", 1), passing)
        assert [delta.get("m", []) for delta in deltas] == [[], [(b"stays", 1)]]


def test_a_stored_entry_that_is_removed_is_in_the_delta(deltas: list[Delta]) -> None:
    with Lab(MapStateDescriptor("m", "string", "bigint")) as lab:
        lab.do("a", lambda s, c: s.m.put_all({"blind": 1, "read": 1, "again": 1, "kept": 1}))
        lab.do(
            "a",
            lambda s, c: s.m.remove("blind"),
            lambda s, c: s.m.put("again", 2),
            lambda s, c: list(s.m.items()),
            lambda s, c: s.m.remove("read"),
            lambda s, c: s.m.remove("again"),
            lambda s, c: s.m.put("new", 1),
            lambda s, c: s.m.remove("new"),
        )
        assert deltas[1] == {"m": [(b"again", None), (b"blind", None), (b"read", None)]}
        assert lab.state("m", "a") == {"kept": 1}


def test_an_entry_with_ttl_is_removed_in_the_delta_also_where_this_copy_does_not_have_it(deltas: list[Delta]) -> None:
    with Lab(with_ttl(MapStateDescriptor("m", "string", "bigint"), ttl())) as lab:
        lab.do("a", passing)
        assert deltas == [{"m": [(b"passing", None)]}]


def test_a_row_of_a_stored_window_writes_no_timer_anew(deltas: list[Delta]) -> None:
    with counting(TumblingEventTimeWindows.of(100)) as lab:
        lab.push(row(1))
        lab.run_epoch()
        lab.push(row(2))
        lab.run_epoch()
        assert "window-timers-event" in deltas[0]
        assert sorted(deltas[1]) == ["window-elements", "window-sizes"]


def test_the_windows_that_a_session_went_through_within_an_epoch_are_not_in_the_delta(deltas: list[Delta]) -> None:
    with counting(EventTimeSessionWindows.with_gap(10)) as lab:
        lab.push(*[row(time) for time in range(0, 500, 5)])
        lab.run_epoch()
        assert {name: len(entries) for name, entries in deltas[0].items()} == {
            "window-elements": 100,
            "window-sizes": 1,
            "window-sessions": 1,
            "window-timers-event": 1,
            "_timers.event": 100,
        }
