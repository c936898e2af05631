"""The worker's main path: one subtask, one epoch, top to bottom.

1. Learn the subtask from the rows and load the manifest that the driver named.
2. Bring the working store to that version.
3. Open the user's function, fire the timers that are due, process the rows chunk by chunk.
4. Write the changes to a file of this attempt's own (or keep them inline), durably.
5. Acknowledge. What was acknowledged is complete; whether it counts is the driver's decision.

A failure anywhere before step 5 leaves nothing behind but, at worst, a file that no manifest will ever name.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from cairn.errors import EpochFailedError, IncompatibleStateError
from cairn.model.ddl import parse_type, same_keys
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import EpochContext, Manifest, StateHandle, TaskAck, TaskMetrics
from cairn.runtime.batches import check_groups, chunks, subtask_of_batch
from cairn.runtime.operator_kinds import operator_kind
from cairn.runtime.operator_spec import OperatorSpec
from cairn.runtime.state_registry import StateRegistry
from cairn.runtime.subtask_setup import SubtaskSetup, Timings
from cairn.runtime.subtask_shares import History
from cairn.state.codec import KeyCodec
from cairn.state.key_slots import KeySlots
from cairn.state.section_changes import ChainFiles
from cairn.state.working_store import StoreRequest, open_store
from cairn.storage import layout, state_file
from cairn.storage.filesystem import FileSystem, open_filesystem
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.retrying import RetryingFileSystem, retries_of
from cairn.storage.state_file import Section
from cairn.storage.state_owner import Writer

_MANY_OBJECTS = 10_000

_manifests: dict[str, Manifest] = {}
"""The manifest that this worker read last, by where and which: the other tasks of the epoch start from the same."""


def run_task(
    spec: OperatorSpec,
    batches: Iterable[pa.RecordBatch],
    context: EpochContext,
    attempt: int,
    acknowledge: Callable[[TaskAck], None],
    files: FileSystem | None = None,
) -> Iterator[pa.RecordBatch]:
    """Process one subtask's rows of one epoch; yields output batches and acknowledges after the last one."""
    with _rare_collection():
        yield from _run(spec, batches, context, attempt, acknowledge, files)


