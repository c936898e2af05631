"""The modules that the simulation runs see simulated files, clocks, threads and identifiers."""

from __future__ import annotations

import importlib
import subprocess
import sys

from cairn.testing.simulation import system

SYSTEM = {
    "LocalFileSystem", "mmap", "open_filesystem", "os", "own_folder", "shutil", "sync", "tempfile", "threading", "time",
    "uuid",
}  # fmt: skip
REAL = {
    "cairn.coordinator.ports": {"time"},  # SystemClock, which the simulation does not use
    "cairn.restore.pinned_snapshot": {"os"},  # splits a path
    "cairn.storage.run_records": {"os", "time"},  # the process id, and a time in a message
    "cairn.storage.savepoint_target": {"os"},  # joins a path
}
"""Names of the real system that do no harm in these modules."""

BELOW = {
    # The real file system, which the simulated one replaces as a whole, and modules that the simulation never calls.
    "cairn.restore.spark_logs",
    "cairn.storage.filesystem",
    "cairn.storage.job_lookup",
    "cairn.storage.liveness",
    "cairn.storage.retrying",
    "cairn.storage.running_jobs",
    "cairn.storage.state_file",
}


def loaded() -> list[str]:
    """The modules that the simulation loads; other tests of this process load more."""
    program = "import sys; from cairn.testing.simulation import simulated_history; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return answer.stdout.split()


def test_no_module_of_the_protocol_reaches_the_real_system() -> None:
    packages = ("cairn.coordinator.", "cairn.restore.", "cairn.storage.")
    reached = {}
    for name in loaded():
        if name.startswith(packages) and name not in BELOW:
            left = SYSTEM & set(vars(importlib.import_module(name))) - set(system.MODULES.get(name, ()))
            left -= {"LocalFileSystem"} if name.startswith("cairn.restore.") else set()
            if left:
                reached[name] = left
    assert reached == REAL
