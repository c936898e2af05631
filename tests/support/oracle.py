"""Numbered rows, a function that checks them while it keeps state, and a plain-Python model of what must come out.

Each key's rows carry `seq` 0, 1, 2, ... The state keeps count, sum, last seq and a hash chain over the rows, so that
a row that is lost, repeated or out of order is seen whatever the totals say.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cairn import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor

INPUT = "key string, seq bigint, amount bigint"
OUTPUT = "key string, seq bigint, count bigint, total bigint, chain string"
Row = tuple[str, int, int]
Result = tuple[str, int, int, int, str]


def numbered_rows(count: int, keys: int, seed: int = 1) -> list[Row]:
    """`count` rows over `keys` keys in a random mixture, each key's rows numbered in order."""
    rng = random.Random(seed)
    seen: dict[str, int] = {}
    rows = []
    for _ in range(count):
        key = f"k{rng.randrange(keys)}"
        seq = seen.get(key, 0)
        seen[key] = seq + 1
        rows.append((key, seq, rng.randrange(-1000, 1000)))
    return rows


def link(chain: str, key: str, seq: int, amount: int) -> str:
    return hashlib.blake2b(f"{chain}|{key}|{seq}|{amount}".encode(), digest_size=8).hexdigest()


def expected(rows: Iterable[Row]) -> list[Result]:
    """What a fault-free run emits, sorted."""
    state: dict[str, tuple[int, int, str]] = {}
    out = []
    for key, seq, amount in rows:
        count, total, chain = state.get(key, (0, 0, ""))
        state[key] = (count + 1, total + amount, link(chain, key, seq, amount))
        out.append((key, seq, *state[key]))
    return sorted(out)


class Oracle(KeyedProcessFunction):
    """Emits (key, seq, count, total, chain) after every row; raises when a row is missing or comes again."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint"))
        self.chain = runtime_context.get_state(ValueStateDescriptor("chain", "string"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        last = self.last.value()
        wanted = 0 if last is None else last + 1
        if value.seq != wanted:
            raise AssertionError(f"key {value.key}: expected seq {wanted}, got {value.seq}")
        count = (self.count.value() or 0) + 1
        total = (self.total.value() or 0) + value.amount
        chain = link(self.chain.value() or "", value.key, value.seq, value.amount)
        self.count.update(count)
        self.total.update(total)
        self.last.update(value.seq)
        self.chain.update(chain)
        yield value.key, value.seq, count, total, chain


def ship(module: str) -> None:
    """Workers cannot import test modules: what they need of this one travels with the job."""
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value
    register(sys.modules[module])


def write_file(folder: Path, number: int, rows: Sequence[Sequence[Any]], columns: str = INPUT) -> None:
    """One JSON file of the source. Its name and time say which place it takes among the others."""
    names = [part.split()[0] for part in columns.split(",")]
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{number:05d}.part"
    text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    hidden.write_text(text)
    os.utime(hidden, (1_600_000_000 + number, 1_600_000_000 + number))
    hidden.rename(folder / f"{number:05d}.json")


def write_files(folder: Path, rows: Sequence[Row], files: int, first: int = 0) -> None:
    """The rows in order, spread over so many files."""
    for i in range(files):
        write_file(folder, first + i, rows[len(rows) * i // files : len(rows) * (i + 1) // files])


ship(__name__)
