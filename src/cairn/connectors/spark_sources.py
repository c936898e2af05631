"""Sources by name: what `env.from_source` takes. Each knows how to make a streaming DataFrame of itself.

| source | read again after a crash |
| --- | --- |
| `FileSource` | the same rows, as long as the files stay |
| `KafkaSource` | the same records, as long as the topic keeps them |
| `GeneratorSource`, `CollectionSource` | the same rows: row i follows from i |
| `SocketSource` | nothing: what a socket has delivered is gone, and the job cannot resume |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from cairn.errors import InvalidInputError
from cairn.model.output_tags import VALUE_COLUMN

_FILE_FORMATS = ("text", "csv", "json", "parquet", "orc")
_KAFKA_FORMATS = ("raw", "string", "json")


@runtime_checkable
class Source(Protocol):
    """Anything with a `load` that makes a streaming DataFrame can be a source."""

    def load(self, spark: Any) -> Any:
        """The rows as a streaming DataFrame."""


class FileSource:
    """The files of a directory, and every file that is moved into it later, each read once.

    `text` gives a column `value` with a row for each line; the other formats need a `schema` in Spark's DDL. `options`
    go to Spark's reader (`header`, `multiLine`, `pathGlobFilter`, ...). `files_per_epoch` limits how many new files
    one epoch takes, also the first one after a crash.
    """

    def __init__(
        self, path: str, format: str = "text", schema: str | None = None, files_per_epoch: int | None = None,  # noqa: A002
        **options: Any,
    ) -> None:  # fmt: skip
        if format not in _FILE_FORMATS:
            raise InvalidInputError(f"FileSource reads {', '.join(_FILE_FORMATS)}, not {format!r}")
        if format != "text" and schema is None:
            raise InvalidInputError(f"FileSource needs the schema of {format} files, such as 'user string, n bigint'")
        self.path = path
        self.format = format
        self.schema = schema
        self.options = options
        if files_per_epoch is not None:
            self.options = {**options, "maxFilesPerTrigger": _positive(files_per_epoch, "files_per_epoch")}

    def load(self, spark: Any) -> Any:
        reader = spark.readStream.format(self.format).options(**self.options)
        if self.schema is not None:
            reader = reader.schema(struct_of(self.schema))
        return reader.load(self.path)


class SocketSource:
    """Lines of text from a socket, in a column `value`. For tutorials: a socket cannot be read twice."""

    def __init__(self, host: str, port: int) -> None:
        if not 0 < port < 65536:
            raise InvalidInputError(f"SocketSource: {port} is not a valid port")
        self.host = host
        self.port = port

    def load(self, spark: Any) -> Any:
        return spark.readStream.format("socket").option("host", self.host).option("port", self.port).load()


class KafkaSource:
    """Records of one or more topics, by Spark's Kafka connector, which the Spark session must have.

    `format` is `raw` (Spark's columns `key`, `value`, `topic`, `partition`, `offset`, `timestamp`, bytes as they are),
    `string` (the same with key and value as text) or `json` (the columns of `schema`, taken from the value, then
    `key`, `topic`, `partition`, `offset`, `timestamp` as far as no column of the schema has that name). A value that is
    no such JSON gives nulls. Only committed records are read.

    `starting_offsets` is `earliest`, `latest` or Spark's JSON; it counts when a job has no position yet.
    `records_per_epoch` limits an epoch. `options` go to Spark's reader.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: str | Sequence[str],
        format: str = "raw",  # noqa: A002 - Spark's word
        schema: str | None = None,
        starting_offsets: str = "earliest",
        records_per_epoch: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not bootstrap_servers or not names or not all(names):
            raise InvalidInputError("KafkaSource needs bootstrap servers such as 'localhost:9092' and a topic")
        if format not in _KAFKA_FORMATS:
            raise InvalidInputError(f"KafkaSource reads {', '.join(_KAFKA_FORMATS)}, not {format!r}")
        if (format == "json") != (schema is not None):
            raise InvalidInputError("KafkaSource takes a schema with format='json', and only then")
        self.format = format
        self.schema = schema
        self.options = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "subscribe": ",".join(names),
            "startingOffsets": starting_offsets,
            "kafka.isolation.level": "read_committed",
            **(options or {}),
        }
        if records_per_epoch is not None:
            self.options["maxOffsetsPerTrigger"] = _positive(records_per_epoch, "records_per_epoch")

    def load(self, spark: Any) -> Any:
        from pyspark.sql import functions as F

        try:
            frame = spark.readStream.format("kafka").options(**self.options).load()
        except Exception as error:
            if "find data source" not in str(error) and "DATA_SOURCE_NOT_FOUND" not in str(error):
                raise
            raise InvalidInputError(
                "the Spark session has no Kafka connector. Start it with one, for example by the option spark.jars."
                f"packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}, or with its jars in spark.jars"
            ) from error
        if self.format == "raw":
            return frame
        text = frame.withColumn("key", F.col("key").cast("string")).withColumn("value", F.col("value").cast("string"))
        if self.schema is None:
            return text
        fields = struct_of(self.schema)
        rest = [name for name in ("key", "topic", "partition", "offset", "timestamp") if name not in fields.names]
        return text.withColumn("value", F.from_json("value", fields)).select(
            *[F.col(f"value.`{name}`").alias(name) for name in fields.names], *rest
        )


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise InvalidInputError(f"{name} must be 1 or more, not {value}")
    return value


def struct_of(schema: Any) -> Any:
    """A Spark schema from DDL (`user string, n bigint`), a Spark struct or one of cairn's `Types`.

    A type that is no row becomes one column, `value`.
    """
    from pyspark.sql.types import StructType

    declared = _spark_type(schema)
    return declared if isinstance(declared, StructType) else StructType().add(VALUE_COLUMN, declared)


def declares_values(schema: Any) -> bool:
    """Whether a schema declares bare values (`bigint`, `Types.STRING()`) rather than rows."""
    from pyspark.sql.types import StructType

    return not isinstance(_spark_type(schema), StructType)


def _spark_type(schema: Any) -> Any:
    from pyspark.sql.types import DataType, StructType

    if isinstance(schema, StructType):
        return schema
    text = getattr(schema, "ddl", schema)
    if not isinstance(text, str):
        raise InvalidInputError(f"{schema!r} is not a valid schema, such as 'user string, n bigint'")
    if "pickle" in re.split(r"\W+", text):
        raise InvalidInputError(
            "pickled values cannot be columns: declare a type, such as 'user string, n bigint' or Types.LONG(), or "
            "omit it and let Spark infer it"
        )
    try:
        return DataType.fromDDL(text)
    except Exception as error:
        raise InvalidInputError(f"{text!r} is not a valid schema, such as 'user string, n bigint': {error}") from error
