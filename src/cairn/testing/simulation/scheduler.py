"""Actors that take turns, one at a time, in the order of a simulated clock.

An actor is a greenlet: real code runs in it as it is, and gives way inside the calls that are simulated (storage,
locks, waiting). Each such call takes a tick, or as long as the history decides: a pause of any length is nothing but a
call that takes many ticks, while others go on. Locks of this module exclude actors of one driver from each other as
locks of threads would; an `RLock` would not, since all greenlets are one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cairn.errors import InternalError, NotFoundError

try:
    import greenlet
except ImportError as error:  # pragma: no cover - the development environment has it
    raise NotFoundError(
        "the simulation needs the package greenlet: pip install 'cairn-streaming[testing]'", package="greenlet"
    ) from error

NEVER = 1 << 62


class ProcessEnded(BaseException):
    """The process that an actor belongs to has ended. Not an `Exception`, so that no handler takes it for an error."""


class Stuck(Exception):
    """All actors wait for each other."""


class Process:
    """What crashes together: the actors of one driver, or of one worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.died = 0
        self.misled = False
        """A listing did not show it what was there: it may refuse to go on, but must do no harm."""
        self.skew_ms = 0
        """How far its clock is from the true one."""


class Actor:
    """One thread of control."""

    def __init__(self, name: str, process: Process, body: Callable[[], None]) -> None:
        self.name = name
        self.process = process
        self.wake = 0
        self.order = 0
        self.calls: dict[str, int] = {}
        self.done = False
        self.waits = False
        """Waits for a lock or an event, not for the clock."""
        self.worker: Any = None
        """The Python worker whose memory the actor uses, while it runs a task."""
        self._body = body
        self.greenlet: Any = greenlet.greenlet(self._run)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._body()
        except (ProcessEnded, greenlet.GreenletExit):
            pass
        except BaseException as error:  # noqa: BLE001 - handed to whoever runs the simulation
            self.error = error
        self.done = True

    def count(self, what: str) -> int:
        """How often this actor has done something, this time included."""
        number = self.calls.get(what, 0) + 1
        self.calls[what] = number
        return number


class Scheduler:
    """Runs whoever is due next. `now` is in ticks, which stand for milliseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.on_error: Callable[[Actor, BaseException], None] | None = None
        self._hub = greenlet.getcurrent()
        self._until: Callable[[], bool] = lambda: False
        self._turn = 0
        self.switches = 0

    def spawn(self, name: str, process: Process, body: Callable[[], None], delay: int = 0) -> Actor:
        actor = Actor(name, process, body)
        actor.wake = self.now + delay
        actor.greenlet.parent = self._hub
        self.actors.append(actor)
        return actor

    def run(self, until: Callable[[], bool]) -> None:
        """Let the actors take turns until the condition holds or nobody is left."""
        self._until = until
        while not until():
            actor = self._next()
            if actor is None:
                if self.actors:
                    raise Stuck("nobody can go on: " + ", ".join(actor.name for actor in self.actors))
                return
            self._resume(actor)
            actor, self.current = self.current, None  # whoever had the last turn
            if actor is not None and actor.done:
                self.actors.remove(actor)
                if actor.error is not None and self.on_error is not None:
                    self.on_error(actor, actor.error)

    def _next(self) -> Actor | None:
        best: Actor | None = None
        for actor in self.actors:
            if not actor.waits and (
                best is None or actor.wake < best.wake or (actor.wake == best.wake and actor.order < best.order)
            ):
                best = actor
        return best

    def _resume(self, actor: Actor) -> None:
        if actor.wake > self.now:
            self.now = actor.wake
        self._turn += 1
        actor.order = self._turn
        self.current = actor
        self.switches += 1
        actor.greenlet.switch()

    def _give_way(self) -> None:
        """Let others go on until it is the turn of the current actor again, without a detour over the hub."""
        following = None if self._until() else self._next()
        if following is None:
            self._hub.switch()
        else:
            self._resume(following)

    def take(self, ticks: int) -> None:
        """The current actor's call takes so long; others who are due before go first."""
        actor = self.current
        if actor is None:
            return
        if actor.process.dead:
            raise ProcessEnded(actor.name)
        actor.wake = wake = self.now + ticks
        for other in self.actors:
            if other.wake <= wake and other is not actor and not other.waits:
                self._give_way()
                break
        else:
            self.now = wake
        if actor.process.dead:
            raise ProcessEnded(actor.name)

    def wait(self) -> None:
        """The current actor waits until somebody wakes it."""
        actor = self.current
        if actor is None:
            raise InternalError("only actors can wait")
        actor.waits = True
        self._give_way()
        if actor.process.dead:
            raise ProcessEnded(actor.name)

    def wait_until(self, wake: int) -> None:
        """The current actor waits until somebody wakes it, or this time."""
        actor = self.current
        if actor is None:
            raise InternalError("only actors can wait")
        actor.wake = wake
        self._give_way()
        if actor.process.dead:
            raise ProcessEnded(actor.name)

    def awake(self, actor: Actor) -> None:
        actor.waits = False
        actor.wake = self.now

    def kill(self, process: Process) -> None:
        """End all actors of a process where they stand. Nothing that they would still do has an effect."""
        process.dead = True
        process.died = self.now
        for actor in [a for a in self.actors if a.process is process and a is not self.current]:
            if actor.greenlet:
                before, self.current = self.current, actor
                parent, actor.greenlet.parent = actor.greenlet.parent, greenlet.getcurrent()
                actor.greenlet.throw(greenlet.GreenletExit)
                actor.greenlet.parent = parent
                self.current = before
            if actor in self.actors:
                self.actors.remove(actor)

    def end(self) -> None:
        """Kill everybody who is left."""
        for process in dict.fromkeys(actor.process for actor in self.actors):
            self.kill(process)


