"""`cairn state`, `cairn verify` and `cairn savepoint-dispose`, without Spark."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.support.cli_call import answer, call
from tests.support.coordinator_lab import World
from tests.support.savepoint_tables import SPECS, make_job, make_savepoint, rewrite

from cairn.cli.state_queries import plain
from cairn.storage import savepoint_folder
from cairn.testing.faults import flip_bit


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli")
    return make_savepoint(folder / "job", make_job(folder / "job"), folder / "sp")


@pytest.fixture
def savepoint(original: str, tmp_path: Path) -> str:
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    return str(copy)


def test_ls_tells_operators_and_states(savepoint: str) -> None:
    told = answer("state", "ls", savepoint)
    assert (told["kind"], told["job"], told["epoch"], told["max_parallelism"]) == ("savepoint", "job", 4, 16)
    (operator,) = told["operators"]
    assert [state["name"] for state in operator["states"]] == [s.name.replace("s.", "s_") for s in SPECS]
    assert operator["states"][0]["rows"] == 300
    assert [state["name"] for state in operator["states"] if state["pickled"]] == ["empty"]
    code, text = call("state", "ls", savepoint)
    assert code == 0
    assert "map of string -> double" in text
    assert "keys" not in operator["states"][0], "rows are read on request only"


def test_ls_counts_keys_on_request(savepoint: str) -> None:
    states = {state["name"]: state for state in answer("state", "ls", savepoint, "--keys")["operators"][0]["states"]}
    assert (states["total"]["keys"], states["total"]["counted"]) == (300, True)
    assert states["total"]["skew"] < 0.5, "300 keys in 16 key groups are enough to tell"
    assert states["by page"]["biggest"][0]["weight"] == 3
    assert states["empty"]["keys"] == 0
    code, text = call("state", "ls", savepoint, "-k")
    assert code == 0
    assert "biggest key" in text


def test_show_and_get(savepoint: str) -> None:
    rows = answer("state", "show", savepoint, "op", "visits", "-n", "5")["rows"]
    assert len(rows) == 5
    assert set(rows[0]) == {"user", "shop", "key_group", "position", "value"}
    assert call("state", "show", savepoint, "op", "total")[0] == 0
    assert answer("state", "get", savepoint, "op", "total", "u7", "0") == {
        "uid": "op", "state": "total", "found": True, "value": 70,
    }  # fmt: skip
    assert answer("state", "get", savepoint, "op", "by page", "u8", "1")["value"] == {"/0": 8.0, "/1": 8.25, "/2": 8.5}
    assert answer("state", "get", savepoint, "op", "profile", "u8", "1")["value"]["tags"] == ["a", None]
    assert answer("state", "get", savepoint, "op", "_timers_event", "u8", "1")["value"] == [800, 801, 802]
    assert call("state", "get", savepoint, "op", "total", "u8", "1") == (0, "80\n")
    assert call("state", "get", savepoint, "op", "total", "nobody", "1")[0] == 3
    for args, code, words in (
        (("state", "get", savepoint, "op", "total", "u7"), 2, "give 2 values"),
        (("state", "get", savepoint, "op", "total", "u7", "x"), 2, "'x' is not a valid int for key column 'shop'"),
        (("state", "get", savepoint, "op", "totl", "u7", "0"), 3, "did you mean 'total'"),
        (("state", "show", savepoint, "op"), 2, "name the state"),
        (("state", "ls", "/nowhere"), 3, "no folder /nowhere"),
        (("state", "ls", os.path.dirname(savepoint)), 3, "not a savepoint, a checkpoint or a job"),
    ):
        found, text = call(*args)
        assert (found, words in text) == (code, True), text


def test_diff_counts_and_shows(savepoint: str, original: str) -> None:
    same = answer("state", "diff", original, savepoint)
    assert {(s["added"], s["removed"], s["changed"]) for s in same["states"]} == {(0, 0, 0)}

    def edit(table: Any) -> Any:
        rows = table.to_pylist()
        for row in rows:
            row["value"] += 1 if row["user"] in ("u7", "u8") else 0
        return type(table).from_pylist([row for row in rows if row["user"] != "u9"], schema=table.schema)

    rewrite(savepoint, "total", edit)
    told = answer("state", "diff", original, savepoint, "op", "total", code=1)["states"]
    assert [(s["added"], s["removed"], s["changed"]) for s in told] == [(0, 1, 2)]
    shown = {(row["change"], row["user"], row["value"], row.get("before")) for row in told[0]["rows"]}
    assert shown == {("removed", "u9", 90, None), ("changed", "u7", 71, 70), ("changed", "u8", 81, 80)}
    back = answer("state", "diff", savepoint, original, "op", "total", code=1)["states"]
    assert [(s["added"], s["removed"], s["changed"]) for s in back] == [(1, 0, 2)]
    code, text = call("state", "diff", original, savepoint)
    assert code == 1, "as diff(1)"
    assert answer("state", "diff", original, original)["different"] is False
    assert "removed" in text
    assert call("state", "diff", original, savepoint, "nobody")[0] == 3


def test_export(savepoint: str, tmp_path: Path) -> None:
    told = answer("state", "export", savepoint, "op", "visits", str(tmp_path / "v.parquet"))
    assert told["rows"] == 900 == pq.read_table(tmp_path / "v.parquet").num_rows
    answer("state", "export", savepoint, "op", "total", str(tmp_path / "t.csv"))
    assert pyarrow.csv.read_csv(tmp_path / "t.csv").num_rows == 300
    answer("state", "export", savepoint, "op", "profile", str(tmp_path / "p.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(lines) == 300
    assert lines[0]["value"]["tags"] == ["a", None]
    for target, words in (("t.csv", "already exists"), ("x.txt", "unknown file extension"), ("no/x.csv", "no folder")):
        code, text = call("state", "export", savepoint, "op", "total", str(tmp_path / target))
        assert code in (2, 3)
        assert words in text
    assert "nested" in call("state", "export", savepoint, "op", "profile", str(tmp_path / "p.csv"))[1]
    assert sorted(os.listdir(tmp_path)) == ["copy", "p.jsonl", "t.csv", "v.parquet"], "no unfinished file is left"


def test_numbers_that_json_has_no_word_for_are_text(savepoint: str, tmp_path: Path) -> None:
    odd = [math.nan, math.inf, -math.inf]

    def change(table: pa.Table) -> pa.Table:
        values = pa.array([odd[at % 3] for at in range(table.num_rows)], pa.float64())
        return table.set_column(table.schema.get_field_index("value"), "value", values)

    def strict(text: str) -> Any:
        return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    rewrite(savepoint, "by page", change)
    told = {"NaN", "Infinity", "-Infinity"}
    code, text = call("state", "show", savepoint, "op", "by page", "--json")
    assert code == 0
    assert {row["value"] for row in strict(text)["rows"]} == told
    target = tmp_path / "odd.jsonl"
    assert call("state", "export", savepoint, "op", "by page", str(target))[0] == 0
    assert {strict(line)["value"] for line in target.read_text().splitlines()} == told
    shown = call("state", "show", savepoint, "op", "by page")[1]
    assert "-Infinity" in shown
    assert '"NaN"' not in shown, "people need no quotes"
    assert plain({math.inf: [math.nan, 1.5]}) == {"Infinity": ["NaN", 1.5]}


def test_verify(savepoint: str) -> None:
    told = answer("verify", savepoint)
    assert told["intact"]
    assert told["bytes"] == sum(path.stat().st_size for path in Path(savepoint).rglob("*") if path.is_file())
    Path(savepoint, "tables/op/notes.txt").write_text("mine")
    told = answer("verify", savepoint)
    assert told["intact"], "a file that nobody reads is no damage"
    assert (told["problems"], told["strange"]) == ([], ["tables/op/notes.txt"])
    assert "notes.txt: not part of the savepoint" in call("verify", savepoint)[1]
    part = next(Path(savepoint, "tables/op/total").iterdir())
    flip_bit(part, 100)
    code, text = call("verify", savepoint)
    assert code == 5
    assert part.name in text
    part.unlink()
    assert "is missing" in call("verify", savepoint)[1]


def test_dispose_asks_and_deletes_only_what_is_the_savepoints(savepoint: str) -> None:
    stranger = Path(savepoint, "tables/op/notes.txt")
    stranger.write_text("mine")
    planned = answer("savepoint-dispose", savepoint, "--dry-run")
    assert planned["removed"][0] == "_metadata"
    assert planned["left"] == ["tables/op/notes.txt"]
    assert savepoint_folder.is_savepoint(savepoint)
    for more in ([], ["--json"]):
        code, text = call("savepoint-dispose", savepoint, *more)
        assert (code, "needs a terminal to ask for confirmation" in text, "?" in text) == (2, True, False), (
            "a terminal is needed"
        )
    assert savepoint_folder.is_savepoint(savepoint)
    Path(savepoint, "_claimed").write_text("job payments")
    assert "handed to a job" in call("savepoint-dispose", savepoint, "--yes")[1]
    assert call("savepoint-dispose", savepoint, "--yes", "--force")[0] == 0
    assert [path for path in Path(savepoint).rglob("*") if path.is_file()] == [stranger]
    assert call("savepoint-dispose", savepoint, "--yes")[0] == 3


def test_dispose_of_a_checkpoint_says_who_removes_it(tmp_path: Path) -> None:
    world = World(tmp_path / "job")
    world.commit(0)
    world.coordinator.request()
    world.step()
    for more in (["--yes"], ["--dry-run"], []):
        code, text = call("savepoint-dispose", str(tmp_path / "job" / "chk-1"), *more)
        assert code == 2
        assert "chk-1 is a checkpoint, not a savepoint; its job deletes it" in text
    assert world.store.numbers() == [1]


def test_a_savepoint_may_have_the_name_of_a_checkpoint(savepoint: str, tmp_path: Path) -> None:
    os.rename(savepoint, tmp_path / "chk-3")
    assert call("savepoint-dispose", str(tmp_path / "chk-3"), "--yes")[0] == 0
    assert not (tmp_path / "chk-3").exists()


def test_dispose_of_what_is_no_savepoint(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("x")
    assert call("savepoint-dispose", str(tmp_path / "work"), "--yes")[0] == 3
    assert (tmp_path / "work" / "thesis.txt").exists()
    unfinished = savepoint_folder.SavepointFolder.begin(str(tmp_path), "abc").path
    Path(unfinished, "part").write_bytes(b"x")
    assert call("savepoint-dispose", unfinished, "--yes")[0] == 0
    assert not os.path.exists(unfinished)
