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
    ValueStateDescriptor,
)
from cairn.model.functions import KeyedProcessFunction
from cairn.testing.harness import KeyedProcessHarness

BACKENDS = ["hashmap", "lmdb", "rocksdb"]
Step = Callable[[Any, Any], Any]


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
