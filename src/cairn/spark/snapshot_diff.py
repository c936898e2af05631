"""Compares two snapshots with Spark: a full outer join of the two tables of each state.

The rule is that of `snapshots/difference.py`, in the words of Spark: `<=>` takes NaN, -0.0 and null as the rule does.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from cairn.errors import IncompatibleStateError, NotFoundError
from cairn.model.ddl import quoted
from cairn.snapshots.difference import Side, StatePair, state_pairs
from cairn.snapshots.snapshot import Snapshot
from cairn.spark.snapshot_frames import frame_of

_SUMMARY = "uid string, state string, added bigint, removed bigint, changed bigint"


def diff_summary(spark: SparkSession, before: Snapshot, after: Snapshot) -> DataFrame:
    """How many rows of each state were added, removed and changed."""
    parts = [_counted(spark, pair) for pair in state_pairs(before, after)]
    return reduce(DataFrame.unionByName, parts) if parts else spark.createDataFrame([], _SUMMARY)


def _counted(spark: SparkSession, pair: StatePair) -> DataFrame:
    if pair.before is not None and pair.after is not None and pair.alike:
        joined = _joined(spark, pair.before, pair.after)
        counts = joined.agg(
            *[F.count_if(F.col("change") == change).alias(change) for change in ("added", "removed", "changed")]
        )
    else:
        added, removed = (
            _frame(spark, side).agg(F.count(F.lit(1)).alias("n"))
            if side is not None
            else spark.range(1).select(F.lit(0).cast("bigint").alias("n"))
            for side in (pair.after, pair.before)
        )
        counts = added.select(F.col("n").alias("added")).crossJoin(removed.select(F.col("n").alias("removed")))
        counts = counts.withColumn("changed", F.lit(0).cast("bigint"))
    return counts.select(F.lit(pair.uid).alias("uid"), F.lit(pair.name).alias("state"), "added", "removed", "changed")


def diff_rows(spark: SparkSession, before: Snapshot, after: Snapshot, uid: str, state: str) -> DataFrame:
    """Every difference of one state."""
    pair = next((pair for pair in state_pairs(before, after) if (pair.uid, pair.name) == (uid, state)), None)
    if pair is None:
        raise NotFoundError(f"neither {before.path} nor {after.path} has a state '{state}' of an operator '{uid}'")
    if pair.before is None or pair.after is None:
        return _one_sided(spark, pair)
    if not pair.alike:
        old, new = pair.before, pair.after
        raise IncompatibleStateError(
            f"operator '{uid}', state '{state}' is a {old.state.spec.signature} by ({old.operator.key_type}) in one "
            f"and a {new.state.spec.signature} by ({new.operator.key_type}) in the other; their rows cannot be "
            f"compared. Read both with {old.state.reader}, cast, and join them."
        )
    return _joined(spark, pair.before, pair.after).filter(F.col("change").isNotNull())


def _one_sided(spark: SparkSession, pair: StatePair) -> DataFrame:
    """All rows of a state that only one of the snapshots has."""
    side = pair.before or pair.after
    if side is None:
        raise NotFoundError(f"there is no state '{pair.name}' of an operator '{pair.uid}'")
    removed = pair.after is None
    columns = side.state.columns
    nothing = F.lit(None).cast("string")
    value = _column(columns.value) if columns.value else nothing
    return _frame(spark, side).select(
        *[_column(name) for name in side.state.identity],
        F.lit("removed" if removed else "added").alias("change"),
        (value if removed else nothing).alias("before"),
        (nothing if removed else value).alias("after"),
    )


def _frame(spark: SparkSession, side: Side) -> DataFrame:
    return frame_of(spark, side.snapshot, side.operator, side.state)


def _column(name: str) -> Column:
    return F.col(quoted(name))


def _joined(spark: SparkSession, before: Side, after: Side) -> DataFrame:
    """The rows of both; `change` is null where they are equal."""
    names = before.state.identity
    left, right = (_renamed(spark, side, names, prefix) for side, prefix in ((before, "b"), (after, "a")))
    types = dict(zip(left.columns, [field.dataType for field in left.schema.fields], strict=True))
    condition = reduce(
        Column.__and__,
        [
            _comparable(F.col(f"b{at}"), types[f"b{at}"]) == _comparable(F.col(f"a{at}"), types[f"b{at}"])
            for at in range(len(names))
        ],
    )
    kind = types["b_value"]
    same = _comparable(F.col("b_value"), kind).eqNullSafe(_comparable(F.col("a_value"), kind))
    change = (
        F.when(F.col("b_here").isNull(), "added")
        .when(F.col("a_here").isNull(), "removed")
        .when(~same, "changed")
        .alias("change")
    )
    return left.join(right, condition, "full_outer").select(
        *[F.coalesce(f"b{at}", f"a{at}").alias(name) for at, name in enumerate(names)],
        change,
        F.col("b_value").alias("before"),
        F.col("a_value").alias("after"),
    )


def _renamed(spark: SparkSession, side: Side, names: list[str], prefix: str) -> DataFrame:
    """The identity and the value of each row, in columns that the other side does not have."""
    value = side.state.columns.value
    picked = [_column(name).alias(f"{prefix}{at}") for at, name in enumerate(names)]
    picked.append((_column(value) if value else F.lit(None).cast("string")).alias(f"{prefix}_value"))
    return _frame(spark, side).select(*picked, F.lit(True).alias(f"{prefix}_here"))


def _comparable(column: Column, dtype: DataType) -> Column:
    """A column that Spark compares. It compares no maps: wherever they lie, their ordered entries are taken instead."""
    if not _has_map(dtype):
        return column
    if isinstance(dtype, ArrayType):
        inner = dtype.elementType
        return F.transform(column, lambda item: _comparable(item, inner))
    if isinstance(dtype, MapType):
        keys, values = dtype.keyType, dtype.valueType
        entries = F.transform(
            F.map_entries(column),
            lambda entry: F.struct(
                _comparable(entry["key"], keys).alias("key"), _comparable(entry["value"], values).alias("value")
            ),
        )
        return F.array_sort(entries)
    fields = dtype.fields if isinstance(dtype, StructType) else []
    parts = [_comparable(column.getField(f.name), f.dataType).alias(f"c{at}") for at, f in enumerate(fields)]
    return F.when(column.isNotNull(), F.struct(*parts))


def _has_map(dtype: DataType) -> bool:
    if isinstance(dtype, MapType):
        return True
    if isinstance(dtype, ArrayType):
        return _has_map(dtype.elementType)
    return isinstance(dtype, StructType) and any(_has_map(field.dataType) for field in dtype.fields)
