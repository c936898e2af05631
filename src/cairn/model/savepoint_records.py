"""What a savepoint consists of: plain frozen records (docs/design/0003-savepoints.md)."""

from __future__ import annotations

import msgspec

from cairn.model.manifest import StateSpec


class TableFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file of a state's table; `path` is relative to the savepoint, `checksum` the xxh3-64 of all bytes."""

    path: str
    size: int
    checksum: str
    rows: int
    first_group: int
    last_group: int


class Columns(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of a table by role; empty for a role that the table does not have."""

    keys: list[str]
    key_group: str = "key_group"
    map_key: str = ""
    position: str = ""
    timestamp: str = ""
    value: str = ""
    last_access: str = ""


class StateTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state of an operator as a table: what it is, and the files that hold it."""

    spec: StateSpec
    columns: Columns
    files: list[TableFile]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class SavepointOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator: its key (DDL of the key columns) and the tables of its states."""

    uid: str
    name: str
    parallelism: int
    key_type: str
    tables: list[StateTable]

    def table(self, state: str) -> StateTable | None:
        return next((table for table in self.tables if table.spec.name == state), None)


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a source's own log; `path` is relative to the savepoint."""

    path: str
    size: int
    checksum: str


class SavepointMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """`<savepoint>/_metadata`."""

    id: int
    """The number that the job's coordinator gave it; 0 for one that was made or edited offline."""
    job_id: str
    name: str
    created_ms: int
    max_parallelism: int
    operators: list[SavepointOperator]
    epoch: int = -1
    """The epoch that it stands for, -1 for one that was made from batch data."""
    offsets: str = ""
    """Entry of Spark's offset log: the source positions, watermark and time; empty for one made from batch data."""
    watermark: int = -(1 << 63)
    time_ms: int = 0
    sources: list[SourceFile] = []
    source_names: list[str] = []
    """What each source reads, in the order of the positions; empty if that is not known."""
    incarnation: str = ""
    """The job's directory that the positions come from, told from any other that a job of the same id had. Anybody can
    copy it, so it is no proof of who made the savepoint."""
    drained: bool = False
    version: str = ""
    """The cairn that wrote it."""
    requires: list[str] = []

    def operator(self, uid: str) -> SavepointOperator | None:
        return next((op for op in self.operators if op.uid == uid), None)
