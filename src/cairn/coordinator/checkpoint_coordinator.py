"""The checkpoint coordinator: when a checkpoint starts, where it cuts, how it ends (docs/design/0002-checkpoints.md).

`CheckpointCoordinator` decides. It is told of epochs by the epoch loop, of requests by anyone, of time by its clock;
`step` does what is due and says when to come back; the thread in `coordinator/control.py` calls it. Clock, store and
snapshot runner are given, so that a test can play any order of events, and a seed can play it again.

Not known here: Spark, sinks, and how a job is restarted.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

import msgspec

from cairn.config import CheckpointSettings
from cairn.coordinator.checkpoint_assembly import assembled
from cairn.coordinator.checkpoint_statistics import Insight, Tasks, at_rest
from cairn.coordinator.pending_checkpoint import CheckpointRequest, End, Pending, SavepointOrder, Snapshots
from cairn.coordinator.ports import Clock, JobFacts, SavepointRunner, SnapshotRunner, SystemClock
from cairn.coordinator.retained_checkpoints import Retained
from cairn.coordinator.savepoint_requests import SavepointDesk
from cairn.errors import CairnError, CheckpointFailedError, FencedError
from cairn.events import CheckpointAborted, CheckpointCompleted, EventBus
from cairn.logs import get_logger
from cairn.model.checkpoint_records import (
    CheckpointInfo,
    CheckpointStatus,
    CheckpointType,
    FailureReason,
)
from cairn.model.manifest import Manifest
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import Pins
from cairn.storage.manifest_store import ManifestStore, Runs

_log = get_logger("cairn.checkpoint")
_QUEUE = 1000
_POLL_MS = 500
_CLOSE_SECONDS = 10.0
_RUNNING = CheckpointStatus.IN_PROGRESS


class CheckpointCoordinator:
    """Decides about the checkpoints of one run.

    Methods may be called from any thread. What is decided is guarded by `_lock`, which is never held during a call to
    the storage. Such calls are made in `step` and `close` only, one thread at a time (`_work`).
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        store: CheckpointStore,
        facts: JobFacts,
        runner: SnapshotRunner,
        current: Manifest | None,
        intolerable: Callable[[CheckpointInfo], None],
        clock: Clock | None = None,
        chance: random.Random | None = None,
        savepoints: SavepointRunner | None = None,
        failover: bool = False,
        insight: Insight | None = None,
        published: bool = True,
    ) -> None:
        self._settings = settings
        self._store = store
        self._manifests = ManifestStore(store.files)
        self._facts = facts
        self._runner = runner
        self._current = current
        self._published = published
        """Whether the output of the newest epoch is visible. Until then no checkpoint is cut there: a restore would
        begin after that epoch, and its output would be lost."""
        self._tasks: Tasks = ()
        self._running: tuple[int, str] | None = None
        self._committing = False
        self._intolerable = intolerable
        self._clock = clock or SystemClock()
        self._insight = insight or Insight()
        self._desk = SavepointDesk(savepoints, store, self._clock) if savepoints is not None else None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._work = threading.RLock()
        self._queue: list[CheckpointRequest] = []
        self._pending: dict[int, Pending] = {}
        self._retained = Retained(store, facts.run, settings.num_retained, self._clock)
        self._ends: list[End] = []
        self._runs = Runs(store.files)
        self._next = store.next_number()
        self._failures = 0
        self._last_end_ms: int | None = None
        """This and all that is waited for is told by the clock that only runs on."""
        self._closed = False
        self._fenced = False
        self.events = EventBus()
        self.notices: list[tuple[int, bool]] = []
        """Ends that no epoch has carried to the tasks yet: number, and whether it completed."""
        first: float = self._period()
        if failover:  # the job has just lost time: it does not wait for an interval once more
            first = settings.min_pause_ms
        elif chance is not None:
            first = chance.uniform(settings.min_pause_ms, self._period())
        self._next_periodic = self._clock.monotonic_ms() + int(first) if settings.interval_ms > 0 else None

    def _period(self) -> int:
        return max(self._settings.interval_ms, self._settings.min_pause_ms)

    # Told by the epoch loop.

    def epoch_began(self, epoch: int, offsets: str) -> int:
        """An epoch starts; returns the number of the checkpoint whose barrier it carries, or 0."""
        with self._changed:
            self._running = (epoch, offsets)
            carried = [p for p in self._pending.values() if p.manifest is None and p.waits_for in (None, epoch)]
            for pending in carried:
                pending.waits_for = epoch
            return max((pending.number for pending in carried), default=0)

    def epoch_committed(self, manifest: Manifest, tasks: Tasks) -> None:
        self._retained.collected(manifest.garbage.files)
        with self._changed:
            self._running = None
            self._committing = False
            self._current = manifest
            self._published = True
            self._tasks = tasks
            for pending in self._pending.values():
                if pending.manifest is None:
                    self._cut(pending, in_flight="")
            self._changed.notify_all()

    def epoch_failed(self, epoch: int, error: BaseException) -> None:
        """The running epoch will not be committed by this run: what waited for its end is given up."""
        with self._changed:
            self._running = None
            self._committing = False
            for pending in list(self._pending.values()):
                if pending.manifest is None:
                    self._abort(pending, FailureReason.TASK_FAILURE, f"epoch {epoch} failed: {error}")
            self._changed.notify_all()  # the coordinator's thread does the rest

    def take_notices(self) -> list[tuple[int, bool]]:
        """What the next epoch tells the tasks."""
        with self._lock:
            taken, self.notices = self.notices, []
            return taken

    # Asked by anyone.

    def request(self, full: bool | None = None) -> CheckpointRequest:
        """Ask for a checkpoint; it starts as soon as the settings allow. `full` None means: as configured."""
        request = CheckpointRequest(not self._settings.incremental if full is None else full)
        with self._lock:
            place = sum(1 for waiting in self._queue if not waiting.periodic)
        self._enqueue(request, place)
        return request

    def _enqueue(self, request: CheckpointRequest, place: int) -> None:
        with self._changed:
            if self._closed:
                self._refuse(request, FailureReason.SHUTDOWN, "the job has ended")
            elif len(self._queue) >= _QUEUE:
                self._refuse(request, FailureReason.TOO_MANY, f"{_QUEUE} requests are waiting already")
            else:
                self._queue.insert(place, request)
                self._changed.notify_all()

    def savepoint(self, order: SavepointOrder) -> CheckpointRequest:
        """Ask for a savepoint. Asked again with the same request id, in this run or a later one, it is the same one."""
        if self._desk is None:
            raise CheckpointFailedError("this job cannot write savepoints")
        request, fresh = self._desk.take(order)
        if fresh:
            self._enqueue(request, 0)
        return request

    def known_savepoint(self, order: SavepointOrder) -> CheckpointRequest | None:
        """The savepoint that the same request id has made or is making; its order tells how. None if there is none."""
        return self._desk.known(order) if self._desk is not None else None

    @property
    def periodic(self) -> bool:
        """Whether checkpoints are taken by themselves."""
        return self._settings.interval_ms > 0

    @property
    def published(self) -> bool:
        """Whether the output of the newest epoch is visible, so that a checkpoint can be cut there."""
        with self._lock:
            return self._published

    def current_epoch(self) -> int:
        """The newest committed epoch, -1 if there is none."""
        with self._lock:
            return self._current.epoch if self._current is not None else -1

    def infos(self) -> list[CheckpointInfo]:
        """Checkpoints in progress, newest first."""
        with self._lock:
            found = list(reversed(self._pending.values()))
            running = self._running[0] if self._running is not None else -1
        return [self._in_progress(pending, running) for pending in found]

    def _in_progress(self, pending: Pending, running: int) -> CheckpointInfo:
        if pending.is_savepoint and self._desk is not None:
            info, writing = self._desk.in_progress(pending), 0
        else:
            info, writing = pending.info(_RUNNING), pending.number if pending.writing else 0
        cut = pending.tasks if pending.manifest is not None else None
        waited_for = running if pending.waits_for == running else -1
        operators = self._insight.progress(waited_for, cut, writing, pending.trigger_ms)
        return msgspec.structs.replace(info, operators=operators)

    def pins(self) -> Pins:
        """What must not be deleted: what retained checkpoints, and those in the making, need.

        The epoch that runs is about to be committed with this knowledge. So from here until it has ended, no checkpoint
        is cut at the epoch before it.
        """
        with self._lock:
            self._committing = True
            making = [pending.manifest for pending in self._pending.values() if pending.manifest is not None]
            return self._retained.pins(making)

    # Done by the thread.

    def step(self) -> float:
        """Do what is due; returns the milliseconds after which to come back, sooner if something happens."""
        with self._work:
            return self._step()

    def _step(self) -> float:
        with self._lock:
            now = self._clock.monotonic_ms()
            self._add_periodic(now)
            self._expire(now)
            wanted = bool(self._queue)
        self._settle()
        if wanted and not self._is_owner():
            self._settle()
            return _POLL_MS
        with self._lock:
            self._start_waiting(now)
            self._overtake(now)
            work = [pending for pending in self._pending.values() if pending.manifest is not None]
        for pending in work:
            self._advance(pending)
        self._settle()
        with self._lock:
            return self._next_due(self._clock.monotonic_ms())

    def _is_owner(self) -> bool:
        """False once a newer run has the job: then this one takes no checkpoint, and deletes nothing, ever again."""
        try:
            self._runs.check(self._facts.run)
        except FencedError as error:
            with self._lock:
                if not self._fenced:
                    _log.warning("no more checkpoints: %s", error.message)
                self._fenced = self._closed = True
                for request in self._queue:
                    self._refuse(request, FailureReason.SHUTDOWN, error.message)
                self._queue.clear()
                for pending in list(self._pending.values()):
                    self._abort(pending, FailureReason.SHUTDOWN, error.message)
            return False
        return not self._fenced

    def wait(self, millis: float) -> None:
        """Until something happens, or so long."""
        with self._changed:
            self._changed.wait(millis / 1000)

    def close(self) -> None:
        """The run ends. What is in progress is given up, what is completed stays."""
        self._retained.hurry()
        with self._changed:
            self._closed = True
            for request in self._queue:
                self._refuse(request, FailureReason.SHUTDOWN, "the job has ended")
            self._queue.clear()
            for pending in list(self._pending.values()):
                if not pending.finalizing:  # else a step is completing it just now
                    self._abort(pending, FailureReason.SHUTDOWN, "the job has ended")
            self._changed.notify_all()
        self._settle_alone()

    def _settle_alone(self) -> None:
        """`_settle` outside of a step. A step that hangs in the storage settles when it returns."""
        if self._work.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._settle()
            finally:
                self._work.release()

    # The parts of a step.

    def _add_periodic(self, now: int) -> None:
        if self._next_periodic is None or now < self._next_periodic:
            return
        self._next_periodic = now + self._period()
        if not any(request.periodic for request in self._queue) and self._current is not None:
            self._queue.append(CheckpointRequest(not self._settings.incremental, periodic=True))

    def _expire(self, now: int) -> None:
        for pending in list(self._pending.values()):
            if now >= pending.deadline_ms:
                what = "snapshot" if pending.writing else "running epoch"
                text = f"Checkpoint {pending.number} expired before completing: its {what} took over "
                self._abort(pending, FailureReason.EXPIRED, f"{text}{self._settings.timeout_ms} ms")

    def _may_start(self, request: CheckpointRequest) -> bool:
        """Savepoints are written one at a time, whatever checkpoints are under way; these do not wait for them."""
        alike = sum(1 for pending in self._pending.values() if pending.is_savepoint == (request.order is not None))
        return alike < (1 if request.order is not None else self._settings.max_concurrent)

    def _start_waiting(self, now: int) -> None:
        for request in list(self._queue):
            if not self._may_start(request):
                continue
            if request.periodic and self._last_end_ms is not None:
                earliest = self._last_end_ms + self._settings.min_pause_ms
                if now < earliest:
                    self._next_periodic = max(self._next_periodic or 0, earliest)
                    self._queue.remove(request)
                    continue
            self._queue.remove(request)
            if self._current is None and self._running is None:
                self._refuse(request, FailureReason.NOT_RUNNING, request.nothing_yet())
                continue
            self._trigger(request, now)

    def _trigger(self, request: CheckpointRequest, now: int) -> None:
        pending = Pending(self._next, request, self._clock.now_ms(), now, now + self._settings.timeout_ms)
        if request.order is not None:
            pending.type = CheckpointType.SAVEPOINT
        self._next += 1
        self._pending[pending.number] = pending
        _log.info(
            "Triggering checkpoint %d (type=%s) @ %d for job %s.",
            pending.number, pending.type.value, pending.trigger_ms, self._facts.job_id,
        )  # fmt: skip
        if self._running is None:
            if self._published:
                self._cut(pending, in_flight="", durable=True)
        elif self._settings.unaligned and self._settings.aligned_timeout_ms == 0 and not pending.is_savepoint:
            self._cut_unaligned(pending)
        else:
            pending.waits_for = self._running[0]

    def _overtake(self, now: int) -> None:
        """Turn aligned checkpoints that have waited too long into unaligned ones."""
        if not self._settings.unaligned:
            return
        for pending in self._pending.values():
            if pending.is_savepoint:
                continue  # a savepoint is always aligned, as in Flink
            if pending.manifest is None and now - pending.since_ms >= self._settings.aligned_timeout_ms:
                self._cut_unaligned(pending)

    def _cut_unaligned(self, pending: Pending) -> None:
        if self._current is None or self._running is None or self._committing:
            return  # nothing is committed yet, or the running epoch is about to be: it waits for that
        pending.type = CheckpointType.UNALIGNED_CHECKPOINT
        self._cut(pending, in_flight=self._running[1], durable=True)

    def _cut(self, pending: Pending, in_flight: str, durable: bool = False) -> None:
        pending.manifest = self._current
        pending.tasks = at_rest(self._tasks, pending.trigger_ms) if durable else self._tasks
        pending.in_flight = in_flight

    def _advance(self, pending: Pending) -> None:
        """Take a checkpoint whose cut is made one step further."""
        if pending.request.full and not pending.writing and pending.manifest is not None:
            pending.writing = True
            pending.async_since = self._clock.monotonic_ms()
            self._start_writing(pending, pending.manifest)
        if pending.error is not None:
            with self._lock:
                if pending.number in self._pending:
                    self._abort(pending, FailureReason.ASYNC, f"the snapshot failed: {pending.error}")
        elif pending.ready:
            self._finalize(pending)

    def _start_writing(self, pending: Pending, manifest: Manifest) -> None:
        def done(result: Snapshots | Exception | None) -> None:
            self._snapshot_done(pending, {} if result is None else result)

        if not pending.is_savepoint:
            self._runner.start(pending.number, manifest, done)
        elif self._desk is not None:
            self._desk.start(pending, manifest, done)

    def _snapshot_done(self, pending: Pending, result: Snapshots | Exception) -> None:
        with self._changed:
            given_up, over = pending.number not in self._pending, self._closed
            pending.async_ms = self._clock.monotonic_ms() - pending.async_since
            if isinstance(result, Exception):
                pending.error = result
            else:
                pending.snapshots = result
            if given_up and not pending.is_savepoint:
                self._retained.give_up(pending.number)
            self._changed.notify_all()
        if given_up and pending.is_savepoint:
            self._cancel(pending)
        elif given_up and over:  # no step follows
            self._settle_alone()

    def _finalize(self, pending: Pending) -> None:
        if not self._is_owner():
            return
        if pending.is_savepoint:
            self._finalize_savepoint(pending)
            return
        with self._lock:
            if pending.number not in self._pending:  # the job ended meanwhile
                return
            pending.finalizing = True
        failure: Exception | None = None
        before = self._retained.newest_epoch
        try:
            now = self._clock.now_ms()
            checkpoint = assembled(pending, self._settings, self._facts, self._manifests, now, before, self._insight)
            checkpoint = msgspec.structs.replace(checkpoint, retained=self._retained.with_added(pending.number))
            self._store.complete(checkpoint)
        except (CairnError, OSError) as error:
            failure = error
        with self._lock:
            if failure is not None:
                # A number that is taken belongs to another run's checkpoint, which is none of our business.
                why = f"its _metadata could not be written: {failure}"
                self._abort(pending, FailureReason.FINALIZE, why, discard=not isinstance(failure, FileExistsError))
                return
            del self._pending[pending.number]
            self._failures = 0
            self._last_end_ms = self._clock.monotonic_ms()
            self._retained.add(checkpoint)
            for older in [p for p in self._pending.values() if p.number < pending.number and not p.is_savepoint]:
                self._abort(older, FailureReason.SUBSUMED, f"checkpoint {pending.number} completed first")
            self.notices.append((pending.number, True))
        info = checkpoint.info
        _log.info(
            "Completed checkpoint %d for job %s (%d bytes, checkpointDuration=%d ms, fullSize=%d bytes, epoch %d).",
            info.id, self._facts.job_id, info.written_bytes, info.duration_ms, info.full_bytes, info.epoch,
        )  # fmt: skip
        self._store.remember(info)
        self.events.publish(CheckpointCompleted(self._facts.job_id, info.id))
        pending.request.end(info)

    def _finalize_savepoint(self, pending: Pending) -> None:
        """The last step of a savepoint. It is its owner's from here on: nothing here ever deletes it."""
        if self._desk is None:
            return
        try:
            info = self._desk.complete(pending)
        except (CairnError, OSError) as error:
            with self._lock:
                if pending.number in self._pending:
                    self._abort(pending, FailureReason.FINALIZE, f"the savepoint could not be completed: {error}")
            return
        with self._lock:
            self._pending.pop(pending.number, None)  # the job may have ended meanwhile; the savepoint exists
        _log.info(
            "Completed savepoint %d for job %s at %s (%d bytes, duration=%d ms, epoch %d).",
            info.id, self._facts.job_id, info.path, info.savepoint_bytes, info.duration_ms, info.epoch,
        )  # fmt: skip
        self._store.remember(info)
        pending.request.end(info)

    def _cancel(self, pending: Pending) -> None:
        """Stop whoever writes for a checkpoint that was given up."""
        if not pending.is_savepoint:
            self._runner.cancel(pending.number)
        elif self._desk is not None:
            self._desk.cancel(pending)

    def _abort(self, pending: Pending, reason: FailureReason, why: str, discard: bool = True) -> None:
        """Give a checkpoint up. Called with the lock held, so the work that it makes is left to `_settle`."""
        del self._pending[pending.number]
        info = msgspec.structs.replace(
            pending.info(CheckpointStatus.FAILED), failure=why, reason=reason, end_ms=self._clock.now_ms()
        )
        if not pending.is_savepoint:
            self._last_end_ms = self._clock.monotonic_ms()
            self.notices.append((pending.number, False))
        level = logging.INFO if reason in (FailureReason.SUBSUMED, FailureReason.SHUTDOWN) else logging.WARNING
        _log.log(level, "Checkpoint %d of job %s failed (%s): %s", info.id, self._facts.job_id, reason.value, why)
        counts = reason.counts and not self._closed and not pending.is_savepoint
        self._ends.append(End(pending, info, discard and not pending.is_savepoint, counts))

    def _settle(self) -> None:
        """Do what ended checkpoints leave to do: clean up, tell, count. Without the lock: listeners are foreign."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            try:
                if end.pending.writing:
                    self._cancel(end.pending)
                if end.discard:
                    self._retained.give_up(end.info.id)
                if not self._fenced:
                    self._store.remember(end.info)
                if not end.pending.is_savepoint:
                    self.events.publish(CheckpointAborted(self._facts.job_id, end.info.id))
            except Exception:  # noqa: BLE001 - whoever waits must hear of the end in any case
                _log.exception("while giving up checkpoint %d", end.info.id)
            finally:
                end.pending.request.end(end.info)
            if end.counts:
                self._count(end.info)
        self._retained.delete_doomed()

    def _count(self, info: CheckpointInfo) -> None:
        with self._lock:
            self._failures += 1
            intolerable = self._failures > self._settings.tolerable_failures and not self._closed
            if intolerable:
                self._failures = 0
        if intolerable:
            self._intolerable(info)

    def _refuse(self, request: CheckpointRequest, reason: FailureReason, why: str) -> None:
        """A request that never became a checkpoint: it has no number and does not count."""
        now = self._clock.now_ms()
        _log.log(logging.DEBUG if request.periodic else logging.INFO, "no checkpoint is triggered: %s", why)
        kind = CheckpointType.CHECKPOINT if request.order is None else CheckpointType.SAVEPOINT
        failed = CheckpointInfo(0, CheckpointStatus.FAILED, kind, now, end_ms=now, failure=why)
        request.end(msgspec.structs.replace(failed, reason=reason))

    def _next_due(self, now: int) -> float:
        dues = [now + _POLL_MS]
        if self._next_periodic is not None:
            dues.append(self._next_periodic)
        for pending in self._pending.values():
            dues.append(pending.deadline_ms)
            if pending.manifest is None and self._settings.unaligned and not pending.is_savepoint:
                dues.append(pending.since_ms + self._settings.aligned_timeout_ms)
        return max(1, min(dues) - now)
