"""The driver's main path: one epoch from Spark's call to the commit, top to bottom.

1. If the epoch is committed already, roll it forward: publish its outputs (again) and return.
2. Announce to the tasks what to start from: the context, as a Spark local property.
3. First phase of the sinks: run the job and write the output where no reader sees it.
4. Check the acknowledgements of the tasks.
5. Publish the manifest, which also says what it makes superfluous. This is the commit: before it the epoch never
   happened, after it nothing is run again. Then look whether a newer run has the job. If none has, every later run
   will read this manifest, and steps 6 and 7 may take their time. If one has, the manifest may have come too late for
   it, and the rest is left to that run (docs/design/0008-late-runs.md).
6. Second phase of the sinks: make the output visible.
7. Tell the checkpoint coordinator; delete what the manifest calls garbage; compact a chain that has grown too long.

Spark is not imported here. `Sink` and `Cluster` are what this module needs of it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from cairn.config import Settings
from cairn.coordinator.acks import accept
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.epoch_time import EpochTime, TimeKeeper, time_of, watermark_of
from cairn.coordinator.manifest_builder import ManifestBuilder
from cairn.coordinator.offset_log import Offsets
from cairn.coordinator.ports import OperatorPlan as OperatorPlan
from cairn.errors import CorruptFileError, EpochFailedError, FencedError
from cairn.logs import get_logger
from cairn.model.manifest import (
    EpochContext,
    Garbage,
    Manifest,
    SinkCommittable,
    TaskAck,
    TaskMetrics,
)
from cairn.model.windows import MAX_TIME
from cairn.storage.cleanup import Pins, collect, plan_garbage, without_files
from cairn.storage.filesystem import FileSystem
from cairn.storage.manifest_store import JobIdentity, ManifestStore, refuse_foreign
from cairn.storage.retrying import retries_of
from cairn.storage.run_records import RunRecord, Runs

_log = get_logger("cairn.job")


class Sink(Protocol):
    """Where the output of a stream goes, in two phases."""

    uid: str
    kind: str

    def prepare(self, frame: Any, epoch: int, attempt: str) -> Any:
        """Write this epoch's rows where no reader sees them; returns what `commit` needs, as plain data.

        May be called several times for one epoch, each time with another `attempt`; all but one are abandoned.
        """

    def commit(self, data: Any, epoch: int) -> None:
        """Make the rows visible. Called after the epoch is committed, again after a crash: must be idempotent."""


class Cluster(Protocol):
    """What the loop needs of Spark. Called on the loop's thread."""

    def announce(self, context: bytes) -> None:
        """Set the context for all tasks of the jobs that follow on this thread; forget earlier acknowledgements."""

    def acknowledgements(self) -> list[bytes]:
        """What tasks have acknowledged since `announce`."""

    def frames(self, frame: Any, sinks: Sequence[Sink]) -> FrameSet:
        """The rows of each sink."""


class CheckpointPort(Protocol):
    """What the loop reports to the checkpoint coordinator and learns from it. Called on the loop's thread."""

    def epoch_began(self, epoch: int, offsets: str) -> int:
        """An epoch starts; returns the number of the checkpoint whose barrier it carries, or 0."""

    def epoch_committed(self, manifest: Manifest, tasks: Sequence[tuple[str, int, TaskMetrics]]) -> None: ...
    def epoch_failed(self, epoch: int, error: BaseException) -> None: ...
    def take_notices(self) -> list[tuple[int, bool]]: ...
    def pins(self) -> Pins: ...


