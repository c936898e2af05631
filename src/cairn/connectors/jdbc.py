"""Rows into a table of PostgreSQL, each exactly once.

Spark's tasks stage the rows of an epoch in the job's directory. The first phase loads them into the table and rolls
back: what the database refuses is known before the epoch is committed. The second phase loads them again and, in the
same transaction, moves the *fence*: one row in the table `cairn_epochs` that names the newest epoch of this sink that
the database has. Whoever publishes locks that row first, so an epoch that is published again, by a restarted run or by
one that was overtaken, finds the fence moved and does nothing.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from cairn.connectors.client_libraries import load
from cairn.connectors.postgres_copy import column_types, csv_text
from cairn.connectors.sink_base import BaseSink
from cairn.connectors.staging import Staging, arrow_schema, sink_token
from cairn.connectors.target_retry import Retry
from cairn.errors import CorruptFileError, EpochFailedError, InvalidInputError, StorageError
from cairn.logs import get_logger

_log = get_logger("cairn.sink")
_FENCE = "cairn_epochs"
_LOADED = "cairn_loaded"
_NUMBER = "cairn_number"
T = TypeVar("T")


class JdbcSink(BaseSink):
    """Writes a stream to a table of PostgreSQL: exactly once, an epoch at a time, all of it or nothing.

    `url` is `postgresql://user:password@host:port/database` (a `jdbc:` in front is fine). Without `key` rows are
    appended. With `key`, the columns of a unique index, a row replaces the one with the same key; of several rows with
    one key in an epoch the last one stays, in the order in which the stream has them, provided that it is keyed by
    these columns. A table that does not exist is created.

    Rows are loaded through the driver. `rehearse=False` leaves out the load that is rolled back, which halves the work
    of the database; rows that it refuses then stop the job after their epoch is committed, until they fit.
    """

    kind = "jdbc"
    only_writes = True

    def __init__(
        self, url: str, table: str, key: Sequence[str] = (), retry: Retry | None = None, rehearse: bool = True
    ) -> None:
        super().__init__()
        self._url = re.sub(r"^jdbc:", "", url)
        if not re.match(r"postgres(ql)?://", self._url):
            raise InvalidInputError(
                "JdbcSink writes to PostgreSQL: its url begins with postgresql://, as in "
                "postgresql://user:password@host:5432/database"
            )
        self._name = tuple(table.split("."))
        if not 1 <= len(self._name) <= 2 or not all(self._name):
            raise InvalidInputError(
                f"JdbcSink: {table!r} is not a valid table name, such as 'totals' or 'public.totals'"
            )
        self.table = table
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self._retry = retry or Retry()
        self._rehearse = rehearse
        self._connection: Any = None

    # Before the first epoch.

    def start(self, spark: Any, job_dir: str, schema: Any) -> None:
        self._pg = load("psycopg", "postgres", f"sink '{self.uid}'")
        self._sql = load("psycopg.sql", "postgres", f"sink '{self.uid}'")
        self._token = sink_token(job_dir, self.uid)
        self._staging = Staging(job_dir, self.uid)
        types = column_types(schema, f"sink '{self.uid}'")
        missing = [name for name in self.key if name not in types]
        if missing:
            raise InvalidInputError(
                f"sink '{self.uid}': the key column '{missing[0]}' is not among the columns {', '.join(types)}"
            )
        self._columns = list(types)
        self._schema_json = schema.json()
        try:
            self._again(lambda: self._set_up(types, job_dir), "reaching the database", "Nothing was changed.")
        except self._pg.Error as error:
            raise InvalidInputError(
                f"sink '{self.uid}': PostgreSQL does not let the job use table '{self.table}': {_line(error)}. Nothing "
                "was changed.",
                table=self.table,
            ) from error

    def _set_up(self, types: Mapping[str, str], job_dir: str) -> None:
        with self._transaction() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (_FENCE,))
            fields = [self._sql.SQL("{} {}").format(self._id(n), self._sql.SQL(t)) for n, t in types.items()]
            if self.key:
                fields.append(self._sql.SQL("PRIMARY KEY ({})").format(self._list(self.key)))
            cursor.execute(self._text("CREATE TABLE IF NOT EXISTS {} ({})", self._table(), self._join(fields)))
            cursor.execute(
                self._text(
                    "CREATE TABLE IF NOT EXISTS {} (sink text PRIMARY KEY, epoch bigint NOT NULL, attempt text NOT "
                    "NULL, written_by text NOT NULL, committed_at timestamptz NOT NULL DEFAULT now())",
                    self._fence(),
                )
            )
            cursor.execute(
                self._text("INSERT INTO {} VALUES (%s, -1, '', %s) ON CONFLICT DO NOTHING", self._fence()),
                (self._token, f"{job_dir} {self.uid}"),
            )
            self._check_columns(cursor)

    def _check_columns(self, cursor: Any) -> None:
        cursor.execute(self._text("SELECT * FROM {} LIMIT 0", self._table()))
        there = [column.name for column in cursor.description]
        unknown = [name for name in self._columns if name not in there]
        if unknown:
            raise InvalidInputError(
                f"sink '{self.uid}': table '{self.table}' has no column '{unknown[0]}' (it has {', '.join(there)}); "
                "add it, or select other columns from the stream",
                table=self.table,
            )
        if not self.key:
            return
        cursor.execute(
            "SELECT array_agg(a.attname::text), i.indimmediate FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND "
            "a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) WHERE i.indrelid = %s::regclass AND i.indisunique "
            "AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid, 2",
            (self._table().as_string(cursor.connection),),
        )
        key = ", ".join(self.key)
        at_once = [immediate for found, immediate in cursor.fetchall() if set(found) == set(self.key)]
        if not all(at_once):  # PostgreSQL refuses it for ON CONFLICT, also if there is another one
            raise InvalidInputError(
                f"sink '{self.uid}': table '{self.table}' has a deferrable unique constraint on ({key}), which "
                "PostgreSQL cannot use to replace rows; make it not deferrable",
                table=self.table,
            )
        if not at_once:
            raise InvalidInputError(
                f"sink '{self.uid}': table '{self.table}' has no unique index on just ({key}), so rows cannot be "
                "replaced by it (a partial index or one on expressions is not sufficient); create one: "
                f"CREATE UNIQUE INDEX ON {self.table} ({key})",
                table=self.table,
            )

    # The two phases.

    def prepare(self, frame: Any, epoch: int, attempt: str) -> dict[str, Any]:
        staged = self._staging.write(frame, attempt)
        self.rows = self._staging.rows
        data = {"attempt": attempt, "schema": self._schema_json, "key": list(self.key), "files": staged}
        self._check_keys(staged, epoch)
        intact = "The epoch is refused; it is run again when the job restarts."
        try:
            self._again(lambda: self._try_out(data, epoch), f"preparing epoch {epoch}", intact)
        except self._pg.Error as error:
            raise EpochFailedError(
                f"sink '{self.uid}': PostgreSQL refuses rows of epoch {epoch} for table '{self.table}': "
                f"{_line(error)}. The epoch is refused and the state stays as it was; change the table or the rows."
            ) from error
        return data

    def _check_keys(self, staged: Sequence[Mapping[str, Any]], epoch: int) -> None:
        """A null equals nothing, itself included, so that the database would add such a row each time."""
        for batch in self._staging.batches(staged, columns=self.key) if self.key else ():
            for name in self.key:
                if batch.column(name).null_count:
                    raise EpochFailedError(
                        f"sink '{self.uid}': rows of epoch {epoch} have a null in the key column '{name}', so "
                        f"they cannot replace rows of table '{self.table}'. The epoch is refused and "
                        f"the state stays as it was; filter out these rows, or fill '{name}' before the sink.",
                        table=self.table,
                    )

    def _try_out(self, data: Mapping[str, Any], epoch: int) -> None:
        with self._transaction() as cursor:
            published, _ = self._lock_fence(cursor)
            if published >= epoch and not self.may_repeat:
                raise CorruptFileError(
                    f"sink '{self.uid}': the database has epoch {published} of this sink, and epoch {epoch} is run "
                    "again: its manifest is gone. Restore it from a backup; running the epoch again would write its "
                    "rows twice."
                )
            if self._rehearse and data["files"]:
                self._load(cursor, data)
            raise self._pg.Rollback

    def commit(self, data: Mapping[str, Any], epoch: int) -> None:
        waiting = (
            f"Epoch {epoch} is committed and its rows are kept in the job's directory; they are written when the job "
            "starts again."
        )
        if data["files"]:
            try:
                self._again(lambda: self._publish(data, epoch), f"publishing epoch {epoch}", waiting)
            except self._pg.Error as error:
                raise StorageError(
                    f"sink '{self.uid}': PostgreSQL refuses rows of epoch {epoch} for table '{self.table}': "
                    f"{_line(error)}. {waiting} Change the table so that it takes them."
                ) from error
        self._staging.forget_until(epoch)

    def _publish(self, data: Mapping[str, Any], epoch: int) -> None:
        with self._transaction() as cursor:
            published, attempt = self._lock_fence(cursor)
            if published >= epoch and not (self.may_repeat and attempt != data["attempt"]):
                _log.info("sink %s: epoch %d is in the database already", self.uid, epoch)
                return
            self._load(cursor, data)
            cursor.execute(
                self._text(
                    "UPDATE {} SET epoch = %s, attempt = %s, committed_at = now() WHERE sink = %s", self._fence()
                ),
                (max(epoch, published), data["attempt"], self._token),
            )

    def _lock_fence(self, cursor: Any) -> tuple[int, str]:
        cursor.execute(
            self._text("SELECT epoch, attempt FROM {} WHERE sink = %s FOR UPDATE", self._fence()), (self._token,)
        )
        found = cursor.fetchone()
        if found is None:
            raise CorruptFileError(
                f"sink '{self.uid}': the row '{self._token}' of table {_FENCE} is missing, so it is unknown which "
                f"epochs the database contains. Check '{self.table}', then restore the row: INSERT INTO {_FENCE} "
                f"VALUES ('{self._token}', <newest epoch in the table>, '', '{self.uid}')"
            )
        return int(found[0]), str(found[1])

    def _load(self, cursor: Any, data: Mapping[str, Any]) -> None:
        """All rows of the epoch into the table, in the running transaction."""
        schema, key = arrow_schema(data["schema"]), data["key"]
        columns = schema.names
        if not key:
            self._copy(cursor, self._table(), data, schema)
            return
        shape = zlib.crc32("\0".join(columns).encode())  # an epoch of an earlier run may have had other columns
        loaded, number = self._id(f"{_LOADED}_{shape:08x}"), self._id(_NUMBER)
        cursor.execute(
            self._text(
                "CREATE TEMP TABLE IF NOT EXISTS {} ON COMMIT DELETE ROWS AS SELECT {} FROM {} LIMIT 0",
                loaded, self._list(columns), self._table(),
            )
        )  # fmt: skip
        cursor.execute(self._text("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} bigserial", loaded, number))
        self._copy(cursor, loaded, data, schema)
        rest = [name for name in columns if name not in key]
        change = self._join([self._sql.SQL("{0} = EXCLUDED.{0}").format(self._id(name)) for name in rest])
        cursor.execute(
            self._text(
                "INSERT INTO {} ({}) SELECT DISTINCT ON ({}) {} FROM {} ORDER BY {}, {} DESC ON CONFLICT ({}) DO {}",
                self._table(), self._list(columns), self._list(key), self._list(columns), loaded,
                self._list(key), number, self._list(key),
                self._text("UPDATE SET {}", change) if rest else self._sql.SQL("NOTHING"),
            )
        )  # fmt: skip

    def _copy(self, cursor: Any, target: Any, data: Mapping[str, Any], schema: pa.Schema) -> None:
        statement = self._text("COPY {} ({}) FROM STDIN (FORMAT csv)", target, self._list(schema.names))
        with cursor.copy(statement) as copy:
            for batch in self._staging.batches(data["files"], schema):
                text = io.BytesIO()
                csv_text(batch, text)
                copy.write(text.getbuffer())

    # The connection.

    def _again(self, action: Callable[[], T], what: str, after: str) -> T:
        def passes(error: Exception) -> bool:
            lost = isinstance(error, (self._pg.OperationalError, self._pg.InterfaceError))
            if lost:
                self._disconnect()
            return lost

        where = f"sink '{self.uid}', table '{self.table}' of {self._where()}: {what}"
        return self._retry.call(action, passes, where, after)

    def _transaction(self) -> Any:
        """A cursor in a transaction that is committed at the end of the block; `Rollback` ends it without a trace."""
        if self._connection is None or self._connection.closed:
            told = {"connect_timeout": 10, "application_name": "cairn", **self._pg.conninfo.conninfo_to_dict(self._url)}
            self._connection = self._pg.connect(**told, autocommit=True)
        return _Transaction(self._connection)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._disconnect()

    def _where(self) -> str:
        told = self._pg.conninfo.conninfo_to_dict(self._url)
        return f"{told.get('host', 'localhost')}:{told.get('port', 5432)}/{told.get('dbname', '')}"

    # Texts.

    def _text(self, statement: str, *parts: Any) -> Any:
        return self._sql.SQL(statement).format(*parts)

    def _id(self, *names: str) -> Any:
        return self._sql.Identifier(*names)

    def _join(self, parts: Sequence[Any]) -> Any:
        return self._sql.SQL(", ").join(parts)

    def _list(self, names: Sequence[str]) -> Any:
        return self._join([self._id(name) for name in names])

    def _table(self) -> Any:
        return self._id(*self._name)

    def _fence(self) -> Any:
        return self._id(*self._name[:-1], _FENCE)

    def __repr__(self) -> str:
        return f"JdbcSink({self.table!r}, key={list(self.key)})"


class _Transaction:
    """A transaction of a connection as a cursor."""

    def __init__(self, connection: Any) -> None:
        self._transaction = connection.transaction()
        self._cursor = connection.cursor()

    def __enter__(self) -> Any:
        self._transaction.__enter__()
        return self._cursor

    def __exit__(self, *reason: Any) -> Any:
        self._cursor.close()
        return self._transaction.__exit__(*reason)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
