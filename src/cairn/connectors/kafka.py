"""Rows into a topic of Kafka: exactly once for readers of committed records, or at least once with ids.

Spark's own Kafka writer cannot promise more than at least once, so the rows do not go through it. Spark's tasks stage
the rows of an epoch in the job's directory; the second phase sends them from the driver in one transaction. The same
transaction commits an offset for a consumer group that nobody reads with, the *fence*: it is the number of the newest
published epoch plus one. A producer that starts with the sink's transactional id ends every transaction of an earlier
producer first and cuts that one off, so what the fence says then is final: an epoch whose fence is there is published,
an epoch whose fence is missing is not, whichever process died when.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import pyarrow as pa

from cairn.connectors.client_libraries import load
from cairn.connectors.sink_base import BaseSink
from cairn.connectors.staging import Staging, sink_token
from cairn.connectors.target_retry import Retry
from cairn.errors import CorruptFileError, EpochFailedError, InvalidInputError
from cairn.logs import get_logger

_log = get_logger("cairn.sink")
_RECORD = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_OVERHEAD = 512
"""Bytes of a record beside key and value, generously."""
_TIMED_OUT = -192
"""librdkafka's code for a message that was not delivered in time."""
T = TypeVar("T")


class DeliveryGuarantee(Enum):
    """Flink's words."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class KafkaSink(BaseSink):
    """Writes a stream to a topic, one record for each row.

    `key` names the column whose value becomes the record's key (none: no key), `value` the column that becomes its
    value; without it the value is the whole row as JSON. Both may be text or binary; other types are cast to text.

    EXACTLY_ONCE: an epoch is one transaction. Readers with `isolation.level=read_committed` see each row exactly once
    and never a part of an epoch; other readers may see rows of a transaction that was abandoned. AT_LEAST_ONCE: no
    transaction; after a crash an epoch may be sent again, and each record carries a header `cairn-id` that is the same
    every time it is sent, by which a reader can drop repeats.

    `options` go to the producer (librdkafka's names: `security.protocol`, `sasl.mechanism`, `compression.type`, ...).
    `timeout` is the longest that one call to Kafka may take, in seconds.
    """

    kind = "kafka"
    only_writes = True

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        key: str | None = None,
        value: str | None = None,
        guarantee: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE,
        options: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
        timeout: float = 30.0,
    ) -> None:
        super().__init__()
        if not bootstrap_servers or not topic:
            raise InvalidInputError("KafkaSink needs bootstrap servers such as 'localhost:9092' and a topic")
        taken = {"transactional.id", "enable.idempotence", "group.id", "bootstrap.servers"} & set(options or {})
        if taken:
            raise InvalidInputError(f"KafkaSink sets the option '{min(taken)}' itself; remove it")
        self.servers = bootstrap_servers
        self.topic = topic
        self.key = key
        self.value = value
        self.guarantee = DeliveryGuarantee(guarantee)
        self._options = dict(options or {})
        self._retry = retry or Retry()
        self._timeout = timeout
        self._producer: Any = None
        self._reader: Any = None

    # Before the first epoch.

    def start(self, spark: Any, job_dir: str, schema: Any) -> None:
        self._kafka = load("confluent_kafka", "kafka", f"sink '{self.uid}'")
        for name in (self.key, self.value):
            if name is not None and name not in schema.names:
                raise InvalidInputError(
                    f"sink '{self.uid}': there is no column '{name}' among {', '.join(schema.names)}"
                )
        self._binary = {field.name for field in schema.fields if field.dataType.simpleString() == "binary"}
        self._token = sink_token(job_dir, self.uid)
        self._staging = Staging(job_dir, self.uid)
        self._disconnect()
        self._again(self._look, "reaching the brokers", "Nothing was changed.")

    def _look(self) -> None:
        """The topic must be there; it tells how large a record may be."""
        admin_module = load("confluent_kafka.admin", "kafka", f"sink '{self.uid}'")
        admin = admin_module.AdminClient(self._client())
        if self.topic not in admin.list_topics(timeout=self._timeout).topics:
            raise InvalidInputError(
                f"sink '{self.uid}': Kafka at {self.servers} has no topic '{self.topic}'; create it: "
                f"kafka-topics.sh --bootstrap-server {self.servers} --create --topic {self.topic}",
                topic=self.topic,
            )
        resource = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, self.topic)
        told = admin.describe_configs([resource], request_timeout=self._timeout)[resource].result()
        self._largest = int(told["max.message.bytes"].value)

    # The two phases.

    def prepare(self, frame: Any, epoch: int, attempt: str) -> dict[str, Any]:
        staged = self._staging.write(frame.select(*self._record()), attempt)
        self.rows = self._staging.rows
        self._refuse_large(staged, epoch)
        intact = "The epoch is refused; it is run again when the job restarts."
        fence = self._again(self._ready, f"preparing epoch {epoch}", intact)
        if fence > epoch and not self.may_repeat:
            raise CorruptFileError(
                f"sink '{self.uid}': topic '{self.topic}' has epoch {fence - 1} of this sink, and epoch {epoch} is run "
                "again: its manifest is gone. Restore it from a backup; running the epoch again would send its rows "
                "twice."
            )
        return {"attempt": attempt, "after": fence, "files": staged}

    def _record(self) -> list[Any]:
        """The two columns that are staged, made by Spark."""
        from pyspark.sql import functions as F

        key = self._bytes(self.key) if self.key is not None else F.lit(None).cast("binary")
        whole = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        value = self._bytes(self.value) if self.value is not None else whole.cast("binary")
        return [key.alias("key"), value.alias("value")]

    def _bytes(self, name: str) -> Any:
        from pyspark.sql import functions as F

        column = F.col(f"`{name}`")
        return column if name in self._binary else column.cast("string").cast("binary")

    def _refuse_large(self, staged: Sequence[Mapping[str, Any]], epoch: int) -> None:
        import pyarrow.compute as pc

        for batch in self._staging.batches(staged, _RECORD):
            sizes = [pc.fill_null(pc.binary_length(column), 0) for column in batch.columns]
            largest = pc.max(pc.add(*sizes)).as_py() or 0
            if largest + _OVERHEAD > self._largest:
                raise EpochFailedError(
                    f"sink '{self.uid}': epoch {epoch} has a record of {largest} bytes, and topic '{self.topic}' takes "
                    f"{self._largest} at most. The epoch is refused and the state stays as it was; raise the topic's "
                    "max.message.bytes or write less into a row."
                )

    def _ready(self) -> int:
        """The fence as it stands. Kafka forgets one that was not moved for a week or so; then it starts anew.

        That is safe here and only here: an epoch is prepared once all before it are published.
        """
        if self.guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            self._consumer().list_topics(self.topic, timeout=self._timeout)
            return 0
        fence = self._fence()
        if fence < 0:
            place = self._kafka.TopicPartition(self.topic, 0, 0)
            self._consumer().commit(offsets=[place], asynchronous=False)
            fence = 0
        return fence

    def commit(self, data: Mapping[str, Any], epoch: int) -> None:
        if data["files"]:
            send = self._transact if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE else self._send_plainly
            self._again(
                lambda: send(data, epoch),
                f"publishing epoch {epoch}",
                f"Epoch {epoch} is committed and its rows are kept in the job's directory; they are sent when the job "
                "starts again.",
            )
        fenced = self.guarantee is DeliveryGuarantee.EXACTLY_ONCE and not self.may_repeat
        self._staging.forget_until(epoch if fenced else epoch - 1)  # without a fence this epoch may be asked for again

    def _transact(self, data: Mapping[str, Any], epoch: int) -> None:
        """One transaction: the rows and the fence."""
        producer = self._transactional()
        fence = self._fence()
        if fence > epoch and not self.may_repeat:
            _log.info("sink %s: topic %s has epoch %d already", self.uid, self.topic, epoch)
            return
        if fence != data["after"] and not self.may_repeat:
            raise CorruptFileError(
                f"sink '{self.uid}': the consumer group '{self._group()}', whose offset records the published epochs, "
                f"is at {fence} instead of {data['after']} or {epoch + 1}. Kafka deletes the offset if it is not used "
                f"for offsets.retention.minutes. Check whether topic '{self.topic}' ends with the rows of epoch "
                f"{epoch}; then set the offset of partition 0 to {epoch + 1} if it does, to {data['after']} if not "
                "(kafka-consumer-groups.sh --reset-offsets --to-offset), and start the job again."
            )
        producer.begin_transaction()
        for key, value, _ in self._records(data):
            self._produce(producer, key, value, None)
        moved = self._kafka.TopicPartition(self.topic, 0, max(epoch + 1, fence))
        producer.send_offsets_to_transaction([moved], self._consumer().consumer_group_metadata(), self._timeout)
        producer.commit_transaction(self._timeout)

    def _send_plainly(self, data: Mapping[str, Any], epoch: int) -> None:
        if self._producer is None:
            self._producer = self._kafka.Producer({**self._for_producer(), "enable.idempotence": True})
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        for key, value, number in self._records(data):
            name = f"{self._token}-{epoch}-{number}"
            self._produce(self._producer, key, value, [("cairn-id", name.encode())], delivered)
        left = self._producer.flush(self._timeout)
        if failed or left:
            raise self._kafka.KafkaException(failed[0] if failed else self._kafka.KafkaError(_TIMED_OUT))

    def _records(self, data: Mapping[str, Any]) -> Iterator[tuple[bytes | None, bytes | None, int]]:
        number = 0
        for batch in self._staging.batches(data["files"], _RECORD):
            for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                yield key, value, number
                number += 1

    def _produce(
        self, producer: Any, key: bytes | None, value: bytes | None, headers: Any, delivered: Any = None
    ) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                producer.produce(self.topic, value=value, key=key, headers=headers, on_delivery=delivered)
                producer.poll(0)
                return
            except BufferError:  # the queue is full: let some of it go out
                if time.monotonic() > deadline:
                    raise self._kafka.KafkaException(self._kafka.KafkaError(_TIMED_OUT)) from None
                producer.poll(0.1)

    # Clients.

    def _client(self) -> dict[str, Any]:
        quiet = {"log_level": 0, "socket.timeout.ms": max(1000, int(self._timeout * 1000))}
        return {**quiet, **self._options, "bootstrap.servers": self.servers}

    def _for_producer(self) -> dict[str, Any]:
        defaults = {
            "partitioner": "murmur2_random",  # where Java's producers put the same key
            "linger.ms": 5,
            "message.max.bytes": self._largest,
            "delivery.timeout.ms": max(2000, int(self._timeout * 1000)),
        }
        return {**defaults, **self._client()}

    def _group(self) -> str:
        return f"cairn-{self._token}"

    def _consumer(self) -> Any:
        """Reads and writes the fence; never reads a record."""
        if self._reader is None:
            self._reader = self._kafka.Consumer(
                {**self._client(), "group.id": self._group(), "enable.auto.commit": False}
            )
        return self._reader

    def _fence(self) -> int:
        """The number of the newest published epoch plus one; -1 if Kafka knows of none."""
        (place,) = self._consumer().committed([self._kafka.TopicPartition(self.topic, 0)], timeout=self._timeout)
        if place.error is not None:
            raise self._kafka.KafkaException(place.error)
        return int(place.offset) if place.offset >= 0 else -1

    def _transactional(self) -> Any:
        """This run's producer. Once it is initialised, no earlier one with the same id can write any more."""
        if self._producer is None:
            told = {**self._for_producer(), "transactional.id": self._group()}
            told.setdefault("transaction.timeout.ms", max(60_000, int(self._timeout * 1000)))
            producer = self._kafka.Producer(told)
            producer.init_transactions(self._timeout)
            self._producer = producer
        return self._producer

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        reader, self._reader = self._reader, None
        if producer is not None:
            with contextlib.suppress(self._kafka.KafkaException):
                producer.purge()
        if reader is not None:
            with contextlib.suppress(self._kafka.KafkaException, RuntimeError):
                reader.close()

    def close(self) -> None:
        self._disconnect()

    def _again(self, action: Callable[[], T], what: str, after: str) -> T:
        def passes(error: Exception) -> bool:
            if not isinstance(error, self._kafka.KafkaException):
                return False
            self._disconnect()  # the next attempt has new clients, and settles first what this one left open
            return True

        where = f"sink '{self.uid}', topic '{self.topic}' of {self.servers}: {what}"
        return self._retry.call(action, passes, where, after)

    def __repr__(self) -> str:
        return f"KafkaSink({self.servers!r}, {self.topic!r}, {self.guarantee.value})"
