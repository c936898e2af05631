"""Builds the records of a job from its directory, and adds what a live job knows itself."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from cairn.coordinator.checkpoint_statistics import handles_of
from cairn.errors import CairnError, InvalidInputError, NotFoundError
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.model.manifest import NO_WATERMARK, Manifest, OperatorState
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.liveness import is_alive
from cairn.storage.manifest_store import JobIdentity, ManifestStore, load_identity
from cairn.storage.run_records import RunRecord, Runs
from cairn.view.job_graph import Vertex, graph_of
from cairn.view.job_lives import lives_of
from cairn.view.job_view import (
    ENDED,
    CheckpointsView,
    EndView,
    JobEnd,
    JobView,
    OperatorView,
    RestoreView,
    Spread,
    StateView,
    SubtaskView,
)
from cairn.view.journal import EpochRecorder, EpochStats, Event, Journal, SubtaskLoad

_ENDS = {"finished": "FINISHED", "stopped": "FINISHED", "canceled": "CANCELED", "failed": "FAILED"}
_LOAD_EPOCHS = 20
_QUIET_SECONDS = 600
_MAX_WATERMARK = 1 << 62


class Live(Protocol):
    """What a job in this process knows better than its directory."""

    recorder: EpochRecorder

    def status_word(self) -> str: ...
    def in_progress(self) -> list[CheckpointInfo]: ...


class JobReader:
    """Reads one job again and again. What cannot change is read once."""

    def __init__(self, directory: str, live: Live | None = None) -> None:
        self._files = LocalFileSystem(local_root(directory))
        self._store = CheckpointStore(self._files)
        self._manifests = ManifestStore(self._files)
        self._journal = Journal(self._files)
        self._manifest: Manifest | None = None
        self._summary: tuple[tuple[list[int], int], CheckpointsView] | None = None
        """What was last told of the checkpoints, and the records (by identity) that it was made from."""
        self.live = live

    @property
    def directory(self) -> str:
        return self._files.root

    def identity(self) -> JobIdentity:
        found = load_identity(self._files)
        if found is None:
            raise NotFoundError(f"{self._files.root} holds no job of cairn", path=self._files.root)
        return found

    def checkpoint(self, number: int) -> CheckpointInfo:
        found = next((info for info in self._history() if info.id == number), None)
        if found is None:
            raise NotFoundError(f"job '{self.identity().job_id}' has no checkpoint {number}", checkpoint=number)
        return found

    def end(self) -> JobEnd | None:
        """How the job ended, without reading all that a view has; None if it runs, or if nobody knows."""
        runs = Runs(self._files)
        newest = runs.newest()
        events = self._journal.events()
        status, ended_ms = self._status(runs.record(newest) if newest else None, events)
        if status not in ENDED:
            return None
        ends = (event for event in reversed(events) if event.kind in _ENDS and event.run == newest)
        told = next(ends, None) if status != "CRASHED" else None
        manifest = self._newest_manifest([])
        return JobEnd(
            status, told.kind if told is not None else "crashed", ended_ms, told.text if told is not None else "",
            manifest.epoch if manifest is not None else -1,
        )  # fmt: skip

    def view(self) -> JobView:
        identity = self.identity()
        damage: list[str] = []
        events = self._journal.events()
        newest = Runs(self._files).newest()
        record = Runs(self._files).record(newest) if newest else None
        manifest = self._newest_manifest(damage)
        started = next((event for event in reversed(events) if event.kind == "started"), None)
        status, ended_ms = self._status(record, events)
        epochs, totals, counted = self._epochs(manifest)
        damage += self._journal.refused()
        now = time.time_ns() // 1_000_000
        address = self._journal.address(newest)
        facts: dict[str, Any] = started.facts if started is not None else {}
        watermark = manifest.watermark if manifest is not None else NO_WATERMARK
        known = NO_WATERMARK < watermark < _MAX_WATERMARK
        parallelism = record.parallelism if record is not None else 0
        operators = _operators(manifest, identity, epochs, totals, self.live is not None)
        restores = _restores(events)
        lives = lives_of(events)
        sources = list(manifest.source_names) if manifest is not None else []
        sinks = list(facts.get("sinks", []))
        graph = graph_of(facts.get("graph"), sources, [(op.uid, op.name) for op in operators], sinks)
        return JobView(
            job_id=identity.job_id,
            name=identity.name,
            status=status,
            directory=self._files.root,
            run=newest,
            host=record.host if record is not None else "",
            pid=record.pid if record is not None else 0,
            started_ms=record.started_ms if record is not None else 0,
            ended_ms=ended_ms,
            starts=lives.starts or max(0, newest - lives.restarts),
            restarts=lives.restarts,
            begun_ms=lives.begun_ms or (record.started_ms if record is not None else 0),
            epoch=manifest.epoch if manifest is not None else -1,
            watermark=watermark,
            watermark_lag_ms=(now if status not in ENDED else ended_ms or now) - watermark if known else None,
            parallelism=parallelism or max((op.parallelism for op in operators), default=0),
            max_parallelism=identity.max_parallelism,
            state_bytes=sum(operator.state_bytes for operator in operators),
            url=address.url if address is not None and status not in ENDED else "",
            config=dict(facts.get("config", {})),
            sources=sources,
            sinks=sinks,
            operators=operators,
            graph=graph,
            ends={v.id: end_of(v, operators, epochs, counted) for v in graph if v.kind in ("source", "sink")},
            epochs=list(epochs),
            checkpoints=self._checkpoints(restores),
            restores=restores,
            events=events,
            now_ms=now,
            damage=damage,
        )

    def _newest_manifest(self, damage: list[str]) -> Manifest | None:
        for epoch in reversed(self._manifests.epochs()):
            if self._manifest is not None and self._manifest.epoch == epoch:
                return self._manifest
            try:
                self._manifests.load(epoch)
            except CairnError as error:
                damage.append(error.message)
                continue
            self._manifest = self._manifests.newest()
            return self._manifest
        return None

    def _status(self, record: RunRecord | None, events: Sequence[Event]) -> tuple[str, int]:
        """Flink's word for the job's state, and when it ended."""
        if self.live is not None:
            word = self.live.status_word()
            last = next((event for event in reversed(events) if event.kind in _ENDS), None)
            return word, last.time_ms if last is not None and word in ENDED else 0
        if record is None:
            return "UNKNOWN", 0
        own = [event for event in events if event.run == record.run]
        # A run that failed may be followed by another one: "restarting" takes the end back.
        last = next((event for event in reversed(own) if event.kind in (*_ENDS, "restarting")), None)
        if last is not None and last.kind in _ENDS:
            return _ENDS[last.kind], last.time_ms
        alive = is_alive(record.host, record.pid, record.started_ms)
        if alive:
            return "RESTARTING" if last is not None else "RUNNING", 0
        sign = self._last_sign()
        if alive is False:
            return "CRASHED", sign
        return ("RUNNING" if sign > (time.time() - _QUIET_SECONDS) * 1000 else "UNKNOWN"), 0

    def _last_sign(self) -> int:
        """When the job last wrote something."""
        files = [*self._files.list(layout.EPOCHS), *self._files.list(layout.RUNS), *self._files.list(layout.HISTORY)]
        return int(max((info.modified for info in files), default=0.0) * 1000)

    def _epochs(
        self, manifest: Manifest | None
    ) -> tuple[Sequence[EpochStats], dict[str, list[SubtaskLoad]], dict[str, int]]:
        """The newest epochs, what the operators did in the run so far, and the rows of its sources and sinks."""
        if self.live is not None:
            epochs = self.live.recorder.epochs()
            if epochs:
                return epochs, self.live.recorder.totals(), self.live.recorder.ends()
        chunks = self._journal.chunks()
        if not chunks:
            return [], {}, {}
        return [epoch for chunk in chunks for epoch in chunk.epochs], chunks[-1].totals, chunks[-1].ends

    def _history(self) -> list[CheckpointInfo]:
        running = self.live.in_progress() if self.live is not None else []
        known = {info.id for info in running}
        return running + [info for info in self._store.history() if info.id not in known]

    def _checkpoints(self, restores: Sequence[RestoreView]) -> CheckpointsView:
        history = self._history()
        key = ([id(info) for info in history], len(restores))
        if self._summary is not None and self._summary[0] == key:
            return self._summary[1]
        done = [info for info in history if info.status.value == "COMPLETED"]
        totals = self._store.totals()
        made = CheckpointsView(
            history=history,
            completed=totals.completed,
            failed=totals.failed,
            restored=sum(1 for restore in restores if restore.kind in ("checkpoint", "savepoint")),
            duration=spread([info.duration_ms for info in done]),
            written=spread([info.written_bytes for info in done]),
            full=spread([info.full_bytes for info in done]),
            in_flight=spread([info.in_flight_bytes for info in done]),
        )
        self._summary = (key, made)
        return made


def _operators(
    manifest: Manifest | None,
    identity: JobIdentity,
    epochs: Sequence[EpochStats],
    totals: dict[str, list[SubtaskLoad]],
    live: bool,
) -> list[OperatorView]:
    """Of a job that was killed before it wrote anything down, it is not known what its operators did."""
    if manifest is None:
        return []
    found = [_operator(operator, identity.max_parallelism, epochs, totals) for operator in manifest.operators]
    return found if live or totals else [msgspec.structs.replace(one, recorded=False) for one in found]


def _operator(
    operator: OperatorState, groups: int, epochs: Sequence[EpochStats], totals: dict[str, list[SubtaskLoad]]
) -> OperatorView:
    sums = totals.get(operator.uid, [])
    sums = sums if len(sums) == operator.parallelism else [SubtaskLoad()] * operator.parallelism
    recent = [e for e in epochs if len(e.operators.get(operator.uid, ())) == operator.parallelism][-_LOAD_EPOCHS:]
    span = _span(recent)
    subtasks = []
    for index, total in enumerate(sums):
        busy = sum(epoch.operators[operator.uid][index].busy_ms for epoch in recent)
        waiting = sum(epoch.operators[operator.uid][index].backpressured_ms for epoch in recent)
        busy_share = min(1.0, busy / span) if span else 0.0
        waiting_share = min(1.0 - busy_share, waiting / span) if span else 0.0
        idle = max(0.0, 1.0 - busy_share - waiting_share)
        lately = [epoch.operators[operator.uid][index] for epoch in recent]
        per_second = 1000 / span if span else 0.0
        subtasks.append(
            SubtaskView(
                index,
                total.rows_in,
                total.rows_out,
                total.timers,
                round(busy_share, 4),
                round(waiting_share, 4),
                round(idle, 4),
                round(per_second * sum(load.rows_in for load in lately), 3),
                round(per_second * sum(load.rows_out for load in lately), 3),
                round(per_second * sum(load.timers for load in lately), 3),
                round(total.busy_ms, 3),
                round(total.backpressured_ms, 3),
            )
        )
    states = [StateView(spec.name, spec.kind, spec.value_type, spec.key_type, spec.ttl_ms) for spec in operator.states]
    held = sum(handle.size for index in range(operator.parallelism) for handle in handles_of(operator, index, groups))
    return OperatorView(
        operator.uid,
        operator.name,
        operator.parallelism,
        groups,
        operator.key_type,
        states,
        held,
        subtasks,
        round(unevenness([subtask.rows_in for subtask in subtasks]), 4),
    )


def end_of(
    vertex: Vertex, operators: Sequence[OperatorView], epochs: Sequence[EpochStats], counted: dict[str, int]
) -> EndView:
    """A source or a sink. A sink that does not count gets what its operator puts out, if nothing is in between."""
    if vertex.id in counted:
        recent = [epoch for epoch in epochs[-_LOAD_EPOCHS - 1 :] if vertex.id in epoch.ends][-_LOAD_EPOCHS:]
        span = _span(recent)
        rate = 1000 * sum(epoch.ends[vertex.id] for epoch in recent) / span if span else None
        return EndView(vertex.id, vertex.kind, counted[vertex.id], None if rate is None else round(rate, 3))
    reads = vertex.inputs[0].id if vertex.whole and len(vertex.inputs) == 1 else ""
    operator = next((operator for operator in operators if operator.uid == reads), None)
    if operator is None or not operator.recorded:
        return EndView(vertex.id, vertex.kind)
    return EndView(vertex.id, vertex.kind, operator.rows_out, operator.out_rate)


def _span(epochs: Sequence[EpochStats]) -> float:
    """The time that the epochs cover, pauses between them included."""
    if not epochs:
        return 0.0
    return max(1.0, epochs[-1].end_ms - (epochs[0].end_ms - epochs[0].duration_ms))


def unevenness(counts: Sequence[float]) -> float:
    """0 for even counts, 1 for all in one place."""
    total = sum(counts)
    if total == 0 or len(counts) < 2:
        return 0.0
    mean = total / len(counts)
    return sum(abs(count - mean) for count in counts) / (2 * total * (1 - 1 / len(counts)))


def spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread()
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Spread(
        ordered[0], ordered[-1], round(sum(ordered) / len(ordered), 3), at(0.5), at(0.9), at(0.95), at(0.99), at(0.999)
    )


def _restores(events: Sequence[Event]) -> list[RestoreView]:
    found: list[RestoreView] = []
    before = 0
    for event in events:
        if event.kind != "started":
            continue
        told = event.facts
        parallelism = int(told.get("parallelism", 0))
        found.append(
            RestoreView(
                event.time_ms,
                event.run,
                str(told.get("from", "start")),
                str(told.get("path", "")),
                int(told.get("checkpoint", 0)),
                int(told.get("epoch", -1)),
                parallelism,
                before,
                float(told.get("duration_ms", 0.0)),
                told.get("after_failure"),
            )
        )
        before = parallelism
    return found[::-1]


def find_readers(directory: str, damaged: dict[str, CairnError] | None = None) -> dict[str, JobReader]:
    """The jobs of a directory by id; the directory itself may be a job's.

    Those whose `job.json` cannot be read are left out, and put into `damaged` by the path of their folder.
    """
    root = local_root(directory)
    if not os.path.isdir(root):
        raise NotFoundError(f"there is no directory {root}", path=root)
    if os.path.lexists(os.path.join(root, layout.JOB)):
        reader = JobReader(root)
        return {reader.identity().job_id: reader}
    found = {}
    for name in LocalFileSystem(root).folders(""):
        if os.path.lexists(os.path.join(root, name, layout.JOB)):
            reader = JobReader(os.path.join(root, name))
            try:
                found[reader.identity().job_id] = reader
            except CairnError as error:  # not ours, or newer than this cairn
                if damaged is not None:
                    damaged[reader.directory] = error
    return found


def no_such_job(job: str, there: Sequence[str]) -> CairnError:
    """An error that names what there is, and what may have been meant."""
    import difflib

    near = difflib.get_close_matches(job, there, 1)
    hint = f"; did you mean '{near[0]}'?" if near else f"; there are: {', '.join(sorted(there)[:10]) or 'none'}"
    try:
        layout.checked(job, "job id")
    except InvalidInputError:
        return NotFoundError("there is no job of that name", job=job)
    return NotFoundError(f"there is no job '{job}'{hint}", job=job)
