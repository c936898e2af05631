"""The examples, each run for real by the command that its header names."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.spark.programs import Program

EXAMPLES = Path(__file__).parents[2] / "examples"


def rows(folder: Path) -> list[dict[str, Any]]:
    """What a plain reader finds in the directory of a FileSink."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("part-*")):
        if path.suffix == ".json":
            found += [json.loads(line) for line in path.read_text().splitlines()]
        else:
            found += pq.read_table(path).to_pylist()
    return found


def test_every_example_says_how_to_run_it() -> None:
    table = (EXAMPLES / "README.md").read_text()
    for script in EXAMPLES.glob("*.py"):
        command = f"cairn run examples/{script.name}"
        assert command in (ast.get_docstring(ast.parse(script.read_text())) or "")
        assert command in table


@contextmanager
def lines_on_a_socket(lines: list[str]) -> Iterator[int]:
    """A server that sends the lines to the first who connects and keeps the connection open. Yields its port."""
    ready = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall("".join(f"{line}\n" for line in lines).encode())
            ready.wait()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        ready.set()
        thread.join(10)


@pytest.mark.spark
def test_word_count_socket_counts_what_is_typed(tmp_path: Path) -> None:
    words = ["to be or not to be", "that is the question"]

    def counts(lines: list[str]) -> dict[str, int]:
        found = re.findall(r"word='(\w+)', count=(\d+)", "\n".join(lines))
        return {word: max(int(n) for w, n in found if w == word) for word, _ in found}

    expected = Counter(" ".join(words).split())
    with (
        lines_on_a_socket(words) as port,
        Program(EXAMPLES / "word_count_socket.py", tmp_path, "--host", "127.0.0.1", "--port", str(port)) as run,
    ):
        run.wait_for(lambda lines: counts(lines) == expected)


@pytest.mark.spark
def test_word_count_files_counts_new_files_once(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    written = 0
    for number, text in enumerate(["a rose is a rose", "is a rose"]):
        (tmp_path / "draft").write_text(text)
        os.rename(tmp_path / "draft", texts / f"{number}.txt")
        written += len(text.split())
        with Program(EXAMPLES / "word_count_files.py", tmp_path, "--available-now") as run:
            run.finish()
        assert len(rows(tmp_path / "word-counts")) == written
    found = sorted((row["word"], row["count"]) for row in rows(tmp_path / "word-counts"))
    assert found == [("a", 1), ("a", 2), ("a", 3), ("is", 1), ("is", 2), ("rose", 1), ("rose", 2), ("rose", 3)]


@pytest.mark.spark
def test_dedup_lets_every_order_pass_once(tmp_path: Path) -> None:
    with Program(EXAMPLES / "dedup.py", tmp_path, "--epochs", "3") as run:
        lines = run.finish()
    epochs = 1 + max(int(line.split(":")[0].split()[1]) for line in lines if line.startswith("epoch"))
    assert epochs >= 3
    found = {(row["order_id"], row["amount"]) for row in rows(tmp_path / "unique-orders")}
    numbers = [n for n in range(1000 * epochs) if n % 4 != 3]
    assert found == {(f"order-{n}", n * 7 % 100) for n in numbers}
    assert len(rows(tmp_path / "unique-orders")) == len(found)


@pytest.mark.spark
def test_sessions_are_those_of_the_input(tmp_path: Path) -> None:
    """Twelve epochs are four minutes: the sessions of the first two are over, and so are their minutes."""
    with Program(EXAMPLES / "sessions.py", tmp_path, "--epochs", "12") as run:
        run.finish()
    began = "2023-11-14T22:14:00"
    first = {row["visitor"]: row for row in rows(tmp_path / "sessions") if row["began"].startswith(began)}
    assert {visitor: (row["pages"], row["seconds"]) for visitor, row in first.items()} == {
        f"visitor-{n}": (n, n - 1) for n in range(1, 40)
    }
    assert (first["visitor-39"]["entered"], first["visitor-39"]["left"]) == ("/page/0", "/page/3")
    views: Counter[str] = Counter()
    for row in rows(tmp_path / "page-views"):
        if row["window_start"].startswith(began):
            views[row["page"]] += row["count"]
    assert sum(views.values()) == sum(range(40))
    assert [row["visitor"] for row in rows(tmp_path / "late-clicks")] == ["visitor-3"]
    assert views["/page/0"] == sum(39 - second for second in range(0, 39, 7))


@pytest.mark.spark
def test_fraud_rules_finds_what_the_input_hides(tmp_path: Path) -> None:
    with Program(EXAMPLES / "fraud_rules.py", tmp_path, "--epochs", "9") as run:
        run.finish()
    found = {(row["card"], row["payment"], row["rule"]) for row in rows(tmp_path / "alerts")}
    assert {
        ("card-7", 90 * 50 + 7, "small, then large"),
        ("card-11", 200 * 50 + 11, "3 countries"),
        ("card-11", 300 * 50 + 11, "4 countries"),
        ("card-13", 20 * 50 + 13, "small, then nothing"),
    } <= found
    assert {card for card, _, _ in found} == {"card-7", "card-11", "card-13"}
    assert len(rows(tmp_path / "alerts")) == len(found)
