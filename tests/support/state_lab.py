"""A function made of a script, so that a test can say in a few lines what happens to state in each epoch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from cairn.model.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from cairn.model.functions import AggregateFunction, KeyedProcessFunction, ReduceFunction
from cairn.testing.keyed_harness import KeyedProcessHarness

BACKENDS = ["hashmap", "lmdb", "rocksdb"]
Step = Callable[[Any, Any], Any]


class Mean(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]


class Longest(ReduceFunction):
    def reduce(self, value1: str, value2: str) -> str:
        return value1 if len(value1) >= len(value2) else value2


class Scripted(KeyedProcessFunction):
    """Calls the step that a row carries with (states, ctx); what the step returns is put out as text."""

    def __init__(self, descriptors: Iterable[StateDescriptor], on_timer: Step | None = None) -> None:
        self.descriptors = list(descriptors)
        self.steps: list[Step] = []
        self.timer_step = on_timer

    def __deepcopy__(self, memo: dict[int, Any]) -> Scripted:
        made = Scripted(copy.copy(self.descriptors), self.timer_step)
        made.steps = self.steps
        return made

    def open(self, runtime_context: Any) -> None:
        self.states = SimpleNamespace()
        for descriptor in self.descriptors:
            getter = {
                ValueStateDescriptor: runtime_context.get_state,
                ListStateDescriptor: runtime_context.get_list_state,
                MapStateDescriptor: runtime_context.get_map_state,
                ReducingStateDescriptor: runtime_context.get_reducing_state,
                AggregatingStateDescriptor: runtime_context.get_aggregating_state,
            }[type(descriptor)]
            setattr(self.states, descriptor.name, getter(descriptor))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        made = self.steps[value.step](self.states, ctx)
        return [(value.key, repr(made))]

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        assert self.timer_step is not None
        self.states.timestamp = timestamp
        made = self.timer_step(self.states, ctx)
        return [(ctx.get_current_key(), repr(made))]


class Lab(KeyedProcessHarness):
    """`do(key, step)` runs steps in one epoch and returns what they returned, as text."""

    def __init__(self, *descriptors: StateDescriptor, on_timer: Step | None = None, **settings: Any) -> None:
        self.script = Scripted(descriptors, on_timer)
        super().__init__(self.script, "key", "key string, step int", "key string, out string", **settings)

    def later(self, key: str, *steps: Step) -> None:
        """Add steps of a key to the next epoch."""
        for step in steps:
            self.script.steps.append(step)
            self.push((key, len(self.script.steps) - 1))

    def do(self, key: str, *steps: Step) -> list[Any]:
        """Run steps of one key in an epoch of their own."""
        self.later(key, *steps)
        return [eval(row.out, {"Row": tuple_of}) for row in self.run_epoch() if row.key == key]


def tuple_of(*values: Any, **named: Any) -> tuple[Any, ...]:
    return (*values, *named.values())


# One state of each kind with a time to live of 100 ms.


def ttl(**settings: Any) -> StateTtlConfig:
    builder = StateTtlConfig.new_builder(Time.milliseconds(100))
    for name, value in settings.items():
        getattr(builder, name)(*value)
    return builder.build()


def with_ttl(descriptor: Any, config: StateTtlConfig) -> Any:
    descriptor.enable_time_to_live(config)
    return descriptor


def all_kinds(config: StateTtlConfig) -> list[Any]:
    return [
        with_ttl(ValueStateDescriptor("v", "int"), config),
        with_ttl(ListStateDescriptor("l", "int"), config),
        with_ttl(MapStateDescriptor("m", "int", "int"), config),
        with_ttl(ReducingStateDescriptor("r", lambda a, b: a + b, "int"), config),
        with_ttl(AggregatingStateDescriptor("g", Mean(), "array<bigint>"), config),
    ]


def write_all(states: Any, ctx: Any) -> None:
    states.v.update(1)
    states.l.add(1)
    states.m.put(1, 1)
    states.r.add(1)
    states.g.add(1)


def read_all(states: Any, ctx: Any) -> Any:
    return states.v.value(), list(states.l), dict(states.m.items()), states.r.get(), states.g.get()


FULL = (1, [1], {1: 1}, 1, 1.0)
EMPTY: tuple[Any, ...] = (None, [], {}, None, None)
