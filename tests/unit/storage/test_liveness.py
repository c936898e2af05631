"""Whether a process still lives: its number is not enough."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from cairn.storage.liveness import boot_id, is_alive

HOST = socket.gethostname()


def now_ms() -> int:
    return int(time.time() * 1000)


def test_this_process_lives() -> None:
    assert is_alive(HOST, os.getpid(), now_ms(), boot_id()) is True
    assert is_alive(HOST, os.getpid(), None) is True


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
    assert is_alive(HOST, os.getpid(), now_ms(), "an earlier boot") is False


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert is_alive(HOST, os.getpid(), now_ms()) is True


def test_other_hosts_and_impossible_numbers_are_unknown() -> None:
    assert is_alive("elsewhere", os.getpid(), now_ms()) is None
    assert is_alive(HOST, 0, now_ms()) is None
    assert is_alive(HOST, -1, now_ms()) is None
