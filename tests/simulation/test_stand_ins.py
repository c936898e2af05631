"""The modules that the simulation runs see simulated files, clocks, threads and identifiers."""

from __future__ import annotations

import sys

from cairn.testing.simulation import simulated_history, system

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


def test_no_module_of_the_protocol_reaches_the_real_system() -> None:
    assert simulated_history is not None
    packages = ("cairn.coordinator.", "cairn.restore.", "cairn.storage.")
    reached = {}
    for name, module in sys.modules.items():
        if name.startswith(packages) and name not in BELOW:
            left = SYSTEM & set(vars(module)) - set(system.MODULES.get(name, ()))
            left -= {"LocalFileSystem"} if name.startswith("cairn.restore.") else set()
            if left:
                reached[name] = left
    assert reached == REAL
