"""Runs a `KeyedProcessFunction` without Spark: the real state, commits, timers and recovery, in one process.

What Spark would do is simulated (the shuffle, the tasks, the log of batches); everything else is the code that runs
in production: `runtime.task`, `coordinator.epochs`, the state backend, and a job directory on disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Self

import pyarrow as pa

from cairn.config import Settings
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.epoch_loop import EpochLoop, EpochLoopSetup, EpochReport, OperatorPlan
from cairn.coordinator.epoch_time import time_of, watermark_of
from cairn.coordinator.offset_log import OffsetEntry
from cairn.errors import InvalidInputError, NotFoundError
from cairn.model import keygroups
from cairn.model.ddl import parse_columns, parse_type
from cairn.model.descriptors import StateKind
from cairn.model.functions import KeyedProcessFunction, TimeDomain
from cairn.model.manifest import NO_WATERMARK, EpochContext, Manifest
from cairn.model.output_tags import OutputTag
from cairn.model.state_names import EVENT_TIMERS, PROCESSING_TIMERS
from cairn.model.types import DataType
from cairn.runtime.keyed_operator import OperatorSpec
from cairn.runtime.operator_kinds import PROCESS, operator_kind
from cairn.runtime.operator_state import TaskOperatorStateStore
from cairn.runtime.state_registry import StateRegistry
from cairn.runtime.subtask_setup import SubtaskSetup, Timings
from cairn.runtime.task import history_of
from cairn.state import codec, working_store
from cairn.state.backend import load_backend
from cairn.state.codec import KeyCodec
from cairn.state.key_slots import KeySlots
from cairn.state.working_store import StoreRequest
from cairn.storage.filesystem import FileSystem, LocalFileSystem
from cairn.storage.history import open_history
from cairn.storage.manifest_store import create_identity, load_identity
from cairn.storage.run_records import Runs
from cairn.testing.local_cluster import (
    Aside,
    LocalCluster,
    Shuffle,
    arrow_schema,
    arrow_type,
    fresh,
    local_compaction,
    output_of,
    sides_of,
)

UID = "tested"
_SINK = "output"


class Timer(NamedTuple):
    """A timer that has not fired yet."""

    time: int
    key: Any
    domain: TimeDomain


class _HeldSink:
    """Keeps the rows of an epoch until it is committed."""

    uid = _SINK
    kind = "harness"

    def __init__(self) -> None:
        self.prepared: list[Any] = []
        self.committed: list[Any] = []

    def prepare(self, frame: Any, epoch: int, attempt: str) -> None:
        self.prepared = list(frame)

    def commit(self, data: Any, epoch: int) -> None:
        self.committed = self.prepared


class _Stopped(Exception):
    """The epoch was stopped on purpose."""


class _Loop(EpochLoop):
    stop_at = ""

    def step(self, name: str, epoch: int) -> None:
        super().step(name, epoch)
        if name == self.stop_at:
            raise _Stopped


class KeyedProcessHarness:
    """Tests a `KeyedProcessFunction` in one process, epoch by epoch, with failures and restarts at will.

    >>> from cairn import KeyedProcessFunction, ValueStateDescriptor
    >>> class Total(KeyedProcessFunction):
    ...     def open(self, runtime_context):
    ...         self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
    ...     def process_element(self, value, ctx):
    ...         self.total.update((self.total.value() or 0) + value.amount)
    ...         yield value.user, self.total.value()
    >>> with KeyedProcessHarness(Total(), "user", "user string, amount bigint", "user string, total bigint") as harness:
    ...     harness.push(("ann", 1), {"user": "ann", "amount": 2})
    ...     print(harness.run_epoch())
    ...     harness.push(("ann", 4))
    ...     harness.fail_epoch()            # processed, but not committed
    ...     print(harness.state("total", "ann"))
    ...     harness.restart(parallelism=2)  # working stores lost, other parallelism
    ...     print(harness.run_epoch())      # the row is there again, as from a source that replays
    [Row(user='ann', total=1), Row(user='ann', total=3)]
    3
    [Row(user='ann', total=7)]

    `key_by` is a column name or several. Times start at 0 and go forward only. An epoch that fails leaves state,
    timers, outputs and pending rows as they were. `state_dir` keeps the job in a directory of yours, so that another
    harness can go on with it; without it everything is deleted by `close`.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        key_by: str | Sequence[str],
        input_type: str,
        output_type: str | DataType,
        backend: str = "hashmap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        event_time: str | None = None,
        parameters: Mapping[str, str] | None = None,
        inline_threshold: int = 20 * 1024,
        compaction_chain: int = 32,
        epochs_retained: int = 10,
        show_values: bool = True,
        files: FileSystem | None = None,
        side_outputs: Sequence[OutputTag] = (),
        kind: str = PROCESS,
    ) -> None:
        keygroups.validate(parallelism, max_parallelism)
        load_backend(backend)
        keys = (key_by,) if isinstance(key_by, str) else tuple(key_by)
        columns = dict(parse_columns(input_type))
        for name in (*keys, *([event_time] if event_time else [])):
            if name not in columns:
                raise InvalidInputError(f"there is no column '{name}'; the input has {', '.join(columns)}")
        schema = arrow_schema(input_type)
        names = tuple(columns)
        output, bare = output_of(output_type)
        spec = OperatorSpec(
            uid=UID,
            name=type(function).__name__,
            function=function,
            vectorised=False,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            key_columns=tuple(names.index(name) for name in keys),
            key_types=tuple((name, columns[name].ddl) for name in keys),
            columns=names,
            output=output,
            event_time=names.index(event_time) if event_time else -1,
            backend=backend,
            bare_out=bare,
            tagged=bool(side_outputs),
            sides=sides_of(side_outputs),
            kind=kind,
        )
        self._begin(
            spec, Shuffle(schema, spec.key_columns, [columns[name].ddl for name in keys]), state_dir, files,
            parameters=dict(parameters or {}), inline_threshold=inline_threshold, compaction_chain=compaction_chain,
            epochs_retained=epochs_retained, show_values=show_values,
        )  # fmt: skip

    def _begin(
        self, spec: OperatorSpec, shuffle: Any, state_dir: str | os.PathLike[str] | None, files: FileSystem | None,
        **settings: Any,
    ) -> None:  # fmt: skip
        """Start the job that is tested. `shuffle` brings rows to subtasks as the plan of the operator would."""
        self.spec = spec
        self._keys = KeyCodec([(name, parse_type(ddl)) for name, ddl in spec.key_types])
        self._temporary = tempfile.mkdtemp(prefix="cairn-harness-")
        weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)  # for those that nobody closes
        self._local = os.path.join(self._temporary, "local")
        directory = os.path.join(self._temporary, "job") if state_dir is None else os.fspath(state_dir)
        self.files: FileSystem = files or LocalFileSystem(directory)
        self._shuffle = shuffle
        self._settings = Settings(
            directory=self.files.root,
            local_directory=self._local,
            backend=spec.backend,
            parallelism=spec.parallelism,
            max_parallelism=spec.max_parallelism,
            **settings,
        )
        self._sink = _HeldSink()
        self._pending: list[tuple[Any, ...]] = []
        self._watermark = NO_WATERMARK
        self._time = 0
        self.outputs: list[Any] = []
        """All rows that committed epochs have put out."""
        self.side_outputs: dict[str, list[Any]] = {side.tag: [] for side in spec.sides}
        """What committed epochs have put out to side outputs, by the name of the tag."""
        self.reports: list[EpochReport] = []
        """What each committed epoch did, newest last."""
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete working stores and, unless it is yours, the job's directory."""
        self._lose_stores()
        shutil.rmtree(self._temporary, ignore_errors=True)

    # Driving.

    def push(self, *rows: Any) -> None:
        """Add rows (tuples, mappings, or bare values of a single column) to the next epoch."""
        taken = [self._shuffle.row(row) for row in rows]
        self._shuffle.batch(taken, self.spec.max_parallelism)  # fails here if a value does not fit its column
        self._pending += taken

    def discard(self) -> None:
        """Forget the rows that are waiting for the next epoch."""
        self._pending = []

    def advance_watermark(self, ms: int) -> None:
        """The watermark of the next epochs. Timers at or below it fire when the next epoch begins."""
        if ms < self._watermark:
            raise InvalidInputError(f"the watermark is at {self._watermark} and cannot go back to {ms}")
        self._watermark = ms

    def advance_processing_time(self, ms: int) -> None:
        """The clock of the next epochs, in milliseconds."""
        if ms < self._time:
            raise InvalidInputError(f"the time is {self._time} and cannot go back to {ms}")
        self._time = ms

    def run_epoch(self) -> list[Any]:
        """Fire due timers, process the pending rows, commit. Returns what this epoch put out."""
        self._loop.stop_at = ""
        self._loop.run_epoch(list(self._pending), self.epoch + 1)
        self._pending = []
        main = [row for row in self._sink.committed if not isinstance(row, Aside)]
        for row in self._sink.committed:
            if isinstance(row, Aside):
                self.side_outputs[row.tag].append(row.value)
        self.outputs += main
        return main

    def fail_epoch(self, at: str = "acknowledged") -> None:
        """Run the next epoch up to a step before its commit, then fail as a lost driver would. Rows stay pending.

        `at` is `announced` (nothing ran), `prepared` or `acknowledged` (all tasks finished).
        """
        if at not in ("announced", "prepared", "acknowledged"):
            raise InvalidInputError(f"an epoch can fail at announced, prepared or acknowledged, not at {at!r}")
        self._loop.stop_at = at
        try:
            self._loop.run_epoch(list(self._pending), self.epoch + 1)
        except _Stopped:
            return
        finally:
            self._loop.stop_at = ""

    def restart(self, parallelism: int | None = None, keep_stores: bool = False) -> None:
        """A new run from what is committed. Working stores are lost, as on new hosts, unless `keep_stores`."""
        if parallelism is not None:
            keygroups.validate(parallelism, self.spec.max_parallelism)
            self.spec = replace(self.spec, parallelism=parallelism)
            self._settings = replace(self._settings, parallelism=parallelism)
        if not keep_stores:
            self._lose_stores()
        self._start()

    # Looking.

    @property
    def epoch(self) -> int:
        """The newest committed epoch, -1 before the first."""
        return self._loop.current.epoch if self._loop.current is not None else -1

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the newest committed epoch."""
        return self._loop.current

    @property
    def local_directory(self) -> str:
        """Where working stores of backends on disk lie."""
        return self._local

    def state(self, name: str, key: Any) -> Any:
        """The committed state of a key as the function would see it now: value, list, dict, or merged result."""
        values = (key,) if len(self._keys.columns) == 1 else tuple(key)
        encoded = self._keys.encode_one(values)
        columns = [
            pa.array([value], self._shuffle.schema.field(column).type)
            for column, value in zip((column for column, _ in self._keys.columns), values, strict=True)
        ]
        group = keygroups.key_group(
            [column[0].as_py() for column in columns],
            [ddl for _, ddl in self.spec.key_types],
            self.spec.max_parallelism,
        )
        subtask = keygroups.subtask_of(group, self.spec.parallelism, self.spec.max_parallelism)
        with self._opened(subtask) as registry:
            handle = registry._handles.get(name)
            if handle is None:
                known = ", ".join(sorted(registry._handles)) or "none"
                raise NotFoundError(f"the function declares no state '{name}' in open(); it declares {known}")
            slots = registry.slots
            slots.current[0] = int(slots.add(pa.array([group.to_bytes(2, "big") + encoded], pa.binary()))[0])
            kind = StateKind(registry.specs[name].kind)
            if kind in (StateKind.VALUE, StateKind.RAW):
                return handle.value()
            if kind is StateKind.LIST:
                return list(handle.get())
            if kind is StateKind.MAP:
                return dict(handle.items())
            return handle.get()

    def operator_state(self, name: str) -> list[Any]:
        """The operator state of every subtask as the next epoch would find it: a list each, or a dict if broadcast."""
        found: list[Any] = []
        for subtask in range(self.spec.parallelism):
            context = self._next_context()
            with self._store_of(subtask, context) as registry:
                history = history_of(self.spec, subtask, self._loop.current, context, self.files)
                handle = TaskOperatorStateStore(registry, history).stored_handle(name)
                if handle is None:
                    raise NotFoundError(f"no operator state '{name}' is stored")
                found.append(dict(handle.items()) if hasattr(handle, "items") else list(handle.get()))
        return found

    def timers(self) -> list[Timer]:
        """All timers that are set, by time."""
        found = []
        for subtask in range(self.spec.parallelism):
            with self._opened(subtask) as registry:
                tables = ((EVENT_TIMERS, TimeDomain.EVENT_TIME), (PROCESSING_TIMERS, TimeDomain.PROCESSING_TIME))
                for table, domain in tables:
                    for raw, _ in registry.store.scan(table):
                        found.append(Timer(codec.time_value(raw), self._keys.decode(raw[10:]), domain))
        return sorted(found, key=lambda timer: (timer.time, timer.domain.value, repr(timer.key)))

    # Inside.

    def _start(self) -> None:
        """What a new run does: take the job over, find the newest committed epoch."""
        identity = load_identity(self.files)
        if identity is None:
            identity = create_identity(self.files, "harness", "harness", self.spec.max_parallelism)
        run = Runs(self.files).take(self.spec.parallelism, self._time)
        current = open_history(self.files, run.run)
        if current is not None:
            self._watermark = max(self._watermark, current.watermark)
            self._time = max(self._time, current.time_ms)
        self.cluster = LocalCluster(self.spec, self._shuffle, self.files)
        compaction = local_compaction(self.files.root, run.run)
        self._loop = _Loop(
            EpochLoopSetup(
                files=self.files,
                identity=identity,
                run=run,
                operators=[OperatorPlan(UID, self.spec.name, self.spec.parallelism)],
                sinks=[self._sink],
                cluster=self.cluster,
                offsets=self,
                settings=self._settings,
                current=current,
                compactor=Compactor(compaction, self._settings.compaction_chain, background=False),
                listener=self.reports.append,
            )
        )

    def read(self, epoch: int) -> OffsetEntry:
        """The harness is its own log of batches."""
        return OffsetEntry(str(epoch), self._watermark, self._time)

    def _next_context(self) -> EpochContext:
        """The context that the tasks of the next epoch would get."""
        epoch, current = self.epoch + 1, self._loop.current
        moment = time_of(None, epoch, self._time, current)
        return self._loop._context(epoch, watermark_of(current, self.read(epoch)), moment)

    def _lose_stores(self) -> None:
        for key in [key for key in working_store._resident if key.startswith(self._local)]:
            working_store._resident.pop(key).close()
        shutil.rmtree(self._local, ignore_errors=True)

    @contextmanager
    def _opened(self, subtask: int) -> Iterator[StateRegistry]:
        """The function's states on the committed version, as a task would open them. Nothing is written."""
        context = self._next_context()
        with self._store_of(subtask, context) as registry:
            history = history_of(self.spec, subtask, self._loop.current, context, self.files)
            setup = SubtaskSetup(fresh(self.spec), self._keys, registry, context, subtask, 0, Timings(), history)
            operator_kind(self.spec)(setup)
            yield registry

    @contextmanager
    def _store_of(self, subtask: int, context: EpochContext) -> Iterator[StateRegistry]:
        manifest = self._loop.current
        groups = keygroups.key_group_range(subtask, self.spec.parallelism, self.spec.max_parallelism)
        request = StoreRequest(self.spec.backend, UID, groups, context, manifest, self.files)
        working = working_store.open_store(request)
        try:
            operator = manifest.operator(UID) if manifest is not None else None
            yield StateRegistry(UID, KeySlots(), working, operator.states if operator else [], context)
        finally:
            working.close()


__all__ = [
    "KeyedProcessHarness",
    "LocalCluster",
    "Shuffle",
    "Timer",
    "arrow_schema",
    "arrow_type",
    "local_compaction",
]
