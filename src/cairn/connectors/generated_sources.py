"""Sources whose rows follow from their number: a generator, a collection, and a script with crashes for tests.

They are Python data sources of Spark. A position is a count (of rows or of epochs), kept in Spark's offset log and in
cairn's manifests like any other, so an epoch that is repeated reads the same rows, also in another process.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from cairn.connectors.spark_sources import declares_values, struct_of
from cairn.errors import InvalidInputError, StateTypeError
from cairn.model.ddl import parse_type

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1, whose Python sources are never told where to start
    ReadAllAvailable = None  # type: ignore[assignment, misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

_numbers = itertools.count()


class GeneratorSource:
    """Rows that a function makes of their numbers: row i is `function(i)`, a tuple that fits `schema`.

    With `rows_per_second` as many rows come as time has passed, counted from the start of the run; a stop makes no
    burst. Otherwise every epoch takes `rows_per_epoch`. The stream ends after `count` rows. With `available_now` a
    generator without a count yields one epoch.

    The function must depend on nothing but the number: then every repeat is exact.
    """

    def __init__(
        self,
        function: Callable[[int], Sequence[Any]],
        schema: Any,
        rows_per_second: float | None = None,
        rows_per_epoch: int = 1000,
        count: int | None = None,
        partitions: int = 2,
    ) -> None:
        if not callable(function):
            raise InvalidInputError("GeneratorSource takes a function of a row's number")
        if rows_per_epoch < 1 or partitions < 1 or (rows_per_second is not None and rows_per_second <= 0):
            raise InvalidInputError("GeneratorSource: rows_per_second, rows_per_epoch and partitions must be above 0")
        if count is not None and count < 0:
            raise InvalidInputError(f"GeneratorSource: count must be 0 or more, not {count}")
        self.schema = schema
        self._reader = _Generator(function, rows_per_second, rows_per_epoch, count, partitions)

    def load(self, spark: Any) -> Any:
        return _load(spark, "generator", self._reader, struct_of(self.schema))


@dataclass(frozen=True, slots=True)
class CrashMarker:
    """In a script: whoever reads up to here dies, `times` times over all processes and restarts.

    * `task`: the task fails with an error.
    * `worker`: the Python worker is killed by force.
    * `driver`: the process that runs the job is killed by force (local Spark only).
    """

    what: str = "task"
    times: int = 1

    def __post_init__(self) -> None:
        if self.what not in ("task", "worker", "driver") or self.times < 1:
            raise InvalidInputError(f"{self} is not a valid crash marker: task, worker or driver, at least once")


class ScriptedSource:
    """For tests: each inner list is an epoch, its items are rows or crash markers between them.

    A restart continues where the job stood, with the script that the test gives again. `folder` is where markers note
    that they have struck; it must be the same for all runs of a job.
    """

    def __init__(self, epochs: Sequence[Sequence[Any]], schema: Any, folder: str | None = None) -> None:
        script = [list(epoch) for epoch in epochs]
        if folder is None and any(isinstance(item, CrashMarker) for epoch in script for item in epoch):
            raise InvalidInputError("ScriptedSource needs a folder where its crash markers note that they have struck")
        self.schema = schema
        self._script = script
        self._folder = folder

    def load(self, spark: Any) -> Any:
        schema = struct_of(self.schema)
        script = [[_as_row(item, schema.names) for item in epoch] for epoch in self._script]
        _check_values([row for epoch in script for row in epoch if not isinstance(row, CrashMarker)], schema)
        if self._folder is not None:
            os.makedirs(self._folder, exist_ok=True)
        return _load(spark, "script", _Script(script, self._folder or "", os.getpid()), schema)


class CollectionSource:
    """The elements of a collection, `rows_per_epoch` at a time (all at once unless set).

    Elements of a row type, `"user string, n bigint"` or `Types.ROW(...)`, are tuples, lists or dicts. Elements of any
    other type, `"bigint"` or `Types.LIST(Types.INT())`, are the values themselves: functions are given them bare, and
    they make a column `value`. Without a schema, tuples, lists and dicts are rows and all else is a value.
    """

    bounded = True
    """The stream ends with the collection."""

    def __init__(self, collection: Iterable[Any], schema: Any = None, rows_per_epoch: int | None = None) -> None:
        self._rows = list(collection)
        if not self._rows and schema is None:
            raise InvalidInputError("an empty collection needs a schema")
        if rows_per_epoch is not None and rows_per_epoch < 1:
            raise InvalidInputError(f"rows_per_epoch must be 1 or more, not {rows_per_epoch}")
        self.schema = schema
        self.bare = _are_values(self._rows) if schema is None else declares_values(schema)
        """Functions are given the elements themselves, not rows of one column."""
        self._portion = rows_per_epoch or max(1, len(self._rows))

    def load(self, spark: Any) -> Any:
        rows = [(element,) for element in self._rows] if self.bare else self._rows
        schema = self.schema
        if schema is None:
            try:
                schema = spark.createDataFrame(rows).schema
            except Exception as error:
                raise InvalidInputError(
                    f"Spark cannot infer the type of the collection's elements: {error}. Name it, as in "
                    "from_collection(rows, 'user string, n bigint') or from_collection(values, Types.LONG())"
                ) from error
            if self.bare:
                schema = schema.fields[0].dataType.simpleString()
        portions = [rows[at : at + self._portion] for at in range(0, len(rows), self._portion)]
        return ScriptedSource(portions, schema).load(spark)


def _are_values(elements: list[Any]) -> bool:
    """Whether elements without a declared type are bare values rather than rows, which must have equal lengths."""
    rows = [element for element in elements if isinstance(element, (tuple, list, dict))]
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise InvalidInputError(
            f"the collection has rows of {lengths[0]} and of {lengths[-1]} values. Rows need equal lengths; lists that "
            "are values themselves need a type, such as from_collection(lists, Types.LIST(Types.LONG()))"
        )
    if rows and len(rows) < sum(1 for element in elements if element is not None):
        raise InvalidInputError(
            "the collection has rows (tuples, lists, dicts) and single values; all elements must be of one type"
        )
    return not rows


def _as_row(item: Any, names: Sequence[str]) -> Any:
    if isinstance(item, CrashMarker):
        return item
    if isinstance(item, dict):
        wrong = [name for name in (*item, *names) if name not in item or name not in names]
        if wrong:
            raise InvalidInputError(f"{item!r:.200} does not fit the columns {', '.join(names)}: '{wrong[0]}'")
        return tuple(item[name] for name in names)
    row = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if len(row) != len(names):
        raise InvalidInputError(f"{item!r} has {len(row)} values, and the schema has {len(names)} columns")
    return row


def _check_values(rows: list[Any], schema: Any) -> None:
    """Spark would cut 1.5 to 1 for a column of whole numbers: refuse what does not fit a column as it is."""
    for field, values in zip(schema.fields, zip(*rows, strict=True), strict=False):
        try:
            dtype = parse_type(field.dataType.simpleString())
        except InvalidInputError:
            continue  # a type that only Spark knows
        for value in values:
            if value is not None:
                try:
                    dtype.to_storage(value)
                except StateTypeError as error:
                    raise InvalidInputError(f"column '{field.name}' of the collection: {error.message}") from None


def _load(spark: Any, kind: str, reader: DataSourceStreamReader, schema: Any) -> Any:
    if ReadAllAvailable is None:
        raise InvalidInputError(f"a {kind} source needs Spark 4.2 or newer; this is Spark {spark.version}")
    name = f"cairn-{kind}-{os.getpid()}-{next(_numbers)}"

    class Registered(DataSource):
        """Travels to the workers as it is, with the reader in it."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> Any:
            return schema

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return reader

    spark.dataSource.register(Registered)
    return spark.readStream.format(name).load()


