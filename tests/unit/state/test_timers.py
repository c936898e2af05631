"""Timers: each fires once, in order, and is state like everything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.state_lab import BACKENDS, Lab

from cairn.errors import InvalidInputError, StateMisuseError
from cairn.model.descriptors import ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction, TimeDomain
from cairn.testing.keyed_harness import KeyedProcessHarness, Timer

EVENT, PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME


def fired(lab: Lab) -> list[tuple[str, Any]]:
    """Key and time of each timer that the next epoch fires, in order."""
    return [(row.key, eval(row.out)) for row in lab.run_epoch()]


@pytest.fixture(params=BACKENDS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with Lab(on_timer=lambda s, c: (s.timestamp, c.time_domain().name[0]), backend=request.param) as made:
        yield made


def event(*times: int) -> Any:
    return lambda s, c: [c.timer_service().register_event_time_timer(time) for time in times]


def processing(*times: int) -> Any:
    return lambda s, c: [c.timer_service().register_processing_time_timer(time) for time in times]


def test_timers_fire_once_and_in_order(lab: Lab) -> None:
    lab.do("a", event(30, 10, 20, 10), event(10))
    lab.do("b", event(15))
    lab.advance_watermark(9)
    assert fired(lab) == []
    lab.advance_watermark(20)
    assert fired(lab) == [("a", (10, "E")), ("b", (15, "E")), ("a", (20, "E"))]
    assert fired(lab) == []
    assert lab.timers() == [Timer(30, "a", EVENT)]
    lab.restart()
    lab.advance_watermark(1000)
    assert fired(lab) == [("a", (30, "E"))]
    lab.restart()
    assert fired(lab) == []
    assert lab.timers() == []


def test_both_domains_keep_apart(lab: Lab) -> None:
    lab.do("a", event(10), processing(10))
    assert lab.timers() == [Timer(10, "a", EVENT), Timer(10, "a", PROCESSING)]
    lab.advance_processing_time(10)
    assert fired(lab) == [("a", (10, "P"))]
    lab.advance_watermark(10)
    assert fired(lab) == [("a", (10, "E"))]


def test_deleting(lab: Lab) -> None:
    lab.do("a", event(10, 20), lambda s, c: c.timer_service().delete_event_time_timer(20))
    lab.do("b", lambda s, c: c.timer_service().delete_event_time_timer(10))
    assert lab.timers() == [Timer(10, "a", EVENT)]
    lab.do("a", lambda s, c: c.timer_service().delete_event_time_timer(10), event(30))
    lab.restart()
    lab.advance_watermark(100)
    assert fired(lab) == [("a", (30, "E"))]


def test_deleted_and_set_again(lab: Lab) -> None:
    lab.do("a", event(10))
    lab.do("a", lambda s, c: c.timer_service().delete_event_time_timer(10), event(10))
    lab.advance_watermark(10)
    assert fired(lab) == [("a", (10, "E"))]


def test_a_timer_in_the_past_fires_in_the_next_epoch(lab: Lab) -> None:
    lab.advance_watermark(100)
    lab.do("a", event(50), event(-5))
    assert fired(lab) == [("a", (-5, "E")), ("a", (50, "E"))]
    assert fired(lab) == []


def test_timers_are_not_due_before_the_first_watermark(lab: Lab) -> None:
    lab.do("a", event(-(2**63), 2**63 - 1))
    assert fired(lab) == []
    lab.advance_watermark(0)
    assert fired(lab) == [("a", (-(2**63), "E"))]
    lab.advance_watermark(2**63 - 1)
    assert fired(lab) == [("a", (2**63 - 1, "E"))]


def test_rows_come_after_timers(lab: Lab) -> None:
    lab.do("a", event(10))
    lab.advance_watermark(10)
    lab.later("a", lambda s, c: "row")
    assert [eval(row.out) for row in lab.run_epoch()] == [(10, "E"), "row"]


def test_a_failed_epoch_fires_again_and_deletes_nothing(lab: Lab) -> None:
    lab.do("a", event(10, 20))
    lab.advance_watermark(10)
    lab.later("a", lambda s, c: c.timer_service().delete_event_time_timer(20))
    lab.fail_epoch()
    assert lab.timers() == [Timer(10, "a", EVENT), Timer(20, "a", EVENT)]
    lab.restart()
    assert [eval(row.out) for row in lab.run_epoch()] == [(10, "E"), None]
    lab.restart()
    assert lab.timers() == []


def test_long_keys_have_timers(lab: Lab) -> None:
    names = ["x" * length for length in (480, 500, 501, 502, 600, 601)]
    for name in names:
        lab.later(name, event(len(name), 1))
    lab.run_epoch()
    assert {timer.key for timer in lab.timers()} == set(names)
    lab.advance_watermark(1)
    assert sorted(key for key, _ in fired(lab)) == sorted(names)
    lab.advance_watermark(1000)
    assert [time for _, (time, _) in fired(lab)] == [480, 500, 501, 502, 600, 601]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_timer_registers(backend: str) -> None:
    """Later but due: the same sweep. Not later: the next epoch, so nothing can run for ever."""

    def on_timer(states: Any, ctx: Any) -> Any:
        time = states.timestamp
        if time == 10:
            for other in (5, 10, 15, 25, 100):
                ctx.timer_service().register_event_time_timer(other)
        if time == 15:
            ctx.timer_service().delete_event_time_timer(20)
            ctx.timer_service().delete_event_time_timer(25)
            ctx.timer_service().register_event_time_timer(25)
        return time

    with Lab(on_timer=on_timer, backend=backend) as lab:
        lab.do("a", event(10, 20, 25))
        lab.advance_watermark(50)
        assert [time for _, time in fired(lab)] == [10, 15, 25]
        assert [timer.time for timer in lab.timers()] == [5, 10, 100]
        assert [time for _, time in fired(lab)] == [5, 10, 15, 25]
        assert [timer.time for timer in lab.timers()] == [5, 10, 100]


def test_a_timer_that_arms_itself_for_ever_ends_each_epoch() -> None:
    def on_timer(states: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(states.timestamp)
        return states.timestamp

    with Lab(on_timer=on_timer) as lab:
        lab.do("a", processing(0))
        for _ in range(3):
            assert fired(lab) == [("a", 0)]


def test_timers_of_other_keys_keep_state_apart() -> None:
    def on_timer(states: Any, ctx: Any) -> Any:
        states.v.update((states.v.value() or 0) + 1)
        return ctx.get_current_key(), ctx.timestamp(), states.v.value()

    with Lab(ValueStateDescriptor("v", "int"), on_timer=on_timer, parallelism=3) as lab:
        names = [f"k{number}" for number in range(20)]
        for name in names:
            lab.later(name, event(1, 2))
        lab.run_epoch()
        lab.advance_watermark(2)
        rows = [(row.key, eval(row.out)) for row in lab.run_epoch()]
        assert sorted(rows) == sorted((name, (name, time, time)) for name in names for time in (1, 2))
        assert [lab.state("v", name) for name in names] == [2] * 20


@pytest.mark.parametrize("parallelism", [1, 5])
def test_timers_move_with_their_keys(parallelism: int) -> None:
    with Lab(on_timer=lambda s, c: s.timestamp, parallelism=3) as lab:
        names = [f"k{number}" for number in range(30)]
        for name in names:
            lab.later(name, event(10))
        lab.run_epoch()
        lab.restart(parallelism)
        assert len(lab.timers()) == 30
        lab.advance_watermark(10)
        assert sorted(fired(lab)) == sorted((name, 10) for name in names)


def test_the_clock_never_goes_back_over_a_restart() -> None:
    with Lab(on_timer=lambda s, c: s.timestamp) as lab:
        lab.do("a", processing(100), event(100))
        lab.advance_processing_time(500)
        lab.advance_watermark(400)
        lab.run_epoch()
        lab._time, lab._watermark = 0, 0
        lab.restart()
        assert lab.do(
            "a", lambda s, c: (c.timer_service().current_processing_time(), c.timer_service().current_watermark())
        ) == [(500, 400)]


@pytest.mark.parametrize("wrong", [1.5, "1", None, True, 2**63])
def test_a_time_is_a_whole_number(wrong: Any) -> None:
    with Lab(on_timer=lambda s, c: None) as lab:
        lab.later("a", event(wrong))
        with pytest.raises(InvalidInputError, match="a timer's time"):
            lab.run_epoch()


def test_timers_and_the_domain_have_their_places() -> None:
    class Early(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.time_domain()

    with KeyedProcessHarness(Early(), "k", "k string", "k string") as harness:
        harness.push("a")
        with pytest.raises(StateMisuseError, match="on_timer only"):
            harness.run_epoch()


def test_event_times_of_rows() -> None:
    class Times(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield (ctx.timestamp(),)

    with KeyedProcessHarness(Times(), "k", "k string, at timestamp", "t bigint", event_time="at") as harness:
        import datetime as dt

        harness.push(("a", dt.datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=dt.UTC)), ("a", None))
        assert [row.t for row in harness.run_epoch()] == [1000, None]
    with KeyedProcessHarness(Times(), "k", "k string", "t bigint") as harness:
        harness.push("a")
        assert [row.t for row in harness.run_epoch()] == [None]
