"""`Savepoint`: reads, compares, edits and makes the state of a job as tables, without the job.

Everything that takes long runs on Spark. Editing is lazy: each call returns a new `Savepoint`, and `write` does the
work. What was loaded is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cairn.errors import InvalidInputError
from cairn.model.ddl import parse_columns, quoted
from cairn.model.descriptors import StateDescriptor
from cairn.model.keygroups import MIN_DEFAULT_MAX_PARALLELISM, validate
from cairn.model.manifest import StateSpec
from cairn.model.savepoint_records import SavepointMetadata
from cairn.runtime.state_registry import spec_of
from cairn.snapshots.key_text import parse_key
from cairn.snapshots.lookup import as_python, find_rows, not_expired, refuse_key
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import (
    TIMERS,
    Snapshot,
    SnapshotOperator,
    SnapshotState,
    pickles_allowed,
    reading,
)
from cairn.spark.edited_savepoint import write_edited
from cairn.spark.snapshot_diff import diff_rows, diff_summary
from cairn.spark.snapshot_frames import FrameRows, fit, frame_of, spark_schema
from cairn.state.codec import KeyCodec
from cairn.state.typed_tables import table_schema
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem
from cairn.view.notebook_html import escape, table

_NEW = "(new)"
"""Stands for the path of a savepoint that is not written yet."""


@dataclass(frozen=True)
class OperatorInfo:
    """An operator of a savepoint."""

    uid: str
    name: str
    parallelism: int
    key_type: str
    """DDL of its key columns."""
    states: tuple[str, ...]


@dataclass(frozen=True)
class StateInfo:
    """A state of an operator. `rows` and `size` are None where they are not known without reading: in a checkpoint."""

    uid: str
    name: str
    kind: str
    value_type: str
    key_type: str
    """Of a map: the type of its keys."""
    ttl_ms: int
    pickled: bool
    columns: tuple[str, ...]
    rows: int | None
    size: int | None


class Savepoint:
    """The state of a job at one moment, from a savepoint or a `chk-<n>`; see `load` and `create`."""

    def __init__(self, spark: SparkSession | None, snapshot: Snapshot, allowed: Iterable[tuple[str, str]] = ()) -> None:
        self._spark = spark
        self._snapshot = snapshot
        self._allowed = frozenset(allowed)
        self._holds: list[ExitStack] = []

    def __enter__(self) -> Savepoint:
        """Protect a checkpoint from deletion by its job to the end of the block, at most an hour."""
        hold = ExitStack()
        hold.enter_context(reading(self._snapshot))
        self._holds.append(hold)
        return self

    def __exit__(self, *raised: object) -> None:
        self._holds.pop().close()

    @staticmethod
    def load(spark: SparkSession, path: str, allow_pickled: Iterable[str] = ()) -> Savepoint:
        """Open a savepoint, a checkpoint (`chk-<n>`), or the newest checkpoint of a job, by its directory or name.

        Only metadata is read here. A running job deletes checkpoints that it no longer retains; `lookup` and
        `write` hold the checkpoint while they read it, and `with Savepoint.load(...) as savepoint:` does for everything
        that runs within the block, such as actions on DataFrames. A savepoint is deleted by nobody else.

        Pickled values are bytes; `lookup` opens those of the states that `allow_pickled` names as
        `"uid.state"` (or `"uid/state"`, where names have dots). Opening a pickle runs code that is in it: allow it
        only for savepoints whose origin you trust.
        """
        allowed = [allow_pickled] if isinstance(allow_pickled, str) else list(allow_pickled)
        snapshot = open_snapshot(path)
        return Savepoint(spark, snapshot, pickles_allowed(snapshot, allowed))

    @staticmethod
    def create(max_parallelism: int = MIN_DEFAULT_MAX_PARALLELISM, name: str = "bootstrap") -> Savepoint:
        """A savepoint without operators, to be filled from batch data with `with_keyed_state`.

        A job that starts from it gets this `max_parallelism` for good, and reads its sources from their beginning.
        """
        validate(1, max_parallelism)
        metadata = SavepointMetadata(0, layout.slug(name), name, 0, max_parallelism, [])
        return Savepoint(None, Snapshot(_NEW, LocalFileSystem(_NEW), metadata, {}))

    def __repr__(self) -> str:
        return f"Savepoint({self._snapshot.path!r}, operators={list(self._snapshot.operators)})"

    def _repr_html_(self) -> str:
        metadata = self._snapshot.metadata
        head = f"{self._snapshot.kind} of {metadata.name}, epoch {metadata.epoch}: {self.path}"
        rows = [
            (uid, state.name, state.spec.kind, state.spec.value_type, "" if state.rows is None else f"{state.rows:,}")
            for uid, operator in self._snapshot.operators.items()
            for state in operator.states.values()
        ]
        return f"<div><div>{escape(head)}</div>{table(('operator', 'state', 'kind', 'type', 'rows'), rows)}</div>"

    # Looking.

    @property
    def path(self) -> str:
        return self._snapshot.path

    @property
    def metadata(self) -> SavepointMetadata:
        """Job, epoch, positions of the sources; without the operators, which `operators` lists."""
        return msgspec.structs.replace(self._snapshot.metadata, operators=[])

    @property
    def max_parallelism(self) -> int:
        return self._snapshot.metadata.max_parallelism

    def operators(self) -> list[OperatorInfo]:
        return [
            OperatorInfo(
                op.uid, op.name, op.parallelism, op.key_type, tuple(state.name for state in op.states.values())
            )
            for op in self._snapshot.operators.values()
        ]

    def states(self, uid: str) -> list[StateInfo]:
        """The states of an operator; its timers are `_timers_event` and `_timers_processing`."""
        return [
            StateInfo(
                uid, state.name, state.spec.kind, state.spec.value_type, state.spec.key_type, state.spec.ttl_ms,
                state.pickled, tuple(state.schema.names), state.rows, state.size,
            )
            for state in self._snapshot.operator(uid).states.values()
        ]  # fmt: skip

    def read_keyed_state(self, uid: str, state: str) -> DataFrame:
        """The rows of a state: key columns, `key_group`, and `value`, `map_key`, `position` or `timestamp` as the
        kind has them. The files are compared with their checksums first."""
        return self._read(uid, state, "read_keyed_state")

    def read_operator_state(self, uid: str, state: str) -> DataFrame:
        """The elements of an operator list, also of a union list: `key_group` (the first one of the subtask that the
        element belongs to), `position` in the list of that subtask, `value`."""
        return self._read(uid, state, "read_operator_state")

    def read_broadcast_state(self, uid: str, state: str) -> DataFrame:
        """The entries of a broadcast state, each once: `key_group` (always 0), `map_key`, `value`."""
        return self._read(uid, state, "read_broadcast_state")

    def _read(self, uid: str, state: str, reader: str) -> DataFrame:
        operator = self._snapshot.operator(uid)
        stored = operator.state(state)
        if stored.reader != reader:
            raise InvalidInputError(
                f"operator '{uid}', state '{stored.name}' is a {stored.spec.signature}: read it with {stored.reader}",
                state=stored.name,
            )
        return frame_of(self._session(), self._snapshot, operator, stored)

    def read_timers(self, uid: str, domain: str = "event") -> DataFrame:
        """The timers of an operator: key columns, `key_group`, `timestamp` in milliseconds."""
        if f"_timers_{domain}" not in TIMERS:
            raise InvalidInputError(f"timers are of the domain 'event' or 'processing', not {domain!r}")
        operator = self._snapshot.operator(uid)
        if TIMERS[f"_timers_{domain}"] in operator.states:
            return self.read_keyed_state(uid, f"_timers_{domain}")
        _, schema = table_schema(operator.keys, StateSpec(TIMERS[f"_timers_{domain}"], "timer", "binary"))
        return self._session().createDataFrame([], spark_schema(schema))

    def lookup(self, uid: str, state: str, key: Any) -> Any:
        """The state of one key as user code sees it: a value or None, a list, a dict, or the times of timers.

        `key` is a value, a tuple for several key columns, or a dict by column. Keys are also read from text, as
        `cairn state get` does. What had expired at the time of the snapshot is left out. No Spark job runs, except for
        a state that was edited and is not written yet.
        """
        operator = self._snapshot.operator(uid)
        stored = operator.state(state)
        allowed = (uid, stored.name) in self._allowed
        if isinstance(stored.origin, FrameRows):
            return self._lookup_in_frame(operator, stored, key, allowed)
        with reading(self._snapshot):
            rows = find_rows(self._snapshot, operator, stored, key)
        return as_python(stored, rows, allowed)

    def _lookup_in_frame(self, operator: SnapshotOperator, state: SnapshotState, key: Any, allowed: bool) -> Any:
        refuse_key(operator, state)
        frame = frame_of(self._session(), self._snapshot, operator, state)
        for (name, dtype), value in zip(operator.keys, parse_key(operator, key), strict=True):
            frame = frame.filter(_column(name) == F.lit(dtype.from_storage(dtype.to_storage(value))).cast(dtype.ddl))
        rows = not_expired(self._snapshot, state, frame.toArrow().cast(state.schema))
        return as_python(state, rows, allowed)

    def diff(self, other: Savepoint, uid: str | None = None, state: str | None = None) -> DataFrame:
        """Compare this savepoint with a later one.

        Without names, a row for every state that either has: `uid, state, added, removed, changed`, counted in rows of
        its table. With both names, a row for every difference: the columns that tell the row, `change` (added, removed,
        changed), `before` and `after`. A state whose types differ is counted as removed and added.
        """
        mine, theirs = self._snapshot, other._snapshot
        spark = self._spark or other._session()
        if uid is None and state is None:
            return diff_summary(spark, mine, theirs)
        if uid is None or state is None:
            raise InvalidInputError("name both uid and state, or neither of them")
        return diff_rows(spark, mine, theirs, uid, state)

    def _session(self) -> SparkSession:
        spark = self._spark or SparkSession.getActiveSession()
        if spark is None:
            raise InvalidInputError("there is no Spark session; make one, or use Savepoint.load(spark, path)")
        return spark

    # Editing.

    def with_keyed_state(
        self,
        uid: str,
        state: str | StateDescriptor,
        df: DataFrame,
        *,
        key_by: str | Sequence[str] | None = None,
        name: str | None = None,
    ) -> Savepoint:
        """This savepoint with the rows of a DataFrame as one state, instead of what was there.

        A state that is there keeps its declaration; `df` has the columns of its table (`key_group` is not read, and
        `last_access` may be missing). A new state is declared by a descriptor, or by its name alone: then its kind and
        types follow from the columns (`map_key`: a map, `position`: a list, otherwise values). The first state of a
        new operator needs `key_by`, the names of its key columns.

        Columns are checked now. Null keys, two rows for one key and numbers that do not fit are refused by `write`,
        with their counts.
        """
        if not isinstance(df, DataFrame):
            raise InvalidInputError(f"with_keyed_state takes a DataFrame, not {type(df).__name__}")
        layout.checked(uid, "uid")
        operator = self._snapshot.operators.get(uid)
        if operator is None:
            operator = SnapshotOperator(uid, name or uid, 1, _key_type(uid, df, key_by), {})
        elif key_by is not None and [key for key, _ in operator.keys] != _names(key_by):
            raise InvalidInputError(
                f"operator '{uid}' has the key ({operator.key_type}); it cannot be keyed by {key_by}"
            )
        label = state.name if isinstance(state, StateDescriptor) else TIMERS.get(state, state)
        known = operator.states.get(label)
        if not operator.key_type or (known is not None and known.spec.of_subtask):
            what = "it has no key" if known is None else f"state '{label}' is a {known.spec.signature}"
            raise InvalidInputError(
                f"operator '{uid}': {what}; with_keyed_state writes state of keys. Only the job changes other state."
            )
        if isinstance(state, StateDescriptor):
            spec = spec_of(state)
            if known is not None and known.spec.signature != spec.signature:
                raise InvalidInputError(
                    f"operator '{uid}', state '{label}' is a {known.spec.signature}; it cannot become a "
                    f"{spec.signature} here. Remove it first with remove_state."
                )
        else:
            spec = known.spec if known is not None else _inferred(label, operator, df)
        layout.table_folder(uid, spec.name)
        made = SnapshotState(spec, operator.key_type, FrameRows(df))
        fit(df, operator, made, self.max_parallelism)
        states = {**operator.states, spec.name: made}
        return self._with({**self._snapshot.operators, uid: replace(operator, states=states)}, df.sparkSession)

    def remove_operator(self, uid: str) -> Savepoint:
        self._snapshot.operator(uid)
        return self._with({name: op for name, op in self._snapshot.operators.items() if name != uid})

    def remove_state(self, uid: str, state: str) -> Savepoint:
        operator = self._snapshot.operator(uid)
        gone = operator.state(state).spec.name
        states = {name: kept for name, kept in operator.states.items() if name != gone}
        return self._with({**self._snapshot.operators, uid: replace(operator, states=states)})

    def rename_operator(self, uid: str, new_uid: str) -> Savepoint:
        """The operator under another uid, in its place."""
        layout.checked(new_uid, "uid")
        operator = self._snapshot.operator(uid)
        if new_uid != uid and new_uid in self._snapshot.operators:
            raise InvalidInputError(f"there is an operator '{new_uid}' already; remove or rename it first")
        renamed = replace(operator, uid=new_uid)
        operators = (renamed if known is operator else known for known in self._snapshot.operators.values())
        return self._with({known.uid: known for known in operators})

    def _with(self, operators: Mapping[str, SnapshotOperator], spark: SparkSession | None = None) -> Savepoint:
        return Savepoint(self._spark or spark, replace(self._snapshot, operators=operators), self._allowed)

    # Writing.

    def write(self, path: str) -> Savepoint:
        """Write a savepoint with all edits to a folder that does not exist yet, and load it.

        Tables that were not edited are copied byte by byte. If anything is refused or fails, nothing is left behind.
        """
        made = write_edited(self._snapshot, path, self._session)
        return Savepoint(self._spark, open_snapshot(made))


def _column(name: str) -> Column:
    return F.col(quoted(name))


def _names(key_by: str | Sequence[str]) -> list[str]:
    return [key_by] if isinstance(key_by, str) else list(key_by)


def _key_type(uid: str, df: DataFrame, key_by: str | Sequence[str] | None) -> str:
    if key_by is None:
        raise InvalidInputError(f"operator '{uid}' is new: say which columns are its key, as in key_by='user'")
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    names = _names(key_by)
    missing = [name for name in names if name not in types]
    if missing or not names:
        raise InvalidInputError(
            f"operator '{uid}': the rows have no key column {missing}; they have {', '.join(types)}"
        )
    ddl = ", ".join(f"{quoted(name)} {types[name]}" for name in names)
    return KeyCodec(parse_columns(ddl)).ddl


def _inferred(state: str, operator: SnapshotOperator, df: DataFrame) -> StateSpec:
    """The declaration of a new state from the columns of its rows."""
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    if state in TIMERS.values():
        return StateSpec(state, "timer", "binary")
    if "value" not in types:
        raise InvalidInputError(
            f"operator '{operator.uid}', state '{state}': the rows have no column 'value'; they have {', '.join(types)}"
        )
    kind = "map" if "map_key" in types else "list" if "position" in types else "value"
    return StateSpec(state, kind, types["value"], types["map_key"] if kind == "map" else "")
