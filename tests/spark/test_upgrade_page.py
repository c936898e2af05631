"""The commands of docs/upgrade.md, one after the other, as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.programs import Program, command

PAGE = (Path(__file__).parents[2] / "docs" / "upgrade.md").read_text()
pytestmark = pytest.mark.spark


def scripts(folder: Path) -> None:
    old, new = (text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "env.execute" in text)
    (folder / "payments.py").write_text(old)
    (folder / "payments2.py").write_text(new)


def feed(folder: Path, number: int, rows: list[tuple[str, int]]) -> None:
    (folder / "input").mkdir(exist_ok=True)
    text = "\n".join(json.dumps({"user": user, "amount": amount}) for user, amount in rows)
    (folder / "input" / f".{number}").write_text(text)
    (folder / "input" / f".{number}").rename(folder / "input" / f"{number}.json")


def written(folder: Path) -> list[Any]:
    import pyarrow.parquet as pq

    return sorted(tuple(row.values()) for path in folder.glob("part-*") for row in pq.read_table(path).to_pylist())


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    scripts(tmp_path)
    feed(tmp_path, 0, [("a", 5), ("b", 7), ("a", 1)])
    with Program(tmp_path / "payments.py", tmp_path) as program:
        program.wait_until(lambda: len(written(tmp_path / "output")) == 3)
        beside = command(tmp_path, "savepoint", "payments", "savepoints", "--request-id", "one").splitlines()[-1]
        assert (
            command(tmp_path, "savepoint", "payments", "savepoints", "--request-id", "one").splitlines()[-1] == beside
        )
        told = json.loads(command(tmp_path, "stop", "payments", "--savepoint-dir", "savepoints", "--json"))
        path = told["path"]
        assert told["stopped"]
        program.finish()
    assert path != beside
    plan = json.loads(command(tmp_path, "plan", "payments2.py", "-s", path, "-p", "4", "--json"))
    assert plan["possible"]
    (matched,) = plan["matched"]
    assert matched["states"][0]["changes"] == ["total: int becomes bigint", "count: int added"]
    assert plan["sources"][0]["from"] == 0
    command(tmp_path, "plan", "payments2.py", "-s", path, "-p", "400", code=2)
    feed(tmp_path, 1, [("a", 10), ("c", 2)])
    with Program(tmp_path / "payments2.py", tmp_path, "-s", path, "-p", "4") as program:
        program.wait_until(lambda: len(written(tmp_path / "output2")) == 2)
        back = command(tmp_path, "stop", "payments", "--savepoint-dir", "savepoints").splitlines()[-1]
        program.finish()
    assert written(tmp_path / "output2") == [("a", 16, 101), ("c", 2, 1)]
    assert "bigint cannot become int" in command(tmp_path, "plan", "payments.py", "-s", back, code=6)
    with Program(tmp_path / "payments.py", tmp_path, "-s", path) as program:
        program.wait_until(lambda: len(written(tmp_path / "output")) == 5)
        command(tmp_path, "stop", "payments", "--savepoint-dir", "savepoints")
    assert written(tmp_path / "output") == sorted([("a", 5), ("b", 7), ("a", 6), ("a", 16), ("c", 2)])
