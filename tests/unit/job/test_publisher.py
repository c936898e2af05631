"""What the journal says of the snapshot that a run starts from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.restore_lab import checkpoint_of, harness, restored, savepoint_of, shape_of
from tests.support.web_job import UID, Totals

from cairn.config import Settings
from cairn.job.publisher import Publisher
from cairn.storage.filesystem import LocalFileSystem
from cairn.view.journal import Journal


@pytest.mark.parametrize(
    ("reference", "kind", "path"),
    [
        ("job", "checkpoint", "job/chk-1"),
        ("job/chk-1", "checkpoint", "job/chk-1"),
        ("job/chk-1/_metadata", "checkpoint", "job/chk-1"),
        ("sp", "savepoint", "sp"),
        ("chk-9", "savepoint", "chk-9"),
    ],
)
def test_the_journal_names_the_snapshot_that_was_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, kind: str, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with harness(Totals(), tmp_path / "job") as job:
        job.push(("a", 1))
        job.run_epoch()
        shape = shape_of(job)
    checkpoint_of(tmp_path / "job")
    shutil.move(savepoint_of(tmp_path / "job", tmp_path / "saved"), tmp_path / "sp")
    shutil.copytree(tmp_path / "sp", tmp_path / "chk-9")
    files = LocalFileSystem(str(tmp_path / "new"))
    publisher = Publisher(files, "harness", Settings())
    allowed = (f"{UID}.seen", f"{UID}.total")
    for again in (True, False):
        recovered = restored(reference, tmp_path / "new", shape, allow_pickled=allowed, restore_again=again)
        publisher.started(recovered, [], [], 1.0)
    first, second = (event.facts for event in Journal(files).events() if event.kind == "started")
    assert (first["from"], first["path"], first["checkpoint"]) == (kind, str(tmp_path / path), 1)
    assert (second["from"], second["path"], second["checkpoint"]) == ("resume", "", 0), "it went on"
