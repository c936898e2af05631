"""Threads that take turns, one at a time, in an order that a seed decides.

Each thread is a real one. It gives way at bytecodes of the traced modules, wherever the seed says so, and where it
waits: for a lock, an event, another thread or the clock. Locks, events, threads and clock of the code under test are
stand-ins that are put into its modules. Since only one thread runs at any time and every choice comes from the seed,
a seed repeats its run. All threads waiting for each other is a `Deadlock`.
"""

from __future__ import annotations

import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType, TracebackType
from typing import Any

import pytest

Condition = Callable[[], bool]


class Deadlock(Exception):
    """No thread can go on."""


class _Ended(BaseException):
    """Ends a thread of a run that is over. Not an `Exception`, so that no handler takes it for an error."""


class Actor:
    """One thread."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.body = body
        self.turn = threading.Semaphore(0)
        self.done = False
        self.waits_for: Condition | None = None
        self.deadline: float | None = None
        self.thread: threading.Thread | None = None


class Interleaving:
    """A run of some threads, which give way at bytecodes of the traced modules."""

    def __init__(self, seed: int, modules: list[ModuleType]) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self._chance = self.random.choice([0.01, 0.03, 0.1])
        """How likely a thread gives way. Where that is rare, one stands still while others do much."""
        self.now = 1_000.0
        """The clock, in seconds. It runs on when everybody waits, and leaps now and then."""
        self.switches = 0
        self._files = {module.__file__ for module in modules}
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._over = threading.Semaphore(0)
        self._ending = False
        self._atomic = 0
        self._errors: list[BaseException] = []

    # Threads.

    def spawn(self, name: str, body: Callable[[], None]) -> Actor:
        actor = Actor(name, body)
        self._actors.append(actor)
        actor.thread = threading.Thread(target=self._run, args=(actor,), name=name, daemon=True)
        actor.thread.start()
        return actor

    def run(self) -> None:
        """Let all threads run to their end; raises the first error of one of them."""
        self._go(self._chosen())
        self._over.acquire()
        for actor in self._actors:
            assert actor.thread is not None
            actor.thread.join(10)
        if self._errors:
            raise self._errors[0]

    def _run(self, actor: Actor) -> None:
        actor.turn.acquire()
        sys.settrace(self._trace)
        try:
            if not self._ending:
                actor.body()
        except _Ended:
            pass
        except BaseException as error:
            self._end(error)
        finally:
            sys.settrace(None)
        actor.done = True
        try:
            self._go(self._chosen())
        except Deadlock as error:
            self._end(error)
            self._go(self._chosen())

    def _end(self, error: BaseException) -> None:
        self._errors.append(error)
        self._ending = True

    def _go(self, actor: Actor | None) -> None:
        self._current = actor
        (self._over if actor is None else actor.turn).release()

    def _chosen(self) -> Actor | None:
        """Who runs next; None if all are done."""
        alive = [actor for actor in self._actors if not actor.done]
        if self._ending or not alive:
            return alive[0] if alive else None
        ready = [actor for actor in alive if actor.waits_for is None or actor.waits_for() or self._late(actor)]
        timed = [actor for actor in alive if actor.deadline is not None and actor not in ready]
        if timed and (not ready or self.random.random() < 0.02):
            first = min(timed, key=lambda actor: actor.deadline or 0.0)
            self.now = max(self.now, first.deadline or 0.0)
            return first
        if not ready:
            raise Deadlock(f"seed {self.seed}: all wait: " + ", ".join(actor.name for actor in alive))
        return self.random.choice(ready)

    def _late(self, actor: Actor) -> bool:
        return actor.deadline is not None and actor.deadline <= self.now

    # Giving way.

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._give_way_at

    def _give_way_at(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and not self._atomic and self.random.random() < self._chance:
            self.give_way()
        return self._give_way_at

    def give_way(self) -> None:
        """Let somebody go on, maybe oneself."""
        actor = self._current
        if actor is None or threading.current_thread() is not actor.thread:
            return
        self.switches += 1
        following = self._chosen()
        if following is not actor:
            self._go(following)
            actor.turn.acquire()
        if self._ending:
            raise _Ended

    def wait_for(self, holds: Condition, timeout: float | None = None) -> bool:
        """Wait until the condition holds, or so many seconds. Returns whether it holds."""
        actor = self._current
        if actor is None or threading.current_thread() is not actor.thread:
            return holds()  # before the threads run, and after
        if self._ending:
            raise _Ended
        actor.waits_for = holds
        actor.deadline = None if timeout is None else self.now + timeout
        try:
            self.give_way()
        except Deadlock as error:
            self._end(error)
            raise _Ended from error
        finally:
            actor.waits_for = actor.deadline = None
        return holds()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Nobody else runs here; for checks."""
        self._atomic += 1
        try:
            yield
        finally:
            self._atomic -= 1

    @property
    def current(self) -> Actor | None:
        return self._current

    # Stand-ins.

    def install(self, patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Put the stand-ins into modules that use `threading` and `time`."""
        for module in modules:
            for name, stand_in in (("threading", self.threading()), ("time", self.time())):
                if hasattr(module, name):
                    patch.setattr(module, name, stand_in)

    def threading(self) -> Any:
        return types.SimpleNamespace(
            Lock=lambda: SteppedLock(self, reentrant=False),
            RLock=lambda: SteppedLock(self),
            Condition=lambda lock=None: SteppedCondition(self, lock),
            Event=lambda: SteppedEvent(self),
            Thread=lambda **arguments: SteppedThread(self, **arguments),
            current_thread=lambda: self._current,
        )

    def time(self) -> Any:
        return types.SimpleNamespace(
            monotonic=lambda: self.now,
            perf_counter=lambda: self.now,
            time=lambda: 1_700_000_000.0 + self.now,
            time_ns=lambda: int((1_700_000_000.0 + self.now) * 1e9),
            sleep=lambda seconds: self.wait_for(lambda: False, seconds),
        )

    def now_ms(self) -> int:
        """For the coordinator's clock."""
        return 1_700_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(self.now * 1000)


class SteppedLock:
    def __init__(self, run: Interleaving, reentrant: bool = True) -> None:
        self._run = run
        self._reentrant = reentrant
        self._owner: Any = None
        self._depth = 0

    def _me(self) -> Any:
        return self._run.current or "nobody"

    def _free(self, me: Any) -> bool:
        return self._owner is None or (self._reentrant and self._owner is me)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._me()
        if not self._free(me):
            if not blocking:
                return False
            if not self._run.wait_for(lambda: self._free(me), None if timeout < 0 else timeout):
                return False
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None

    def release_all(self) -> int:
        depth, self._depth, self._owner = self._depth, 0, None
        return depth

    def take_again(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def __enter__(self) -> SteppedLock:
        self.acquire()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class SteppedCondition:
    def __init__(self, run: Interleaving, lock: SteppedLock | None) -> None:
        self._run = run
        self._lock = lock or SteppedLock(run)
        self._notified = 0

    def __enter__(self) -> SteppedCondition:
        self._lock.acquire()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        seen, depth = self._notified, self._lock.release_all()
        heard = self._run.wait_for(lambda: self._notified > seen, timeout)
        self._lock.take_again(depth)
        return heard

    def notify_all(self) -> None:
        self._notified += 1


class SteppedEvent:
    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        return self._run.wait_for(self.is_set, timeout)


class SteppedThread:
    def __init__(
        self,
        run: Interleaving,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._run = run
        self._body = lambda: target(*args)
        self._name = name
        self._actor: Actor | None = None

    def start(self) -> None:
        self._actor = self._run.spawn(self._name, self._body)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done

    def join(self, timeout: float | None = None) -> None:
        self._run.wait_for(lambda: not self.is_alive(), timeout)


class NoLock:
    """A lock that somebody forgot."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return True

    def release(self) -> None:
        return None

    def __enter__(self) -> NoLock:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        return None
