"""Key columns of any name: written so that they are read back, and found again where they were not quoted yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.restore_lab import checkpoint_of, harness, newest, restored, savepoint_of, shape_of

from cairn.errors import InvalidInputError
from cairn.model.ddl import key_ddl, parse_keys, parse_type, same_keys
from cairn.model.descriptors import ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.snapshots.lookup import as_python, find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.state.codec import KeyCodec
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.savepoint_folder import read_savepoint
from cairn.testing.keyed_harness import UID

ODD = ["my key", "a,b", "order:id", "x(y)", "m<n>", "tick`s", "a, b string", " lead"]
PLAIN = ["key", "a-b", "größe", "select", "a.b", "struct"]


@pytest.mark.parametrize("name", [*ODD, *PLAIN])
def test_names_of_key_columns_are_read_back(name: str) -> None:
    for columns in ([(name, "string")], [("one", "bigint"), (name, "decimal(10,2)")]):
        ddl = KeyCodec([(column, parse_type(dtype)) for column, dtype in columns]).ddl
        assert [(column, dtype.ddl) for column, dtype in parse_keys(ddl)] == columns
        assert (ddl == ", ".join(f"{column} {dtype}" for column, dtype in columns)) == (name in PLAIN)


@pytest.mark.parametrize("name", ODD[:6])
def test_text_from_before_names_were_quoted(name: str) -> None:
    columns = [(name, "timestamp_ntz"), ("n", "decimal(10,2)"), (f"{name} 2", "string")]
    old = ", ".join(f"{column} {dtype}" for column, dtype in columns)
    assert [(column, dtype.ddl) for column, dtype in parse_keys(old)] == columns
    assert same_keys(old, key_ddl(columns))
    assert not same_keys(old, key_ddl(columns[:2]))


def test_what_is_no_key_is_refused() -> None:
    assert parse_keys("") == ()
    for text in ("k strin", "my key", "k string, v"):
        with pytest.raises(InvalidInputError, match="is not a type that cairn supports"):
            parse_keys(text)
        assert not same_keys(text, "k string")


class Total(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        yield ("k", "")


@pytest.mark.parametrize("name", ["my key", "a,b", "order:id"])
@pytest.mark.parametrize("old", [False, True])
def test_a_job_keyed_by_such_a_column(tmp_path: Path, name: str, old: bool) -> None:
    """Savepoint, lookup, restore and a restart in place; also where the stored text is not quoted."""
    told: dict[str, Any] = {"columns": f"`{name}` string, n bigint", "key_by": name}
    with harness(Total(), tmp_path / "a", **told) as job:
        job.push(("u", 2), ("v", 3))
        job.run_epoch()
        shape = shape_of(job)
    if old:
        store = ManifestStore(LocalFileSystem(str(tmp_path / "a")))
        manifest = newest(tmp_path / "a")
        stored = [msgspec.structs.replace(op, key_type=f"{name} string") for op in manifest.operators]
        (tmp_path / "a" / "epochs" / f"{manifest.epoch:020d}").unlink()
        store.publish(msgspec.structs.replace(manifest, operators=stored))
    paths = [savepoint_of(tmp_path / "a", tmp_path / "sp"), checkpoint_of(tmp_path / "a")]
    for number, path in enumerate(paths):
        snapshot = open_snapshot(path)
        operator = snapshot.operator(UID)
        assert (operator.key_type == f"{name} string") == old
        state = operator.state("total")
        assert as_python(state, find_rows(snapshot, operator, state, {name: "v"})) == 3
        restored(path, tmp_path / f"r{number}", shape)
    for folder in ("r0", "r1", "a"):
        with harness(Total(), tmp_path / folder, **told) as job:
            job.push(("u", 5))
            job.run_epoch()
            assert (job.state("total", "u"), job.state("total", "v")) == (7, 3)
    assert read_savepoint(paths[0]).operators[0].key_type == (f"{name} string" if old else f"`{name}` string")
