"""Operator, broadcast and raw state in savepoints, without Spark: tables, restores at any parallelism, changed code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.unit.restoring import OUTPUT, checkpoint_of, harness, newest, restored, savepoint_of, shape_of
from tests.unit.test_cli_state import answer, call
from tests.unit.test_savepoint_tables import rewrite, vouch

from cairn import (
    CheckpointedFunction,
    CorruptFileError,
    IncompatibleStateError,
    InvalidInputError,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    ValueStateDescriptor,
)
from cairn.model.ddl import parse_columns
from cairn.model.keygroups import key_group_range
from cairn.model.manifest import OPERATOR_KINDS, StateSpec
from cairn.runtime.compare import compared, verified
from cairn.runtime.probe import declared_states
from cairn.runtime.snapshots import find_rows, first_rows, open_snapshot
from cairn.state.typed import table_schema, to_section, to_table
from cairn.storage.savepoints import read_savepoint, verify
from cairn.testing import KeyedProcessHarness, ProcessHarness, TwoInputHarness
from cairn.testing.harness import UID

LIMITS = MapStateDescriptor("limits", "string", "int")


class Buffer(ProcessFunction, CheckpointedFunction):
    """Holds every value, and counts them: two lists that are dealt out, one union list."""

    held_type = "int"
    name = "held"

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.held = store.get_list_state(ListStateDescriptor(self.name, self.held_type))
        self.counts = store.get_union_list_state(ListStateDescriptor("counts", "bigint"))
        self.raw = store.get_raw_state("raw")
        self.seen = max(self.counts.get(), default=0)

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        self.held.add(value)
        self.seen += 1
        yield str(value)

    def snapshot_state(self, context: Any) -> None:
        self.counts.update([self.seen])
        self.raw.update([bytes([self.seen])])


class Rules(KeyedBroadcastProcessFunction):
    """Sums by key, with limits from a broadcast stream."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(LIMITS).put(value.name, value.n)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.key, str(sorted(ctx.get_broadcast_state(LIMITS).items()))


def buffer(function: ProcessFunction, folder: Path, parallelism: int) -> ProcessHarness:
    return ProcessHarness(function, "int", "string", parallelism=parallelism, state_dir=folder, inline_threshold=100)


def rules(folder: Path, parallelism: int, limits: MapStateDescriptor = LIMITS, function: Any = None) -> TwoInputHarness:
    return TwoInputHarness(
        function or Rules(), ("key", None), ("key string, n int", "name string, n int"), OUTPUT,
        parallelism=parallelism, state_dir=folder, broadcast=[limits],
    )  # fmt: skip


def run_buffer(folder: Path, parallelism: int = 2, values: int = 7) -> None:
    with buffer(Buffer(), folder, parallelism) as job:
        job.push(*range(values))
        job.run_epoch()
        job.push(100)
        job.run_epoch()


def run_rules(folder: Path, parallelism: int = 3) -> None:
    with rules(folder, parallelism) as job:
        job.push2(("a", 1), ("b", 2), ("c", 3))
        job.push1(*[(f"k{n % 5}", n) for n in range(20)])
        job.run_epoch()
        job.push2(("b", 20))
        job.run_epoch()


def shape(made: Any, folder: Path, **more: Any) -> Any:
    with made as job:
        return shape_of(job, **more)


def everything(job: KeyedProcessHarness, names: tuple[str, ...] = ("held", "counts", "raw")) -> dict[str, Any]:
    return {name: job.operator_state(name) for name in names}


def by_duckdb(path: str, state: str) -> list[Any]:
    """The rows of a table as DuckDB reads them."""
    found = duckdb.sql(f"select * from read_parquet('{path}/tables/{UID}/{state}/*.parquet') order by all")
    assert found is not None
    return found.fetchall()


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
    assert verify(path) == []
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
        assert verified(snapshot) == []
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
    assert verify(again) == []
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
    with pytest.raises(CorruptFileError, match="entries lie under key groups that are not the first of any of 3 subt"):
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


# Asking functions.


