"""Prometheus' `promtool` for tests: the one that is installed, or that of Debian's package, which is only unpacked."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.servers.cache import NotAvailableError, folder


def promtool() -> str:
    """The program; fetched where it is missing. The package itself is not installed: it would start a server."""
    found = shutil.which("promtool")
    kept = folder() / "prometheus" / "usr" / "bin" / "promtool"
    if found is None and not kept.exists():
        folder().mkdir(parents=True, exist_ok=True)
        with (folder() / "prometheus.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                _unpack(kept.parents[2])
    return found or str(kept)


def _unpack(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NotAvailableError("promtool is not installed; with apt-get the tests would fetch it")
    with tempfile.TemporaryDirectory(dir=folder()) as place:
        _call("apt-get", "download", "-q", "prometheus", cwd=place, again="update")
        package = next(Path(place).glob("prometheus_*.deb"))
        whole = Path(place) / "whole"
        _call("dpkg-deb", "-x", str(package), str(whole), cwd=place)
        target.parent.mkdir(parents=True, exist_ok=True)
        whole.rename(target)


def _call(*command: str, cwd: str, again: str = "") -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and again:  # the lists of packages may be missing or old
        subprocess.run([command[0], "-qq", again], capture_output=True, check=False, timeout=300)
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise NotAvailableError(f"{' '.join(command)} fails: {(done.stderr or done.stdout)[-500:]}")
