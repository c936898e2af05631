"""The working store of one subtask: a backend brought to exactly the committed version, then read during an epoch.

Rules (docs/design.md, "Invariants" 2 and 8):

* A delta is applied only once a manifest names it, so the store is never ahead of what is committed and nothing is
  ever rolled back.
* A store whose version is in the manifest's lineage catches up by the deltas that it lacks. One that is missing,
  damaged, foreign, or left from before a crash of the host is thrown away and rebuilt from the chain.
* A store that a newer run or a later epoch has already moved on means that this task is a straggler: it fails.

Not known here: types and handles (`state/table.py`), and what an epoch does with the state (`runtime/`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptFileError, EpochFailedError, StorageError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import EpochContext, Manifest, OperatorState, StateHandle, inline_key
from cairn.model.types import Storage
from cairn.state import codec
from cairn.state.backend import DamagedStoreError, Put, StateBackend, TableChanges
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem
from cairn.storage.manifests import ManifestStore
from cairn.storage.statefile import ARROW_STORAGE, Section, StateFile

_log = logging.getLogger("cairn.state")
_LOCK_WAIT = 60.0
_CACHE_ROWS = 512
_LOAD_ROWS = 200_000

_T = TypeVar("_T")
_Ready = tuple[StateBackend, Sequence[Section]]

_resident: dict[str, StateBackend] = {}
"""Backends that live in this worker process only, by folder."""


class StateFiles:
    """Opens the files that handles name: memory-mapped where they lie on this host, read whole elsewhere."""

    def __init__(self, files: FileSystem, manifest: Manifest | None) -> None:
        self.files = files
        self._manifest = manifest
        self._manifests = ManifestStore(files)

    def open(self, uid: str, handle: StateHandle) -> StateFile:
        if not handle.path:
            manifest = self._manifest
            if manifest is None or manifest.epoch != handle.epoch:
                manifest = self._manifests.load(handle.epoch)
            data = manifest.inlined.get(inline_key(uid, handle.first_group))
            if data is None:
                raise CorruptFileError(f"the manifest of epoch {handle.epoch} lacks the state of operator '{uid}'")
            return StateFile(data, f"inlined in epoch {handle.epoch}", handle.checksum, handle.size)
        path = self.files.local_path(handle.path)
        if path is not None:
            return StateFile.open(path, handle.checksum, handle.size)
        return StateFile(self.files.read(handle.path), handle.path, handle.checksum, handle.size)


def changes_of(section: Section) -> TableChanges:
    """What a section asks of a backend. The key layout of each kind of table is decided here and nowhere else."""
    data = section.data.combine_chunks()
    if data.num_rows == 0:
        return TableChanges(section.table)
    keys = data.column("key").chunk(0)
    value = data.column("value").chunk(0)
    times = data.column("time").chunk(0) if section.ttl else None
    values = codec.value_bytes(value, section.storage, times)
    if not section.has_entries:
        names = keys.to_pylist()
        if value.null_count == 0:
            return TableChanges(section.table, puts=cast(list[Put], list(zip(names, values, strict=True))))
        return TableChanges(
            section.table,
            puts=[(k, v) for k, v in zip(names, values, strict=True) if v is not None],
            deletes=[k for k, v in zip(names, values, strict=True) if v is None],
        )
    entries = data.column("entry").chunk(0)
    if section.kind == "timer":
        names = pc.binary_join_element_wise(entries, keys, pa.scalar(b"", pa.binary())).to_pylist()
        clears: list[bytes] = []
    else:
        lengths = np.asarray(pc.binary_length(keys)).astype(">u2").view(np.uint8)
        prefix = pa.FixedSizeBinaryArray.from_buffers(pa.binary(2), len(keys), [None, pa.py_buffer(lengths)])
        blank = pa.scalar(b"", pa.binary())
        names = pc.binary_join_element_wise(prefix.cast(pa.binary()), keys, entries, blank).to_pylist()
        clears = []
        if entries.null_count:
            clears = [codec.entry_prefix(k) for k in keys.filter(pc.is_null(entries)).to_pylist()]
    return TableChanges(
        section.table,
        puts=[(k, v) for k, v in zip(names, values, strict=True) if v is not None and k is not None],
        deletes=[k for k, v in zip(names, values, strict=True) if v is None and k is not None],
        clears=clears,
    )


def _boot_id() -> str:
    """Changes when the host starts anew. Where it is unknown, a process-independent constant."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


