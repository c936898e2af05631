"""What users test their functions and backends with. Needs neither Spark nor, except `conformance`, a test runner.

* `KeyedProcessHarness` runs a `KeyedProcessFunction` with real state, real commits and simulated failures.
* `ProcessHarness` and `TwoInputHarness` do the same for functions without a key and with two inputs.
* `WindowHarness` and `WindowAggregateHarness` do the same for windows.
* `faults.FaultyFileSystem` makes storage fail on cue.
* `conformance.StateBackendConformance` is the test suite that every state backend must pass.
"""

from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem, flip_bit, truncate
from cairn.testing.input_harness import ProcessHarness, TwoInputHarness
from cairn.testing.keyed_harness import KeyedProcessHarness, Timer
from cairn.testing.window_harness import WindowAggregateHarness, WindowHarness

__all__ = [
    "Crash",
    "Fault",
    "FaultPlan",
    "FaultyFileSystem",
    "KeyedProcessHarness",
    "ProcessHarness",
    "Timer",
    "TwoInputHarness",
    "WindowAggregateHarness",
    "WindowHarness",
    "flip_bit",
    "truncate",
]
