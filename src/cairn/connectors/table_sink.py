"""A table in the job's directory as a sink."""

from __future__ import annotations

import os
from typing import Any

from cairn.connectors.file_sink import FileSink
from cairn.connectors.sink_base import BaseSink
from cairn.errors import InvalidInputError
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem, as_url


class TableSink(FileSink):
    """A table in the job's directory, to be queried by name: `spark.table(name)` holds all committed rows.

    The view is made anew after every epoch; a DataFrame taken from it earlier keeps seeing the epochs of its time.
    """

    kind = "table"

    def __init__(self, name: str) -> None:
        BaseSink.__init__(self)
        if not name.isidentifier():
            raise InvalidInputError(f"a table name is letters, digits and '_', not {name!r}")
        self.name = name
        self.format = "parquet"
        self.options = {}

    def start(self, spark: Any, job_dir: str, schema: Any) -> None:
        self.path = os.path.join(job_dir, layout.TABLES, self.name)
        os.makedirs(self.path, exist_ok=True)
        self._files = LocalFileSystem(self.path)
        self._identify(job_dir)
        self._spark = spark
        self._schema = schema
        self._refresh()

    def _refresh(self) -> None:
        self._spark.read.schema(self._schema).parquet(as_url(self.path)).createOrReplaceTempView(self.name)

    def commit(self, data: list[dict[str, Any]], epoch: int) -> None:
        super().commit(data, epoch)
        self._refresh()

    def __repr__(self) -> str:
        return f"TableSink({self.name!r})"
