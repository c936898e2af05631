"""Map state under random calls equals a dict: within an epoch, in the delta, and after a rebuild of the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.state_lab import Lab, ttl, with_ttl

from cairn.model.descriptors import MapStateDescriptor

entries = st.integers(-20, 20)
calls = st.one_of(
    st.tuples(st.sampled_from(["get", "contains", "remove"]), entries),
    st.tuples(st.just("put"), entries, st.integers(0, 3)),
    st.tuples(st.sampled_from(["items", "is_empty", "clear"])),
)
stored = st.dictionaries(entries, st.integers(0, 3))
"""A map of more than 16 entries is not read as a whole when a second entry is asked for."""


def expected(model: dict[int, int], call: tuple[Any, ...]) -> Any:
    """Apply a call to a dict; the answer that the state must give."""
    name, given_values = call[0], call[1:]
    if name == "put":
        model[given_values[0]] = given_values[1]
    elif name == "remove":
        model.pop(given_values[0], None)
    elif name == "clear":
        model.clear()
    answers: dict[str, Callable[[], Any]] = {
        "get": lambda: model.get(*given_values),
        "contains": lambda: given_values[0] in model,
        "items": lambda: sorted(model.items()),
        "is_empty": lambda: not model,
    }
    return answers[name]() if name in answers else None


def called(call: tuple[Any, ...], states: Any, ctx: Any) -> Any:
    result = getattr(states.m, call[0])(*call[1:])
    return list(result) if call[0] == "items" else result


def put_all(values: dict[int, int], states: Any, ctx: Any) -> None:
    states.m.put_all(values)


@pytest.mark.parametrize("kind", ["plain", "coded", "ttl"])
@given(first=stored, epochs=st.lists(st.lists(calls, min_size=1, max_size=25), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_a_map_is_a_dict(kind: str, first: dict[int, int], epochs: list[list[tuple[Any, ...]]]) -> None:
    descriptor = MapStateDescriptor("m", "int", "decimal(5,0)" if kind == "coded" else "bigint")
    if kind == "ttl":
        with_ttl(descriptor, ttl(update_ttl_on_read_and_write=()))
    with Lab(descriptor) as lab:
        lab.do("a", partial(put_all, first))
        model = dict(first)
        for epoch in epochs:
            answers = [expected(model, call) for call in epoch]
            lab.later("a", *[partial(called, call) for call in epoch])
            assert [row.out for row in lab.run_epoch()] == [
                repr(answer) if kind != "coded" else shown(answer, call)
                for answer, call in zip(answers, epoch, strict=True)
            ]
        assert lab.state("m", "a") == model
        lab.restart(keep_stores=False)
        assert lab.state("m", "a") == model


def shown(answer: Any, call: tuple[Any, ...]) -> str:
    """An answer with the values as decimals."""
    if call[0] == "items":
        return "[" + ", ".join(f"({key}, Decimal('{value}'))" for key, value in answer) + "]"
    return f"Decimal('{answer}')" if call[0] == "get" and answer is not None else repr(answer)
