"""Savepoints without Spark: tables written from a chain, loaded into another job, and everything that is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.savepoint_tables import KEYS, SPECS, load, make_job, make_savepoint, rewrite, rows_of, vouch

from cairn.errors import CorruptFileError, InvalidInputError, NotFoundError
from cairn.model.ddl import parse_columns
from cairn.model.keygroups import KeyGroupRange, key_group
from cairn.model.manifest import OperatorState, StateHandle, StateSpec
from cairn.model.savepoint_records import SavepointMetadata, SavepointOperator
from cairn.snapshots.lookup import find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import first_rows
from cairn.snapshots.table_tasks import (
    TableWork,
    checked_schema,
    table_rows,
    write_tables,
)
from cairn.snapshots.verification import verify_savepoint
from cairn.state.typed_tables import table_schema, to_section, to_table
from cairn.storage import savepoint_folder, savepoint_parquet
from cairn.storage.chain_merge import write_snapshot
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.savepoint_folder import SavepointFolder
from cairn.storage.state_file import StateFile


@pytest.fixture
def job(tmp_path: Path) -> OperatorState:
    return make_job(tmp_path / "job")


@pytest.fixture
def savepoint(tmp_path: Path, job: OperatorState) -> str:
    return make_savepoint(tmp_path / "job", job, tmp_path / "sp")


def read_back(path: str, state: str) -> pa.Table:
    """A table as anyone would read it: the folder, with nothing but pyarrow."""
    folder = Path(path) / "tables" / "op" / state
    return pq.read_table(folder)


def sorted_rows(table: pa.Table) -> list[Any]:
    return sorted(map(repr, table.drop_columns(["key_group"]).to_pylist()))


def test_a_savepoint_holds_every_state_as_a_table(savepoint: str) -> None:
    metadata = savepoint_folder.read_savepoint(savepoint)
    assert os.path.basename(savepoint).startswith("savepoint-job-")
    assert [table.spec for table in metadata.operators[0].tables] == SPECS
    for spec in SPECS[:-1]:
        found = read_back(savepoint, spec.name.replace("_timers.", "_timers_"))
        wanted = rows_of(spec, 300)
        if spec.name == "total":
            changed = rows_of(spec, 5, offset=1).to_pylist() + wanted.to_pylist()[5:]
            wanted = pa.Table.from_pylist(changed, schema=wanted.schema)
        assert sorted_rows(found) == sorted_rows(wanted)
        assert found.column_names == table_schema(KEYS, spec)[1].names
        for row in found.slice(0, 20).to_pylist():
            assert row["key_group"] == key_group([row["user"], row["shop"]], ["string", "int"], 16)
    assert metadata.operators[0].table("empty").files == []  # type: ignore[union-attr]
    assert verify_savepoint(savepoint) == []


def test_rows_lie_in_order_and_row_groups_follow_key_groups(
    tmp_path: Path, job: OperatorState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savepoint_parquet, "ROW_GROUP_ROWS", 40)
    path = make_savepoint(tmp_path / "job", job, tmp_path / "sp", pieces=1)
    (file,) = savepoint_folder.read_savepoint(path).operators[0].table("total").files  # type: ignore[union-attr]
    parquet = pq.ParquetFile(os.path.join(path, file.path))
    seen = []
    for at in range(parquet.num_row_groups):
        rows = parquet.read_row_group(at)
        groups = set(rows["key_group"].to_pylist())
        assert rows.num_rows <= 40
        seen.append(groups)
    assert len(seen) > 5
    assert all(len(groups) <= 2 for groups in seen), "about 19 rows a key group: two of them share a row group"
    numbers = parquet.read()["key_group"].to_pylist()
    assert numbers == sorted(numbers)


def test_parts_are_cut_at_their_size(tmp_path: Path, job: OperatorState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoint_parquet, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(savepoint_parquet, "PART_BYTES", 2000)
    path = make_savepoint(tmp_path / "job", job, tmp_path / "sp", pieces=1)
    table = savepoint_folder.read_savepoint(path).operators[0].table("total")
    assert table is not None
    assert len(table.files) > 2
    assert table.rows == 300
    loaded = load(path, tmp_path / "other")
    assert rows_in(loaded, tmp_path / "other", "total") == sorted_rows(read_back(path, "total"))


def rows_in(handles: list[StateHandle], job: Path, state: str, specs: Any = SPECS) -> list[Any]:
    """The rows of a state in a job's directory."""
    operator = OperatorState("new-uid", "n", 1, "user string, shop int", list(specs), handles)
    found = []
    for first in range(0, 16, 4):
        work = TableWork(str(job), msgspec.msgpack.encode(operator), first, first + 3, 0)
        found += [table for spec, table in table_rows(work) if spec.name == state]
    return sorted_rows(pa.concat_tables(found)) if found else []


