"""A job under random operations, failures, restarts, rescales and compactions equals plain dicts at all times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.state_lab import Lab

from cairn.coordinator import compactor
from cairn.model.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from cairn.model.functions import TimeDomain
from cairn.state import working_store
from cairn.testing.keyed_harness import Timer

KEYS = ["", "a", "a\0", "b" * 600, "ü"]
keys = st.sampled_from(KEYS)
numbers = st.integers(-3, 3)
texts = st.sampled_from(["", "x", "xy", "z" * 700])
times = st.integers(0, 30)


class Model:
    """The state of one key."""

    def __init__(self) -> None:
        self.value: Any = None
        self.elements: list[str] = []
        self.entries: dict[str, int] = {}
        self.total: int | None = None
        self.fired: list[int] = []
        self.timers: set[int] = set()


def on_timer(states: Any, ctx: Any) -> None:
    states.fired.add(states.timestamp)


class Job(RuleBasedStateMachine):
    """Operations wait until an epoch runs; the model takes them over only when that epoch commits."""

    def __init__(self) -> None:
        super().__init__()
        self.lab: Lab | None = None
        self.patch = pytest.MonkeyPatch()

    @initialize(
        backend=st.sampled_from(["hashmap", "lmdb"]),
        parallelism=st.integers(1, 4),
        chain=st.integers(2, 4),
        inline=st.sampled_from([0, 1500, 100_000]),
        defer=st.integers(0, 3),
    )
    def start(self, backend: str, parallelism: int, chain: int, inline: int, defer: int) -> None:
        self.patch.setattr(compactor, "DEFER_EPOCHS", defer - 1)
        self.patch.setattr(working_store, "DEFER_EPOCHS", defer)
        self.patch.setattr(working_store, "_LAYER_ROWS", 1)
        self.lab = Lab(
            ValueStateDescriptor("value", "bigint"),
            ListStateDescriptor("elements", "string"),
            MapStateDescriptor("entries", "string", "bigint"),
            ReducingStateDescriptor("total", lambda a, b: a + b, "bigint"),
            ListStateDescriptor("fired", "bigint"),
            on_timer=on_timer,
            backend=backend,
            parallelism=parallelism,
            max_parallelism=8,
            compaction_chain=chain,
            epochs_retained=2,
            inline_threshold=inline,
        )
        self.model = {key: Model() for key in KEYS}
        self.pending: list[tuple[str, Callable[[Model], Any]]] = []
        self.watermark = -1
        self.unchecked = False

    def teardown(self) -> None:
        self.patch.undo()
        if self.lab is not None:
            self.lab.close()

    def _later(self, key: str, real: Any, model: Callable[[Model], Any]) -> None:
        assert self.lab is not None
        self.lab.later(key, real)
        self.pending.append((key, model))

    # What user code does.

    @rule(key=keys, n=numbers)
    def update(self, key: str, n: int) -> None:
        self._later(key, lambda s, c: s.value.update(n), lambda m: setattr(m, "value", n))

    @rule(key=keys)
    def clear_value(self, key: str) -> None:
        self._later(key, lambda s, c: s.value.clear(), lambda m: setattr(m, "value", None))

    @rule(key=keys, n=numbers)
    def add_to_total(self, key: str, n: int) -> None:
        self._later(key, lambda s, c: s.total.add(n), lambda m: setattr(m, "total", (m.total or 0) + n))

    @rule(key=keys, text=texts)
    def append(self, key: str, text: str) -> None:
        self._later(key, lambda s, c: s.elements.add(text), lambda m: m.elements.append(text))

    @rule(key=keys, some=st.lists(texts, max_size=3))
    def replace_list(self, key: str, some: list[str]) -> None:
        self._later(key, lambda s, c: s.elements.update(some), lambda m: setattr(m, "elements", list(some)))

    @rule(key=keys, text=texts, n=numbers)
    def put(self, key: str, text: str, n: int) -> None:
        self._later(key, lambda s, c: s.entries.put(text, n), lambda m: m.entries.__setitem__(text, n))

    @rule(key=keys, text=texts)
    def remove(self, key: str, text: str) -> None:
        self._later(key, lambda s, c: s.entries.remove(text), lambda m: m.entries.pop(text, None))

    @rule(key=keys)
    def clear_map(self, key: str) -> None:
        self._later(key, lambda s, c: s.entries.clear(), lambda m: m.entries.clear())

    @rule(key=keys)
    def double_all(self, key: str) -> None:
        def real(states: Any, ctx: Any) -> None:
            for text, n in states.entries.items():
                states.entries.put(text, n * 2)

        def model(m: Model) -> None:
            m.entries = {text: n * 2 for text, n in m.entries.items()}

        self._later(key, real, model)

    @rule(key=keys, time=times)
    def set_timer(self, key: str, time: int) -> None:
        self._later(key, lambda s, c: c.timer_service().register_event_time_timer(time), lambda m: m.timers.add(time))

    @rule(key=keys, time=times)
    def delete_timer(self, key: str, time: int) -> None:
        self._later(key, lambda s, c: c.timer_service().delete_event_time_timer(time), lambda m: m.timers.discard(time))

    # What happens to the job.

    @rule(step=st.integers(0, 8))
    def advance(self, step: int) -> None:
        assert self.lab is not None
        self.watermark += step
        self.lab.advance_watermark(self.watermark)

    @rule()
    def run_epoch(self) -> None:
        assert self.lab is not None
        self.lab.run_epoch()
        for model in self.model.values():
            due = sorted(time for time in model.timers if time <= self.watermark)
            model.fired += due
            model.timers -= set(due)
        for key, change in self.pending:
            change(self.model[key])
        self.pending = []
        self.unchecked = True

    @rule(at=st.sampled_from(["announced", "prepared", "acknowledged"]))
    def fail_epoch(self, at: str) -> None:
        assert self.lab is not None
        self.lab.fail_epoch(at)
        self.unchecked = True

    @rule(keep=st.booleans())
    def restart(self, keep: bool) -> None:
        assert self.lab is not None
        self.lab.restart(keep_stores=keep)
        self.unchecked = True

    @rule(parallelism=st.integers(1, 8), keep=st.booleans())
    def rescale(self, parallelism: int, keep: bool) -> None:
        assert self.lab is not None
        self.lab.restart(parallelism, keep_stores=keep)
        self.unchecked = True

    @precondition(lambda self: self.lab is not None and self.unchecked)
    @invariant()
    def equals_the_model(self) -> None:
        assert self.lab is not None
        self.unchecked = False
        for key, model in self.model.items():
            assert self.lab.state("value", key) == model.value
            assert self.lab.state("elements", key) == model.elements
            assert self.lab.state("entries", key) == model.entries
            assert self.lab.state("total", key) == model.total
            assert self.lab.state("fired", key) == model.fired
        expected = {
            Timer(time, key, TimeDomain.EVENT_TIME) for key, model in self.model.items() for time in model.timers
        }
        found = self.lab.timers()
        assert set(found) == expected
        assert len(found) == len(expected)


TestJob = pytest.mark.fuzz(pytest.mark.timeout(900)(Job.TestCase))
TestJob.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
