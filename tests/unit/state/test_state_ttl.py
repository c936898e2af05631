"""Time to live of all five kinds of state, on every backend."""

from __future__ import annotations

import pytest
from tests.support.state_lab import EMPTY, FULL, Lab, all_kinds, read_all, ttl, with_ttl, write_all

from cairn.errors import (
    InvalidInputError,
)
from cairn.model.descriptors import (
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)


def test_ttl_expires_at_exactly_its_length(backend: str) -> None:
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.advance_processing_time(1000)
        lab.do("a", write_all)
        lab.advance_processing_time(1099)
        assert lab.do("a", read_all) == [FULL]
        lab.advance_processing_time(1100)
        lab.restart()
        assert lab.do("a", read_all, read_all) == [EMPTY, EMPTY]
        assert lab.do("a", write_all, read_all) == [None, FULL]


def test_reading_refreshes_only_when_asked(backend: str) -> None:
    with Lab(*all_kinds(ttl(update_ttl_on_read_and_write=())), backend=backend) as lab:
        lab.do("a", write_all)
        for now in (90, 180, 270):
            lab.advance_processing_time(now)
            assert lab.do("a", read_all) == [FULL]
        lab.advance_processing_time(370)
        assert lab.do("a", read_all) == [EMPTY]


def test_expired_values_may_be_shown_one_last_time(backend: str) -> None:
    with Lab(*all_kinds(ttl(return_expired_if_not_cleaned_up=())), backend=backend) as lab:
        lab.do("a", write_all)
        lab.advance_processing_time(500)
        assert lab.do("a", read_all, read_all) == [FULL, EMPTY]
        assert lab.do("a", read_all) == [EMPTY]
        lab.restart()
        assert lab.do("a", read_all) == [EMPTY]


def test_ttl_is_per_element_and_per_entry(backend: str) -> None:
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", lambda s, c: s.l.add(1), lambda s, c: s.m.put(1, 1))
        lab.advance_processing_time(60)
        lab.do("a", lambda s, c: s.l.add(2), lambda s, c: s.m.put(2, 2))
        lab.advance_processing_time(120)
        assert lab.do("a", lambda s, c: (list(s.l), dict(s.m.items()), s.m.contains(1), s.m.get(2))) == [
            ([2], {2: 2}, False, 2)
        ]
        lab.restart()
        assert (lab.state("l", "a"), lab.state("m", "a")) == ([2], {2: 2})


def test_a_write_refreshes(backend: str) -> None:
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", lambda s, c: s.v.update(1), lambda s, c: s.m.put(1, 1))
        lab.advance_processing_time(90)
        lab.do("a", lambda s, c: s.v.update(2), lambda s, c: s.m.put(1, 2))
        lab.advance_processing_time(150)
        assert lab.do("a", lambda s, c: (s.v.value(), s.m.get(1))) == [(2, 2)]


def test_a_write_of_the_same_value_refreshes_although_the_map_is_read_afterwards(backend: str) -> None:
    """Small numbers are one and the same object in Python: what is read later must not pass for what was written."""
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", lambda s, c: s.m.put(1, 1), lambda s, c: s.m.put(2, 1))
        lab.advance_processing_time(80)
        lab.do("a", lambda s, c: s.m.put(1, 1), lambda s, c: list(s.m.keys()))
        lab.advance_processing_time(150)
        assert lab.do("a", lambda s, c: (s.m.get(1), s.m.get(2))) == [(1, None)]


def test_reading_one_entry_after_the_other_refreshes_both(backend: str) -> None:
    with Lab(*all_kinds(ttl(update_ttl_on_read_and_write=())), backend=backend) as lab:
        lab.do("a", lambda s, c: s.m.put(1, 1), lambda s, c: s.m.put(2, 1))
        lab.advance_processing_time(80)
        lab.do("a", lambda s, c: s.m.get(1), lambda s, c: s.m.get(2))
        lab.advance_processing_time(150)
        assert lab.do("a", lambda s, c: (s.m.get(1), s.m.get(2))) == [(1, 1)]


def test_disabled_ttl_is_no_ttl() -> None:
    config = StateTtlConfig.new_builder(Time.seconds(1)).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    with Lab(with_ttl(ValueStateDescriptor("v", "int"), config)) as lab:
        lab.do("a", lambda s, c: s.v.update(1))
        lab.advance_processing_time(10**9)
        assert lab.state("v", "a") == 1


def test_expired_values_do_not_come_back_after_a_restart(backend: str) -> None:
    """The clock of a restart is never behind that of the last epoch."""
    with Lab(*all_kinds(ttl()), backend=backend) as lab:
        lab.do("a", write_all)
        lab.advance_processing_time(1000)
        lab.do("b", write_all)
        lab.restart()
        assert lab.state("v", "a") is None


def test_a_time_to_live_is_a_positive_time() -> None:
    for wrong in (Time.milliseconds(0), Time.milliseconds(-1), None):
        with pytest.raises(InvalidInputError, match="positive Time"):
            StateTtlConfig.new_builder(wrong)  # type: ignore[arg-type]