@dataclass(slots=True)
class StoreReport:
    """How the store came to its version, for metrics and for the driver's log."""

    how: str = "empty"
    rows: int = 0
    failures: list[str] = field(default_factory=list)


class WorkingStore:
    """Open with `open_store`. Reads see the committed state; writing happens only by catching up, here."""

    def __init__(self, backend: StateBackend, lock: _FolderLock | None, marker: str, report: StoreReport) -> None:
        self._backend = backend
        self._lock = lock
        self._marker = marker
        self.report = report
        self._recent: dict[str, pa.Table] = {}

    def remember(self, sections: Sequence[Section]) -> None:
        """Keep the newest delta at hand: keys that were touched in the last epoch are often touched again."""
        for section in sections:
            if not section.has_entries and section.data.num_rows >= _CACHE_ROWS:
                self._recent[section.table] = section.data.combine_chunks()

    def read(self, table: str, keys: pa.Array, storage: Storage, ttl: bool) -> tuple[pa.Array, pa.Array | None]:
        """Values (null where unset) and, with TTL, their times, for many keys of a value table."""
        recent = self._recent.get(table)
        if recent is None:
            return self._read_backend(table, keys, storage, ttl)
        found = pc.index_in(keys, value_set=recent.column("key").chunk(0))
        known = recent.column("value").chunk(0)
        known_times = recent.column("time").chunk(0) if ttl else None
        if found.null_count == 0:
            return known.take(found), None if known_times is None else known_times.take(found)
        missing = pc.is_null(found)
        values, times = self._read_backend(table, keys.filter(missing), storage, ttl)
        places = np.asarray(found.fill_null(0)).astype(np.int64)
        unknown = np.asarray(missing)
        places[unknown] = len(known) + np.arange(len(values))
        where = pa.array(places)
        merged = pa.concat_arrays([known, values]).take(where)
        if known_times is None or times is None:
            return merged, None
        return merged, pa.concat_arrays([known_times, times]).take(where)

    def _read_backend(
        self, table: str, keys: pa.Array, storage: Storage, ttl: bool
    ) -> tuple[pa.Array, pa.Array | None]:
        raw = self._guard(lambda: self._backend.get_many(table, keys.to_pylist()))
        return codec.value_column(raw, storage, ttl)

    def get(self, table: str, key: bytes) -> bytes | None:
        """One entry of a map or list table, by its backend key."""
        return self._guard(lambda: self._backend.get_many(table, (key,))[0])

    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self._backend.scan(table, prefix, start)
        except DamagedStoreError:
            self._condemn()
            raise

    def count(self, table: str) -> int:
        return self._guard(lambda: self._backend.count(table))

    def _guard(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except DamagedStoreError:
            self._condemn()
            raise

    def _condemn(self) -> None:
        """Make sure that the next attempt rebuilds."""
        if self._marker:
            with contextlib.suppress(OSError), open(self._marker, "w"):
                pass

    def close(self) -> None:
        if not self._backend.resident:
            self._backend.close()
        if self._lock is not None:
            self._lock.release()


class _FolderLock:
    """Exclusive use of a store's folder on this host, given back by the operating system if the process dies."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._file = open(path, "w")  # noqa: SIM115 - held until release
        deadline = time.monotonic() + _LOCK_WAIT
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self._file.close()
                    raise StorageError(
                        f"another task has held the working store {os.path.dirname(path)} for {_LOCK_WAIT:.0f} s; "
                        "it may hang: look for a Python worker of an earlier attempt on this host",
                        path=path,
                    ) from None
                time.sleep(0.01)

    def release(self) -> None:
        self._file.close()


def open_store(
    kind: type[StateBackend],
    backend_name: str,
    context: EpochContext,
    uid: str,
    groups: KeyGroupRange,
    manifest: Manifest | None,
    files: FileSystem,
) -> WorkingStore:
    """The working store of one subtask at the committed version that the context names."""
    operator = manifest.operator(uid) if manifest is not None else None
    _own_folder(context.local_dir)
    base = os.path.join(
        context.local_dir,
        layout.store_folder(context.job_dir, context.incarnation, uid),
        f"{backend_name}-{groups.start}-{groups.end}",
    )
    opener = _Opener(kind, base, context, uid, groups, manifest, operator, StateFiles(files, manifest))
    return opener.resident() if kind.resident else opener.on_disk()


class _Opener:
    """One attempt to bring a store to its version."""

    def __init__(
        self,
        kind: type[StateBackend],
        base: str,
        context: EpochContext,
        uid: str,
        groups: KeyGroupRange,
        manifest: Manifest | None,
        operator: OperatorState | None,
        state_files: StateFiles,
    ) -> None:
        self.kind = kind
        self.base = base
        self.context = context
        self.uid = uid
        self.groups = groups
        self.manifest = manifest
        self.state_files = state_files
        self.report = StoreReport()
        chain = operator.chain if operator is not None else []
        self.chain = [handle for handle in chain if handle.groups.intersects(groups)]
        self.wanted = f"{context.run}:{context.parent}:{context.parent_commit}"

    def resident(self) -> WorkingStore:
        key = f"{self.base}:{os.getpid()}"
        backend = _resident.get(key)
        if backend is None:
            backend = self.kind(self.base)
        _resident.pop(key, None)
        backend, sections = self._bring_up_to_date(backend)
        _resident[key] = backend
        return self._store(backend, None, "", sections)

    def on_disk(self) -> WorkingStore:
        lock = _FolderLock(self.base + ".lock")
        try:
            try:
                backend, sections = self._open_and_catch_up()
            except DamagedStoreError as error:
                self._failed(str(error))
                self._wipe()
                backend, sections = self._open_and_catch_up()
            if self.kind.shared:
                if backend.version() != self.wanted:
                    raise EpochFailedError(f"the working store of operator '{self.uid}' changed while it was opened")
                lock.release()
                return self._store(backend, None, self.base + ".damaged", sections)
            return self._store(backend, lock, self.base + ".damaged", sections)
        except BaseException:
            lock.release()
            raise

    def _store(
        self, backend: StateBackend, lock: _FolderLock | None, marker: str, sections: Sequence[Section]
    ) -> WorkingStore:
        store = WorkingStore(backend, lock, marker, self.report)
        store.remember(sections)
        return store

    def _failed(self, why: str) -> None:
        self.report.failures.append(why)
        _log.warning("operator %s, key groups %s: rebuilding the working store: %s", self.uid, self.groups, why)

    def _open_and_catch_up(self) -> _Ready:
        self._prepare_folder()
        backend = self.kind(self.base)
        try:
            return self._bring_up_to_date(backend)
        except BaseException:
            backend.close()
            raise

    def _prepare_folder(self) -> None:
        """A folder from another boot of the host, another job, or one that was found damaged, starts anew."""
        identity = {"incarnation": self.context.incarnation, "boot": _boot_id(), "format": 1}
        marker = self.base + ".damaged"
        path = os.path.join(self.base, "identity.json")
        if os.path.islink(self.base):
            raise StorageError(f"{self.base} is a symbolic link; remove it, working stores are plain folders")
        if os.path.isdir(self.base):
            try:
                with open(path) as file:
                    found = json.load(file)
            except (OSError, ValueError):
                found = None
            if found == identity and not os.path.exists(marker):
                return
            if os.path.exists(marker):
                self._failed("it was found damaged")
            self._wipe()
        os.makedirs(self.base, mode=0o700, exist_ok=True)
        with open(path, "w") as file:
            json.dump(identity, file)

    def _wipe(self) -> None:
        shutil.rmtree(self.base, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.base + ".damaged")

    def _bring_up_to_date(self, backend: StateBackend) -> _Ready:
        """Apply what is missing; also returns the sections of the newest delta, which are in hand anyway."""
        found = backend.version()
        if found is None:
            return self._rebuild(backend, fresh=True)
        run, epoch, commit = _parse_version(found)
        if (epoch, commit) == (self.context.parent, self.context.parent_commit):
            self.report.how = "warm"
            if found != self.wanted:
                self._refuse_if_overtaken(run, epoch)
                backend.apply((), self.wanted)
            return backend, self._newest_sections()
        lineage = self.manifest.lineage if self.manifest is not None else {}
        missing = [handle for handle in self.chain if handle.epoch > epoch]
        if lineage.get(epoch) == commit and not any(handle.snapshot for handle in missing):
            self._refuse_if_overtaken(run, epoch)
            self.report.how = "caught-up"
            return self._apply(backend, missing)
        self._refuse_if_overtaken(run, epoch)
        return self._rebuild(backend, fresh=False)

    def _refuse_if_overtaken(self, run: int, epoch: int) -> None:
        mine = self.context
        if run > mine.run or (run == mine.run and epoch > mine.parent):
            raise EpochFailedError(
                f"this task of operator '{self.uid}' is a straggler of run {mine.run}, epoch {mine.epoch}: the working "
                f"store has moved on to run {run}, epoch {epoch}. Nothing was changed.",
                uid=self.uid,
            )

    def _newest_sections(self) -> Sequence[Section]:
        newest = [handle for handle in self.chain if handle.epoch == self.context.parent and not handle.snapshot]
        if len(newest) != 1 or not newest[0].path or newest[0].rows < _CACHE_ROWS:
            return ()
        file = self.state_files.open(self.uid, newest[0])
        return [file.read(info, self.groups) for info in file.sections if info.kind == "value"]

    def _rebuild(self, backend: StateBackend, fresh: bool) -> _Ready:
        if not fresh:
            backend.close()
            self._wipe()
            if not self.kind.resident:
                self._prepare_folder()
            backend = self.kind(self.base)
        self.report.how = "rebuilt" if self.chain else "empty"
        return self._apply(backend, self.chain, building=True)

    def _apply(self, backend: StateBackend, handles: Sequence[StateHandle], building: bool = False) -> _Ready:
        """Apply handles oldest first. A build of many steps carries no version until the last one."""
        sections: list[Section] = []
        pending: list[TableChanges] = []
        rows = 0
        for number, handle in enumerate(handles):
            file = self.state_files.open(self.uid, handle)
            last = number == len(handles) - 1
            sections = []
            for info in file.sections:
                if info.group >= 0 and not self.groups.contains(info.group):
                    continue
                section = file.read(info, self.groups)
                if last and not handle.snapshot and handle.epoch == self.context.parent:
                    sections.append(section)
                pending.append(changes_of(section))
                rows += section.data.num_rows
                self.report.rows += section.data.num_rows
                if building and rows >= _LOAD_ROWS:
                    backend.apply(pending, None)
                    pending, rows = [], 0
        backend.apply(pending, self.wanted)
        return backend, [section for section in sections if section.kind == "value"]


def _own_folder(path: str) -> None:
    """The root of the working stores: ours alone, so that nobody can plant or read state there."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StorageError(
            f"{path} is not a folder of this user; remove it, or set execution.checkpointing.local-backup.dirs",
            path=path,
        )


def _parse_version(version: str) -> tuple[int, int, str]:
    run, epoch, commit = version.split(":", 2)
    return int(run), int(epoch), commit


def empty_columns(storage: Storage, entries: bool, ttl: bool) -> dict[str, pa.Array]:
    """The columns of a section with no rows."""
    columns = {"key": pa.array([], pa.binary())}
    if entries:
        columns["entry"] = pa.array([], pa.binary())
    columns["value"] = pa.array([], ARROW_STORAGE[storage])
    if ttl:
        columns["time"] = pa.array([], pa.int64())
    return columns