class FrameSet(Protocol):
    def of(self, sink: Sink) -> Any: ...
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What an epoch did, for people and metrics."""

    epoch: int
    rows_in: int
    rows_out: int
    keys: int
    changed: int
    bytes_written: int
    duration_ms: float
    watermark: int
    time_ms: int
    rolled_forward: bool = False
    tasks: tuple[tuple[str, int, TaskMetrics], ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    retries: int = 0
    """Storage calls that were retried by the tasks, and by the driver since the previous epoch."""
    sinks: Mapping[str, int] = field(default_factory=dict)
    """Rows of each sink that knows how many it got, by its uid."""


@dataclass(frozen=True)
class EpochLoopSetup:
    """What the epochs of one run are run with."""

    files: FileSystem
    identity: JobIdentity
    run: RunRecord
    operators: Sequence[OperatorPlan]
    sinks: Sequence[Sink]
    cluster: Cluster
    offsets: Offsets
    settings: Settings
    current: Manifest | None
    """The newest committed epoch when the run starts."""
    compactor: Compactor | None = None
    listener: Callable[[EpochReport], None] | None = None
    checkpoints: CheckpointPort | None = None
    source_names: Sequence[str] = ()
    timekeeper: TimeKeeper | None = None


class EpochLoop:
    """Runs the epochs of one run of one job.

    Threads: owned by the thread that Spark calls `foreachBatch` on, one epoch after the other. Other threads only read
    `current`, and set `draining` before the last epoch begins.
    """

    def __init__(self, setup: EpochLoopSetup) -> None:
        self._setup = setup
        self._files = setup.files
        self._run = setup.run.run
        self._checkpoints = setup.checkpoints
        self._manifests = ManifestStore(setup.files)
        self._builder = ManifestBuilder(
            setup.identity, setup.run.run, setup.operators, setup.source_names, setup.compactor
        )
        self._runs = Runs(setup.files)
        self.draining = False
        """Set before the last epoch of a job that is drained: it runs at the end of event time."""
        self.current = setup.current
        self._retries = 0
        self._left = setup.current.garbage if setup.current is not None else Garbage()
        """What committed manifests call garbage and is not deleted yet."""
        self._known = self._load_manifests() if setup.current is not None else {}

    def _load_manifests(self) -> dict[int, Manifest]:
        manifests = {}
        for epoch in self._manifests.epochs():
            try:
                manifest = self._manifests.load(epoch)
                refuse_foreign(manifest, self._setup.identity, self._files.root)
                manifests[epoch] = manifest
            except CorruptFileError as error:  # nobody knows which files it names, and nobody deletes them
                _log.warning("the manifest of epoch %d is skipped: %s", epoch, error)
        return manifests

    def run_epoch(self, frame: Any, epoch: int) -> None:
        """Everything that happens between Spark's call for a batch and its return."""
        try:
            self._run_epoch(frame, epoch)
        except BaseException as error:
            if self._checkpoints is not None:
                self._checkpoints.epoch_failed(epoch, error)
            raise

    def _run_epoch(self, frame: Any, epoch: int) -> None:
        began = time.perf_counter()
        self.step("begin", epoch)
        self._runs.check(self._run)

        # 1. committed already?
        if self._manifests.exists(epoch):
            self._roll_forward(epoch, began)
            return
        if self.current is not None and epoch <= self.current.epoch:
            raise CorruptFileError(
                f"Spark requests batch {epoch}, but epoch {self.current.epoch} is committed and the manifest of epoch "
                f"{epoch} is missing: the directory {self._files.root} has been changed manually"
            )
        if self.current is not None and epoch > self.current.epoch + 1:
            raise CorruptFileError(
                f"Spark requests batch {epoch}, but the newest manifest known to this run is that of epoch "
                f"{self.current.epoch}: a committed manifest is lost, or was missing from the storage's listing when "
                "the run started. Start the job again; nothing was changed."
            )

        # 2. context
        entry = self._setup.offsets.read(epoch)
        moment = time_of(self._setup.timekeeper, epoch, entry.time_ms, self.current)
        carried = self._checkpoints.epoch_began(epoch, entry.text) if self._checkpoints is not None else 0
        context = self._context(epoch, watermark_of(self.current, entry), moment, carried)
        self._setup.cluster.announce(msgspec.msgpack.encode(context))
        self.step("announced", epoch)

        # 3. first phase
        attempt = f"{epoch}-{self._run}-{uuid.uuid4().hex[:8]}"
        frames = self._setup.cluster.frames(frame, self._setup.sinks)
        phases = {"plan": time.perf_counter() - began}
        try:
            since = time.perf_counter()
            committables = [
                SinkCommittable(sink.uid, sink.kind, _raw(sink.prepare(frames.of(sink), epoch, attempt)))
                for sink in self._setup.sinks
            ]
            phases["run"] = time.perf_counter() - since
        finally:
            frames.release()
        self.step("prepared", epoch)

        # 4. acknowledgements
        acks = [msgspec.msgpack.decode(raw, type=TaskAck) for raw in self._setup.cluster.acknowledgements()]
        accepted = accept(acks, context, {plan.uid: plan.parallelism for plan in self._setup.operators})
        self._report_rebuilds(accepted)
        self.step("acknowledged", epoch)

        if self._setup.settings.checkpoints.mode == "AT_LEAST_ONCE":  # shown before the commit, again if that fails
            self._publish(committables, epoch)
            self.step("published", epoch)

        # 5. the commit
        since = time.perf_counter()
        pins = self._checkpoints.pins() if self._checkpoints is not None else Pins()
        manifest = self._with_garbage(self._builder.build(self.current, context, entry, accepted, committables), pins)
        self._runs.check(self._run)
        try:
            self._manifests.publish(manifest)
        except FileExistsError:
            self._roll_forward(epoch, began)  # the answer to the create was lost, or another run was first
            return
        self.current = self._known[epoch] = manifest
        if self._setup.timekeeper is not None:
            self._setup.timekeeper.committed(manifest)
        phases["commit"] = time.perf_counter() - since
        self.step("committed", epoch)
        self._runs.check(self._run)

        # 6. second phase
        since = time.perf_counter()
        if self._setup.settings.checkpoints.mode != "AT_LEAST_ONCE":
            self._publish(manifest.sinks, epoch)
            self.step("published", epoch)
        phases["publish"] = time.perf_counter() - since

        # 7. clean-up
        if self._checkpoints is not None:
            self._checkpoints.epoch_committed(manifest, _metrics(accepted))
        self._left = collect(self._manifests, manifest.garbage)
        without_files(self._known, manifest.garbage, self._setup.settings.epochs_retained, pins)
        if self._setup.compactor is not None:
            self._setup.compactor.consider(manifest)
        self.step("cleaned", epoch)
        self._tell(manifest, accepted, began, {name: spent * 1000 for name, spent in phases.items()})

    def step(self, name: str, epoch: int) -> None:
        """Called between the steps; tests inject failures here."""
        _log.debug("epoch %d: %s", epoch, name)

    def _context(self, epoch: int, watermark: int, moment: EpochTime, checkpoint: int = 0) -> EpochContext:
        current = self.current
        reset_ms = current.time_reset_ms if current is not None else 0
        return EpochContext(
            job_dir=self._files.root,
            local_dir=self._setup.settings.local_directory,
            job_id=self._setup.identity.job_id,
            incarnation=self._setup.identity.incarnation,
            run=self._run,
            run_token=self._setup.run.token,
            epoch=epoch,
            watermark=MAX_TIME if self.draining else watermark,
            row_watermark=watermark if self.draining else None,
            end_of_time=self.draining,
            time_ms=moment.time_ms,
            time_reset_ms=moment.time_ms if moment.reset else reset_ms,
            fire_all=moment.reset,
            parent=current.epoch if current is not None else -1,
            parent_commit=current.commit_id if current is not None else "",
            inline_threshold=self._setup.settings.inline_threshold,
            show_values=self._setup.settings.show_values,
            parameters=dict(self._setup.settings.parameters),
            own_stores=not self._setup.settings.checkpoints.local_recovery,
            write_portion=max(self._setup.settings.checkpoints.write_buffer, self._setup.settings.inline_threshold),
            checkpoint=checkpoint,
            notices=self._checkpoints.take_notices() if self._checkpoints is not None else [],
        )

    def _with_garbage(self, manifest: Manifest, pins: Pins) -> Manifest:
        """The manifest, including the garbage that its commit creates."""
        known = {**self._known, manifest.epoch: manifest}
        garbage = plan_garbage(known, self._setup.settings.epochs_retained, pins, self._left)
        return msgspec.structs.replace(manifest, garbage=garbage)

    def _publish(self, committables: Sequence[SinkCommittable], epoch: int) -> None:
        by_uid = {sink.uid: sink for sink in self._setup.sinks}
        for committable in committables:
            sink = by_uid.get(committable.uid)
            if sink is None or sink.kind != committable.kind:
                raise EpochFailedError(
                    f"epoch {epoch} is committed, but the job no longer has the {committable.kind} sink "
                    f"'{committable.uid}' that must publish its output; start the job once with that sink"
                )
            sink.commit(msgspec.msgpack.decode(committable.data), epoch)

    def _roll_forward(self, epoch: int, began: float) -> None:
        """The epoch is committed and Spark does not know yet: finish what comes after the commit."""
        manifest = self._manifests.load(epoch)
        refuse_foreign(manifest, self._setup.identity, self._files.root)
        if manifest.run > self._run:
            raise FencedError(
                f"epoch {epoch} was committed by run {manifest.run}, which is newer than this run {self._run}"
            )
        known = self.current is not None and manifest.commit_id == self.current.commit_id
        if not known and manifest.run != self._run:
            self._runs.check(self._run)
            raise EpochFailedError(
                f"run {manifest.run}, which a newer run had replaced, created the manifest of epoch {epoch}: its "
                "commit does not count, and the job continues with the next free number when it is started again",
                collision=epoch,
            )
        entry = self._setup.offsets.read(epoch)
        if entry.text != manifest.offsets:
            raise CorruptFileError(
                f"epoch {epoch} was committed for other source positions than Spark's log now holds for it; the "
                f"directory {self._files.root} has been changed manually or restored in part"
            )
        self._runs.check(self._run)
        self.current = self._known[epoch] = manifest
        self._left = manifest.garbage
        self._publish(manifest.sinks, epoch)
        self.step("published", epoch)
        if self._checkpoints is not None:
            self._checkpoints.epoch_committed(manifest, ())
        _log.info("epoch %d was committed by run %d; rolled forward", epoch, manifest.run)
        if self._setup.listener is not None:
            spent = (time.perf_counter() - began) * 1000
            self._setup.listener(
                EpochReport(epoch, 0, 0, 0, 0, 0, spent, manifest.watermark, manifest.time_ms, rolled_forward=True)
            )

    def _report_rebuilds(self, accepted: Mapping[str, Sequence[TaskAck]]) -> None:
        for uid, acks in accepted.items():
            for ack in acks:
                for failure in ack.store_failures:
                    _log.warning("operator %s, subtask %d: working store rebuilt: %s", uid, ack.subtask, failure)

    def _tell(
        self, manifest: Manifest, accepted: Mapping[str, Sequence[TaskAck]], began: float, times: Mapping[str, float]
    ) -> None:
        metrics = _metrics(accepted)
        before, self._retries = self._retries, retries_of(self._files)
        first = self._setup.operators[0].uid if self._setup.operators else ""
        last = self._setup.operators[-1].uid if self._setup.operators else ""
        report = EpochReport(
            epoch=manifest.epoch,
            rows_in=sum(m.rows_in for uid, _, m in metrics if uid == first),
            rows_out=sum(m.rows_out for uid, _, m in metrics if uid == last),
            keys=sum(m.keys for _, _, m in metrics),
            changed=sum(m.changed for _, _, m in metrics),
            bytes_written=sum(m.delta_bytes for _, _, m in metrics),
            duration_ms=(time.perf_counter() - began) * 1000,
            watermark=manifest.watermark,
            time_ms=manifest.time_ms,
            tasks=tuple(metrics),
            times=times,
            retries=self._retries - before + sum(m.retries for _, _, m in metrics),
            sinks={sink.uid: rows for sink in self._setup.sinks if (rows := getattr(sink, "rows", None)) is not None},
        )
        _log.info(
            "epoch %d committed: %d rows, %d keys, %d bytes, %.0f ms",
            report.epoch, report.rows_in, report.keys, report.bytes_written, report.duration_ms,
        )  # fmt: skip
        if report.retries:
            _log.warning("epoch %d: %d storage calls were retried", report.epoch, report.retries)
        if self._setup.listener is not None:
            self._setup.listener(report)


def _metrics(accepted: Mapping[str, Sequence[TaskAck]]) -> list[tuple[str, int, TaskMetrics]]:
    return [(uid, ack.subtask, ack.metrics) for uid, acks in accepted.items() for ack in acks]


def _raw(data: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(data))
