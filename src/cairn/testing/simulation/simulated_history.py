"""One simulated history: drivers that start, stop, crash and overtake each other, until the dust settles."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cairn.config import CheckpointSettings, Settings
from cairn.errors import CairnError, FencedError
from cairn.model.manifest import EpochContext
from cairn.storage import layout
from cairn.storage.retrying import passes
from cairn.testing.simulation import system
from cairn.testing.simulation.choices import Choices, Decisions
from cairn.testing.simulation.disk import HOUR, Counters, Disk, FaultShares
from cairn.testing.simulation.invariants import Committed, JobModel, RequestedRestore, Violation
from cairn.testing.simulation.savepoint_users import DIRECTORY, Shelf
from cairn.testing.simulation.scheduler import Process, Scheduler, Stuck
from cairn.testing.simulation.simulated_driver import Driver
from cairn.testing.simulation.simulated_spark import Conflict, Memory, Worker, position_of
from cairn.testing.simulation.totals import SimulatedSource

EPOCHS = 20
_MOST_DRIVERS = 14
_MOST_CALLS = 30_000
_WORKERS = 3
TRACED = 400


@dataclass
class Job:
    """A job directory, its sink, its model, and the drivers that were started for it."""

    name: str
    root: str
    sink: str
    model: JobModel
    drivers: list[Driver] = field(default_factory=list)
    origin: Origin | None = None
    """What this job begins with."""

    def living(self) -> list[Driver]:
        return [driver for driver in self.drivers if driver.alive]


@dataclass(frozen=True)
class Origin:
    """A snapshot of another job."""

    path: str
    commit: Committed
    there: Callable[[], bool]
    """Whether that job has not let it go meanwhile."""


@dataclass(frozen=True)
class Outcome:
    """What came of a history."""

    seed: int
    problem: str
    """What rule was broken and how; empty if none was."""
    rule: str
    decisions: Decisions
    counters: dict[str, int]
    calls: int
    fingerprint: str
    """The same for the same seed and code: a hash over every call of the history."""
    trace: list[str] = field(default_factory=list)


class World:
    """Everything that one history consists of."""

    def __init__(self, seed: int, given: Decisions | None = None, traced: bool = False, epochs: int = EPOCHS) -> None:
        self.seed = seed
        self.epochs = epochs
        self.choices = choices = Choices(seed, given)
        self.counters = Counters()
        self.scheduler = Scheduler()
        self.disk = Disk(self.scheduler, choices, self.counters)
        self.disk.on_crash = self._crash
        self.disk.watchers.append(self._changed)
        self.disk.trace = [] if traced else None
        self._digest = hashlib.blake2b(digest_size=8)
        self.source = SimulatedSource(seed, 1 + choices.below("keys", 4), choices.chance("timed", 0.15))
        self.workers = [Worker() for _ in range(_WORKERS)]
        self.violation: Violation | None = None
        self.retained = 1 + choices.below("epochs retained", 3)
        self.num_retained = 1 + choices.below("checkpoints retained", 3)
        self.settings = Settings(
            directory="/sim",
            local_directory="/sim/local",
            backend="hashmap",
            inline_threshold=choices.one_of("inline threshold", (1 << 14, 100, 610)),
            compaction_chain=choices.one_of("compaction chain", (1000, 2, 4)),
            epochs_retained=self.retained,
            checkpoints=CheckpointSettings(
                interval_ms=choices.one_of("checkpoint interval", (0, 150, 400)),
                num_retained=self.num_retained,
                incremental=not choices.chance("full checkpoints", 0.3),
                mode=choices.one_of("mode", ("EXACTLY_ONCE",) * 6 + ("AT_LEAST_ONCE",)),
                unaligned=choices.chance("unaligned", 0.2),
                tolerable_failures=3,
            ),
        )
        self.jobs: list[Job] = []
        self.shelf = Shelf(self)
        self._attempts = 0
        self._drivers = 0
        self._over = False
        self._add_job("job")

    def _add_job(self, name: str) -> Job:
        root, sink = f"/sim/{name}", f"/sim/{name}-out"
        model = JobModel(self.disk, root, sink, self.source, self.retained, self.num_retained)
        model.may_repeat = self.settings.checkpoints.mode == "AT_LEAST_ONCE"
        job = Job(name, root, sink, model)
        self.disk.prompt.add(sink)
        self.jobs.append(job)
        return job

    # Told by the parts.

    def _changed(self, what: str, path: str, data: bytes) -> None:
        self._digest.update(f"{what} {path}\n".encode())
        if self.violation is not None:
            return
        actor, self.scheduler.current = self.scheduler.current, None  # who looks is not part of the history
        try:
            if path.startswith(f"{DIRECTORY}/"):
                self.shelf.changed(what, path, data)
            else:
                for job in self.jobs:
                    job.model.changed(what, path, data)
        except Violation as violation:
            self.scheduler.current = actor
            self.broken(violation)
        finally:
            self.scheduler.current = actor

    def broken(self, violation: Violation) -> None:
        if self.violation is None:
            self.violation = violation
            self.disk.stopped = True
            actor = self.scheduler.current
            self.disk._note(actor.name if actor is not None else "end", "!!", str(violation))

    def _crash(self) -> None:
        actor = self.scheduler.current
        if actor is not None:
            self.scheduler.kill(actor.process)

    def took_over(self, driver: Driver) -> None:
        self.counters.add("runs")
        if any(other.alive and other.run and other is not driver for other in driver.job.drivers):
            self.counters.add("takeovers")

    def driver_ended(self, driver: Driver) -> None:
        error = driver.error
        if error is None:
            return
        self.disk._note(driver.name, "ends", f"{type(error).__name__}: {error}")
        self.counters.add(f"ended by {type(error).__name__}")
        if isinstance(error, (FencedError, Conflict)) or passes(error) or _collided(error):
            return
        # Whoever runs beside another driver may find anything missing or changed. It must say so, and do no harm.
        others = [other for other in driver.job.drivers if other is not driver and other.until > driver.since]
        if (others or driver.process.misled) and isinstance(error, CairnError):
            return
        if isinstance(error, OSError) and any(other.run > driver.run for other in others):
            return
        origin = driver.job.origin
        if origin is not None and not origin.there() and isinstance(error, CairnError):
            return  # the other job has let its checkpoint go meanwhile
        self.broken(Violation("no error without a cause", f"{driver.name} failed: {type(error).__name__}: {error}"))

    def straggler_failed(self, context: EpochContext, error: Exception) -> None:
        self.counters.add("stragglers that failed")

    def worker(self, name: str) -> Worker:
        """A worker for a task: one of the pool that is free, perhaps one that has just lost its memory."""
        free = [worker for worker in self.workers if not worker.busy]
        if not free:
            self.workers.append(Worker())
            return self.workers[-1]
        chosen = free[self.choices.below(name, len(free))]
        if self.choices.chance(f"{name}/lost", 0.04):
            self.counters.add("lost workers")
            self.lose(chosen)
            return self.worker(f"{name}/other")
        return chosen

    def lose(self, worker: Worker) -> None:
        self.workers[self.workers.index(worker)] = Worker()

    def next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    # What happens.

    def run(self) -> None:
        """The whole history. What is broken first stays in `violation`."""
        machine = Process("operator")
        self.scheduler.on_error = self._actor_failed
        share = self.choices.one_of("faults", (0.0, 0.004, 0.012, 0.03))
        self.disk.faults = FaultShares(
            pauses=share,
            crashes=share * self.choices.one_of("crashes", (0.0, 0.1, 0.3)),
            errors=share * self.choices.one_of("errors", (0.0, 0.2)),
            lost_answers=share * self.choices.one_of("lost answers", (0.0, 0.3)),
            lag=self.choices.one_of("lag", (0.0, 0.0, 0.1)),
            leaps=self.choices.one_of("leaps", (0.0, 0.1)),
        )
        try:
            self.scheduler.spawn("operator", machine, self._operate)
            self.scheduler.run(lambda: self.violation is not None or self._over or self.disk.calls > _MOST_CALLS)
            if self.violation is None:
                self._settle()
        except Stuck as stuck:
            self.broken(Violation("nobody waits for ever", str(stuck)))
        finally:
            watchers, self.disk.watchers = self.disk.watchers, []
            self.scheduler.end()
            self.disk.watchers = watchers

    def _actor_failed(self, actor: Any, error: BaseException) -> None:
        self.broken(Violation("no error without a cause", f"{actor.name} failed: {type(error).__name__}: {error}"))

    def _operate(self) -> None:
        """The supervisor and the user: start the job when it is down, and now and then when it is not."""
        round_ = 0
        while True:
            round_ += 1
            name = f"operator round {round_}"
            for job in list(self.jobs):
                living = job.living()
                if job.origin is not None and not job.model.order:
                    if not living and job.origin.there():
                        self._start(job, f"{name}/{job.name}")
                elif not living or (len(living) < 3 and self.choices.chance(f"{name}/{job.name}/takeover", 0.25)):
                    self._start(job, f"{name}/{job.name}")
                elif self.choices.chance(f"{name}/{job.name}/stop", 0.06):
                    self._stop(living[-1], f"{name}/{job.name}")
                if len(self.jobs) == 1 and self._snapshots(job) and self.choices.chance(f"{name}/fork", 0.03):
                    self._fork(job, name)
            done = all(len(job.model.order) >= self.epochs for job in self.jobs if job.model.order or not job.origin)
            if done or sum(len(job.drivers) for job in self.jobs) >= _MOST_DRIVERS:
                self._over = True
                return
            self.scheduler.take(self.choices.one_of(f"{name}/sleep", (300, 40, 120, 700)))

    def _stop(self, driver: Driver, name: str) -> None:
        if driver.user is not None and self.choices.chance(f"{name}/with savepoint", 0.4):
            driver.user.stop_with = name
        else:
            self.counters.add("stops")
            driver.discards = self.choices.chance(f"{name}/discard", 0.4)
            driver.stopping = True

    def _snapshots(self, job: Job) -> list[Origin]:
        """What a job could be started from, oldest checkpoint first, then savepoints."""
        model, saved = job.model, self.shelf.of(job)
        listed = {number: model.commits[model.listed[number].manifest.epoch] for number in sorted(model.listed)}
        return [
            *(Origin(f"{job.root}/chk-{number}", listed[number], partial(model.lists, number)) for number in listed),
            *(Origin(one.path, one.commit, partial(self.shelf.holds, one.path)) for one in saved),
        ]

    def _start(self, job: Job, name: str) -> Driver:
        choices = self.choices
        settings = self.settings
        restore = ""
        declared = None
        if job.origin is not None and not job.model.order:
            restore, declared = job.origin.path, _declared(job.origin.commit, own=False)
        elif choices.chance(f"{name}/rollback", 0.12) and (snapshots := self._snapshots(job)):
            chosen = snapshots[choices.below(f"{name}/rollback to", len(snapshots))]
            restore, declared = chosen.path, _declared(chosen.commit, own=True)
            self.counters.add(
                "rollbacks" if layout.checkpoint_number(restore.rpartition("/")[2]) else "savepoints restored"
            )
        if restore:
            settings = replace(settings, restore_path=restore)
        parallelism = 1 + choices.number(f"{name}/parallelism", (0.7, 0.2, 0.1))
        self._drivers += 1
        driver = Driver(self, job, self._drivers, settings, parallelism, declared)
        driver.process.skew_ms = choices.one_of(f"{name}/clock", (0, 0, 0, -2 * HOUR, 3 * HOUR))
        self.disk._note("operator", "start", f"{driver.name} of {job.name} with {parallelism} subtasks {restore}")
        job.drivers.append(driver)
        self.counters.add("drivers")
        driver.start()
        return driver

    def _fork(self, job: Job, name: str) -> None:
        snapshots = self._snapshots(job)
        fork = self._add_job("fork")
        fork.origin = snapshots[self.choices.below(f"{name}/fork of", len(snapshots))]
        self.counters.add("forks of savepoints" if fork.origin.path.startswith(DIRECTORY) else "forks")
        self._start(fork, f"{name}/fork")

    def _last_driver(self, job: Job) -> Driver:
        """A driver that runs two epochs without faults."""
        self._drivers += 1
        driver = Driver(self, job, self._drivers, self.settings, 1, None)
        driver.limit = 2
        job.drivers.append(driver)
        self.counters.add("drivers")
        driver.start()
        self.scheduler.run(lambda: self.violation is not None)
        return driver

    def _settle(self) -> None:
        """No more faults; everybody who is left goes on to the end; then a fresh driver must go on with each job."""
        self.disk.faults = FaultShares()
        for job in self.jobs:
            for driver in job.drivers:
                driver.stopping = True
        self.scheduler.run(lambda: self.violation is not None)
        for job in self.jobs:
            if self.violation is not None or not job.model.order:
                continue
            driver = self._last_driver(job)
            if _collided(driver.error):  # a job starts again by itself
                driver = self._last_driver(job)
            if self.violation is None:
                try:
                    if driver.epochs < 2:
                        raise Violation("a fresh run goes on", f"{driver.name} ran {driver.epochs} epochs")
                    job.model.settled()
                    self.shelf.settled()
                except Violation as violation:
                    self.broken(violation)

    def outcome(self) -> Outcome:
        counters = dict(self.counters.counts)
        counters["epochs"] = sum(len(job.model.order) for job in self.jobs)
        counters["late commits"] = sum(len(job.model.void) for job in self.jobs)
        counters["restores"] = sum(job.model.restores for job in self.jobs)
        self._digest.update(str(self.scheduler.now).encode())
        return Outcome(
            self.seed,
            str(self.violation) if self.violation is not None else "",
            self.violation.rule if self.violation is not None else "",
            dict(self.choices.taken),
            counters,
            self.disk.calls,
            self._digest.hexdigest(),
            [f"{now:>7} {actor}: {operation} {text}" for now, actor, operation, text in self.disk.trace or ()],
        )


def _declared(commit: Committed, own: bool) -> RequestedRestore:
    return RequestedRestore(commit.state, position_of(commit.manifest.offsets), commit.epoch, own)


_INSTANTS: dict[str, tuple[str, float]] = {}
MEMORY: tuple[tuple[str, str, Any], ...] = (
    ("cairn.state.working_store", "_resident", Memory("stores")),
    ("cairn.runtime.task", "_manifests", Memory("manifests")),
    ("cairn.coordinator.epoch_time", "_instants", _INSTANTS),
    ("cairn.storage.checkpoint_store", "_LOOK_AHEAD", 3),  # less to look at: more histories
    ("cairn.runtime.task", "_MANY_OBJECTS", 1 << 60),  # garbage is collected between histories
)

_NO_SHORT_WAYS = tuple(
    (module, name, -1)
    for module, name in (
        ("cairn.runtime.batches", "FEW_ROWS"),
        ("cairn.state.codec", "_FEW_ROWS"),
        ("cairn.state.store_copy", "_FEW_ROWS"),
        ("cairn.storage.chain_merge", "_FEW_ROWS"),
    )
)
"""The code for many rows, which histories do not have."""


def simulate(
    seed: int, given: Decisions | None = None, traced: bool = False, epochs: int = EPOCHS, in_place: bool = False
) -> Outcome:
    """Run the history of a seed; with `given`, that of these decisions instead. `in_place`: stand-ins are installed."""
    world = World(seed, given, traced, epochs)
    Memory.scheduler = world.scheduler
    _INSTANTS.clear()
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(system.running(world.scheduler, world.disk, seed))
        if not in_place:
            stack.enter_context(system.installed(MEMORY))
        if world.choices.chance("no short ways", 0.1):
            stack.enter_context(system.replaced(_NO_SHORT_WAYS))
        world.run()
        machine.check_records()
    return world.outcome()


def _collided(error: BaseException | None) -> bool:
    """Whether a driver met a manifest of an overtaken run under the name of its epoch: the job starts again then."""
    return isinstance(error, CairnError) and "collision" in error.facts
