"""Whether a process still lives: its number is not enough."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from cairn.storage import liveness
from cairn.storage.liveness import SECONDS_MS, ProcessMark, is_alive

HOST = socket.gethostname()


def now_ms() -> int:
    return int(time.time() * 1000)


def test_this_process_lives() -> None:
    assert is_alive(HOST, os.getpid(), now_ms()) is True
    assert ProcessMark.own().is_alive() is True


def test_a_process_that_has_ended_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_alive(HOST, process.pid, now_ms()) is True
        process.communicate(b"\n")
    assert is_alive(HOST, process.pid, now_ms()) is False


@pytest.mark.parametrize("pid", [2**22 - 3, 2**40, 2**70])
def test_a_number_that_no_process_has(pid: int) -> None:
    assert is_alive(HOST, pid, now_ms()) is False


def test_another_process_with_the_number_does_not_count() -> None:
    assert is_alive(HOST, os.getpid(), 1_000_000_000_000) is False, "noted before this process began"
    own = ProcessMark.own()
    assert own.ticks is not None
    assert replace(own, ticks=own.ticks - 1).is_alive() is False
    assert replace(own, boot="an earlier boot").is_alive() is False
    assert replace(own, boot="an earlier boot").exists() is True


def test_a_clock_that_is_set_forward_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    own, noted_ms, real = ProcessMark.own(), now_ms(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 1800)
    assert own.is_alive() is True
    assert is_alive(HOST, os.getpid(), noted_ms) is True
    monkeypatch.setattr(time, "time", lambda: real() + 7 * 24 * 3600)
    assert own.is_alive() is True
    assert is_alive(HOST, os.getpid(), noted_ms) is False, "all that a record of a run allows to say"


def test_a_container_that_was_started_after_its_host_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open

    def virtual(path: Any, *args: Any, **options: Any) -> Any:
        return io.StringIO("1.00 1.00") if path == "/proc/uptime" else opened(path, *args, **options)

    monkeypatch.setattr("builtins.open", virtual)
    assert is_alive(HOST, os.getpid(), now_ms(), SECONDS_MS) is True


def test_without_ticks_every_process_of_the_number_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off Linux, where the boot id drifts, and in notes of older releases."""
    older = ProcessMark(HOST, os.getpid(), "the id before the host slept")
    assert older.is_alive() is True
    monkeypatch.setattr(liveness, "_start_ticks", lambda pid: None)
    assert replace(older, ticks=5).is_alive() is True
    assert replace(older, pid=2**22 - 3).is_alive() is False


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert is_alive(HOST, os.getpid(), now_ms()) is True


def test_other_hosts_and_impossible_numbers_are_unknown() -> None:
    assert is_alive("elsewhere", os.getpid(), now_ms()) is None
    assert is_alive(HOST, 0, now_ms()) is None
    assert is_alive(HOST, -1, now_ms()) is None
