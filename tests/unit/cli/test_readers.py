"""Those who read checkpoints of a job that deletes them, and that changes its types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.restore_lab import checkpoint_of, harness

from cairn.api.data_source import _Opened
from cairn.api.savepoint import Savepoint
from cairn.cli import state_queries as commands
from cairn.cli.output import Output
from cairn.errors import IncompatibleStateError, InvalidInputError, NotFoundError, StorageError
from cairn.model.descriptors import ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.snapshots.lookup import find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.testing.keyed_harness import UID


class Total(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "int"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        yield (value.key, "")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    with harness(Total(), tmp_path / "job") as made:
        made.push(("k", 4))
        made.run_epoch()
    checkpoint_of(tmp_path / "job")
    return tmp_path / "job"


def test_a_checkpoint_is_held_while_it_is_read(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: retention does not take a checkpoint from its reader, and may have it afterwards."""
    store = CheckpointStore(LocalFileSystem(str(job)))
    savepoint = Savepoint(None, open_snapshot(str(job / "chk-1")))
    held: list[str] = []

    def look(what: str) -> None:
        with pytest.raises(StorageError, match="is being read"):
            store.discard(1)
        held.append(what)

    with savepoint as within, within:
        look("block")
    original = find_rows

    def slow(*args: Any) -> Any:
        look("lookup")
        return original(*args)

    def stopped(*args: Any) -> Any:
        look("write")
        raise InvalidInputError("stopped here")

    monkeypatch.setattr("cairn.api.savepoint.find_rows", slow)
    monkeypatch.setattr("cairn.spark.edited_savepoint._Edited._operator", stopped)
    assert savepoint.lookup(UID, "total", "k") == 4
    with pytest.raises(InvalidInputError, match="stopped here"):
        savepoint.write(str(job.parent / "written"))
    monkeypatch.setattr("cairn.cli.state_queries.find_rows", slow)
    assert commands.get(str(job), UID, "total", ["k"], [], Output()) == 0
    assert held == ["block", "lookup", "write", "lookup"]
    assert store.readers(1) == []
    store.discard(1)


def test_a_checkpoint_that_is_gone_is_told_with_the_remedy(job: Path) -> None:
    snapshot = open_snapshot(str(job / "chk-1"))
    CheckpointStore(LocalFileSystem(str(job))).discard(1)
    operator = snapshot.operator(UID)
    with pytest.raises(NotFoundError, match=r"checkpoint 1 .* no longer exists: .*with Savepoint.load.*num-retained"):
        find_rows(snapshot, operator, operator.state("total"), "k")
    with pytest.raises(NotFoundError, match="was discarded just now"), Savepoint(None, snapshot):
        pass


def test_checkpoints_of_another_type_are_not_left_out_in_silence(job: Path) -> None:
    store = CheckpointStore(LocalFileSystem(str(job)))
    first = store.load(1)
    for number, ddl in ((2, "int"), (3, "bigint")):
        operators = [
            msgspec.structs.replace(op, states=[msgspec.structs.replace(spec, value_type=ddl) for spec in op.states])
            for op in first.manifest.operators
        ]
        if number == 3:
            with_all = {"path": str(job), "checkpoints": "all"}
            assert [piece.checkpoint for piece in _Opened(with_all).pieces()] == [1] * 8 + [2] * 8
        manifest = msgspec.structs.replace(first.manifest, operators=operators)
        store.complete(msgspec.structs.replace(first, id=number, manifest=manifest))
    with pytest.raises(IncompatibleStateError, match=r"value of bigint in chk-3 .* chk-1 \(value of int\), chk-2"):
        _Opened(with_all)
    assert _Opened({"path": str(job / "chk-1")}).pieces()
