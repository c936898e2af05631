"""Rows into a Delta table, each exactly once.

Spark's tasks stage the rows of an epoch in the job's directory. The second phase appends them in one commit of the
table, which also records the epoch as the version of an application transaction. Delta checks that version when two
writers meet, and a reader of the log finds it there, so an epoch that is published again is seen and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from cairn.connectors.client_libraries import load
from cairn.connectors.sink_base import BaseSink
from cairn.connectors.staging import Staging, arrow_schema, sink_token
from cairn.connectors.target_retry import Retry
from cairn.errors import CorruptFileError, InvalidInputError
from cairn.logs import get_logger

_log = get_logger("cairn.sink")
T = TypeVar("T")


class DeltaSink(BaseSink):
    """Appends a stream to a Delta table: each row exactly once, an epoch at a time, all of it or nothing.

    `table` is a path or a URL (`s3://...`, with `storage_options` for the credentials). A table that does not exist is
    created, partitioned by `partition_by`. Rows are written by the driver, without Spark's Delta package.
    """

    kind = "delta"
    only_writes = True

    def __init__(
        self,
        table: str,
        partition_by: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        retry: Retry | None = None,
    ) -> None:
        super().__init__()
        if not table:
            raise InvalidInputError("DeltaSink needs the path or URL of a table")
        self.table = table
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self._storage = dict(storage_options or {})
        self._retry = retry or Retry()

    def start(self, spark: Any, job_dir: str, schema: Any) -> None:
        self._delta = load("deltalake", "delta", f"sink '{self.uid}'")
        self._errors = load("deltalake.exceptions", "delta", f"sink '{self.uid}'")
        missing = [name for name in self.partition_by if name not in schema.names]
        if missing:
            raise InvalidInputError(
                f"sink '{self.uid}': there is no column '{missing[0]}' to partition by among {', '.join(schema.names)}"
            )
        self._token = f"cairn-{sink_token(job_dir, self.uid)}"
        self._staging = Staging(job_dir, self.uid)
        self._schema_json = schema.json()
        self._again(lambda: self._set_up(arrow_schema(self._schema_json)), "opening the table", "Nothing was changed.")

    def _open(self) -> Any:
        return self._delta.DeltaTable(self.table, storage_options=self._storage or None)

    def _set_up(self, schema: pa.Schema) -> None:
        try:
            table = self._open()
        except self._errors.TableNotFoundError:
            self._delta.DeltaTable.create(
                self.table, schema=self._delta.Schema.from_arrow(schema), mode="ignore",
                partition_by=self.partition_by or None, storage_options=self._storage or None,
            )  # fmt: skip
            table = self._open()
        there = {field.name: str(field.type) for field in table.schema().fields}
        here = {field.name: str(field.type) for field in self._delta.Schema.from_arrow(schema).fields}
        if there != here:
            wrong = min({name for name in {*there, *here} if there.get(name) != here.get(name)})
            raise InvalidInputError(
                f"sink '{self.uid}': column '{wrong}' is {there.get(wrong, 'missing')} in the Delta table {self.table} "
                f"and {here.get(wrong, 'missing')} in the stream; change one of them",
                table=self.table,
            )

    def prepare(self, frame: Any, epoch: int, attempt: str) -> dict[str, Any]:
        staged = self._staging.write(frame, attempt)
        self.rows = self._staging.rows
        intact = "The epoch is refused; it is run again when the job restarts."
        published = self._again(self._published, f"preparing epoch {epoch}", intact)
        if published >= epoch and not self.may_repeat:
            raise CorruptFileError(
                f"sink '{self.uid}': the Delta table {self.table} has epoch {published} of this sink, and epoch "
                f"{epoch} is run again: its manifest is gone. Restore it from a backup; running the epoch again would "
                "write its rows twice."
            )
        return {"attempt": attempt, "schema": self._schema_json, "files": staged}

    def _published(self) -> int:
        found = self._open().transaction_version(self._token)
        return -1 if found is None else int(found)

    def commit(self, data: Mapping[str, Any], epoch: int) -> None:
        if data["files"]:
            self._again(
                lambda: self._publish(data, epoch),
                f"publishing epoch {epoch}",
                f"Epoch {epoch} is committed and its rows are kept in the job's directory; they are written when the "
                "job starts again.",
            )
        self._staging.forget_until(epoch - 1 if self.may_repeat else epoch)  # which may be asked for again

    def _publish(self, data: Mapping[str, Any], epoch: int) -> None:
        table = self._open()
        published = table.transaction_version(self._token)
        if published is not None and published >= epoch and not self.may_repeat:
            _log.info("sink %s: the table has epoch %d already", self.uid, epoch)
            return
        schema = arrow_schema(data["schema"])
        mark = self._delta.Transaction(self._token, epoch)
        self._delta.write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(schema, self._staging.batches(data["files"], schema)),
            mode="append",
            commit_properties=self._delta.CommitProperties(app_transactions=[mark]),
        )

    def _again(self, action: Callable[[], T], what: str, after: str) -> T:
        def passes(error: Exception) -> bool:
            return isinstance(error, (self._errors.DeltaError, OSError))

        return self._retry.call(action, passes, f"sink '{self.uid}', Delta table {self.table}: {what}", after)

    def __repr__(self) -> str:
        return f"DeltaSink({self.table!r})"
