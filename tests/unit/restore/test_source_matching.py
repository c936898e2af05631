"""Which source of a snapshot is which of the job, and the logs of sources that are copied with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cairn.errors import IncompatibleStateError
from cairn.restore.source_logs import StoredSources, copy_sources, lost_files, rearranged
from cairn.restore.source_matching import TICKS, again, folders, match_sources, source_name

ENTRY = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{}}'


@pytest.mark.parametrize(
    ("stored", "wanted", "found"),
    [
        (["F[a]", "rate"], ["F[a]", "rate"], [0, 1]),
        (["F[a]", "rate"], ["rate", "F[a]"], [1, 0]),
        (["F[a]"], ["F[a]", TICKS], [0, None]),
        (["F[a]", TICKS], ["F[a]"], [0]),
        (["F[a]", TICKS], ["rate", "F[a]", TICKS], [None, 0, 1]),
        (["F[a]"], ["F[moved]"], [0]),
        (["F[a]", "F[b]"], ["F[b]", "F[c]"], [1, 0]),
        (["F[a]", "F[a]"], ["F[a]", "F[a]"], [0, 1]),
        (["F[a]", "kafka"], ["F[a]"], [0]),
        (["F[a]", again(0), "rate"], ["rate", "F[a]"], [2, 0]),
        (["F[a]"], ["F[a]", again(0)], [0, 0]),
        (["rate", "F[a]", again(1)], ["F[moved]", again(0), "rate", again(2), TICKS], [1, 1, 0, 0, None]),
    ],
)
def test_sources_are_found_again_by_what_they_read(stored: list[str], wanted: list[str], found: list[Any]) -> None:
    plan = match_sources(stored, len(stored), wanted)
    assert [match.stored for match in plan.matches] == found
    entry = "\n".join([ENTRY, *(f'"p{n}"' for n in range(len(stored)))])
    lines = rearranged(entry, plan, 0).split("\n")[2:]
    assert lines == ["-" if n is None else f'"p{n}"' for n in found]


def test_sources_of_a_snapshot_that_says_nothing_of_them() -> None:
    assert [m.stored for m in match_sources([], 2, ["a", "b"]).matches] == [0, 1]
    assert [m.stored for m in match_sources([], 1, ["a", TICKS]).matches] == [0, None]
    assert [m.stored for m in match_sources([], 2, ["a"]).matches] == [0]
    assert [m.stored for m in match_sources([], 0, ["a", "b"]).matches] == [None, None]
    with pytest.raises(IncompatibleStateError, match=r"1 source\(s\).*the job has 3"):
        match_sources([], 1, ["a", "b", "c"])
    assert match_sources(["F[a]"], 1, ["rate"]).notes == [
        "source 0 (rate) is new and starts at its beginning",
        "source 0 (F[a]) of the snapshot is not in the job; its position is dropped",
    ]
    empty = rearranged("", match_sources([], 0, ["a"]), 77)
    assert empty.split("\n")[2:] == ["-"]
    assert json.loads(empty.split("\n")[1])["batchTimestampMs"] == 77


def test_a_source_that_is_read_twice_has_one_folder(tmp_path: Path) -> None:
    assert folders(["a", again(0), "b", again(2), again(9), again(1)], 6) == [0, 0, 1, 1, 2, 3]
    assert folders([], 2) == [0, 1]
    for folder in (0, 1):
        (tmp_path / "sources" / str(folder)).mkdir(parents=True)
        for number in range(folder + 1):
            told = {"path": f"file://{tmp_path}/{folder}-{number}", "timestamp": 1, "batchId": number}
            (tmp_path / "sources" / str(folder) / str(number)).write_text(f"v1\n{json.dumps(told)}")
    entry = ENTRY + '\n{"logOffset":0}\n{"logOffset":0}\n{"logOffset":1}'
    names = ["F[a]", again(0), "F[b]"]

    def copied(target: str, wanted: list[str] | None) -> list[str]:
        plan = None if wanted is None else match_sources(names, 3, wanted)
        copy_sources(StoredSources(str(tmp_path / "sources"), entry, names), str(tmp_path / target), plan, 10)
        return sorted(
            p.relative_to(tmp_path / target).as_posix() for p in (tmp_path / target).rglob("*") if p.is_file()
        )

    assert copied("same", None) == ["0/0", "1/0", "1/1"]
    assert copied("turned", ["F[b]", again(0), "F[a]"]) == ["0/0", "0/1", "1/0"]
    assert copied("one", ["F[b]"]) == ["0/0", "0/1"]
    first = ENTRY + '\n{"logOffset":0}\n{"logOffset":0}\n{"logOffset":0}'
    assert lost_files(StoredSources(str(tmp_path / "sources"), first, names)) == [f"file://{tmp_path}/1-1"]
    assert match_sources(["F[a]"], 1, ["x", again(0), "F[a]"]).notes == [
        "source 0 (x) is new and starts at its beginning"
    ]


def test_files_that_were_read_since_and_are_gone(tmp_path: Path) -> None:
    """J8."""
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)
    for number in range(4):
        (tmp_path / f"in {number}").write_text("rows")
        told = {"path": f"file://{tmp_path}/in%20{number}", "timestamp": 1, "batchId": number}
        (log / str(number)).write_text(f"v1\n{json.dumps(told)}")
    stored = StoredSources(str(tmp_path / "sources"), ENTRY + '\n{"logOffset":1}')
    assert lost_files(stored) == []
    (tmp_path / "in 0").unlink()
    assert lost_files(stored) == [], "read before: not needed"
    (tmp_path / "in 3").unlink()
    assert lost_files(stored) == [f"file://{tmp_path}/in%203"]
    copy_sources(stored, str(tmp_path / "copy"), match_sources(["F"], 1, ["x", "F"]), 10)
    assert sorted(p.relative_to(tmp_path / "copy").as_posix() for p in (tmp_path / "copy").rglob("[0-9]")) == [
        "1", "1/0", "1/1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "wanted", "found", "noted"),
    [
        (["rate{10}", "rate{1}"], ["rate{1}", "rate{10}"], [1, 0], ""),
        (["rate{10}"], ["rate{1}"], [0], "its options differ, but no other source fits"),
        (["rate", "rate"], ["rate{10}", "rate{1}"], [0, 1], "in this order"),
        (
            ["rate{1}", "rate{1}"],
            ["rate{1}", "rate{1}"],
            [0, 1],
            "give each a name",
        ),
        (["rate{10}"], ["rate{1}", "rate{10}"], [None, 0], "is new"),
        (["FileSource[file:///in/]{a}"], ["FileSource[/in]{b}"], [0], ""),
        (["FileSource[/a]"], ["FileSource[/b]", "FileSource[/a]"], [None, 0], "is new"),
    ],
)
def test_sources_of_one_kind_are_told_apart(stored: list[str], wanted: list[str], found: list[Any], noted: str) -> None:
    plan = match_sources(stored, len(stored), wanted)
    assert [match.stored for match in plan.matches] == found
    assert plan.problems == ()
    assert bool(plan.notes) == bool(noted)
    assert re.search(noted, " ".join(plan.notes))


@pytest.mark.parametrize(
    ("stored", "wanted", "why"),
    [
        (["rate{10}", "rate{1}"], ["rate{2}", "rate{3}"], "cannot be told apart"),
        (["rate{1}"], ["rate{1}", "rate{1}"], "cannot be told apart"),
        (["rate{1}", "rate{1}"], ["rate{1}"], r"source 0 \(rate\{1\}\), source 1 \(rate\{1\}\) of the snapshot"),
        (["rate"], ["rate{1}", "rate{2}"], "before the next snapshot"),
        (["FileSource[/old]"], ["FileSource[/new]"], "every file would be read again"),
        (["FileSource[/old]{a}", "rate"], ["rate", "FileSource[/new]{a}"], "let it be read under its old path"),
    ],
)
def test_sources_that_could_be_mixed_up_are_refused(stored: list[str], wanted: list[str], why: str) -> None:
    """Positions must not be swapped, and a directory that was moved must not be read again in silence."""
    plan = match_sources(stored, len(stored), wanted)
    assert len(plan.problems) == 1
    assert re.search(why, plan.problems[0])
    assert "--allow-non-restored-state" in plan.problems[0]
    dropped = match_sources(stored, len(stored), wanted, drop=True)
    assert dropped.problems == ()
    assert all(match.stored is None for match in dropped.matches if match.name != "rate")
    assert any("is new and starts at its beginning" in note for note in dropped.notes)
    assert any("of the snapshot is not in the job" in note for note in dropped.notes)


def test_names_of_sources() -> None:
    ten, one = source_name("rate", {"rowsPerBatch": "10"}), source_name("rate", {"rowsPerBatch": "1"})
    assert ten != one
    assert ten == source_name("rate", {"rowsperbatch": "10", "fs.s3a.secret.key": "x"}), "no secrets, no case"
    assert source_name("kafka", {"subscribe": "a", "kafka.bootstrap.servers": "x"}) == source_name(
        "kafka", {"subscribe": "a", "kafka.bootstrap.servers": "y", "maxOffsetsPerTrigger": "5"}
    )
    assert source_name("kafka", {"subscribe": "a"}) != source_name("kafka", {"subscribe": "b"})
    assert source_name("FileSource[/in]", {"path": "/in"}) == "FileSource[/in]"
    assert source_name("rate", {"cairn.source": "orders", "rowsPerBatch": "1"}) == "rate{orders}"
    assert source_name("cairn-script-71-3", {}) == "cairn-script"
