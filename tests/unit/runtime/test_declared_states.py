"""Asking a function which states it declares, without running the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.state_lab import Lab

from cairn.model.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from cairn.model.functions import KeyedProcessFunction
from cairn.model.manifest import StateSpec
from cairn.runtime.declared_states import declared_states
from cairn.runtime.keyed_operator import OperatorSpec
from cairn.runtime.reduce_function import Reduce


class Many(KeyedProcessFunction):
    closed = 0

    def open(self, runtime_context: Any) -> None:
        ttl = ValueStateDescriptor("a", "struct<x:int,y:string>", field_defaults={"y": "?"})
        ttl.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(5)).build())
        self.a = runtime_context.get_state(ttl).value  # a method may be taken hold of
        runtime_context.get_list_state(ListStateDescriptor("b", "bigint"))
        runtime_context.get_map_state(MapStateDescriptor("c", "date", "double"))
        runtime_context.get_reducing_state(ReducingStateDescriptor("d", min, "int"))
        assert runtime_context.get_job_parameter("p", "") == "told"
        assert runtime_context.get_number_of_parallel_subtasks() == 1

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def spec() -> OperatorSpec:
    with Lab() as lab:
        return replace(lab.spec, parallelism=1)


def test_states_are_told_with_kind_types_ttl_and_defaults(spec: OperatorSpec) -> None:
    told = declared_states(replace(spec, function=Many()), {"p": "told"})
    assert told.failure == ""
    assert [state.spec for state in told.states] == [
        StateSpec("a", "value", "struct<x:int,y:string>", ttl_ms=5000),
        StateSpec("b", "list", "bigint"),
        StateSpec("c", "map", "double", "date"),
        StateSpec("d", "reducing", "int"),
    ]
    assert {path: msgspec.msgpack.decode(raw) for path, raw in told.states[0].defaults.items()} == {"y": "?"}
    assert Many.closed == 1, "what open() took is given back"


def test_other_operators(spec: OperatorSpec) -> None:
    batch = replace(spec, function=print, vectorised=True, states=(("s", "bigint"), ("t", "string")))
    assert [s.spec for s in declared_states(batch, {}).states] == [
        StateSpec("s", "value", "bigint"), StateSpec("t", "value", "string"),
    ]  # fmt: skip
    reducing = declared_states(replace(spec, function=Reduce(max, "struct<k:int>")), {})
    assert [s.spec for s in reducing.states] == [StateSpec("reduced", "reducing", "struct<k:int>")]


def test_a_function_that_fails_or_uses_state_too_early(spec: OperatorSpec) -> None:
    class Early(Many):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_state(ValueStateDescriptor("a", "int")).update(3)

    class Twice(Many):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_state(ValueStateDescriptor("a", "int"))
            runtime_context.get_state(ValueStateDescriptor("a", "string"))

    class Broken(Many):
        def open(self, runtime_context: Any) -> None:
            raise OSError("secret")

    assert "no current key" in declared_states(replace(spec, function=Early()), {}).failure
    assert "already in use" in declared_states(replace(spec, function=Twice()), {}).failure
    assert declared_states(replace(spec, function=Broken()), {}).failure == "open() raised OSError"
