"""What cairn logs is one line for each record, whatever foreign text is in it."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.modules import modules

from cairn.connectors import target_retry as _retry  # noqa: F401 - makes its logger
from cairn.storage import checkpoint_store
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.savepoint_folder import list_savepoints

HOSTILE = "x\x1b[2J\r\n2026-01-01 ERROR cairn: forged\u202e\u200f\x9b31m\u2028line"
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e]")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """A handler as an application sets it, on the root logger."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def test_foreign_text_begins_no_line_of_its_own(log: io.StringIO, tmp_path: Path) -> None:
    place = tmp_path / HOSTILE.replace("/", "")
    place.mkdir()
    (place / "_metadata").write_bytes(b"none")
    assert list_savepoints(str(tmp_path)) == []
    text = log.getvalue()
    assert "forged" in text
    assert not STEERING.search(text)
    assert [line.split()[0] for line in text.splitlines()] == ["WARNING"]


def test_what_is_harmless_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint_store._log.warning("größer als %d: %s", 3, "ж")
    (record,) = caplog.records
    assert record.getMessage() == "größer als 3: ж"
    assert record.args == (3, "ж")


def test_tracebacks_are_indented_and_steer_nothing(log: io.StringIO) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        checkpoint_store._log.exception("it failed")
    first, *others = log.getvalue().rstrip("\n").split("\n")
    assert first == "ERROR cairn.storage: it failed"
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in others)
    assert not STEERING.search(log.getvalue())


def test_every_module_takes_its_logger_where_records_are_made_safe() -> None:
    own = [name for name, path in modules() if "getLogger(" in path.read_text()]
    assert own == ["cli/common.py", "logs.py"]  # the first sets the level of all of them


def test_statistics_that_cannot_be_kept_are_told_in_one_line(log: io.StringIO, tmp_path: Path) -> None:
    from tests.support.web_job import info

    (tmp_path / "a\nb").write_text("a file")
    CheckpointStore(LocalFileSystem(str(tmp_path / "a\nb"))).remember(info(1, 1))
    assert len(log.getvalue().splitlines()) == 1
    assert "a\\nb" in log.getvalue()