@contextmanager
def _rare_collection() -> Iterator[None]:
    """A task makes hundreds of thousands of tuples and hardly a cycle: looking for cycles after every few hundred
    of them, as Python does by default, triples the cost. Here it is done after a chunk that has left many objects.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(
    spec: OperatorSpec,
    batches: Iterable[pa.RecordBatch],
    context: EpochContext,
    attempt: int,
    acknowledge: Callable[[TaskAck], None],
    files: FileSystem | None,
) -> Iterator[pa.RecordBatch]:
    timings = Timings()
    began_ms = time.time_ns() // 1_000_000
    since = time.perf_counter()
    files = files or RetryingFileSystem(open_filesystem(context.job_dir, context.write_portion))

    # 1. subtask and manifest
    incoming = iter(batches)
    held = next(incoming, None)
    while held is not None and held.num_rows == 0:
        held = next(incoming, None)
    if held is None:
        return  # an empty partition of a plan that has more partitions than subtasks: nobody's rows
    since = timings.add("fetch", since)
    subtask = subtask_of_batch(held, spec.parallelism, spec.max_parallelism)
    groups = key_group_range(subtask, spec.parallelism, spec.max_parallelism)
    manifest = _load_manifest(context, files)
    codec = KeyCodec([(name, parse_type(ddl)) for name, ddl in spec.key_types])
    operator_state = manifest.operator(spec.uid) if manifest is not None else None
    if operator_state is not None and not same_keys(operator_state.key_type, codec.ddl):
        raise IncompatibleStateError(
            f"operator '{spec.uid}': its stored state is keyed by ({operator_state.key_type}), the job now keys by "
            f"({codec.ddl}). Key it as before, or give the operator a new uid; the stored state is intact.",
            uid=spec.uid,
        )

    # 2. working store
    store = open_store(StoreRequest(spec.backend, spec.uid, groups, context, manifest, files))
    since = timings.add("store", since)
    try:
        # 3. timers and rows
        slots = KeySlots()
        stored = operator_state.states if operator_state is not None else []
        registry = StateRegistry(spec.uid, slots, store, stored, context)
        history = history_of(spec, subtask, manifest, context, files)
        operator = operator_kind(spec)(SubtaskSetup(spec, codec, registry, context, subtask, attempt, timings, history))
        rows_in = rows_out = bytes_in = 0
        try:
            for output in operator.fire_timers():
                rows_out += output.num_rows
                yield output
            since = time.perf_counter()
            for chunk in chunks(_chained(held, incoming)):
                since = timings.add("fetch", since)
                check_groups(chunk, groups)
                rows_in += chunk.num_rows
                bytes_in += chunk.nbytes
                for output in operator.process(chunk):
                    rows_out += output.num_rows
                    since = time.perf_counter()
                    yield output
                    timings.add("emit", since)
                if gc.get_count()[0] > _MANY_OBJECTS:
                    gc.collect(0)
                since = time.perf_counter()
            for output in operator.fire_last_timers():
                rows_out += output.num_rows
                yield output
        except BaseException:
            operator.abandon()
            raise
        operator.close()

        # 4. durable changes
        since = time.perf_counter()
        sections = operator.drain()
        since = timings.add("drain", since)
        handle, inlined = _write_delta(spec.uid, sections, groups, context, attempt, files)
        timings.add("delta", since)
        timings.move("user", "state read", store.report.read_ms)
    finally:
        store.close()

    # 5. acknowledgement
    acknowledge(
        TaskAck(
            uid=spec.uid,
            subtask=subtask,
            epoch=context.epoch,
            run=context.run,
            attempt=attempt,
            base_commit=context.parent_commit,
            key_type=codec.ddl,
            handle=handle,
            inlined=inlined,
            states=list(registry.specs.values()),
            store_failures=store.report.failures,
            metrics=TaskMetrics(
                rows_in=rows_in,
                rows_out=rows_out,
                keys=len(slots),
                timers_fired=operator.fired,
                changed=handle.rows if handle is not None else 0,
                delta_bytes=handle.size if handle is not None else 0,
                store=store.report.how,
                restored_rows=store.report.rows,
                times={step: round(spent, 3) for step, spent in timings.spent.items()},
                began_ms=began_ms,
                ended_ms=time.time_ns() // 1_000_000,
                retries=retries_of(files),
                bytes_in=bytes_in,
            ),
        )
    )


def history_of(
    spec: OperatorSpec, subtask: int, manifest: Manifest | None, context: EpochContext, files: FileSystem
) -> History:
    """What the operator state of a subtask starts from."""
    return History(
        operator=manifest.operator(spec.uid) if manifest is not None else None,
        files=ChainFiles(files, manifest),
        subtask=subtask,
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        restarted=manifest is not None and (manifest.run != context.run or manifest.restored > 0),
        epoch=context.parent,
    )


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _load_manifest(context: EpochContext, files: FileSystem) -> Manifest | None:
    if context.parent < 0:
        return None
    key = f"{context.job_dir}:{context.parent}:{context.parent_commit}"
    manifest = _manifests.get(key)
    if manifest is None:
        manifest = ManifestStore(files).load(context.parent)
        if manifest.commit_id != context.parent_commit:
            raise EpochFailedError(
                f"the driver asked for epoch {context.parent} as committed by {context.parent_commit}, but its "
                f"manifest says {manifest.commit_id}",
                epoch=context.parent,
            )
        _manifests.clear()
        _manifests[key] = manifest
    return manifest


def _write_delta(
    uid: str,
    sections: list[Section],
    groups: KeyGroupRange,
    context: EpochContext,
    attempt: int,
    files: FileSystem,
) -> tuple[StateHandle | None, bytes]:
    """Make the changes durable, or small enough to travel with the acknowledgement."""
    if not sections:
        return None, b""
    writer = Writer(context.job_id, context.incarnation, uid, context.run)
    path = layout.delta_path(uid, context.epoch, context.run, attempt)
    data, checksum = state_file.encode(sections, writer.owner(path, context.epoch, groups))
    inlined = len(data) <= context.inline_threshold
    if not inlined:
        files.create(path, data)
    handle = StateHandle(
        epoch=context.epoch,
        first_group=groups.start,
        last_group=groups.end,
        size=len(data),
        checksum=checksum,
        path="" if inlined else path,
        rows=sum(section.data.num_rows for section in sections),
    )
    return handle, data if inlined else b""
