"""Deterministic simulation of everything but Spark: whole lives of jobs, driven by one seed (docs/testing.md).

Real recovery, epochs, checkpoints, compaction, tasks and sink commits run over a disk, a clock and a scheduler in
memory. A seed decides everything that goes wrong: pauses of any length at every storage call, crashes, lost answers,
several drivers at once, restores, rescales. A model checks the promises of the design at every change.

>>> from cairn.testing.simulation import simulate
>>> simulate(1).problem
''
"""

from cairn.testing.simulation.shrink import readable, shrink
from cairn.testing.simulation.simulated_history import Outcome, simulate

__all__ = ["Outcome", "readable", "shrink", "simulate"]
