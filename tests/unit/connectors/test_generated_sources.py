"""Sources whose rows follow from their number, without Spark: positions, portions, repeats, crash markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from cairn import (
    CollectionSource,
    CrashMarker,
    FileSource,
    GeneratorSource,
    InvalidInputError,
    KafkaSource,
    Retry,
    ScriptedSource,
    SocketSource,
    StorageError,
)
from cairn.connectors.generated_sources import _Generator, _Script
from cairn.connectors.spark_sources import Source

NUMBER = StructType().add("n", LongType())


def generator(rate: float | None = None, portion: int = 10, count: int | None = None) -> _Generator:
    return _Generator(lambda number: (number, number * number), rate, portion, count, 3)


def read(reader: Any, start: int, end: int) -> list[Any]:
    parts = reader.partitions({"next": start}, {"next": end})
    return [row for part in parts for row in reader.read(part)]


def test_row_follows_from_its_number_however_the_epochs_are_cut() -> None:
    whole = read(generator(), 0, 100)
    assert whole == [(n, n * n) for n in range(100)]
    assert read(generator(), 0, 37) + read(generator(), 37, 100) == whole
    assert read(generator(), 5, 6) == [(5, 25)]
    assert len(generator().partitions({"next": 0}, {"next": 2})) == 2


def test_generator_ends_at_its_count() -> None:
    reader = generator(portion=10, count=25)
    assert reader.initialOffset() == {"next": 0}
    ends = [reader.latestOffset({"next": at}, None)["next"] for at in (0, 10, 20, 25, 30)]
    assert ends == [10, 20, 25, 25, 30], "a count that was lowered never moves the position back"


def test_rate_follows_the_clock_and_a_stop_makes_no_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("cairn.connectors.generated_sources.time.monotonic", lambda: now)
    reader = generator(rate=10)
    assert reader.latestOffset({"next": 500}, None) == {"next": 500}
    now += 2.55
    assert reader.latestOffset({"next": 500}, None) == {"next": 525}
    now += 1
    assert reader.latestOffset({"next": 525}, None) == {"next": 535}


def test_what_is_there_now_of_an_endless_generator_is_one_epoch() -> None:
    reader = generator(portion=10)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"next": 7}, None) == {"next": 17}
    assert reader.latestOffset({"next": 17}, None) == {"next": 17}


def test_script_gives_an_epoch_at_a_time_and_strikes_as_often_as_told(tmp_path: Path) -> None:
    epochs: list[list[Any]] = [[(1,)], [(2,), CrashMarker(times=2), (3,)]]
    reader = _Script(epochs, str(tmp_path), 0)
    assert [reader.latestOffset({"next": at}, None)["next"] for at in (0, 1, 2)] == [1, 2, 2]
    assert read(reader, 0, 1) == [(1,)]
    for _ in range(2):
        rows = iter(reader.read(reader.partitions({"next": 1}, {"next": 2})[0]))
        assert next(rows) == (2,)
        with pytest.raises(RuntimeError, match="crash-1-1"):
            next(rows)
        reader = _Script(epochs, str(tmp_path), 0)  # another process
    assert read(reader, 1, 2) == [(2,), (3,)]


def test_bad_arguments_are_named() -> None:
    square: Any = lambda n: (n,)  # noqa: E731
    for make, text in (
        (lambda: GeneratorSource(5, NUMBER), "takes a function"),  # type: ignore[arg-type]
        (lambda: GeneratorSource(square, NUMBER, rows_per_second=0), "must be above 0"),
        (lambda: GeneratorSource(square, NUMBER, count=-1), "count must be 0 or more"),
        (lambda: CrashMarker("planet"), "not a valid crash marker"),
        (lambda: ScriptedSource([[CrashMarker()]], NUMBER), "needs a folder"),
        (lambda: ScriptedSource([[(1, 2)]], NUMBER).load(None), r"\(1, 2\) has 2 values, and the schema has 1 columns"),
        (lambda: CollectionSource([]), "empty collection needs a schema"),
        (lambda: FileSource("x", "avro"), "not 'avro'"),
        (lambda: FileSource("x", "json"), "needs the schema of json files"),
        (lambda: FileSource("x", files_per_epoch=0), "files_per_epoch must be 1 or more"),
        (lambda: SocketSource("localhost", 70_000), "70000 is not a valid port"),
        (lambda: KafkaSource("", "t"), "needs bootstrap servers"),
        (lambda: KafkaSource("h:1", "t", "json"), "schema with format='json'"),
        (lambda: KafkaSource("h:1", "t", schema="n bigint"), "schema with format='json'"),
        (lambda: KafkaSource("h:1", "t", "avro"), "not 'avro'"),
        (lambda: Retry(attempts=0), "makes no sense"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            make()
    assert isinstance(FileSource("x"), Source)
    assert not isinstance("x", Source)


def test_retry_pauses_longer_and_longer_and_then_gives_up() -> None:
    pauses: list[float] = []
    calls = []

    def fail() -> None:
        calls.append(1)
        raise OSError("no\nroute")

    retry = Retry(attempts=5, first=1, factor=3, longest=10)
    with pytest.raises(StorageError, match=r"sending failed 5 times, the last time with: no route. Nothing was sent."):
        retry.call(fail, lambda error: True, "sending", "Nothing was sent.", pauses.append)
    assert len(calls) == 5
    assert pauses == [1, 3, 9, 10]
    with pytest.raises(OSError, match="no"):
        retry.call(fail, lambda error: False, "sending", "", pauses.append)
    assert len(calls) == 6
