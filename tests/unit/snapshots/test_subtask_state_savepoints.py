"""Operator, broadcast and raw state in savepoints, without Spark: tables, restores at any parallelism, changed code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.support.restore_lab import checkpoint_of, harness, newest, restored, savepoint_of, shape_of
from tests.support.savepoint_tables import rewrite, vouch
from tests.support.subtask_states import (
    Buffer,
    buffer,
    by_duckdb,
    everything,
    rules,
    run_buffer,
    run_rules,
    shape,
)

from cairn import (
    CorruptFileError,
    IncompatibleStateError,
    InvalidInputError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
)
from cairn.model.ddl import parse_columns
from cairn.model.keygroups import key_group_range
from cairn.model.manifest import OPERATOR_KINDS, StateSpec
from cairn.snapshots.lookup import find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import first_rows
from cairn.snapshots.verification import verify_savepoint, verify_snapshot
from cairn.state.typed_tables import table_schema, to_section, to_table
from cairn.storage.savepoint_folder import read_savepoint
from cairn.testing.keyed_harness import UID

# Tables.


@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_rows_of_subtasks_become_sections_and_rows_again(kind: str) -> None:
    broadcast = kind == "broadcast"
    spec = StateSpec("s", kind, "struct<x:int>", "string" if broadcast else "")
    columns, schema = table_schema(parse_columns("user string"), spec)
    assert schema.names == ["key_group", "map_key" if broadcast else "position", "value"]
    assert columns.keys == []
    entries = pa.array(["a", "b", "a"]) if broadcast else pa.array([0, 1, 0])
    rows = pa.table(
        [pa.array([0, 0, 64], pa.int32()), entries, pa.array([{"x": 1}, {"x": 2}, {"x": 3}], schema.field(2).type)],
        schema=schema,
    )
    section = to_section(rows.take([2, 1, 0]), columns, (), spec, 128)
    assert section.kind == ("map" if broadcast else "list")
    assert set(section.data.column("key").to_pylist()) == {b"\0\0", b"\0\x40"}
    assert to_table(section, parse_columns("user string"), spec).equals(rows), "a key of the operator changes nothing"
    assert to_section(schema.empty_table(), columns, (), spec, 128).data.num_rows == 0
    with pytest.raises(InvalidInputError, match=r"2 rows have the key group and (position|map key) of another"):
        to_section(pa.concat_tables([rows, rows.slice(0, 2)]), columns, (), spec, 128)
    with pytest.raises(InvalidInputError, match="1 rows have a 'key_group' that is none of the 64 key groups"):
        to_section(rows, columns, (), spec, 64)
    holes = rows.set_column(0, schema.field(0), pa.array([0, None, 64], pa.int32()))
    with pytest.raises(InvalidInputError, match="1 rows have a null in column 'key_group'"):
        to_section(holes, columns, (), spec, 128)


def test_everybody_reads_the_tables(tmp_path: Path) -> None:
    run_buffer(tmp_path / "a", 2)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    assert verify_savepoint(path) == []
    tables = {table.spec.name: table for table in read_savepoint(path).operators[0].tables}
    assert {name: (table.spec.kind, table.rows) for name, table in tables.items()} == {
        "held": ("operator-list", 8), "counts": ("operator-union", 2), "raw": ("operator-list", 2),
    }  # fmt: skip
    assert tables["held"].columns.position == "position"
    held = by_duckdb(path, "held")
    even, odd = [0, 2, 4, 6, 100], [1, 3, 5]
    assert held == [(0, at, n) for at, n in enumerate(even)] + [(64, at, n) for at, n in enumerate(odd)]
    counts = pd.read_parquet(f"{path}/tables/{UID}/counts").sort_values("key_group")
    assert counts.columns.tolist() == ["key_group", "position", "value"]
    assert counts.values.tolist() == [[0, 0, 5], [64, 0, 3]]
    assert pd.read_parquet(f"{path}/tables/{UID}/raw")["value"].tolist() == [b"\x05", b"\x03"]


def test_a_broadcast_map_is_there_once(tmp_path: Path) -> None:
    run_rules(tmp_path / "a", 3)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    wanted = [(0, "a", 1), (0, "b", 20), (0, "c", 3)]
    assert by_duckdb(path, "limits") == wanted
    chk = checkpoint_of(tmp_path / "a")
    for place in (path, chk):
        snapshot = open_snapshot(place)
        assert verify_snapshot(snapshot) == []
        found = first_rows(snapshot, snapshot.operator(UID).state("limits"), 10)
        assert [tuple(row.values()) for row in found.to_pylist()] == wanted
        assert snapshot.operator(UID).state("total").schema.names == ["key", "key_group", "value"]
    with pytest.raises(InvalidInputError, match=r"belongs to subtasks.*Savepoint\.read_broadcast_state, or `cairn"):
        find_rows(snapshot, snapshot.operator(UID), snapshot.operator(UID).state("limits"), "a")


# Restoring.


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1), (1, 4), (5, 2)])
def test_a_restore_deals_out_as_a_restart_does(tmp_path: Path, before: int, after: int) -> None:
    run_buffer(tmp_path / "a", before, 11)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    restored(path, tmp_path / "b", shape(buffer(Buffer(), tmp_path / "shape", after), tmp_path))
    with buffer(Buffer(), tmp_path / "a", before) as twin, buffer(Buffer(), tmp_path / "b", after) as job:
        twin.restart(parallelism=after)
        wanted = everything(twin)
        assert sorted(n for part in wanted["held"] for n in part) == [*range(11), 100]
        assert newest(tmp_path / "b").restored == 1
        assert everything(job) == wanted
        for one in (twin, job):
            one.push(200, 201, 202)
            one.fail_epoch()
            one.run_epoch()
            one.run_epoch()
        assert everything(job) == everything(twin)
    again = savepoint_of(tmp_path / "b", tmp_path / "sp2")
    assert verify_savepoint(again) == []
    restored(again, tmp_path / "c", shape(buffer(Buffer(), tmp_path / "shape", 1), tmp_path))
    with buffer(Buffer(), tmp_path / "c", 1) as job:
        assert sorted(job.operator_state("held")[0]) == [*range(11), 100, 200, 201, 202]


def test_a_savepoint_of_an_epoch_that_a_restore_made(tmp_path: Path) -> None:
    """No epoch ran since: the lists still belong to the subtasks that the first job had."""
    run_buffer(tmp_path / "a", 3)
    first = savepoint_of(tmp_path / "a", tmp_path / "sp")
    restored(first, tmp_path / "b", shape(buffer(Buffer(), tmp_path / "shape", 2), tmp_path))
    second = savepoint_of(tmp_path / "b", tmp_path / "sp")
    one, two = open_snapshot(first), open_snapshot(second)
    for name in ("held", "counts", "raw"):
        rows = [first_rows(s, s.operator(UID).state(name), 100) for s in (one, two)]
        assert rows[0].equals(rows[1])
    assert two.operator(UID).parallelism == 3


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 5), (2, 1), (1, 4)])
def test_broadcast_state_reaches_every_subtask(tmp_path: Path, before: int, after: int) -> None:
    run_rules(tmp_path / "a", before)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    restored(path, tmp_path / "b", shape(rules(tmp_path / "shape", after), tmp_path))
    with rules(tmp_path / "b", after) as job:
        assert job.operator_state("limits") == [{"a": 1, "b": 20, "c": 3}] * after
        assert job.state("total", "k1") == 1 + 6 + 11 + 16
        job.push2(("c", 30))
        job.push1(("k1", 1), ("k2", 1), ("k3", 1), ("k4", 1))
        assert {row[1] for row in job.run_epoch()} == {str([("a", 1), ("b", 20), ("c", 30)])}
        job.restart(parallelism=2)
        assert job.operator_state("limits") == [{"a": 1, "b": 20, "c": 30}] * 2
        assert job.state("total", "k1") == 35


class Widened(Buffer):
    held_type = "bigint"
    name = "kept"


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint", "in place"])
def test_types_and_names_may_change(tmp_path: Path, kind: str) -> None:
    run_buffer(tmp_path / "a", 2)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp") if kind == "savepoint" else checkpoint_of(tmp_path / "a")
    target = tmp_path / ("a" if kind == "in place" else "b")
    told = shape(buffer(Widened(), tmp_path / "shape", 3), tmp_path)
    restored(path, target, told, renames={f"{UID}.held": f"{UID}.kept"})
    with buffer(Widened(), target, 3) as job:
        assert job.operator_state("kept") == [[0, 2, 4], [6, 100, 1], [3, 5]]
        assert job.operator_state("counts") == [[5, 3]] * 3
        job.push(1 << 20)
        job.run_epoch()
        assert {spec.name: spec.value_type for spec in newest(target).operators[0].states}["kept"] == "bigint"


class Narrow(Buffer):
    counts_type = "int"


class Forgetful(ProcessFunction):
    """Asks for no state at all."""

    def process_element(self, value: int, ctx: Any) -> None:
        return None


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("after", [2, 3])
def test_a_union_that_waits_is_stored_once(tmp_path: Path, kind: str, after: int) -> None:
    with buffer(Narrow(), tmp_path / "a", 2) as job:
        job.push(1, 2, 3)
        job.run_epoch()
        counts = job.operator_state("counts")
    with buffer(Forgetful(), tmp_path / "a", after) as job:  # another run, in which nobody asks
        job.run_epoch()
        assert job.operator_state("counts") == [[2, 1]] * after
    assert counts == [[2], [1]]
    path = savepoint_of(tmp_path / "a", tmp_path / "sp") if kind == "savepoint" else checkpoint_of(tmp_path / "a")
    snapshot = open_snapshot(path)
    rows = first_rows(snapshot, snapshot.operator(UID).state("counts"), 10)
    assert rows.column("value").to_pylist() == [2, 1]
    for target, function in (("b", Narrow()), ("c", Buffer())):  # as it is, and with wider numbers
        restored(path, tmp_path / target, shape(buffer(function, tmp_path / "shape", 2), tmp_path))
        with buffer(function, tmp_path / target, 2) as job:
            assert job.operator_state("counts") == [[2, 1]] * 2


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_the_values_of_broadcast_state_may_be_widened(tmp_path: Path, kind: str) -> None:
    run_rules(tmp_path / "a", 2)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp") if kind == "savepoint" else checkpoint_of(tmp_path / "a")
    wide = MapStateDescriptor("limits", "string", "bigint")
    restored(path, tmp_path / "b", shape(rules(tmp_path / "shape", 3, wide), tmp_path))
    with rules(tmp_path / "b", 3, wide) as job:
        assert job.operator_state("limits") == [{"a": 1, "b": 20, "c": 3}] * 3
    assert {spec.name: spec.value_type for spec in newest(tmp_path / "b").operators[0].states}["limits"] == "bigint"


def test_what_a_restore_refuses(tmp_path: Path) -> None:
    class Other(Buffer):
        def initialize_state(self, context: Any) -> None:
            self.held = context.get_operator_state_store().get_union_list_state(ListStateDescriptor("held", "int"))
            self.held.get()

    run_buffer(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    before = sorted(str(file) for file in Path(path).rglob("*"))
    with pytest.raises(
        IncompatibleStateError,
        match=r"it is a operator-list state, and cannot become a operator-union state.*\n.*\n.*\n  Declare it as it "
        r"was, or give the new state another name\.",
    ):
        restored(path, tmp_path / "b", shape(buffer(Other(), tmp_path / "shape", 2), tmp_path))
    with pytest.raises(IncompatibleStateError, match=r"keyed by \(nothing\), the job keys by \(key string\)"):
        restored(path, tmp_path / "b", shape(rules(tmp_path / "shape2", 2), tmp_path))
    run_rules(tmp_path / "r")
    told = shape(rules(tmp_path / "shape3", 2, MapStateDescriptor("limits", "int", "int")), tmp_path)
    with pytest.raises(IncompatibleStateError, match="its map keys are string, and cannot become int"):
        restored(savepoint_of(tmp_path / "r", tmp_path / "sp"), tmp_path / "b", told)
    assert not (tmp_path / "b" / "epochs").exists()
    assert sorted(str(file) for file in Path(path).rglob("*")) == before


def test_a_renamed_operator_and_one_that_is_gone(tmp_path: Path) -> None:
    run_buffer(tmp_path / "a")
    told = shape(buffer(Buffer(), tmp_path / "shape", 2), tmp_path, uid="other")
    for path in (savepoint_of(tmp_path / "a", tmp_path / "sp"), checkpoint_of(tmp_path / "a")):
        with pytest.raises(IncompatibleStateError, match=f"holds state of '{UID}'"):
            restored(path, tmp_path / "b", told)
    restored(path, tmp_path / "b", told, renames={UID: "other"})
    (operator,) = newest(tmp_path / "b").operators
    assert (operator.uid, operator.key_type, len(operator.states)) == ("other", "", 3)


class Raw(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.bytes = runtime_context.get_raw_state("bytes")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.bytes.update((self.bytes.value() or b"") + bytes([value.n]))
        yield value.key, ""


def test_raw_keyed_state(tmp_path: Path) -> None:
    with harness(Raw(), tmp_path / "a", 2) as job:
        job.push(*[(f"k{n % 3}", n) for n in range(9)])
        job.run_epoch()
        told = shape_of(job)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    found = pd.read_parquet(f"{path}/tables/{UID}/bytes").sort_values("key")
    assert found["value"].tolist() == [b"\0\3\6", b"\1\4\7", b"\2\5\x08"]
    restored(path, tmp_path / "b", told)
    with harness(Raw(), tmp_path / "b", 2) as job:
        assert job.state("bytes", "k2") == b"\2\5\x08"


# What is no savepoint of such state.


def moved(rows: pa.Table, to: int) -> pa.Table:
    groups = np.asarray(rows.column("key_group")).copy()
    groups[groups == groups.max()] = to
    return rows.set_column(0, rows.schema.field(0), pa.array(groups, pa.int32()))


def test_rows_that_belong_to_nobody_are_refused(tmp_path: Path) -> None:
    run_buffer(tmp_path / "a")
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    told = shape(buffer(Buffer(), tmp_path / "shape", 2), tmp_path)
    metadata = read_savepoint(path)
    operator = metadata.operators[0]
    assert key_group_range(1, 2, 128).start == 64
    vouch(path, msgspec.structs.replace(metadata, operators=[msgspec.structs.replace(operator, parallelism=3)]))
    with pytest.raises(CorruptFileError, match="entries have key groups that are not the first key group of any of"):
        restored(path, tmp_path / "b", told)
    for wrong in (0, -1, 129, 10**15):
        vouch(path, msgspec.structs.replace(metadata, operators=[msgspec.structs.replace(operator, parallelism=wrong)]))
        with pytest.raises(CorruptFileError, match=f"a parallelism of {wrong} of operator '{UID}' is impossible"):
            read_savepoint(path)
    table = next(table for table in operator.tables if table.spec.name == "held")
    keyed = msgspec.structs.replace(table, spec=StateSpec("held", "list", "int"))
    vouch(path, msgspec.structs.replace(metadata, operators=[msgspec.structs.replace(operator, tables=[keyed])]))
    with pytest.raises(IncompatibleStateError, match="a list of int belongs to keys, and the operator has none"):
        open_snapshot(path)
    timed = msgspec.structs.replace(table, spec=StateSpec("held", "operator-list", "int", ttl_ms=5))
    vouch(path, msgspec.structs.replace(metadata, operators=[msgspec.structs.replace(operator, tables=[timed])]))
    with pytest.raises(IncompatibleStateError, match="state of subtasks has no time to live"):
        open_snapshot(path)
    vouch(path, metadata)
    rewrite(path, "held", lambda rows: moved(rows, 70) if 64 in rows.column("key_group").to_pylist() else rows)
    with pytest.raises(CorruptFileError, match="a row group claims the key groups"):
        restored(path, tmp_path / "b", told)
    assert not (tmp_path / "b" / "epochs").exists()


def test_broadcast_rows_under_other_key_groups_are_refused(tmp_path: Path) -> None:
    run_rules(tmp_path / "a", 2)
    path = savepoint_of(tmp_path / "a", tmp_path / "sp")
    metadata = read_savepoint(path)
    operator = metadata.operators[0]
    tables = []
    for table in operator.tables:
        if table.spec.name == "limits":
            table = msgspec.structs.replace(table, files=[msgspec.structs.replace(table.files[0], last_group=5)])
        tables.append(table)
    vouch(path, msgspec.structs.replace(metadata, operators=[msgspec.structs.replace(operator, tables=tables)]))
    with pytest.raises(CorruptFileError, match="holds broadcast state under other key groups than 0"):
        read_savepoint(path)