class _Counted(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc, unused-ignore]
    """A position is `{"next": n}`: how much was read."""

    at_once = False

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def getDefaultReadLimit(self) -> Any:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.at_once = True


class _Span(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class _Generator(_Counted):
    def __init__(
        self,
        function: Callable[[int], Sequence[Any]],
        rate: float | None,
        portion: int,
        count: int | None,
        partitions: int,
    ) -> None:
        self._function = function
        self._rate = rate
        self._portion = portion
        self._count = count
        self._partitions = partitions
        self._origin: tuple[float, int] | None = None

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        at = start["next"]
        now = time.monotonic()
        first = self._origin is None
        since, base = self._origin = self._origin or (now, at)
        if self.at_once and self._count is None and not first:
            return start
        if self._rate is None or self.at_once:
            end = at + self._portion
        else:
            end = max(at, base + int((now - since) * self._rate))
        return {"next": end if self._count is None else max(at, min(end, self._count))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, rows = start["next"], end["next"] - start["next"]
        edges = [first + rows * part // self._partitions for part in range(self._partitions + 1)]
        return [_Span(a, b) for a, b in itertools.pairwise(edges) if a < b]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        for number in range(partition.start, partition.end):
            yield tuple(self._function(number))


class _Script(_Counted):
    def __init__(self, epochs: list[list[Any]], folder: str, driver: int) -> None:
        self._epochs = epochs
        self._folder = folder
        self._driver = driver

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"next": max(start["next"], min(start["next"] + 1, len(self._epochs)))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Span(start["next"], end["next"])]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        for epoch in range(partition.start, partition.end):
            for place, item in enumerate(self._epochs[epoch]):
                if isinstance(item, CrashMarker):
                    self._strike(item, f"crash-{epoch}-{place}")
                else:
                    yield item

    def _strike(self, marker: CrashMarker, name: str) -> None:
        for time_ in range(marker.times):
            try:
                os.close(os.open(os.path.join(self._folder, f"{name}-{time_}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            if marker.what == "task":
                raise RuntimeError(f"{name}: the script says that the task fails here")
            os.kill(self._driver if marker.what == "driver" else os.getpid(), signal.SIGKILL)
            time.sleep(60)  # the driver takes this worker along
