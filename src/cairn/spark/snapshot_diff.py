"""What differs between two snapshots: one full outer join of the two tables of each state."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from cairn.errors import IncompatibleStateError, NotFoundError
from cairn.model.ddl import key_ddl
from cairn.snapshots.snapshot import Snapshot, SnapshotOperator, SnapshotState, reader_of
from cairn.spark.snapshot_frames import frame_of

_SUMMARY = "uid string, state string, added bigint, removed bigint, changed bigint"
_Found = tuple[SnapshotOperator, SnapshotState] | None


def diff_summary(spark: SparkSession, before: Snapshot, after: Snapshot) -> DataFrame:
    """For every state that either has, how many rows of its table were added, removed and changed."""
    parts = []
    for uid in dict.fromkeys([*before.operators, *after.operators]):
        names = [n for snapshot in (before, after) for n in (_states(snapshot, uid))]
        parts += [_counted(spark, before, after, uid, name) for name in dict.fromkeys(names)]
    if not parts:
        return spark.createDataFrame([], _SUMMARY)
    return reduce(DataFrame.unionByName, parts)


def _states(snapshot: Snapshot, uid: str) -> list[str]:
    operator = snapshot.operators.get(uid)
    return [state.name for state in operator.states.values()] if operator is not None else []


def _find(snapshot: Snapshot, uid: str, name: str) -> _Found:
    operator = snapshot.operators.get(uid)
    state = next((s for s in operator.states.values() if s.name == name), None) if operator is not None else None
    return (operator, state) if operator is not None and state is not None else None


def _counted(spark: SparkSession, before: Snapshot, after: Snapshot, uid: str, name: str) -> DataFrame:
    old, new = _find(before, uid, name), _find(after, uid, name)
    if old is not None and new is not None and _alike(old, new):
        joined = _joined(spark, before, after, old, new)
        counts = joined.agg(
            *[F.count_if(F.col("change") == change).alias(change) for change in ("added", "removed", "changed")]
        )
    else:
        sides = [
            frame_of(spark, snapshot, *found).agg(F.count(F.lit(1)).alias("n"))
            if found is not None
            else spark.range(1).select(F.lit(0).cast("bigint").alias("n"))
            for snapshot, found in ((after, new), (before, old))
        ]
        counts = sides[0].select(F.col("n").alias("added")).crossJoin(sides[1].select(F.col("n").alias("removed")))
        counts = counts.withColumn("changed", F.lit(0).cast("bigint"))
    return counts.select(F.lit(uid).alias("uid"), F.lit(name).alias("state"), "added", "removed", "changed")


def diff_rows(spark: SparkSession, before: Snapshot, after: Snapshot, uid: str, state: str) -> DataFrame:
    """Every difference of one state."""
    old, new = _find(before, uid, state), _find(after, uid, state)
    if old is None and new is None:
        raise NotFoundError(f"neither {before.path} nor {after.path} has a state '{state}' of an operator '{uid}'")
    if old is not None and new is not None:
        if not _alike(old, new):
            raise IncompatibleStateError(
                f"operator '{uid}', state '{state}' is a {old[1].spec.signature} by ({old[0].key_type}) in one and a "
                f"{new[1].spec.signature} by ({new[0].key_type}) in the other; their rows cannot be compared. "
                f"Read both with {reader_of(old[1])}, cast, and join them."
            )
        return _joined(spark, before, after, old, new).filter(F.col("change").isNotNull())
    snapshot, found, change = (before, old, "removed") if new is None else (after, new, "added")
    if found is None:
        raise NotFoundError(f"there is no state '{state}' of an operator '{uid}'")
    rows = frame_of(spark, snapshot, *found)
    state_of = found[1]
    value = F.col(f"`{state_of.columns.value}`") if state_of.columns.value else F.lit(None).cast("string")
    nothing = F.lit(None).cast("string")
    return rows.select(
        *[F.col(f"`{name}`") for name in state_of.identity],
        F.lit(change).alias("change"),
        (value if change == "removed" else nothing).alias("before"),
        (value if change == "added" else nothing).alias("after"),
    )


def _alike(old: tuple[SnapshotOperator, SnapshotState], new: tuple[SnapshotOperator, SnapshotState]) -> bool:
    def shape(found: tuple[SnapshotOperator, SnapshotState]) -> tuple[str, str, str, str]:
        operator, state = found
        kind = state.spec.kind if state.spec.has_entries else "value"
        return (
            key_ddl((name, dtype.ddl) for name, dtype in operator.keys),
            kind,
            state.spec.key_type,
            state.spec.value_type,
        )

    return shape(old) == shape(new)


def _joined(
    spark: SparkSession,
    before: Snapshot,
    after: Snapshot,
    old: tuple[SnapshotOperator, SnapshotState],
    new: tuple[SnapshotOperator, SnapshotState],
) -> DataFrame:
    """The rows of both; `change` is null where they are equal."""
    state = old[1]
    names = state.identity
    value = state.columns.value
    sides = []
    for snapshot, found, side in ((before, old, "b"), (after, new, "a")):
        frame = frame_of(spark, snapshot, *found)
        picked = [F.col(f"`{name}`").alias(f"{side}{at}") for at, name in enumerate(names)]
        picked.append((F.col(f"`{value}`") if value else F.lit(None).cast("string")).alias(f"{side}_value"))
        sides.append(frame.select(*picked, F.lit(True).alias(f"{side}_here")))
    left, right = sides
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
