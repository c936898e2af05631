"""A savepoint is tables: DuckDB, pandas and pyarrow read it without cairn, in the documented columns and types."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.dataset
import pytest
from tests.support.savepoint_tables import make_job, make_savepoint


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    return Path(make_savepoint(folder / "job", make_job(folder / "job"), folder / "sp")) / "tables" / "op"


def test_duckdb_reads_every_table(tables: Path) -> None:
    def query(sql: str, state: str) -> list[tuple[object, ...]]:
        relation = duckdb.sql(sql.format(f"read_parquet('{tables}/{state}/*.parquet')"))
        return relation.fetchall() if relation is not None else []

    columns = {
        "total": [("user", "VARCHAR"), ("shop", "INTEGER"), ("key_group", "INTEGER"), ("value", "BIGINT")],
        "profile": [("user", "VARCHAR"), ("shop", "INTEGER"), ("key_group", "INTEGER"),
                    ("value", 'STRUCT("name" VARCHAR, tags VARCHAR[])'), ("last_access", "TIMESTAMP WITH TIME ZONE")],
        "visits": [("user", "VARCHAR"), ("shop", "INTEGER"), ("key_group", "INTEGER"), ("position", "BIGINT"),
                   ("value", "TIMESTAMP WITH TIME ZONE")],
        "by page": [("user", "VARCHAR"), ("shop", "INTEGER"), ("key_group", "INTEGER"), ("map_key", "VARCHAR"),
                    ("value", "DOUBLE")],
        "_timers_event": [("user", "VARCHAR"), ("shop", "INTEGER"), ("key_group", "INTEGER"), ("timestamp", "BIGINT")],
    }  # fmt: skip
    for state, wanted in columns.items():
        found = [row[:2] for row in query("DESCRIBE SELECT * FROM {}", state)]
        assert [(name, str(kind).replace('"name"', "name")) for name, kind in found] == [
            (name, kind.replace('"name"', "name")) for name, kind in wanted
        ]
    assert query("SELECT sum(value), count(*) FROM {}", "total") == [(sum(i * 10 for i in range(300)) + 5, 300)]
    assert query("SELECT value FROM {} WHERE \"user\" = 'u8' AND map_key = '/2'", "by page") == [(8.5,)]
    assert query("SELECT value.name, value.tags FROM {} WHERE \"user\" = 'u8'", "profile") == [("n8", ["a", None])]
    assert query("SELECT max(timestamp) FROM {}", "_timers_event") == [(29902,)]


def test_pandas_reads_every_table(tables: Path) -> None:
    total = pd.read_parquet(tables / "total").set_index("user")
    assert total.loc["u8", "value"] == 80
    visits = pd.read_parquet(tables / "visits")
    mine = visits[visits["user"] == "u8"].sort_values("position")
    assert mine["position"].tolist() == [0, 1, 2]
    assert mine["value"].iloc[2] == pd.Timestamp(8002, unit="us", tz=dt.UTC)
    assert len(pd.read_parquet(tables / "by page")) == 900


def test_pyarrow_reads_a_folder_as_one_dataset(tables: Path) -> None:
    found = pyarrow.dataset.dataset(tables / "total", format="parquet")
    assert found.count_rows() == 300
    assert found.to_table(filter=pyarrow.dataset.field("key_group") == 3).num_rows > 0


def test_no_module_of_cairn_is_needed(tables: Path) -> None:
    program = (
        "import sys, pandas\n"
        f"frame = pandas.read_parquet({str(tables / 'total')!r})\n"
        "assert not [name for name in sys.modules if name.startswith('cairn')]\n"
        "print(len(frame))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "300"
