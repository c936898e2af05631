"""Whether a process is still alive.

A process is known by its host, its number and a time at which it lived. Numbers are used again, so a process that began
after that time is another one. After a reboot of the host, none of its earlier processes is alive.
"""

from __future__ import annotations

import os
import socket
import time

_CLOCK_MS = 5000
"""How far the clock of the host may have been set since the process was noted."""


def is_alive(host: str, pid: int, noted_ms: int | None, boot: str = "") -> bool | None:
    """Whether the process that was noted at a time still lives; None if this host cannot tell.

    `boot` is the `boot_id` that was noted with it. Either of the two may be unknown.
    """
    if host != socket.gethostname() or pid <= 0:
        return None
    if boot and boot != boot_id():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    began = _began_ms(pid)
    return noted_ms is None or began is None or began <= noted_ms + _CLOCK_MS


def _began_ms(pid: int) -> float | None:
    """When a process began, by the clock of the host as it is set now; None where /proc does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        with open("/proc/uptime", encoding="utf-8") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return (time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")) * 1000


def boot_id() -> str:
    """Identifies the time since the host was last started."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        # Not Linux: the time of the start, to the minute, since clocks are set while a host runs.
        return str(round((time.time() - time.monotonic()) / 60))