def test_a_savepoint_loads_into_another_job_at_other_ranges(
    tmp_path: Path, savepoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cairn.storage.chain_merge.FILE_BYTES", 4000)
    handles = load(savepoint, tmp_path / "other")
    assert len(handles) > 2
    assert all(handle.snapshot and handle.epoch == 9 for handle in handles)
    covered = sorted(group for handle in handles for group in range(handle.first_group, handle.last_group + 1))
    assert covered == list(range(16))
    assert all(handle.path.startswith("shared/new-uid/") for handle in handles)
    for spec in SPECS:
        wanted = read_back(savepoint, spec.name.replace("_timers.", "_timers_")) if spec.name != "empty" else None
        assert rows_in(handles, tmp_path / "other", spec.name) == (sorted_rows(wanted) if wanted is not None else [])


def test_only_named_states_are_loaded_and_values_are_converted(tmp_path: Path, savepoint: str) -> None:
    wider = {"total": StateSpec("sum", "value", "double", ttl_ms=5)}
    handles = load(
        savepoint, tmp_path / "o", specs=wider, converters={"total": lambda column: column.cast(pa.float64())}
    )
    found = rows_in(handles, tmp_path / "o", "sum", specs=wider.values())
    assert len(found) == 300
    assert any("'value': 11.0" in row for row in found)
    assert all("77000" in row for row in found), "a value without time gets the restore's"
    assert {section.table for handle in handles for section in sections_of(tmp_path / "o", handle)} == {"sum"}


def sections_of(job: Path, handle: StateHandle) -> list[Any]:
    return StateFile.open(str(job / handle.path), handle.checksum, handle.size).sections


def test_a_savepoint_can_be_copied_and_the_original_deleted(tmp_path: Path, savepoint: str) -> None:
    moved = str(tmp_path / "else where" / "copy")
    shutil.copytree(savepoint, moved)
    wanted = sorted_rows(read_back(savepoint, "visits"))
    shutil.rmtree(savepoint)
    assert verify_savepoint(moved) == []
    assert rows_in(load(moved, tmp_path / "o"), tmp_path / "o", "visits") == wanted


def test_rows_under_a_wrong_key_group_are_refused_with_their_number(tmp_path: Path, savepoint: str) -> None:
    edited = rewrite(savepoint, "total", lambda table: table.set_column(
        0, "user", pa.array([f"x{user}" for user in table["user"].to_pylist()])
    ))  # fmt: skip
    with pytest.raises(CorruptFileError, match=r"operator 'op', state 'total': \d+ rows are stored under key groups"):
        load(edited, tmp_path / "o")


def test_tables_with_other_columns_rows_or_statistics_are_refused(tmp_path: Path, savepoint: str) -> None:
    copy = str(tmp_path / "copy")

    def refused(state: str, change: Any, match: str) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(savepoint, copy)
        rewrite(copy, state, change)
        with pytest.raises(CorruptFileError, match=match):
            load(copy, tmp_path / "o")

    refused("total", lambda table: table.drop_columns(["value"]), "its columns are")
    refused("total", lambda table: table.set_column(3, "value", table["value"].cast(pa.int32())), "value int32")
    refused("total", lambda table: pa.concat_tables([table, table]), "rows have the key of another row|claims")
    other = pa.array([15] * 400, pa.int32())
    refused(
        "total", lambda table: table.set_column(2, "key_group", other.slice(0, table.num_rows)), "claims the key groups"
    )
    shutil.rmtree(copy)
    shutil.copytree(savepoint, copy)
    metadata = savepoint_folder.read_savepoint(copy)
    lying = msgspec.json.decode(msgspec.json.encode(metadata), type=SavepointMetadata)
    file = lying.operators[0].tables[0].files[0]
    lying.operators[0].tables[0].files[0] = msgspec.structs.replace(file, rows=file.rows + 1)
    vouch(copy, lying)
    with pytest.raises(CorruptFileError, match=r"rows instead of"):
        load(copy, tmp_path / "o")


def test_a_savepoint_in_progress_is_none(tmp_path: Path, job: OperatorState) -> None:
    progress = SavepointFolder.begin(str(tmp_path / "sp"), "abc")
    write_tables(TableWork(str(tmp_path / "job"), msgspec.msgpack.encode(job), 0, 15, 0, progress.path))
    assert savepoint_folder.list_savepoints(str(tmp_path / "sp")) == []
    with pytest.raises(NotFoundError, match="never completed"):
        savepoint_folder.read_savepoint(progress.path)
    with pytest.raises(InvalidInputError, match="token abc"):
        SavepointFolder.begin(str(tmp_path / "sp"), "abc")
    progress.abort()
    assert os.listdir(tmp_path / "sp") == []


def test_leftovers_go_after_a_day_and_not_before(tmp_path: Path) -> None:
    progress = SavepointFolder.begin(str(tmp_path), "old")
    Path(progress.path, "x.parquet").write_bytes(b"x")
    SavepointFolder.begin(str(tmp_path), "young").abort()
    assert os.path.exists(progress.path)
    for name in (os.path.join(progress.path, "x.parquet"), progress.path):
        os.utime(name, (1, 1))
    SavepointFolder.begin(str(tmp_path), "next").abort()
    assert not os.path.exists(progress.path)


def test_completing_wants_every_file_and_a_free_name(tmp_path: Path, job: OperatorState) -> None:
    path = make_savepoint(tmp_path / "job", job, tmp_path / "sp")
    metadata = savepoint_folder.read_savepoint(path)
    progress = SavepointFolder.begin(str(tmp_path / "sp"))
    with pytest.raises(Exception, match="is missing or has another size"):
        progress.complete(metadata)
    empty = msgspec.structs.replace(metadata, operators=[])
    with pytest.raises(InvalidInputError, match="exists already; a savepoint overwrites nothing"):
        progress.complete(empty, os.path.basename(path))
    assert verify_savepoint(path) == []
    assert len(savepoint_folder.list_savepoints(str(tmp_path / "sp"))) == 1


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("timestamp", dt.datetime(2024, 1, 1, 0, 0, 7, tzinfo=dt.UTC)),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, 0, 0, 7)),
        ("date", dt.date(2024, 1, 7)),
        ("double", 7.5),
        ("boolean", True),
        ("decimal(10,2)", decimal.Decimal("7.50")),
        ("binary", b"7"),
    ],
)
def test_one_key_of_any_type_is_found(tmp_path: Path, ddl: str, value: Any) -> None:
    keys = parse_columns(f"k {ddl}")
    spec = StateSpec("s", "value", "bigint")
    columns, schema = table_schema(keys, spec)
    rows = pa.table({"k": pa.array([value], schema.field("k").type), "value": [7]})
    section = to_section(rows, columns, keys, spec, 16)
    handle = write_snapshot(LocalFileSystem(str(tmp_path)), "shared/op/a.state", 1, KeyGroupRange(0, 15), [section])
    operator = OperatorState("op", "n", 1, f"k {ddl}", [spec], [handle])
    snapshot = open_snapshot(make_savepoint(tmp_path, operator, tmp_path / "sp"))
    found = find_rows(snapshot, snapshot.operator("op"), snapshot.operator("op").state("s"), value)
    assert found["value"].to_pylist() == [7]
    assert first_rows(snapshot, snapshot.operator("op").state("s"), 5).num_rows == 1


