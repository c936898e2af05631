"""What savepoints cost to those who read them: looking up one key, and comparing two of them."""

from __future__ import annotations

import random
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.measure import Bench, Series, Variant
from cairn import Savepoint
from cairn.storage.filesystem import as_url

_LOOKUPS = 5


def _rows(bench: Bench, changed: int) -> DataFrame:
    """As many keys as are stored; of every hundred, `changed` have another value and as many are other keys."""
    stored = bench.plan.stored
    number = F.when(F.col("id") % 100 < changed, F.col("id") + stored).otherwise(F.col("id"))
    value = F.when(F.col("id") % 100 >= 100 - changed, F.col("id") + 1).otherwise(F.col("id"))
    return bench.spark.range(stored).select(F.concat(F.lit("user-"), number).alias("user"), value.alias("value"))


def fill(bench: Bench) -> None:
    """Two savepoints that differ in a few keys of every hundred."""
    for name, changed in (("before", 0), ("after", 2)):
        made = Savepoint.create().with_keyed_state("totals", "sum", _rows(bench, changed), key_by="user")
        made.write(str(bench.work / f"savepoint-{name}"))


def _open(bench: Bench, name: str) -> Savepoint:
    return Savepoint.load(bench.spark, str(bench.work / f"savepoint-{name}"))


def lookup(bench: Bench) -> Series:
    """Lookups per second, one key each, after the savepoint was opened."""
    savepoint = _open(bench, "before")
    series = Series(1)
    for number in random.Random(bench.plan.stored).sample(range(bench.plan.stored), _LOOKUPS):
        since = time.perf_counter()
        found = savepoint.lookup("totals", "sum", f"user-{number}")
        series.values.append(1 / (time.perf_counter() - since))
        if found != number:
            raise RuntimeError(f"user-{number} has {found}")
    return series


def diff(bench: Bench) -> Series:
    """Milliseconds of a comparison of all keys, counted."""
    before, after = _open(bench, "before"), _open(bench, "after")
    since = time.perf_counter()
    (row,) = before.diff(after).collect()
    spent = (time.perf_counter() - since) * 1000
    each = bench.plan.stored // 100 * 2
    if (row.added, row.removed, row.changed) != (each, each, each):
        raise RuntimeError(f"the comparison found {row}")
    return Series(bench.plan.stored, [spent])


def join(bench: Bench) -> Series:
    """Milliseconds of the full outer join of the same files by Spark alone, counted."""
    folders = [as_url(str(bench.work / f"savepoint-{name}" / "tables/totals/sum")) for name in ("before", "after")]
    before, after = (bench.spark.read.parquet(folder) for folder in folders)
    since = time.perf_counter()
    before.join(after, before["user"] == after["user"], "full_outer").agg(
        F.count_if(before["user"].isNull()),
        F.count_if(after["user"].isNull()),
        F.count_if(before["value"] != after["value"]),
    ).collect()
    return Series(bench.plan.stored, [(time.perf_counter() - since) * 1000])


VARIANTS: dict[str, Variant] = {"savepoint-join": join, "savepoint-diff": diff, "savepoint-lookup": lookup}