class Lock:
    """A lock of the actors; re-entrant, which its users may or may not make use of."""

    scheduler: Scheduler

    def __init__(self) -> None:
        self._owner: Actor | None = None
        self._depth = 0
        self._waiting: list[Actor] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self.scheduler
        actor = scheduler.current
        if actor is None or actor.process.dead:
            return True
        deadline = NEVER if timeout < 0 else scheduler.now + int(timeout * 1000)
        while self._owner is not None and self._owner is not actor:
            if not blocking or scheduler.now >= deadline:
                return False
            self._waiting.append(actor)
            if timeout < 0:
                scheduler.wait()
            else:
                scheduler.wait_until(deadline)
        self._owner = actor
        self._depth += 1
        return True

    def release(self) -> None:
        actor = self.scheduler.current
        if actor is None or self._owner is not actor:
            return
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiting:
                self._wake_waiting()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for actor in waiting:
            if not actor.done and not actor.process.dead:
                self.scheduler.awake(actor)

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Condition:
    """A condition variable of the actors."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiting: list[Actor] = []

    def __enter__(self) -> Condition:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> None:
        scheduler = Lock.scheduler
        actor = scheduler.current
        if actor is None or actor.process.dead:
            return
        depth, self._lock._depth = self._lock._depth, 1
        self._lock.release()
        self._waiting.append(actor)
        if timeout is None:
            scheduler.wait()
        else:
            scheduler.wait_until(scheduler.now + max(1, int(timeout * 1000)))
        if actor in self._waiting:
            self._waiting.remove(actor)
        self._lock.acquire()
        self._lock._depth = depth

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        scheduler = Lock.scheduler
        deadline = NEVER if timeout is None else scheduler.now + int(timeout * 1000)
        while not holds() and scheduler.now < deadline:
            self.wait(None if timeout is None else (deadline - scheduler.now) / 1000)
        return holds()

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for actor in waiting:
            if not actor.done and not actor.process.dead:
                Lock.scheduler.awake(actor)


class Flag:
    """A flag that actors may wait for."""

    def __init__(self) -> None:
        self._set = False
        self._changed = Condition()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            with self._changed:
                self._changed.wait(timeout)
        return self._set


class Thread:
    """A thread is another actor of the same process."""

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._body = lambda: target(*args)
        self._name = name
        self._actor: Actor | None = None

    def start(self) -> None:
        scheduler = Lock.scheduler
        current = scheduler.current
        if current is None:
            raise InternalError("threads are started by actors")
        process = current.process
        name = f"{process.name} {self._name.removeprefix('cairn-')}"
        self._actor = scheduler.spawn(name, process, self._body)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done and not self._actor.process.dead

    def join(self, timeout: float | None = None) -> None:
        scheduler = Lock.scheduler
        deadline = NEVER if timeout is None else scheduler.now + int(timeout * 1000)
        while self.is_alive() and scheduler.now < deadline:
            scheduler.take(10)
