"""Ctrl-C while a job is waited for: what is finished first, and what is said to be kept."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.restore_lab import checkpoint_of, harness
from tests.support.web_job import Totals

from cairn.errors import CheckpointFailedError
from cairn.job import interrupts as interrupts_module
from cairn.job.epoch_gate import EpochGate
from cairn.job.interrupts import interrupts, wind_down
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType


class Request:
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def wait(self, timeout: float) -> CheckpointInfo:
        assert 0 < timeout <= 30
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return CheckpointInfo(self.outcome, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 1, epoch=3)


class Coordinator:
    def __init__(self, outcome: Any = 7, periodic: bool = True, epoch: int = 3) -> None:
        self.outcome = outcome
        self.periodic = periodic
        self.epoch = epoch
        self.published = True
        self.asked = 0

    def current_epoch(self) -> int:
        return self.epoch

    def request(self) -> Request:
        self.asked += 1
        return Request(self.outcome)


class Job:
    name = "orders"

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.told: list[str] = []

    def cancel(self, grace: float = 30.0) -> None:
        self.told.append("canceled")


def ended(job: Job, coordinator: Any, caplog: pytest.LogCaptureFixture, gate: EpochGate | None = None) -> str:
    with caplog.at_level(logging.WARNING, "cairn.job"):
        wind_down(job, gate or EpochGate(), coordinator, lambda: job.told.append("suspended"))
    assert job.told == ["suspended", "canceled"], "retention must know before the job ends"
    return caplog.messages[-1]


def test_a_last_checkpoint_is_taken_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    text = ended(Job(tmp_path), coordinator, caplog)
    assert coordinator.asked == 1
    assert "takes a last checkpoint" in caplog.messages[0]
    assert f"committed up to epoch 3, in {tmp_path}" in text
    assert f"cairn run JOB.py -s {tmp_path}/chk-7" in text


def test_one_that_is_there_already_is_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with harness(Totals(), tmp_path / "job") as job:
        job.push(("a", 1))
        job.run_epoch()
    checkpoint_of(tmp_path / "job", 2)
    coordinator = Coordinator(epoch=0)
    assert "chk-2" in ended(Job(tmp_path / "job"), coordinator, caplog)
    assert coordinator.asked == 0


@pytest.mark.parametrize("error", [CheckpointFailedError("the disk is full"), TimeoutError("it took too long")])
def test_a_checkpoint_that_cannot_be_had_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    text = ended(Job(tmp_path), Coordinator(error), caplog)
    assert any("no last checkpoint" in message for message in caplog.messages)
    assert "committed up to epoch 3" in text
    assert "chk-" not in text


def test_without_checkpoints_the_epoch_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = ended(Job(tmp_path), Coordinator(periodic=False), caplog)
    assert "start it again to resume from there" in text
    caplog.clear()
    assert "No epoch was committed" in ended(Job(tmp_path), Coordinator(epoch=-1), caplog)


def test_an_epoch_without_end_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts_module, "PATIENCE", 0.05)
    gate = EpochGate()
    assert gate.enter()
    coordinator = Coordinator()
    ended(Job(tmp_path), coordinator, caplog, gate)
    assert coordinator.asked == 0
    assert any("did not end within" in message for message in caplog.messages)


def test_a_job_that_is_being_stopped_is_left_to_that(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = EpochGate()
    gate.hold(object())
    coordinator = Coordinator()
    ended(Job(tmp_path), coordinator, caplog, gate)
    assert coordinator.asked == 0


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        wind_down(job, EpochGate(), Coordinator(KeyboardInterrupt()), lambda: None)  # type: ignore[arg-type]
    assert "ends immediately" in caplog.messages[-1]
    assert "epoch 3" in caplog.messages[-1]
    assert "repeating the interrupted epoch" in caplog.messages[-1]
    assert job.told == []


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(1)


def test_the_first_signal_is_noted_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as pressed:
        assert not pressed()
        os.kill(os.getpid(), signal.SIGINT)
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is before
