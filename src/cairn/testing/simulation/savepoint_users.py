"""Savepoints of simulated jobs: the real writer over a simulated Spark, those who ask for them, and what must hold.

A savepoint is its owner's: once it exists it stays as it is, whatever becomes of the job. The same request makes one
savepoint, in whatever run it is asked for again, and everybody who asks is given the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.epoch_loop import EpochLoop
from cairn.coordinator.pending_checkpoint import CheckpointRequest, SavepointOrder
from cairn.errors import CairnError
from cairn.job.epoch_gate import EpochGate
from cairn.job.stopping import StopContext, stop
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus
from cairn.model.savepoint_records import SavepointMetadata, StateTable
from cairn.storage import layout
from cairn.storage.savepoint_folder import decode_savepoint, named_files
from cairn.testing.simulation.disk import Disk, SimulatedFileSystem
from cairn.testing.simulation.invariants import Committed, Violation
from cairn.testing.simulation.scheduler import Process, Thread
from cairn.testing.simulation.simulated_spark import position_of
from cairn.testing.simulation.totals import State, living, moment_of

if TYPE_CHECKING:
    from cairn.testing.simulation.simulated_driver import Driver
    from cairn.testing.simulation.simulated_history import Job, World

DIRECTORY = "/sim/savepoints"
"""All jobs of a history write here, with the same job id and the same request ids."""
_REQUESTS = 6


class SimulatedSpark:
    """As much of a Spark session as the writer of savepoints asks for."""

    @property
    def sparkContext(self) -> SimulatedSpark:
        return self

    def cancelJobGroup(self, group: str) -> None:
        """Tasks of the simulation end at their next call of the storage only if their process does."""


class SimulatedBackground:
    """Tasks beside the stream, which run in the actor that asks. Some run once more, whatever becomes of the driver."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world = world
        self._driver = driver

    def run(
        self,
        call: Callable[[Any], Any],
        work: Sequence[Any],
        group: str,
        what: str,
        finished: Callable[[int], None] = lambda number: None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> list[Any]:
        made = []
        for number, piece in enumerate(work):
            if given_up():
                break
            name = f"{self._driver.name} {what} piece {number}"
            if self._world.choices.chance(f"{name}/twice", 0.1):
                self._world.counters.add("savepoint tasks run twice")
                self._straggle(name, call, piece)
            made.append(call(piece))
            finished(number)
        return made

    def _straggle(self, name: str, call: Callable[[Any], Any], piece: Any) -> None:
        def work() -> None:
            try:
                call(piece)
            except Exception:  # noqa: BLE001 - nobody waits for it
                self._world.counters.add("savepoint tasks that failed late")

        delay = self._world.choices.one_of(f"{name}/delay", (0, 15, 300))
        self._world.scheduler.spawn(f"{name} straggler", Process(f"{name} straggler"), work, delay)


@dataclass(frozen=True)
class Saved:
    """A savepoint that exists."""

    path: str
    job: Job
    commit: Committed
    metadata: SavepointMetadata
    files: frozenset[str]


class Shelf:
    """The model of the directory that savepoints are written to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._disk: Disk = world.disk
        self.saved: dict[str, Saved] = {}
        self._answers: dict[tuple[str, str], tuple[str, int]] = {}

    def of(self, job: Job) -> list[Saved]:
        """The savepoints of a job, in the order of their names."""
        return [self.saved[path] for path in sorted(self.saved) if self.saved[path].job is job]

    def holds(self, path: str) -> bool:
        """Whether the savepoint is still there."""
        return path in self.saved

    def changed(self, what: str, path: str, data: bytes) -> None:
        """Called for every change of the disk below the directory."""
        folder, _, inside = path[len(DIRECTORY) + 1 :].partition("/")
        if layout.is_savepoint_progress(folder):
            return
        root = f"{DIRECTORY}/{folder}"
        if what == "create" and inside == layout.METADATA:
            self._completed(root, decode_savepoint(data, path))
        elif what == "delete" and root in self.saved and path in self.saved[root].files:
            raise Violation("what is needed stays", f"{inside} of savepoint {folder} was deleted")

    def _completed(self, root: str, metadata: SavepointMetadata) -> None:
        if root in self.saved:
            raise Violation("one savepoint for a request", f"{root} was written twice")
        for job in self._world.jobs:
            commit = job.model.commits.get(metadata.epoch)
            if commit is not None and commit.manifest.incarnation == metadata.incarnation:
                break
        else:
            raise Violation("what is listed restores", f"{root} is of epoch {metadata.epoch}, which is not committed")
        files = frozenset(f"{root}/{file.path}" for file in named_files(metadata)) | {f"{root}/{layout.METADATA}"}
        saved = Saved(root, job, commit, metadata, files)
        self._whole(saved)
        self._world.counters.add("savepoints")
        self.saved[root] = saved

    def _whole(self, saved: Saved) -> None:
        for path in sorted(saved.files):
            if path not in self._disk.files:
                raise Violation("what is listed restores", f"savepoint {saved.path} lacks {path}")
        if position_of(saved.metadata.offsets) != position_of(saved.commit.manifest.offsets):
            raise Violation("what is listed restores", f"savepoint {saved.path} has the positions of another epoch")
        at = moment_of(saved.commit.manifest, 0)
        stored, expected = living(self._stored(saved), at), living(saved.commit.state, at)
        if stored != expected:
            raise Violation("state is exact", f"{saved.path} holds {stored} instead of {expected}")

    def _stored(self, saved: Saved) -> State:
        state: State = {}
        for table in (table for operator in saved.metadata.operators for table in operator.tables):
            for file in table.files:
                rows = pq.ParquetFile(pa.BufferReader(self._disk.files[f"{saved.path}/{file.path}"].data)).read()
                for row in rows.to_pylist():
                    name, value = _entry(row, table)
                    if name in state:
                        raise Violation("state is exact", f"{saved.path} holds {name} twice")
                    state[name] = value
        return state

    def answered(self, job: Job, request: str, info: CheckpointInfo) -> None:
        """Somebody was given a completed savepoint for a request."""
        saved = self.saved.get(info.path)
        if saved is None or saved.job is not job or saved.metadata.epoch != info.epoch:
            raise Violation(
                "one savepoint for a request", f"request {request} was answered with {info.path} of epoch {info.epoch}"
            )
        before = self._answers.setdefault((job.name, request), (info.path, info.epoch))
        if before != (info.path, info.epoch):
            raise Violation(
                "one savepoint for a request", f"request {request} was answered with {before[0]} and with {info.path}"
            )

    def settled(self) -> None:
        """At the end all savepoints are as they were."""
        for saved in self.saved.values():
            self._whole(saved)


def _entry(row: dict[str, Any], table: StateTable) -> tuple[str, Any]:
    """A row of a table as the model has it."""
    columns = table.columns
    key = row[columns.keys[0]]
    if columns.timestamp:
        return f"{key} @{row[columns.timestamp]}", 0
    if columns.last_access:
        return f"{key} recent", (row[columns.value], round(row[columns.last_access].timestamp() * 1000))
    return key, row[columns.value]


class SavepointUser:
    """Asks one driver for savepoints, often again for what was asked before, and stops it with one."""

    def __init__(self, driver: Driver, coordinator: CheckpointCoordinator, loop: EpochLoop, gate: EpochGate) -> None:
        self._driver = driver
        self._world = driver.world
        self._coordinator = coordinator
        self._loop = loop
        self._gate = gate
        self._waiting: dict[str, CheckpointRequest] = {}
        self.stop_with: str = ""
        """Set by whoever wants the driver to be stopped with a savepoint: the name of that decision."""

    def _order(self, name: str) -> SavepointOrder:
        return SavepointOrder(DIRECTORY, f"request-{self._world.choices.below(f'{name}/id', _REQUESTS)}")

    def ask(self, name: str) -> None:
        order = self._order(name)
        self._world.counters.add("savepoints asked for")
        self._waiting[order.request] = self._coordinator.savepoint(order)

    def look(self) -> None:
        """See whether savepoints that were asked for are there, and to what is wanted now."""
        if self.stop_with:
            name, self.stop_with = self.stop_with, ""
            self._stop(name)
        for request, asked in list(self._waiting.items()):
            if asked.ended:
                del self._waiting[request]
                self._answer(request, asked)

    def _answer(self, request: str, asked: CheckpointRequest) -> None:
        info = asked._info
        if info is None or info.status is CheckpointStatus.FAILED:
            self._world.counters.add("savepoints that failed")
            return
        try:
            self._world.shelf.answered(self._driver.job, request, info)
        except Violation as violation:
            self._world.broken(violation)

    def _stop(self, name: str) -> None:
        """Stop the driver with a savepoint, from another thread."""
        order = self._order(name)

        def work() -> None:
            driver, world = self._driver, self._world
            files = SimulatedFileSystem(driver.job.root)
            try:
                context = StopContext(
                    files, self._gate, self._coordinator, self._loop, driver.run, timers=False, end=self._end
                )
                info = stop(context, order, 20.0)
            except (CairnError, OSError, TimeoutError):
                world.counters.add("stops with savepoint that failed")
                return
            world.counters.add("stops with savepoint")
            try:
                world.shelf.answered(driver.job, order.request, info)
                later = [commit for commit in driver.job.model.commits.values() if commit.manifest.run == driver.run]
                if any(commit.epoch > info.epoch for commit in later):
                    raise Violation("a stopped job has ended", f"an epoch follows {info.path} of epoch {info.epoch}")
            except Violation as violation:
                world.broken(violation)

        Thread(work, name="stop").start()

    def _end(self) -> None:
        self._driver.stopping = True
        self._gate.end(30.0)
