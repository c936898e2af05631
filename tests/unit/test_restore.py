"""The parts of a restore that need no Spark: a file source's log cut at a position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cairn.api.restore import _copy_source, _positions, find
from cairn.errors import CorruptFileError, InvalidInputError, NotFoundError


def write_log(folder: Path, last: int, gone_before: int = 0) -> None:
    """A file source's log as Spark writes it: one file a batch, everything together in every tenth."""
    folder.mkdir()
    lines = [json.dumps({"path": f"file:///in/{n}", "timestamp": n, "batchId": n}) for n in range(last + 1)]
    for number in range(gone_before, last + 1):
        if (number + 1) % 10 == 0:
            (folder / f"{number}.compact").write_text("\n".join(["v1", *lines[: number + 1]]))
        else:
            (folder / str(number)).write_text("\n".join(["v1", lines[number]]))
        (folder / f".{number}.crc").write_bytes(b"old checksum")


def known(folder: Path) -> list[int]:
    """The batches that Spark would find in a log."""
    found: set[int] = set()
    for path in folder.iterdir():
        version, *lines = path.read_text().split("\n")
        assert version == "v1"
        batches = {int(json.loads(line)["batchId"]) for line in lines}
        number = int(path.name.removesuffix(".compact"))
        assert batches == (set(range(number + 1)) if path.suffix else {number})
        found |= batches
    return sorted(found)


@pytest.mark.parametrize("position", [0, 5, 8, 9, 10, 14, 19, 20, 23])
@pytest.mark.parametrize("gone_before", [0, 9, 19])
def test_a_file_sources_log_is_cut_at_the_position(tmp_path: Path, position: int, gone_before: int) -> None:
    write_log(tmp_path / "log", 23, gone_before)
    _copy_source(str(tmp_path / "log"), str(tmp_path / "cut"), {"logOffset": position})
    assert known(tmp_path / "cut") == list(range(position + 1))
    newest = max(int(path.name.removesuffix(".compact")) for path in (tmp_path / "cut").iterdir())
    assert newest == position


def test_a_position_that_the_log_no_longer_knows_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 13, gone_before=10)
    with pytest.raises(CorruptFileError, match="no longer says which files batch 0 had"):
        _copy_source(str(tmp_path / "log"), str(tmp_path / "cut"), {"logOffset": 12})


def test_other_sources_logs_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0").write_text("v1\nstart time")
    _copy_source(str(tmp_path / "log"), str(tmp_path / "copy"), 17)
    assert (tmp_path / "copy" / "0").read_text() == "v1\nstart time"


def test_positions_of_an_offset_entry() -> None:
    assert _positions('v1\n{"batchWatermarkMs":0}\n{"logOffset":3}\n-\n12') == [{"logOffset": 3}, None, 12]


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is no checkpoint"):
        find(str(tmp_path))
    (tmp_path / "chk-3").mkdir()
    with pytest.raises(NotFoundError, match="completed there: none"):
        find(str(tmp_path / "chk-3"))
    with pytest.raises(NotFoundError, match="completed there: none"):
        find(f"file://{tmp_path}/chk-3/_metadata")
