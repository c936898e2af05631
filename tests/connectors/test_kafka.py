"""`KafkaSink` against a real broker: what careful readers of the topic see after crashes, repeats and a broker down."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql.types import BinaryType, StructType
from tests.support.connector_lab import attempt, frame, job, started
from tests.support.patience import PATIENCE
from tests.support.servers.kafka import KafkaServer

from cairn import (
    CorruptFileError,
    DeliveryGuarantee,
    EpochFailedError,
    InvalidInputError,
    KafkaSink,
    Retry,
    StorageError,
)

pytestmark = pytest.mark.server
RECORD = StructType().add("key", BinaryType()).add("value", BinaryType())
Rows = list[tuple[bytes | None, bytes | None]]
_numbers = itertools.count()


class PlainSink(KafkaSink):
    """Takes rows that are records already; without Spark nobody can make them."""

    def _record(self) -> list[Any]:
        return []


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    return kafka.create(f"topic-{next(_numbers)}", partitions=2)


def start(kafka: KafkaServer, topic: str, where: str, **options: Any) -> Any:
    """The sink as a new run has it."""
    return started(PlainSink(kafka.address, topic, **options), where, RECORD)


def rows(*numbers: int) -> Rows:
    return [(b"k%d" % (number % 3), b"v%d" % number) for number in numbers]


def prepared(sink: Any, epoch: int, records: Rows, run: int = 1) -> Any:
    return sink.prepare(frame(records, RECORD), epoch, attempt(epoch, run))


def seen(kafka: KafkaServer, topic: str, committed: bool = True) -> Rows:
    return sorted(((key, value) for key, value, _ in kafka.read(topic, committed)), key=str)


def keep(where: str, tmp_path: Path) -> Any:
    """Puts staged files back that a publication has removed: as if the process had died before that."""
    shutil.copytree(Path(where) / "staging", tmp_path / "copy", dirs_exist_ok=True)
    return lambda: shutil.copytree(tmp_path / "copy", Path(where) / "staging", dirs_exist_ok=True)


def test_each_row_once_however_often_an_epoch_is_published(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    sink = start(kafka, topic, where)
    records = [*rows(1, 2, 3, 4), (None, b"no key"), (b"tombstone", None)]
    data = prepared(sink, 0, records)
    assert seen(kafka, topic, committed=False) == [], "prepared rows are seen"
    back = keep(where, tmp_path)
    sink.commit(data, 0)
    for _ in range(2):
        back()
        start(kafka, topic, where).commit(data, 0)
    sink = start(kafka, topic, where)
    sink.commit(prepared(sink, 1, rows(5)), 1)
    sink.commit(prepared(sink, 2, []), 2)
    sink.commit(prepared(sink, 3, rows(6)), 3)
    assert seen(kafka, topic, committed=False) == sorted([*records, *rows(5, 6)], key=str)
    in_order = [value for key, value, _ in kafka.read(topic) if key == b"k1"]
    assert in_order == [b"v1", b"v4"]


def test_transaction_that_was_cut_off_is_never_seen(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    """The process dies after its rows reached the broker and before the transaction is committed."""
    where = job(tmp_path)
    first = start(kafka, topic, where)
    data = prepared(first, 0, rows(1, 2, 3))
    producer = first._transactional()
    producer.begin_transaction()
    for key, value, _ in first._records(data):
        first._produce(producer, key, value, None)
    producer.flush(20)
    second = start(kafka, topic, where)
    second.commit(data, 0)
    assert seen(kafka, topic) == rows(3, 1, 2)
    assert len(seen(kafka, topic, committed=False)) == 6, "the rows of the cut-off transaction are in the log"


def test_overtaken_run_that_publishes_late_changes_nothing(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    old = start(kafka, topic, where)
    old.commit(prepared(old, 0, rows(1)), 0)
    data = prepared(old, 1, rows(2))
    back = keep(where, tmp_path)
    new = start(kafka, topic, where)
    new.commit(data, 1)
    back()
    old.commit(data, 1)  # its producer is cut off; it looks again and finds the epoch published
    new.commit(prepared(new, 2, rows(3)), 2)
    assert seen(kafka, topic) == rows(3, 1, 2)


def test_fence_that_kafka_forgot_is_not_guessed(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    sink = start(kafka, topic, where)
    sink.commit(prepared(sink, 0, rows(1)), 0)
    data = prepared(sink, 1, rows(2))
    sink.close()
    group = sink._group()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.delete_consumer_groups([group])[group].result(PATIENCE)
    again = start(kafka, topic, where)
    with pytest.raises(CorruptFileError, match=rf"consumer group '{group}'.*is at -1 instead of 1 or 2"):
        again.commit(data, 1)
    assert seen(kafka, topic) == rows(1)
    assert prepared(again, 2, rows(3))["after"] == 0, "before an epoch is committed a fresh fence does no harm"


def test_epoch_whose_manifest_was_lost_is_not_run_again(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    sink = start(kafka, topic, where)
    sink.commit(prepared(sink, 0, rows(1)), 0)
    with pytest.raises(CorruptFileError, match="has epoch 0 of this sink, and epoch 0 is run again"):
        prepared(start(kafka, topic, where), 0, rows(1), run=2)


def test_at_least_once_repeats_carry_the_same_ids(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    sink = start(kafka, topic, where, guarantee=DeliveryGuarantee.AT_LEAST_ONCE)
    data = prepared(sink, 0, rows(1, 2))
    sink.commit(data, 0)
    start(kafka, topic, where, guarantee="at-least-once").commit(data, 0)  # the process died before it could say so
    found = [(headers["cairn-id"], value) for _, value, headers in kafka.read(topic)]
    assert len(found) == 4
    assert len(set(found)) == len({name for name, _ in found}) == 2


def test_repeats_of_at_least_once_checkpoints_are_sent_again(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    """With that mode rows are shown before the commit: the same epoch may come again, under this attempt or another."""
    sink = start(kafka, topic, job(tmp_path))
    sink.may_repeat = True
    data = prepared(sink, 0, rows(1))
    sink.commit(data, 0)
    sink.commit(data, 0)
    sink.commit(prepared(sink, 0, rows(1), run=2), 0)
    assert seen(kafka, topic) == rows(1, 1, 1)


def test_records_and_topics_that_kafka_refuses(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    with pytest.raises(InvalidInputError, match=r"has no topic 'nowhere'; create it: kafka-topics.sh"):
        start(kafka, "nowhere", where)
    sink = start(kafka, topic, where)
    with pytest.raises(EpochFailedError, match=r"epoch 0 has a record of 2000002 bytes.*takes \d+ at most"):
        prepared(sink, 0, [(b"k1", b"x" * 2_000_000)])
    sink.commit(prepared(sink, 0, rows(1), run=2), 0)
    assert seen(kafka, topic) == rows(1)


def test_broker_that_is_down_fails_the_epoch_and_loses_nothing(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    where = job(tmp_path)
    quick = {"retry": Retry(attempts=2, first=0.1), "timeout": 2.0}
    sink = start(kafka, topic, where, **quick)
    sink.commit(prepared(sink, 0, rows(1)), 0)
    data = prepared(sink, 1, rows(2))
    kafka.kill()
    try:
        with pytest.raises(StorageError, match=r"publishing epoch 1 failed 2 times.*Epoch 1 is committed"):
            sink.commit(data, 1)
        with pytest.raises(StorageError, match=r"preparing epoch 1 failed 2 times.*The epoch is refused"):
            prepared(sink, 1, rows(2), run=2)
        with pytest.raises(StorageError, match=r"reaching the brokers failed 2 times"):
            start(kafka, topic, where, **quick)
    finally:
        kafka.start()
    start(kafka, topic, where).commit(data, 1)
    assert seen(kafka, topic) == rows(1, 2)


def test_arguments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="needs bootstrap servers"):
        KafkaSink("", "t")
    with pytest.raises(InvalidInputError, match=r"sets the option 'transactional.id' itself"):
        KafkaSink("localhost:1", "t", options={"transactional.id": "mine"})
    with pytest.raises(InvalidInputError, match="no column 'user' among key, value"):
        started(KafkaSink("localhost:1", "t", key="user"), job(tmp_path), RECORD)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'cairn-streaming\[kafka\]'"):
        started(KafkaSink("localhost:1", "t"), job(tmp_path, "other"), RECORD)
