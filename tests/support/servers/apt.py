"""Debian's packages for tests: installed where they are missing and the machine lets the tests do so."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess

from tests.support.servers.cache import NotAvailableError, folder


def install(package: str) -> None:
    """Install a package as root or by sudo without a password; `NotAvailableError` says why that is impossible."""
    prefix = _as_root()
    if prefix is None or shutil.which("apt-get") is None:
        raise NotAvailableError(f"{package} is not installed; with apt-get and root rights the tests would install it")
    folder().mkdir(parents=True, exist_ok=True)
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    with (folder() / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
            done = subprocess.run([*quiet, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotAvailableError(f"apt-get cannot install {package}: {done.stderr[-500:]}")


def _as_root() -> list[str] | None:
    """What to put before a command that root must run; None if there is no way."""
    if os.getuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n"]
    return None
