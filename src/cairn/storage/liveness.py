"""Whether a process is still alive.

Numbers of processes are used again, so the number is not enough. There are two ways to tell a process from a later one:

- `ProcessMark`, for notes of running jobs: the boot of the host and the start of the process in ticks since then.
  Neither depends on the clock.
- a time at which it lived, for records of runs, which have nothing else: a process that began well after that time is
  another one. Setting the clock moves the one against the other, so the answer is good for display and statistics only.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

HOUR_MS = 3_600_000
SECONDS_MS = 5_000


def is_alive(host: str, pid: int, noted_ms: int, clock_ms: int = HOUR_MS) -> bool | None:
    """Whether the process that was noted at a time still lives; None if this host cannot tell.

    The clock of the host may have been set forward by `clock_ms` since then. An hour covers time zones that were taken
    for UTC and hosts that slept. In exchange, a process that took the number within an hour is taken for the noted one.
    """
    exists = _exists(host, pid)
    if not exists:
        return exists
    began = _began_ms(pid)
    return began is None or began <= noted_ms + clock_ms


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process as it is noted while it runs."""

    host: str
    pid: int
    boot: str = ""
    """The `boot_id` of the host."""
    ticks: int | None = None
    """When the process began, in clock ticks since the boot. None where it is not known: off Linux, in older notes."""

    @staticmethod
    def own() -> ProcessMark:
        return ProcessMark(socket.gethostname(), os.getpid(), boot_id(), _start_ticks(os.getpid()))

    def exists(self) -> bool | None:
        """Whether there is a process of this number, be it another one; None if this host cannot tell."""
        return _exists(self.host, self.pid)

    def is_alive(self) -> bool | None:
        """Whether the process lives; None if this host cannot tell. Without ticks every process of the number counts,
        and the boot does not: off Linux its id changes while the host sleeps or its clock is set."""
        exists = self.exists()
        ticks = _start_ticks(self.pid) if exists else None
        if not exists or self.ticks is None or ticks is None:
            return exists
        return (self.boot, self.ticks) == (boot_id(), ticks)


def _exists(host: str, pid: int) -> bool | None:
    if host != socket.gethostname() or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def _start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None where /proc does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _began_ms(pid: int) -> float | None:
    """When a process began, by the clock of the host as it is set now; None where it is not known."""
    ticks = _start_ticks(pid)
    if ticks is None:
        return None
    # Not /proc/uptime: containers may show the time since they were started there, while ticks count from the boot.
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return (time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")) * 1000


def boot_id() -> str:
    """Identifies the time since the host was last started."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        # Not Linux: the time of the start, to the minute, since clocks are set while a host runs.
        return str(round((time.time() - time.monotonic()) / 60))
