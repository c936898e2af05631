"""`JdbcSink` against a real PostgreSQL: what the table holds after crashes, repeats, refusals and lost connections."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t
from tests.support.connector_lab import COUNTS, attempt, frame, job, started
from tests.support.servers.postgres import PostgresServer

from cairn import (
    CorruptFileError,
    EpochFailedError,
    InvalidInputError,
    JdbcSink,
    Retry,
    StorageError,
)

pytestmark = pytest.mark.server
QUICK = Retry(attempts=2, first=0.05)
_numbers = itertools.count()


@pytest.fixture
def table() -> str:
    return f"counts_{next(_numbers)}"


def run(sink: JdbcSink, epoch: int, rows: list[Any], schema: t.StructType = COUNTS) -> Any:
    """One epoch, both phases."""
    data = sink.prepare(frame(rows, schema), epoch, attempt(epoch))
    sink.commit(data, epoch)
    return data


def test_each_row_once_however_often_an_epoch_is_published(
    postgres: PostgresServer, table: str, tmp_path: Path
) -> None:
    where = job(tmp_path)
    first = started(JdbcSink(postgres.url, table), where)
    data = first.prepare(frame([("a", 1), ("b", 2)], parts=2), 0, attempt(0))
    assert postgres.rows(f"SELECT * FROM {table}") == [], "prepared rows are seen"
    copy = tmp_path / "copy"
    shutil.copytree(Path(where) / "staging", copy)
    first.commit(data, 0)
    for _ in range(2):  # the process died before it could say so: other runs publish the epoch again
        shutil.copytree(copy, Path(where) / "staging", dirs_exist_ok=True)
        started(JdbcSink(postgres.url, table), where).commit(data, 0)
    run(first, 1, [("c", 3)])
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY word") == [("a", 1), ("b", 2), ("c", 3)]
    assert not list((Path(where) / "staging").rglob("part-*")), "staged files are left over"


def test_prepared_and_abandoned_epoch_leaves_nothing(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    started(JdbcSink(postgres.url, table), where).prepare(frame([("a", 1)]), 0, attempt(0, run=1))
    second = started(JdbcSink(postgres.url, table), where)
    second.commit(second.prepare(frame([("a", 1)]), 0, attempt(0, run=2)), 0)
    assert postgres.rows(f"SELECT * FROM {table}") == [("a", 1)]
    assert not list((Path(where) / "staging").rglob("part-*"))


def test_overtaken_run_that_publishes_late_changes_nothing(
    postgres: PostgresServer, table: str, tmp_path: Path
) -> None:
    where = job(tmp_path)
    old = started(JdbcSink(postgres.url, table, key="word"), where)
    data = old.prepare(frame([("a", 1)]), 0, attempt(0))
    shutil.copytree(Path(where) / "staging", tmp_path / "copy")
    new = started(JdbcSink(postgres.url, table, key="word"), where)
    new.commit(data, 0)
    run(new, 1, [("a", 2)])
    shutil.copytree(tmp_path / "copy", Path(where) / "staging", dirs_exist_ok=True)
    old.commit(data, 0)
    assert postgres.rows(f"SELECT * FROM {table}") == [("a", 2)]


def test_upsert_keeps_the_last_row_of_each_key(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    sink = started(JdbcSink(f"jdbc:{postgres.url}", table, key=["word"]), job(tmp_path))
    run(sink, 0, [("a", 1), ("b", 1), ("a", 2), ("a", 3)])
    run(sink, 1, [("b", 5), ("c", 1)])
    run(sink, 2, [])
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY word") == [("a", 3), ("b", 5), ("c", 1)]


def test_upsert_of_a_table_that_is_all_key(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    sink = started(JdbcSink(postgres.url, f"public.{table}", key=("word", "n")), job(tmp_path))
    run(sink, 0, [("a", 1), ("a", 1), ("a", 2)])
    run(sink, 1, [("a", 1)])
    assert sorted(postgres.rows(f"SELECT * FROM {table}")) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("rehearse", [True, False])
def test_null_is_no_key(postgres: PostgresServer, table: str, tmp_path: Path, rehearse: bool) -> None:
    """A unique index has room for any number of nulls, so that rows would be added instead of replaced."""
    postgres.run(f"CREATE TABLE {table} (word text UNIQUE, n bigint)")
    sink = started(JdbcSink(postgres.url, table, key="word", rehearse=rehearse), job(tmp_path))
    run(sink, 0, [("a", 1)])
    with pytest.raises(EpochFailedError, match=r"epoch 1 have a null in the key column 'word'.*filter out these rows"):
        sink.prepare(frame([("a", 2), (None, 3)], parts=2), 1, attempt(1))
    sink.commit(sink.prepare(frame([("a", None), ("b", 4)]), 1, attempt(1, run=2)), 1)
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY word") == [("a", None), ("b", 4)]


@pytest.mark.parametrize(
    "index",
    ["CREATE UNIQUE INDEX ON {0} (word, (n + 1))", "CREATE UNIQUE INDEX ON {0} (word) WHERE n > 0",
     "CREATE UNIQUE INDEX ON {0} (lower(word))", "CREATE UNIQUE INDEX ON {0} (word, n)",
     "CREATE INDEX ON {0} (word)"],
)  # fmt: skip
def test_index_that_does_not_tell_rows_apart_is_refused_at_the_start(
    postgres: PostgresServer, table: str, tmp_path: Path, index: str
) -> None:
    postgres.run(f"CREATE TABLE {table} (word text, n bigint)")
    postgres.run(index.format(table))
    where = job(tmp_path)
    with pytest.raises(InvalidInputError, match=rf"no unique index on just \(word\).*CREATE UNIQUE INDEX ON {table}"):
        started(JdbcSink(postgres.url, table, key="word"), where)
    postgres.run(f"CREATE UNIQUE INDEX ON {table} (word) INCLUDE (n)")
    sink = started(JdbcSink(postgres.url, table, key="word"), where)
    run(sink, 0, [("a", 1), ("b", 5)])
    run(sink, 1, [("a", 2)])
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY word") == [("a", 2), ("b", 5)]
    postgres.run(f"ALTER TABLE {table} ADD UNIQUE (word) DEFERRABLE")
    with pytest.raises(InvalidInputError, match=r"has a deferrable unique constraint on \(word\)"):
        started(JdbcSink(postgres.url, table, key="word"), where)


def test_all_types_arrive_as_they_are(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    schema = (
        t.StructType()
        .add("text", t.StringType())
        .add("flag", t.BooleanType())
        .add("small", t.ShortType())
        .add("whole", t.IntegerType())
        .add("real", t.DoubleType())
        .add("price", t.DecimalType(12, 2))
        .add("bytes", t.BinaryType())
        .add("day", t.DateType())
        .add("at", t.TimestampType())
        .add("local", t.TimestampNTZType())
        .add("list", t.ArrayType(t.LongType()))
        .add("map", t.MapType(t.StringType(), t.DecimalType(5, 1)))
        .add("row", t.StructType().add("x", t.DateType()).add("y", t.BinaryType()))
    )
    at = dt.datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=dt.UTC)
    rows: list[Any] = [
        (
            'a "quoted"\nline, \\ and ü', True, -5, 7, math.inf, Decimal("-3.50"), b"\x00\xff", at.date(), at,
            at.replace(tzinfo=None), [1, None], {"k": Decimal("1.5")}, {"x": at.date(), "y": b"\x01"},
        ),
        ("", False, 0, 0, -0.0, Decimal(0), b"", at.date(), at, at.replace(tzinfo=None), [], {}, None),
        (None,) * 13,
    ]  # fmt: skip
    run(started(JdbcSink(postgres.url, table), job(tmp_path), schema), 0, rows, schema)
    found = postgres.rows(f"SELECT * FROM {table}")
    assert found[0][:11] == (*rows[0][:10], [1, None])
    assert found[0][11:] == ({"k": "1.5"}, {"x": "1969-07-20", "y": "AQ=="})
    assert found[1] == (*rows[1][:10], [], {}, None)
    assert math.copysign(1, found[1][4]) == -1
    assert found[2] == rows[2]


def test_rows_that_the_table_refuses_fail_the_epoch_before_its_commit(
    postgres: PostgresServer, table: str, tmp_path: Path
) -> None:
    postgres.run(f"CREATE TABLE {table} (word text UNIQUE, n smallint NOT NULL CHECK (n < 100))")
    sink = started(JdbcSink(postgres.url, table), job(tmp_path))
    run(sink, 0, [("a", 1)])
    for rows, why in (
        ([("b", None)], "null value in column"),
        ([("b", 70_000)], "out of range"),
        ([("b", 200)], "violates check constraint"),
        ([("b", 2), ("a", 3)], "duplicate key value"),
        ([("b\0", 2)], "invalid byte sequence"),
    ):
        with pytest.raises(EpochFailedError, match=f"sink 'out'.*refuses rows of epoch 1 for table '{table}'.*{why}"):
            sink.prepare(frame(rows), 1, f"1-{next(_numbers)}-0")
    run(sink, 1, [("b", 2)])
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY 1") == [("a", 1), ("b", 2)]


def test_rows_that_are_refused_without_a_rehearsal_wait_until_they_fit(
    postgres: PostgresServer, table: str, tmp_path: Path
) -> None:
    postgres.run(f"CREATE TABLE {table} (word text, n bigint CHECK (n < 100))")
    sink = started(JdbcSink(postgres.url, table, rehearse=False), job(tmp_path))
    data = sink.prepare(frame([("a", 1), ("b", 200)]), 0, attempt(0))
    with pytest.raises(StorageError, match=r"Epoch 0 is committed and its rows are kept.*Change the table"):
        sink.commit(data, 0)
    assert postgres.rows(f"SELECT * FROM {table}") == []
    postgres.run(f"ALTER TABLE {table} DROP CONSTRAINT {table}_n_check")
    sink.commit(data, 0)
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY 1") == [("a", 1), ("b", 200)]


def test_lost_connection_is_taken_up_again(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    sink = started(JdbcSink(postgres.url, table), job(tmp_path))
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cairn'"
    data = sink.prepare(frame([("a", 1)]), 0, attempt(0))
    assert (True,) in postgres.rows(end)
    sink.commit(data, 0)
    postgres.rows(end)
    run(sink, 1, [("b", 2)])
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY 1") == [("a", 1), ("b", 2)]


def test_server_that_is_down_fails_the_epoch_and_loses_nothing(
    postgres: PostgresServer, table: str, tmp_path: Path
) -> None:
    where = job(tmp_path)
    url = postgres.url.replace("cairn@", "cairn:topsecret@")
    sink = started(JdbcSink(url, table, retry=QUICK), where)
    data = sink.prepare(frame([("a", 1)]), 0, attempt(0))
    postgres.stop()
    try:
        with pytest.raises(StorageError, match=r"publishing epoch 0 failed 2 times.*Epoch 0 is committed") as told:
            sink.commit(data, 0)
        assert "topsecret" not in str(told.value)
        with pytest.raises(StorageError, match=r"preparing epoch 0 failed 2 times.*The epoch is refused"):
            sink.prepare(frame([("a", 1)]), 0, attempt(0, run=2))
        with pytest.raises(StorageError, match=r"reaching the database failed 2 times"):
            started(JdbcSink(url, table, retry=QUICK), where)
    finally:
        postgres.start()
    started(JdbcSink(url, table, retry=QUICK), where).commit(data, 0)
    assert postgres.rows(f"SELECT * FROM {table}") == [("a", 1)]


def test_epoch_whose_manifest_was_lost_is_not_run_again(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    run(started(JdbcSink(postgres.url, table), where), 0, [("a", 1)])
    with pytest.raises(CorruptFileError, match="has epoch 0 of this sink, and epoch 0 is run again"):
        started(JdbcSink(postgres.url, table), where).prepare(frame([("a", 1)]), 0, attempt(0, run=2))


def test_at_least_once_may_write_an_epoch_twice(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    sink = started(JdbcSink(postgres.url, table), job(tmp_path))
    sink.may_repeat = True
    for number in (1, 2):
        sink.commit(sink.prepare(frame([("a", 1)]), 0, attempt(0, run=number)), 0)
    assert postgres.rows(f"SELECT * FROM {table}") == [("a", 1)] * 2


def test_job_that_begins_anew_has_a_fence_of_its_own(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    run(started(JdbcSink(postgres.url, table), where), 7, [("a", 1)])
    shutil.rmtree(where)
    run(started(JdbcSink(postgres.url, table), job(tmp_path)), 0, [("b", 2)])
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY 1") == [("a", 1), ("b", 2)]


def test_columns_may_change_while_an_epoch_waits(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    data = started(JdbcSink(postgres.url, table, key="word"), where).prepare(frame([("a", 1)]), 0, attempt(0))
    wider = t.StructType().add("word", t.StringType()).add("n", t.LongType()).add("day", t.DateType())
    postgres.run(f"ALTER TABLE {table} ADD COLUMN day date")
    sink = started(JdbcSink(postgres.url, table, key="word"), where, wider)
    sink.commit(data, 0)
    run(sink, 1, [("b", 2, dt.date(2026, 1, 1))], wider)
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY 1") == [("a", 1, None), ("b", 2, dt.date(2026, 1, 1))]


def test_staged_file_that_is_gone_is_named(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    sink = started(JdbcSink(postgres.url, table, rehearse=False), where)
    data = sink.prepare(frame([("a", 1)]), 0, attempt(0))
    os.truncate(Path(where) / data["files"][0]["path"], 10)
    with pytest.raises(CorruptFileError, match=r"part-00000.parquet is damaged, and its epoch is committed"):
        sink.commit(data, 0)
    os.unlink(Path(where) / data["files"][0]["path"])
    with pytest.raises(CorruptFileError, match=r"part-00000.parquet is gone"):
        sink.commit(data, 0)
    assert postgres.rows(f"SELECT * FROM {table}") == []


def test_fence_that_is_gone_is_named(postgres: PostgresServer, table: str, tmp_path: Path) -> None:
    sink = started(JdbcSink(postgres.url, table), job(tmp_path))
    postgres.run(f"DELETE FROM cairn_epochs WHERE sink = '{sink._token}'")
    with pytest.raises(CorruptFileError, match="of table cairn_epochs is missing"):
        sink.prepare(frame([("a", 1)]), 0, attempt(0))


def test_wrong_tables_and_columns_are_refused_at_the_start(
    postgres: PostgresServer, table: str, tmp_path: Path
) -> None:
    where = job(tmp_path)
    postgres.run(f"CREATE TABLE {table} (word text, total bigint)")
    with pytest.raises(InvalidInputError, match=rf"table '{table}' has no column 'n' \(it has word, total\)"):
        started(JdbcSink(postgres.url, table), where)
    postgres.run(f"ALTER TABLE {table} RENAME total TO n")
    with pytest.raises(InvalidInputError, match=rf"CREATE UNIQUE INDEX ON {table} \(word\)"):
        started(JdbcSink(postgres.url, table, key="word"), where)
    with pytest.raises(InvalidInputError, match="key column 'user' is not among"):
        started(JdbcSink(postgres.url, table, key="user"), where)
    twice = t.StructType().add("a", t.LongType()).add("a", t.LongType())
    with pytest.raises(InvalidInputError, match="'a' appears twice"):
        started(JdbcSink(postgres.url, table), where, twice)
    stranger = postgres.url.replace("cairn@", "stranger@")
    postgres.run(
        "CREATE USER stranger; REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO stranger"
    )
    with pytest.raises(InvalidInputError, match=r"does not let the job use table 'other'.*permission denied"):
        started(JdbcSink(stranger, "other"), where)
    with pytest.raises(InvalidInputError, match="has type void"):
        started(JdbcSink(postgres.url, table), where, t.StructType().add("a", t.NullType()))


def test_url_and_table_name_are_checked() -> None:
    with pytest.raises(InvalidInputError, match="writes to PostgreSQL"):
        JdbcSink("jdbc:mysql://localhost/x", "t")
    with pytest.raises(InvalidInputError, match="not a valid table name"):
        JdbcSink("postgresql://localhost/x", "a.b.c")
    assert "secret" not in repr(JdbcSink("postgresql://me:secret@localhost/x", "t"))


def test_missing_client_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'cairn-streaming\[postgres\]'"):
        started(JdbcSink("postgresql://localhost/x", "t"), job(tmp_path))
