"""When Spark may send rows to Python without counting their bytes: the decision, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from cairn import ForeachEpochSink, NoopSink
from cairn.connectors.sink_base import BaseSink
from cairn.coordinator.epoch_loop import EpochReport
from cairn.model.manifest import TaskMetrics
from cairn.spark import arrow_batches
from cairn.spark.arrow_batches import BYTES, LIFTED, LIMITED_ROWS, NARROW, ROWS, ArrowBatches


class Conf(dict[str, str]):
    set = dict.__setitem__
    unset = dict.pop


class Session:
    def __init__(self, **settings: str) -> None:
        self.conf: Any = Conf(settings)
        self.sparkSession = self  # so that it also stands for the frame of an epoch


def report(*tasks: tuple[int, int]) -> EpochReport:
    metrics = tuple(("op", i, TaskMetrics(rows_in=rows, bytes_in=size)) for i, (rows, size) in enumerate(tasks))
    return EpochReport(1, 0, 0, 0, 0, 0, 0.0, 0, 0, tasks=metrics)


def run(batches: ArrowBatches, session: Session, *tasks: tuple[int, int]) -> dict[str, str]:
    """One epoch; what Spark has for the next one."""
    heard: list[EpochReport] = []
    listen = batches.listening(heard.append)
    batches.between(lambda frame, epoch: listen(report(*tasks)))(session, 1)
    assert len(heard) == 1
    return dict(session.conf)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "_others_in", lambda *_: False)


@pytest.mark.usefixtures("alone")
def test_the_limit_goes_while_rows_are_narrow() -> None:
    session: Any = Session()
    batches = ArrowBatches(session, session, ["op"], [NoopSink()])
    assert session.conf == {}  # the first epoch of a run has Spark's limit
    assert run(batches, session, (0, 0)) == {}  # an epoch without rows teaches nothing
    assert run(batches, session, (100, 100 * NARROW), (0, 0)) == LIFTED
    assert run(batches, session, (0, 0)) == LIFTED
    assert run(batches, session) == LIFTED  # nor does one that was rolled forward
    assert run(batches, session, (100, 10), (100, 100 * NARROW + 1)) == {ROWS: LIMITED_ROWS}
    assert run(batches, session, (100, 10)) == {ROWS: LIMITED_ROWS}  # it may happen again


@pytest.mark.usefixtures("alone")
def test_rows_that_are_wide_at_first_keep_the_limit() -> None:
    session: Any = Session()
    batches = ArrowBatches(session, session, ["op"], [NoopSink()])
    assert run(batches, session, (1, NARROW + 1)) == {}
    assert run(batches, session, (100, 10)) == {}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("number", [ROWS, BYTES])
def test_a_number_that_the_user_set_stays(number: str) -> None:
    session: Any = Session(**{number: "100"})
    assert run(ArrowBatches(session, session, ["op"], [NoopSink()]), session, (100, 10)) == {number: "100"}


@pytest.mark.usefixtures("alone")
def test_sinks_that_may_run_functions_keep_the_limit() -> None:
    class Own(BaseSink):
        pass

    for sinks in ([ForeachEpochSink(print)], [NoopSink(), Own()]):
        session: Any = Session()
        assert run(ArrowBatches(session, session, ["op"], sinks), session, (100, 10)) == {}


def test_other_functions_keep_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "_others_in", lambda *_: True)
    session: Any = Session()
    assert run(ArrowBatches(session, session, ["op"], [NoopSink()]), session, (100, 10)) == {}


@pytest.mark.usefixtures("alone")
def test_an_epoch_that_fails_changes_nothing() -> None:
    session: Any = Session()
    batches = ArrowBatches(session, session, ["op"], [NoopSink()])

    def fail(frame: Any, epoch: int) -> None:
        batches.listening(lambda _: None)(report((100, 10)))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        batches.between(fail)(session, 1)
    assert session.conf == {}
