"""A simulated driver: what `execute` does, with real recovery, epochs, checkpoints and compaction, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from cairn.config import Settings
from cairn.connectors.file_sink import FileSink
from cairn.coordinator.checkpoint_coordinator import CheckpointCoordinator
from cairn.coordinator.compactor import Compactor, ranges_of
from cairn.coordinator.coordinator_setup import CoordinatorSetup
from cairn.coordinator.epoch_loop import EpochLoop, EpochLoopSetup, OperatorPlan
from cairn.coordinator.offset_log import LocalOffsets
from cairn.coordinator.ports import JobFacts
from cairn.errors import CairnError, FencedError
from cairn.events import CheckpointCompleted
from cairn.job.epoch_gate import EpochGate
from cairn.job.job_directory import sweep_leftovers
from cairn.job.retention import discard_all
from cairn.job.stopping import tell_of_unfinished_stops
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.model.ddl import key_ddl
from cairn.model.manifest import Manifest, OperatorState, StateHandle
from cairn.restore.log_agreement import output_is_published
from cairn.restore.pinned_snapshot import pinned
from cairn.restore.recovery import Recovered, recover
from cairn.restore.restore_plan import JobShape
from cairn.restore.source_logs import COMPACT_INTERVAL
from cairn.restore.start_request import Restorer, StartRequest
from cairn.restore.state_move import LocalMover
from cairn.runtime.declared_states import declared_states
from cairn.snapshots.compact_task import compact_range
from cairn.spark.savepoint_writer import SparkSavepoints
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.run_records import Runs
from cairn.testing.simulation import system
from cairn.testing.simulation.disk import SimulatedFileSystem
from cairn.testing.simulation.invariants import RequestedRestore
from cairn.testing.simulation.savepoint_users import SavepointUser, SimulatedBackground, SimulatedSpark
from cairn.testing.simulation.scheduler import NEVER, Process, Thread
from cairn.testing.simulation.simulated_spark import SOURCE, QueryLog, SimulatedCluster, entry, position_of
from cairn.testing.simulation.totals import GROUPS, UID, operator

if TYPE_CHECKING:
    from cairn.testing.simulation.simulated_history import Job, World


class Interrupted(Exception):
    """The driver was told to stop between two epochs."""


class Driver:
    """One start of a job: its own process, an actor for the query and one for the checkpoint coordinator."""

    def __init__(
        self,
        world: World,
        job: Job,
        number: int,
        settings: Settings,
        parallelism: int,
        declared: RequestedRestore | None,
    ) -> None:
        self.name = f"driver {number}"
        self.world = world
        self.job = job
        self.settings = settings
        self.parallelism = parallelism
        self.declared = declared
        self.process = Process(self.name)
        self.stopping = False
        self.discards = False
        """It was cancelled, and its checkpoints go with it."""
        self.ended = False
        self.run = 0
        self.epochs = 0
        self.limit = 1 << 30
        self.error: BaseException | None = None
        self.since = world.scheduler.now
        self._ended_at = 0
        self.user: SavepointUser | None = None

    @property
    def alive(self) -> bool:
        return not self.ended and not self.process.dead

    @property
    def until(self) -> int:
        """When it ended, or when its process was killed; far in the future while it is alive."""
        return NEVER if self.alive else max(self._ended_at, self.process.died)

    def start(self) -> None:
        self.world.scheduler.spawn(f"{self.name} loop", self.process, self._main)

    # The query's thread.

    def _main(self) -> None:
        coordinator: CheckpointCoordinator | None = None
        try:
            if self.declared is not None:
                self.job.model.declared.append(self.declared)
            try:
                files = SimulatedFileSystem(self.job.root)
                recovered, sink = self._recover(files)
            finally:
                if self.declared is not None:
                    self.job.model.declared.remove(self.declared)
            self.run = recovered.run.run
            self.world.took_over(self)
            sweep_leftovers(files)  # type: ignore[arg-type]
            tell_of_unfinished_stops(files, "job", recovered.manifest.epoch if recovered.manifest is not None else -1)
            coordinator, loop, folder = self._assemble(files, recovered, sink)
            gate = EpochGate()
            self.user = user = SavepointUser(self, coordinator, loop, gate)
            Thread(lambda: self._coordinate(coordinator, user), name="coordinator").start()
            self._query(loop, folder, gate)
        except Interrupted:
            pass
        except Exception as error:  # noqa: BLE001 - the world judges it
            self.error = error
        self.stopping = True
        if coordinator is not None:
            try:
                coordinator.close()
            except Exception as error:  # noqa: BLE001 - the world judges it
                self.error = self.error or error
        if self.discards:
            self._discard()
        self.ended = True
        self._ended_at = self.world.scheduler.now
        self.world.driver_ended(self)

    def _discard(self) -> None:
        files = SimulatedFileSystem(self.job.root)
        try:
            Runs(files).check(self.run)
            discard_all(files, "job", self.run)  # type: ignore[arg-type]
            self.world.counters.add("runs that discarded their checkpoints")
        except CairnError:  # the job has ended all the same
            self.world.counters.add("runs that could not discard their checkpoints")

    def _recover(self, files: SimulatedFileSystem) -> tuple[Recovered, FileSink]:
        sink = FileSink(self.job.sink, format="json")
        sink.uid = "out"
        sink.may_repeat = self.settings.checkpoints.mode == "AT_LEAST_ONCE"
        spec = operator(self.parallelism, self.world.source.timed)
        request = StartRequest(
            files, "job", "job", self.settings, self.parallelism, GROUPS, [UID],  # type: ignore[arg-type]
            restorer=Restorer(
                lambda: JobShape({UID: key_ddl(spec.key_types)}, {UID: declared_states(spec, {})},
                                 self.parallelism, GROUPS, sources=[SOURCE]),
                LocalMover(),
            ),
            sources=lambda: [SOURCE],
        )  # fmt: skip
        with pinned(request) as start:
            recovered = recover(
                start, system.SimulatedClock().now_ms(), prepare=lambda: sink.start(None, self.job.root, None)
            )
        return recovered, sink

    def _assemble(
        self, files: SimulatedFileSystem, recovered: Recovered, sink: FileSink
    ) -> tuple[CheckpointCoordinator, EpochLoop, str]:
        steady = system.steady(files)
        store = CheckpointStore(steady)
        facts = JobFacts("job", "job", self.run)
        background = SimulatedBackground(self.world, self)
        savepoints = SparkSavepoints(SimulatedSpark(), files, facts, COMPACT_INTERVAL, background)  # type: ignore[arg-type]
        coordinator = CheckpointCoordinator(
            CoordinatorSetup(
                self.settings.checkpoints,
                store,
                facts,
                SimulatedSnapshots(self),
                recovered.manifest,
                self._intolerable,
                clock=system.SimulatedClock(),
                savepoints=savepoints,
                published=output_is_published(files, recovered.manifest),  # type: ignore[arg-type]
            )
        )
        coordinator.events.subscribe(CheckpointCompleted, lambda event: self.world.counters.add("checkpoints"))
        manifest = recovered.manifest
        folder = f"{self.job.root}/{manifest.spark if manifest is not None else layout.SPARK}"
        loop = EpochLoop(
            EpochLoopSetup(
                files=steady,
                identity=recovered.identity,
                run=recovered.run,
                operators=[OperatorPlan(UID, "Totals", self.parallelism)],
                sinks=[sink],
                cluster=SimulatedCluster(self.world, self, steady, self.parallelism),
                offsets=LocalOffsets(folder),
                settings=self.settings,
                current=manifest,
                compactor=Compactor(self.merge, self.settings.compaction_chain),
                checkpoints=coordinator,
                source_names=[SOURCE],
            )
        )
        return coordinator, loop, folder

    def _intolerable(self, info: CheckpointInfo) -> None:
        self.world.counters.add("jobs failed by checkpoints")
        self.stopping = True

    def _query(self, loop: EpochLoop, folder: str, gate: EpochGate) -> None:
        """Spark's micro-batch execution: the newest planned batch, if it is not committed, or the one after it."""
        log = QueryLog(self.world.disk, folder)
        planned, committed = log.numbers("offsets"), log.numbers("commits")
        number = planned[-1] if planned else 0
        start = position_of(log.read("offsets", number - 1)) if number and number - 1 in planned else 0
        if planned and planned[-1:] == committed[-1:]:
            start = position_of(log.read("offsets", number))
            number += 1
        while True:
            if self.stopping or self.epochs >= self.limit:
                raise Interrupted
            if number in planned:
                end = position_of(log.read("offsets", number))
            else:
                name = f"{self.name} batch {number}"
                end = start + self.world.choices.number(f"{name}/rows", (0.0, 0.4, 0.3, 0.1, 0.1, 0.1))
                log.add("offsets", number, entry(end, system.SimulatedClock().now_ms()))
            if not gate.enter():
                raise Interrupted
            try:
                loop.run_epoch(self.world.source.rows(start, end), number)
            finally:
                gate.leave()
            self.epochs += 1
            log.add("commits", number, "v1\n{}")
            number, start = number + 1, end

    # The coordinator's thread.

    def _coordinate(self, coordinator: CheckpointCoordinator, user: SavepointUser) -> None:
        runs = Runs(SimulatedFileSystem(self.job.root))
        rounds = 0
        while not self.stopping:
            rounds += 1
            try:
                runs.check(self.run)
            except FencedError:
                self.stopping = True
                return
            except CairnError:
                self.world.counters.add("looks at runs that failed")
            if self.world.choices.chance(f"{self.name} round {rounds}/request", 0.15):
                coordinator.request(full=self.world.choices.chance(f"{self.name} round {rounds}/full", 0.3))
            if self.world.choices.chance(f"{self.name} round {rounds}/savepoint", 0.03):
                user.ask(f"{self.name} round {rounds}/savepoint")
            due = 1000.0
            try:
                due = coordinator.step()
            except CairnError:
                self.world.counters.add("steps of coordinators that failed")
            user.look()
            if not self.stopping:
                coordinator.wait(min(due, 200.0))

    # What Spark does beside the stream.

    def merge(self, manifest: Manifest, stored: OperatorState, ranges: Any, checkpoint: int = 0) -> list[StateHandle]:
        made: list[StateHandle] = []
        self.world.counters.add("snapshots" if checkpoint else "compactions")
        raw = msgspec.msgpack.encode(stored)
        for groups in ranges:
            work = (
                self.job.root, manifest.epoch, manifest.time_ms, raw, groups.start, groups.end, self.run, checkpoint,
            )  # fmt: skip
            made += [msgspec.msgpack.decode(handle, type=StateHandle) for handle in compact_range(work)]
        return made


class SimulatedSnapshots:
    """Writes the snapshots of full checkpoints, each in an actor of its own."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def start(self, number: int, manifest: Manifest, done: Callable[[Any], None]) -> None:
        def work() -> None:
            try:
                made = {
                    stored.uid: self._driver.merge(
                        manifest, stored, ranges_of(stored, manifest.max_parallelism), number
                    )
                    if stored.chain
                    else []
                    for stored in manifest.operators
                }
            except Exception as error:  # noqa: BLE001 - told to the coordinator
                done(error)
            else:
                done(made)

        Thread(work, name=f"snapshot {number}").start()

    def cancel(self, number: int) -> None:
        return None