def test_a_type_that_is_not_known_is_named(savepoint: str) -> None:
    operator = savepoint_folder.read_savepoint(savepoint).operators[0]
    table = operator.tables[0]
    odd = msgspec.structs.replace(table, spec=msgspec.structs.replace(table.spec, value_type="uint128"))
    with pytest.raises(Exception, match="uint128"):
        checked_schema(operator, odd)
    deep = msgspec.structs.replace(table.spec, value_type="array<" * 5000 + "int" + ">" * 5000)
    with pytest.raises(Exception, match="does not know"):
        checked_schema(operator, msgspec.structs.replace(table, spec=deep))
    swapped = msgspec.structs.replace(table, columns=msgspec.structs.replace(table.columns, value="user"))
    with pytest.raises(CorruptFileError, match="other columns"):
        checked_schema(operator, swapped)
    assert isinstance(operator, SavepointOperator)


def test_to_table_and_back_of_a_real_table(savepoint: str) -> None:
    for spec in SPECS[:-1]:
        table = read_back(savepoint, spec.name.replace("_timers.", "_timers_"))
        roles, schema = table_schema(KEYS, spec)
        assert table.schema.remove_metadata().equals(schema)
        assert to_table(to_section(table, roles, KEYS, spec, 16), KEYS, spec).num_rows == table.num_rows
