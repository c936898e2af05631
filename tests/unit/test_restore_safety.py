"""What a restore must never do in silence: delete what is not its own, mix sources up, repeat or leave out input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.restoring import checkpoint_of, harness, restored, savepoint_of, shape_of
from tests.unit.test_restore_savepoint import ROWS, Old

from cairn.api.claims import claim, release_claims
from cairn.api.planning import JobShape
from cairn.api.recovery import Recovered, recover
from cairn.api.restore import next_epoch
from cairn.api.snapshots import find
from cairn.api.sources import match_sources, source_name
from cairn.config import Settings
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifests import Runs, load_identity
from cairn.storage.savepoints import verify


@pytest.mark.parametrize(
    ("stored", "wanted", "found", "noted"),
    [
        (["rate{10}", "rate{1}"], ["rate{1}", "rate{10}"], [1, 0], ""),
        (["rate{10}"], ["rate{1}"], [0], "other options, but the only one like it"),
        (["rate", "rate"], ["rate{10}", "rate{1}"], [0, 1], "in this order"),
        (["rate{1}", "rate{1}"], ["rate{1}", "rate{1}"], [0, 1], r"give each a name of its own: .option\('cairn.source'"),
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
        (["rate{10}", "rate{1}"], ["rate{2}", "rate{3}"], "nothing tells which from which"),
        (["rate{1}"], ["rate{1}", "rate{1}"], "nothing tells which from which"),
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
    assert any("of the snapshot is gone" in note for note in dropped.notes)


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


def claimed_and_cut_off(tmp_path: Path) -> tuple[str, JobShape, LocalFileSystem]:
    """A savepoint, claimed by a restore into a job that died before it was published."""
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
        shape = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    restored(path, tmp_path / "b", shape)
    files = LocalFileSystem(str(tmp_path / "b"))
    identity = load_identity(files)
    assert identity is not None
    snapshot = find(path)
    claim(snapshot, identity, files, next_epoch(snapshot, files), Runs(files).take(2, 0).run)
    assert (Path(path) / "_claimed").exists()
    return path, shape, files


def plain_start(files: LocalFileSystem, shape: JobShape) -> Recovered:
    uids = list(shape.operators)
    return recover(files, "harness", "harness", Settings(), shape.parallelism, 128, uids, now_ms=9000)


def test_a_claim_of_a_restore_that_never_happened_deletes_nothing(tmp_path: Path) -> None:
    path, _, files = claimed_and_cut_off(tmp_path)
    with harness(Old(), tmp_path / "b") as job:  # an ordinary epoch gets the number of the restore
        job.push(*ROWS[:10])
        job.run_epoch()
    checkpoint_of(tmp_path / "b", 1)
    assert release_claims(files, 1) == []
    assert verify(path) == []


def test_the_next_start_gives_a_savepoint_back_that_was_claimed_in_vain(tmp_path: Path) -> None:
    path, shape, files = claimed_and_cut_off(tmp_path)
    plain_start(files, shape)
    assert files.list("claims") == []
    assert not (Path(path) / "_claimed").exists()
    restored(path, tmp_path / "c", shape)  # anybody can start from it again


def test_another_savepoint_at_the_path_of_a_claimed_one_stays(tmp_path: Path) -> None:
    with harness(Old(), tmp_path / "a") as job:
        job.push(*ROWS[:10])
        job.run_epoch()
        shape = shape_of(job)
    path = Path(savepoint_of(tmp_path / "a", tmp_path / "sp"))
    restored(str(path), tmp_path / "b", shape, claim_mode="CLAIM")
    path.rename(tmp_path / "archived")
    Path(savepoint_of(tmp_path / "a", tmp_path / "other")).rename(path)
    files = LocalFileSystem(str(tmp_path / "b"))
    checkpoint_of(tmp_path / "b", 1)
    assert release_claims(files, 1) == []
    assert verify(str(path)) == []
    assert files.list("claims") == [], "the job owns nothing there any more"
