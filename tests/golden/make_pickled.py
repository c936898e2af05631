"""Makes the golden files of pickled state: `python -m tests.golden.make_pickled` in the project's root.

A pickled value stores the import paths of its classes. Rows and windows are cairn's own classes that users may keep in
state, so their paths belong to the format (docs/format.md). What is checked in under `pickled` was made before modules
got their present names, and is never made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.make import write_golden

from cairn import CountWindow, KeyedProcessFunction, TimeWindow, ValueStateDescriptor
from cairn.testing import KeyedProcessHarness

FOLDER = Path(__file__).parent / "pickled"
COLUMNS = "user string, shop int, place struct<street:string,number:int>, n bigint"
ROWS = [(f"u{n % 3}", n % 2, (f"street {n}", n), n) for n in range(24)]


class Pickled(KeyedProcessFunction):
    """Keeps cairn's own classes in pickled state: a row, its nested row, the key, and windows."""

    def open(self, runtime_context: Any) -> None:
        self.row = runtime_context.get_state(ValueStateDescriptor("row"))
        self.windows = runtime_context.get_state(ValueStateDescriptor("windows"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.row.update({"row": value, "place": value.place, "key": ctx.get_current_key()})
        self.windows.update([TimeWindow(value.n, value.n + 10), CountWindow(value.n)])
        yield (value.user, "")


def job(folder: Path, parallelism: int = 2) -> KeyedProcessHarness:
    return KeyedProcessHarness(
        Pickled(), ["user", "shop"], COLUMNS, "key string, out string", parallelism=parallelism, max_parallelism=16,
        state_dir=folder,
    )  # fmt: skip


if __name__ == "__main__":
    write_golden(FOLDER, job, ROWS, 8)
