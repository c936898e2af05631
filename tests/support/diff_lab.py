"""Two savepoints of a job whose random values are easily taken for different or for equal, and what differs in them."""

from __future__ import annotations

import math
import pickle
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.restore_lab import savepoint_of
from tests.support.state_lab import Lab, ttl, with_ttl

from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

FLOATS = [math.nan, -math.nan, 0.0, -0.0, 1.5, math.inf]
DEEP = "struct<x:double,y:array<float>,m:map<string,double>,n:struct<d:decimal(10,2),b:binary>>"
KEYS = [f"k{number}" for number in range(12)]
VALUES = {
    "number": ValueStateDescriptor("number", "double"),
    "timed": with_ttl(ValueStateDescriptor("timed", "double"), ttl()),
    "money": ValueStateDescriptor("money", "decimal(10,2)"),
    "anything": ValueStateDescriptor("anything"),
    "deep": ValueStateDescriptor("deep", DEEP),
    "table": ValueStateDescriptor("table", "map<double,array<double>>"),
    "text": ValueStateDescriptor("text", "string"),
}
ENTRIES = {
    "by number": MapStateDescriptor("by number", "double", "double"),
    "by row": MapStateDescriptor("by row", "struct<x:double,s:string>", "int"),
}
LISTS = {"elements": ListStateDescriptor("elements", "double")}

Contents = dict[str, dict[tuple[Any, ...], Any]]
"""By state, then by what identifies a row: its value."""


def random_value(state: str, rng: random.Random) -> Any:
    maybe = [*FLOATS, None]
    if state in ("number", "timed"):
        return rng.choice(FLOATS)
    if state == "money":
        return rng.choice([Decimal(1), Decimal("1.00"), Decimal(0), Decimal("-0.00"), Decimal("2.5")])
    if state == "anything":
        return rng.choice([1, 1.0, True, "1", (1, 2), [1, 2], math.nan])
    if state == "deep":
        names = rng.sample(["a", "b", "c"], rng.randrange(4))
        inner = rng.choice([None, (rng.choice([None, Decimal(1), Decimal("1.0")]), rng.choice([None, b"", b"x"]))])
        return (
            rng.choice(maybe), rng.choice([None, [rng.choice(maybe) for _ in range(rng.randrange(3))]]),
            rng.choice([None, {name: rng.choice(maybe) for name in names}]), inner,
        )  # fmt: skip
    if state == "table":
        keys = rng.sample([0.0, 1.5, math.inf], rng.randrange(4))
        return {rng.choice([-0.0, 0.0]) if key == 0 else key: [rng.choice(maybe)] for key in keys}
    return rng.choice(["", "a", "A", "NaN", "0.0"])


def two_savepoints(folder: Path, seed: int) -> tuple[str, str, Contents, Contents]:
    """A savepoint, a later one of the same job, and what each of them holds."""
    rng = random.Random(seed)
    descriptors = [*VALUES.values(), *ENTRIES.values(), *LISTS.values()]
    paths: list[str] = []
    contents: list[Contents] = []
    with Lab(*descriptors, state_dir=folder / "job", max_parallelism=8) as lab:
        for _ in range(2):
            held: Contents = {name: {} for name in (*VALUES, *ENTRIES, *LISTS)}
            for key in KEYS:
                _fill(lab, key, held, rng)
            lab.run_epoch()
            paths.append(savepoint_of(folder / "job", folder / "savepoints", token=f"s{len(paths)}"))
            contents.append(held)
    return paths[0], paths[1], contents[0], contents[1]


def _fill(lab: Lab, key: str, held: Contents, rng: random.Random) -> None:
    for state in VALUES:
        value = random_value(state, rng) if rng.random() < 0.8 else None
        if value is not None:
            held[state][key,] = value

        def update(states: Any, ctx: Any, state: str = state, value: Any = value) -> None:
            getattr(states, state).update(value)

        lab.later(key, update)
    numbers = {rng.choice([0.0, -0.0]): 1.0, rng.choice(FLOATS[4:]): rng.choice(FLOATS), math.nan: rng.choice(FLOATS)}
    rows = {(rng.choice([0.0, -0.0]), "a"): 1, (math.nan, "b"): rng.randrange(2), (1.5, rng.choice("cd")): 1}
    for state, entries in (("by number", numbers), ("by row", rows)):
        held[state].update({(key, canonical(name)): value for name, value in entries.items()})

        def put(states: Any, ctx: Any, state: str = state, entries: Any = entries) -> None:
            getattr(states, state).clear()
            getattr(states, state).put_all(entries)

        lab.later(key, put)
    elements = [rng.choice(FLOATS) for _ in range(rng.randrange(3))]
    held["elements"].update({(key, at): value for at, value in enumerate(elements)})
    lab.later(key, lambda states, ctx: states.elements.update(elements))


def canonical(value: Any) -> Any:
    """A value in a form that is equal for values that are the same to a comparison; written anew, for tests."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return {canonical(key): canonical(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(canonical, value))
    return value


def expected(before: Contents, after: Contents) -> dict[str, set[tuple[tuple[Any, ...], str]]]:
    """What identifies each row that differs, and how, by state."""
    differences: dict[str, set[tuple[tuple[Any, ...], str]]] = {}
    for state in before:
        old, new = before[state], after[state]
        differs = differences[state] = set()
        differs |= {(row, "added") for row in new.keys() - old.keys()}
        differs |= {(row, "removed") for row in old.keys() - new.keys()}
        form = pickle.dumps if state == "anything" else canonical
        differs |= {(row, "changed") for row in new.keys() & old.keys() if form(old[row]) != form(new[row])}
    return differences