def test_functions_are_asked_for_state_of_subtasks(tmp_path: Path) -> None:
    with buffer(Buffer(), tmp_path / "a", 2) as job:
        told = declared_states(job.spec, {})
    assert told.failure == ""
    assert [state.spec for state in told.states] == [
        StateSpec("held", "operator-list", "int"),
        StateSpec("counts", "operator-union", "bigint"),
        StateSpec("raw", "operator-list", "binary"),
    ]
    with rules(tmp_path / "b", 2) as ruled:
        told = declared_states(ruled.spec, {})
    assert [state.spec for state in told.states] == [
        StateSpec("limits", "broadcast", "int", "string"), StateSpec("total", "value", "bigint"),
    ]  # fmt: skip

    class Eager(Buffer):
        """Uses what it gets at once."""

        def initialize_state(self, context: Any) -> None:
            store = context.get_operator_state_store()
            self.map = store.get_broadcast_state(MapStateDescriptor("map", "int", "struct<x:int>"))
            assert not context.is_restored()
            assert context.get_restored_checkpoint_id() is None
            assert self.map.get(1) is None
            assert 1 not in self.map
            assert dict(self.map.items()) == {}
            assert self.map.is_empty()
            self.map.put(1, (2,))
            self.list = store.get_list_state(ListStateDescriptor("list", "int"))
            self.list.add(1)
            assert list(self.list) == list(self.list.get()) == []

    with buffer(Eager(), tmp_path / "c", 1) as job:
        told = declared_states(job.spec, {})
        assert (told.failure, [state.spec.name for state in told.states]) == ("", ["map", "list"])

    class Wrong(Buffer):
        def initialize_state(self, context: Any) -> None:
            raise OSError("down")

    class Twice(Buffer):
        def initialize_state(self, context: Any) -> None:
            super().initialize_state(context)
            context.get_operator_state_store().get_union_list_state(ListStateDescriptor("held", "int"))

    with buffer(Wrong(), tmp_path / "d", 1) as job:
        assert declared_states(job.spec, {}).failure == "initialize_state() raised OSError"
    with buffer(Twice(), tmp_path / "e", 1) as job:
        failure = declared_states(job.spec, {}).failure
        assert "already in use for a operator-list of int; it cannot also be a operator-union of int" in failure


# Comparing, and the command line.


def test_what_differs(tmp_path: Path) -> None:
    run_buffer(tmp_path / "a")
    first = savepoint_of(tmp_path / "a", tmp_path / "sp")
    with buffer(Buffer(), tmp_path / "a", 2) as job:
        job.push(7, 8)
        job.run_epoch()
    second = savepoint_of(tmp_path / "a", tmp_path / "sp")
    old, new = open_snapshot(first), open_snapshot(second)
    counted = {}
    for name in ("held", "counts"):
        one, two = ((s.operator(UID), s.operator(UID).state(name)) for s in (old, new))
        parts = list(compared(old, one, new, two))
        counted[name] = [sum(getattr(p, which).num_rows for p in parts) for which in ("added", "removed", "after")]
    assert counted["held"] == [2, 0, 0]
    assert counted["counts"] == [0, 0, 2]
    told = answer("state", "diff", first, second, UID, "held")["states"][0]
    assert [(row["change"], row["key_group"], row["position"], row["value"]) for row in told["rows"]] == [
        ("added", 0, 5, 7), ("added", 64, 3, 8),
    ]  # fmt: skip


def test_the_command_line_shows_them(tmp_path: Path) -> None:
    run_buffer(tmp_path / "a")
    run_rules(tmp_path / "r")
    for path in (savepoint_of(tmp_path / "a", tmp_path / "sp"), checkpoint_of(tmp_path / "a")):
        (operator,) = answer("state", "ls", path)["operators"]
        assert [(s["name"], s["kind"], s["columns"]) for s in operator["states"]] == [
            ("counts", "operator-union", ["key_group", "position", "value"]),
            ("held", "operator-list", ["key_group", "position", "value"]),
            ("raw", "operator-list", ["key_group", "position", "value"]),
        ]
        assert "operator-union of bigint" in call("state", "ls", path)[1]
        shown = answer("state", "show", path, UID, "counts")["rows"]
        assert shown == [{"key_group": 0, "position": 0, "value": 5}, {"key_group": 64, "position": 0, "value": 3}]
        code, text = call("state", "get", path, UID, "held", "1")
        assert (code, "belongs to subtasks" in text, "read_operator_state" in text) == (2, True, True)
    path = savepoint_of(tmp_path / "r", tmp_path / "sp")
    target = tmp_path / "limits.jsonl"
    assert call("state", "export", path, UID, "limits", str(target))[0] == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert lines == [{"key_group": 0, "map_key": k, "value": v} for k, v in (("a", 1), ("b", 20), ("c", 3))]
    assert call("verify", path)[0] == 0


def test_the_page_shows_state_that_belongs_to_subtasks(tmp_path: Path) -> None:
    from tests.unit.test_web_rest import client_of

    run_buffer(tmp_path / "a")
    checkpoint_of(tmp_path / "a", 1)
    web = client_of(tmp_path)
    (job,) = web.get("/api/v1/jobs").json()["jobs"]
    page = web.get(f"/jobs/{job['id']}/state")
    assert page.status_code == 200, page.text
    assert "held" in page.text
    states = web.get(f"/api/v1/jobs/{job['id']}/state/{UID}").json()["states"]
    assert {state["name"]: (state["rows"], state["keys"]) for state in states}["held"] == (8, 0)
    asked = web.get(f"/api/v1/jobs/{job['id']}/state/{UID}/held/key?key=1")
    assert (asked.status_code, "belongs to subtasks" in asked.text) == (400, True)
    assert "belongs to subtasks" in web.get(f"/jobs/{job['id']}/state?state=held&key=1").text
