"""What a call of a state or timer costs does not grow with the number of rows, entries or earlier calls.

Calls that return all elements or entries are made on states that stay small, since they cost what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.counted_cost import assert_linear
from tests.support.state_lab import Mean, ttl, with_ttl

from cairn import (
    AggregatingStateDescriptor,
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from cairn.testing import KeyedProcessHarness, ProcessHarness, TwoInputHarness

Step = Callable[[Any, Any, int], Any]
TTLS: dict[str, Any] = {
    "no ttl": None,
    "ttl": ttl(),
    "ttl renewed on read": ttl(update_ttl_on_read_and_write=()),
    "ttl that shows expired": ttl(return_expired_if_not_cleaned_up=()),
}


def read(values: Iterable[Any]) -> int:
    return sum(1 for _ in values)


GROWING: dict[str, Callable[[list[int]], Any]] = {
    "a loop": lambda seen: [number for number in seen for _ in range(4) if number < 0],
    "a generator": lambda seen: any(number < 0 for number in seen),
    "calls of a function": lambda seen: sum(map(abs_of, seen)),
    "a copy": lambda seen: seen.copy(),
}


def abs_of(number: int) -> int:
    return abs(number)


class Growing(KeyedProcessFunction):
    """Looks at all earlier rows for each row."""

    def __init__(self, look: Callable[[list[int]], Any]) -> None:
        self.look = look
        self.seen: list[int] = []

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.seen.append(value.row)
        self.look(self.seen)
        return ()


@pytest.mark.parametrize("how", GROWING)
def test_a_cost_that_grows_is_found(how: str) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = KeyedProcessHarness(Growing(GROWING[how]), "key", "key string, row bigint", "key string")
        lab.push(*[("a", row) for row in range(rows)])
        return lab.run_epoch

    with pytest.raises(AssertionError, match="the cost of a row grows with their number"):
        assert_linear(prepared, Growing, ("process_element",))


# Every call with the number of the row; `stored` ones find as many entries as there are rows, from an earlier epoch.


def churn(call: Callable[[Any], Any]) -> Step:
    """A call on a map in which another entry replaces the one before it."""

    def step(states: Any, ctx: Any, row: int) -> None:
        states.m.put(row, row)
        states.m.remove(row - 1)
        call(states.m)

    return step


def small_list(states: Any, ctx: Any, row: int) -> None:
    states.l.update([row, row])
    states.l.add(row)
    read(states.l.get())


def cleared_list(states: Any, ctx: Any, row: int) -> None:
    states.l.add(row)
    states.l.clear()
    read(states.l)


def cleared_map(states: Any, ctx: Any, row: int) -> None:
    states.m.put(row, row)
    states.m.clear()
    read(states.m.items())


STEPS: dict[str, Step] = {
    "value.value": lambda s, c, row: s.v.value(),
    "value.update": lambda s, c, row: s.v.update(row),
    "value.clear": lambda s, c, row: s.v.clear(),
    "list.add": lambda s, c, row: s.l.add(row),
    "list.add_all": lambda s, c, row: s.l.add_all([row, row]),
    "list.update, add and get": small_list,
    "list.clear": cleared_list,
    "map.put": lambda s, c, row: s.m.put(row, row),
    "map.put_all": lambda s, c, row: s.m.put_all({row: row, -row: row}),
    "map.get of absent entries": lambda s, c, row: s.m.get(-1 - row),
    "map.contains of absent entries": lambda s, c, row: s.m.contains(-1 - row),
    "map.remove of absent entries": lambda s, c, row: s.m.remove(-1 - row),
    "map.put and get": lambda s, c, row: (s.m.put(row, row), s.m.get(row)),
    "map.put and remove": lambda s, c, row: (s.m.put(row, row), s.m.remove(row)),
    "map.put and is_empty": lambda s, c, row: (s.m.put(row, row), s.m.is_empty()),
    "map.items after removals": churn(lambda m: read(m.items())),
    "map.keys after removals": churn(lambda m: read(m.keys())),
    "map.values after removals": churn(lambda m: read(m.values())),
    "map.is_empty after removals": churn(lambda m: m.is_empty()),
    "map.items after absent entries": lambda s, c, row: (s.m.get(row), read(s.m.items())),
    "map.clear": cleared_map,
    "nested map.items after removals": lambda s, c, row: (
        s.n.put((row, row), [row]),
        s.n.remove((row - 1, row - 1)),
        read(s.n.items()),
    ),
    "reducing.add and get": lambda s, c, row: (s.r.add(row), s.r.get()),
    "reducing.clear": lambda s, c, row: (s.r.add(row), s.r.clear()),
    "aggregating.add and get": lambda s, c, row: (s.g.add(row), s.g.get()),
    "aggregating.clear": lambda s, c, row: (s.g.add(row), s.g.clear()),
}

STORED: dict[str, Step] = {
    "map.get": lambda s, c, row: s.m.get(row),
    "map.contains": lambda s, c, row: s.m.contains(row),
    "map.put": lambda s, c, row: s.m.put(row, 0),
    "map.remove": lambda s, c, row: s.m.remove(row),
    "map.get and remove": lambda s, c, row: (s.m.get(row), s.m.remove(row)),
    "map.get of absent entries": lambda s, c, row: s.m.get(-1 - row),
    "map.remove and is_empty": lambda s, c, row: (s.m.remove(row), s.m.is_empty()),
    "list.add": lambda s, c, row: s.l.add(row),
    "list.clear": cleared_list,
}


def fill(states: Any, ctx: Any, row: int) -> None:
    states.m.put(row, row)
    states.l.add(row)


class Stepping(KeyedProcessFunction):
    """Makes one call for each row."""

    def __init__(self, step: Step, lifetime: Any = None) -> None:
        self.step = step
        self.lifetime = lifetime

    def open(self, runtime_context: Any) -> None:
        def declared(descriptor: Any) -> Any:
            return descriptor if self.lifetime is None else with_ttl(descriptor, self.lifetime)

        context = runtime_context
        self.states = SimpleNamespace(
            v=context.get_state(declared(ValueStateDescriptor("v", "bigint"))),
            l=context.get_list_state(declared(ListStateDescriptor("l", "bigint"))),
            m=context.get_map_state(declared(MapStateDescriptor("m", "bigint", "bigint"))),
            n=context.get_map_state(declared(MapStateDescriptor("n", "struct<a:int,b:int>", "array<int>"))),
            r=context.get_reducing_state(declared(ReducingStateDescriptor("r", max, "bigint"))),
            g=context.get_aggregating_state(declared(AggregatingStateDescriptor("g", Mean(), "array<bigint>"))),
        )

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        (fill if value.fills else self.step)(self.states, ctx, value.row)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        return ()


def harness(step: Step, lifetime: Any = None) -> KeyedProcessHarness:
    made = KeyedProcessHarness(
        Stepping(step, lifetime), "key", "key string, row bigint, fills boolean, time timestamp", "key string",
        event_time="time",
    )  # fmt: skip
    made.advance_processing_time(1_000)
    return made


@pytest.mark.parametrize("lifetime", TTLS)
@pytest.mark.parametrize("call", STEPS)
def test_a_call_of_a_keyed_state_costs_the_same_for_every_row(call: str, lifetime: str) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = harness(STEPS[call], TTLS[lifetime])
        lab.push(*[("a", row, False, None) for row in range(rows)])
        return lab.run_epoch

    assert_linear(prepared, Stepping, ("process_element",))


@pytest.mark.parametrize("later", [0, 1_000], ids=["in time", "expired"])
@pytest.mark.parametrize("lifetime", TTLS)
@pytest.mark.parametrize("call", STORED)
def test_a_call_of_a_large_stored_state_costs_the_same_for_every_row(call: str, lifetime: str, later: int) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = harness(STORED[call], TTLS[lifetime])
        lab.push(*[("a", row, True, None) for row in range(rows + 20)])
        lab.run_epoch()
        lab.advance_processing_time(1_000 + later)
        lab.push(*[("a", row, False, None) for row in range(rows)])
        return lab.run_epoch

    assert_linear(prepared, Stepping, ("process_element",))


def test_a_list_of_many_expired_epochs_is_read_at_the_cost_of_its_elements() -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = harness(lambda s, c, row: read(s.l.get()), ttl())
        for epoch in range(rows // 4):
            lab.push(("a", epoch, True, None))
            lab.run_epoch()
        lab.advance_processing_time(5_000)
        lab.push(*[("a", row, False, None) for row in range(rows)])
        return lab.run_epoch

    assert_linear(prepared, Stepping, ("process_element",))


# Timers.

TIMERS: dict[str, Step] = {
    "register": lambda s, c, row: c.timer_service().register_event_time_timer(row),
    "register again": lambda s, c, row: c.timer_service().register_event_time_timer(7),
    "register and delete": lambda s, c, row: (
        c.timer_service().register_processing_time_timer(row),
        c.timer_service().delete_processing_time_timer(row),
    ),
    "delete": lambda s, c, row: c.timer_service().delete_event_time_timer(row),
}


@pytest.mark.parametrize("call", TIMERS)
def test_a_call_of_the_timer_service_costs_the_same_for_every_row(call: str) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = harness(TIMERS[call])
        lab.push(*[("a", row, False, None) for row in range(rows)])
        return lab.run_epoch

    assert_linear(prepared, Stepping, ("process_element",))


@pytest.mark.parametrize("keys", [1, 10_000], ids=["of one key", "of many keys"])
def test_firing_a_timer_costs_the_same_however_many_fire(keys: int) -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = harness(TIMERS["register"])
        lab.push(*[(f"k{row % keys}", row, False, None) for row in range(rows)])
        lab.run_epoch()
        lab.advance_watermark(1_000_000)
        return lab.run_epoch

    assert_linear(prepared, Stepping, ("on_timer",))


# State without a key.


class Listing(ProcessFunction, CheckpointedFunction):
    """Adds to operator state for each row."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.even = store.get_list_state(ListStateDescriptor("even", "bigint"))
        self.union = store.get_union_list_state(ListStateDescriptor("union", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.even.add(value)
        self.union.add_all([value])
        return ()

    def snapshot_state(self, context: Any) -> None:
        self.even.update([1])


def test_adding_to_operator_state_costs_the_same_for_every_row() -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = ProcessHarness(Listing(), "bigint", "bigint")
        lab.push(*range(rows))
        return lab.run_epoch

    assert_linear(prepared, Listing, ("process_element",))


RULES = MapStateDescriptor("rules", "bigint", "bigint")


class Ruled(KeyedBroadcastProcessFunction):
    """Changes and reads broadcast state."""

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(value.rule, 1)
        rules.remove(value.rule - 1)
        read(rules.items())
        rules.is_empty()
        return ()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        rules = ctx.get_broadcast_state(RULES)
        rules.get(value.row)
        rules.contains(value.row)
        rules.is_empty()
        read(rules.items())
        return ()


def test_changing_and_reading_broadcast_state_costs_the_same_for_every_row() -> None:
    def prepared(rows: int) -> Callable[[], Any]:
        lab = TwoInputHarness(
            Ruled(), ("key", None), ("key string, row bigint", "rule bigint"), "key string", broadcast=[RULES]
        )
        lab.push2(*[(row,) for row in range(rows)])
        lab.push1(*[("a", row) for row in range(rows)])
        return lab.run_epoch

    assert_linear(prepared, Ruled, ("process_broadcast_element", "process_element"))
