"""The examples, each run for real by the command that its header names."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.patience import PATIENCE
from tests.support.programs import Program

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
        thread.join(PATIENCE)


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
    assert any(line.endswith("the job ends after 3 epochs (Ctrl-C to stop).") for line in lines)
    epochs = 1 + max(int(line.split(":")[0].split()[1]) for line in lines if line.startswith("epoch"))
    assert epochs >= 3
    found = {(row["order_id"], row["amount"]) for row in rows(tmp_path / "unique-orders")}
    numbers = [n for n in range(1000 * epochs) if n % 4 != 3]
    assert found == {(f"order-{n}", n * 7 % 100) for n in numbers}
    assert len(rows(tmp_path / "unique-orders")) == len(found)


@pytest.mark.spark
def test_sessions_are_those_of_the_input(tmp_path: Path) -> None:
    """Twelve epochs are four minutes: the sessions of the first two are over, and so are their minutes."""
    with Program(EXAMPLES / "sessions.py", tmp_path) as run:
        lines = run.finish()
    assert lines[-3] == "visitor-39  39 pages in 38 seconds, from /page/0 to /page/3"
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
def test_fraud_rules_finds_what_the_input_hides_while_the_rules_change(tmp_path: Path) -> None:
    """Ten epochs of 2,000 payments. A rule holds for all payments of the epoch in which it comes, and no others."""
    with Program(EXAMPLES / "fraud_rules.py", tmp_path) as run:
        lines = run.finish()
    found = sorted((row["card"], row["payment"], row["rule"]) for row in rows(tmp_path / "alerts"))
    cards = [14 if i % 50 == 13 else i % 50 for i in range(20_000)]
    tried = [(f"card-{cards[i]}", i, "over 98.00") for i in range(14_000, 16_000) if i % 80 == 79]
    assert found == sorted(
        [
            *tried,
            ("card-7", 90 * 50 + 7, "small, then large"),
            ("card-11", 200 * 50 + 11, "3 countries"),  # four of them, in epoch 7, are no alert any more
            ("card-13", 20 * 50 + 13, "small, then nothing"),
        ]
    )
    assert [" ".join(line.split()) for line in lines[-2:]] == [
        "small, then large card-7",
        "small, then nothing card-13",
    ]


@pytest.mark.spark
def test_silent_devices_are_told_once_and_again_when_they_are_back(tmp_path: Path) -> None:
    with Program(EXAMPLES / "silent_devices.py", tmp_path) as run:
        lines = run.finish()
    start = 1_700_000_000 - 800
    found = [
        (row["device"], row["what"], row["ms"] // 1000 - start, row["seconds"])
        for row in rows(tmp_path / "device-alerts")
    ]
    assert sorted(found) == [
        ("device-13", "silent", 99, 30),
        ("device-5", "back", 93, 33),
        ("device-5", "silent", 60, 30),
        ("device-7", "back", 150, 91),
        ("device-7", "silent", 59, 30),
    ]
    assert lines[-1] == "second  150: device-7 is back after 91 seconds"


@pytest.mark.spark
def test_online_learning_predicts_before_it_learns_and_gets_better(tmp_path: Path) -> None:
    """Every prediction is that of the same regression in plain Python, over the rows before it."""
    with Program(EXAMPLES / "online_learning.py", tmp_path) as run:
        lines = run.finish()
    made = sorted(rows(tmp_path / "predictions"), key=lambda row: row["delivery"])
    assert [row["delivery"] for row in made] == list(range(8000))
    shops = {
        "harbour": (5.0, 3.0, 0.5),
        "market": (12.0, 6.0, 1.0),
        "station": (8.0, 4.5, 0.0),
        "uptown": (20.0, 2.0, 2.0),
    }
    models = {shop: np.zeros(3) for shop in shops}
    for row in made:
        chance = random.Random(row["delivery"])
        features = np.array([1.0, chance.uniform(-1, 1), chance.uniform(-1, 1)])
        weights = models[row["shop"]]
        assert row["predicted"] == pytest.approx(float(weights @ features), abs=1e-9)
        weights -= 0.05 * (weights @ features - row["minutes"]) * features
    for shop, truth in shops.items():
        assert models[shop] == pytest.approx(truth, abs=0.6)
        errors = [abs(row["predicted"] - row["minutes"]) for row in made if row["shop"] == shop]
        assert np.mean(errors[-50:]) < np.mean(errors[:50]) / 2
        assert np.mean(errors[-50:]) < 0.7, "the noise alone is 0.4"
    assert [line.split()[0] for line in lines[-4:]] == sorted(shops)
