"""The working store of one subtask: backends brought to the committed version, then read during an epoch.

Rules (docs/design.md, "Invariants" 2 and 8):

* A delta is applied only once a manifest names it, so the store is never ahead of what is committed and nothing is
  ever rolled back.
* A copy whose version is in the manifest's lineage catches up by the deltas that it lacks. One that is missing,
  damaged, foreign, or left from before a crash of the host is thrown away and rebuilt from the chain.
* A copy that a newer run or a later epoch has already moved on means that this task is a straggler: it fails.

Values and entries (maps, lists, timers) are two copies, because they catch up in different ways. Entries are applied
at once, since they are scanned. Values are looked up for many keys at a time, which a memory-mapped delta answers as
well as a backend does: so up to `DEFER_EPOCHS` deltas are kept as layers over the backend and applied together, the
newest value of each key once. An epoch then writes to the backend only now and then, and the keys that were touched
last are found without asking it at all.

Not known here: types and handles (`state/state_table.py`), and what an epoch does with the state (`runtime/`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from cairn.errors import CorruptFileError, EpochFailedError
from cairn.logs import get_logger
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import DEFER_EPOCHS, EpochContext, Manifest, OperatorState, StateHandle
from cairn.model.types import Storage
from cairn.state.backend import DamagedStoreError, Put, StateBackend, TableChanges, load_backend
from cairn.state.local_stores import note_owner
from cairn.state.memory_backend import MemoryBackend
from cairn.state.section_changes import ChainFiles, changes_of
from cairn.state.store_copy import StoreCopy
from cairn.state.store_folder import FolderLock, StoreFolder, own_folder
from cairn.storage import layout
from cairn.storage.chain_merge import compact
from cairn.storage.filesystem import FileSystem
from cairn.storage.run_records import Runs
from cairn.storage.state_file import Section, SectionInfo, StateFile

_log = get_logger("cairn.state")
_DEFER_ROWS = 2_000_000
_LAYER_ROWS = 512
_LOAD_ROWS = 200_000
VALUES = "values"
ENTRIES = "entries"


_resident: dict[str, StateBackend] = {}
"""Backends that live in this worker process only, by folder."""


@dataclass(slots=True)
class StoreReport:
    """How the store came to its version, for metrics and for the driver's log."""

    how: str = "empty"
    rows: int = 0
    failures: list[str] = field(default_factory=list)
    read_ms: float = 0.0
    """Time spent in bulk reads of values."""


class WorkingStore:
    """Open with `open_store`. Reads see the committed state; nothing is written through it."""

    def __init__(self, values: StoreCopy, entries: StoreCopy, report: StoreReport) -> None:
        self._values = values
        self._entries = entries
        self.report = report

    def read(self, table: str, keys: pa.Array, storage: Storage, ttl: bool) -> tuple[pa.Array, pa.Array | None]:
        """Values (null where unset) and, with TTL, their times, for many keys of a value table."""
        since = time.perf_counter()
        try:
            return self._values.values(table, keys, storage, ttl)
        finally:
            self.report.read_ms += (time.perf_counter() - since) * 1000

    def getter(self, table: str) -> Callable[[bytes], bytes | None]:
        """A function that reads one entry of a map or list table by its backend key."""
        return self._entries.getter(table)

    def first(self, table: str, prefix: bytes, limit: int) -> list[Put]:
        """The first entries under a prefix, at most `limit`."""
        return self._entries.first(table, prefix, limit)

    def scan(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Put]:
        """Entries of a map, list or timer table in the order of their backend keys."""
        return self._entries.scan(table, prefix, start)

    def close(self) -> None:
        self._values.close()
        self._entries.close()


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """Which working store is needed, and at which version."""

    backend: str
    """The name of the state backend."""
    uid: str
    groups: KeyGroupRange
    context: EpochContext
    manifest: Manifest | None
    """The committed epoch that the context names, None before the first one."""
    files: FileSystem

    @property
    def operator(self) -> OperatorState | None:
        return self.manifest.operator(self.uid) if self.manifest is not None else None


def open_store(request: StoreRequest) -> WorkingStore:
    """The working store of one subtask at the committed version that the context names."""
    opener = _Opener(request)
    values = opener.open(VALUES)
    operator = request.operator
    try:
        if operator is not None and any(spec.has_entries for spec in operator.states):
            entries = opener.open(ENTRIES)
        else:
            entries = StoreCopy(MemoryBackend(""), (), None, None)
    except BaseException:
        values.close()
        raise
    return WorkingStore(values, entries, opener.report)


def _store_folder(request: StoreRequest, kind: type[StateBackend]) -> str:
    """Where the copies of a subtask lie, without the part."""
    context, groups = request.context, request.groups
    own_folder(context.local_dir)
    stores = os.path.join(context.local_dir, layout.store_folder(context.job_dir, context.incarnation))
    if not kind.resident:
        note_owner(stores, context)
    if context.own_stores:
        stores = _own_stores(stores, context.run)
    return os.path.join(stores, request.uid, f"{request.backend}-{groups.start}-{groups.end}")


def _own_stores(stores: str, run: int) -> str:
    """The folder of this run's own stores; what is left of earlier runs goes."""
    mine = os.path.join(stores, f"run-{run}")
    if not os.path.isdir(mine):
        with suppress(FileNotFoundError):
            for entry in os.listdir(stores):  # `owner.json` is no folder, and stays
                if entry != f"run-{run}":
                    shutil.rmtree(os.path.join(stores, entry), ignore_errors=True)
    return mine


_Ready = tuple[StateBackend, Sequence[Section]]


class _Opener:
    """Brings the copies of one subtask to the version that the context names."""

    def __init__(self, request: StoreRequest) -> None:
        context, manifest, operator = request.context, request.manifest, request.operator
        self.kind = load_backend(request.backend)
        self.base = _store_folder(request, self.kind)
        self.context = context
        self.uid = request.uid
        self.groups = request.groups
        self.lineage = manifest.lineage if manifest is not None else {}
        handles = operator.chain if operator is not None else ()
        self.chain = [handle for handle in handles if handle.groups.intersects(request.groups)]
        self.chain_files = ChainFiles(request.files, manifest)
        self.report = StoreReport()
        self.base_epoch = operator.base if operator is not None else context.parent
        self.wanted = f"{context.run}.{context.run_token}:{context.parent}:{context.parent_commit}"

    def open(self, part: str) -> StoreCopy:
        path = f"{self.base}-{part}"
        if self.kind.resident:
            backend = _resident.pop(path, None) or self.kind(path)
            backend, layers = self._bring_up_to_date(part, backend, None)
            _resident[path] = backend
            return StoreCopy(backend, layers, None, None)
        folder = StoreFolder(path, self.context.incarnation)
        lock = FolderLock(path + ".lock")
        try:
            try:
                backend, layers = self._open_on_disk(part, folder)
            except DamagedStoreError as error:
                self._failed(str(error))
                folder.wipe()
                backend, layers = self._open_on_disk(part, folder)
            if self.kind.shared:
                backend.version()  # begins the read that all others of this task belong to
                lock.release()
                return StoreCopy(backend, layers, folder, None)
            return StoreCopy(backend, layers, folder, lock)
        except BaseException:
            lock.release()
            raise

    def _open_on_disk(self, part: str, folder: StoreFolder) -> _Ready:
        why = folder.prepare()
        if why is not None:
            self._failed(why)
        backend = self.kind(folder.path)
        try:
            return self._bring_up_to_date(part, backend, folder)
        except BaseException:
            backend.close()
            raise

    def _failed(self, why: str) -> None:
        self.report.failures.append(why)
        _log.warning("operator %s, key groups %s: rebuilding the working store: %s", self.uid, self.groups, why)

    def _bring_up_to_date(self, part: str, backend: StateBackend, folder: StoreFolder | None) -> _Ready:
        """Apply, or read through, what the copy lacks; rebuild it where that cannot be done."""
        found = backend.version()
        if found is None:
            if folder is not None and not folder.fresh:  # left by a build that was cut off
                return self._rebuild(part, self._replaced(part, backend, folder))
            return self._rebuild(part, backend)
        run, token, epoch, commit = _parse_version(found)
        self._refuse_if_overtaken(run, token, epoch)
        current = (epoch, commit) == (self.context.parent, self.context.parent_commit)
        missing = [handle for handle in self.chain if handle.epoch > epoch]
        known = current or (self.lineage.get(epoch) == commit and not any(handle.snapshot for handle in missing))
        if not known or epoch < self.base_epoch:
            return self._rebuild(part, self._replaced(part, backend, folder))
        self.report.how = "warm" if current else "caught-up"
        layered = part == VALUES
        if layered and self._may_wait(epoch, missing):
            return backend, self._sections(part, missing or self._newest())
        if not current:
            self._catch_up(part, backend, missing)
        return backend, self._sections(part, self._newest()) if layered else ()

    def _replaced(self, part: str, backend: StateBackend, folder: StoreFolder | None) -> StateBackend:
        """An empty copy in place of one that cannot be used."""
        backend.close()
        if folder is not None:
            folder.wipe()
            folder.prepare()
        return self.kind(f"{self.base}-{part}")

    def _refuse_if_overtaken(self, run: int, token: str, epoch: int) -> None:
        """A run of this directory that is newer than ours, or our own at a later epoch, has used the copy.

        A run that the directory does not know is no newer one: the directory was brought back from an earlier copy.
        """
        mine = self.context
        same = run == mine.run and token == mine.run_token and epoch > mine.parent
        if same or (run > mine.run and self._is_known(run, token)):
            raise EpochFailedError(
                f"this task of operator '{self.uid}' is a straggler of run {mine.run}, epoch {mine.epoch}: the working "
                f"store has moved on to run {run}, epoch {epoch}. Nothing was changed.",
                uid=self.uid,
            )

    def _is_known(self, run: int, token: str) -> bool:
        record = Runs(self.chain_files.files).record(run)
        return record is not None and record.token == token

    def _may_wait(self, epoch: int, missing: Sequence[StateHandle]) -> bool:
        return self.context.parent - epoch <= DEFER_EPOCHS and sum(h.rows for h in missing) <= _DEFER_ROWS

    def _newest(self) -> list[StateHandle]:
        """The delta of the last epoch, already applied: still the quickest place to look for what it touched."""
        newest = [handle for handle in self.chain if handle.epoch == self.context.parent and not handle.snapshot]
        return newest if len(newest) == 1 and newest[0].rows >= _LAYER_ROWS else []

    def _sections(self, part: str, handles: Sequence[StateHandle]) -> list[Section]:
        """The rows of this part and range in some files, oldest first."""
        found: list[Section] = []
        for handle in handles:
            file = self._file(handle)
            mine = [info for info in file.sections if (info.kind == "value") == (part == VALUES)]
            found.extend(
                file.read(info, self.groups) for info in mine if info.group < 0 or self.groups.contains(info.group)
            )
        return found

    def _file(self, handle: StateHandle) -> StateFile:
        try:
            return self.chain_files.open(self.uid, handle)
        except CorruptFileError as error:
            raise CorruptFileError(
                f"operator '{self.uid}', key groups {handle.first_group} to {handle.last_group}, changes of epoch "
                f"{handle.epoch}: {error.message}. Every other file is untouched; bring this one back from a copy and "
                "start the job again.",
                **error.facts,
            ) from error

    def _catch_up(self, part: str, backend: StateBackend, missing: Sequence[StateHandle]) -> None:
        """Apply deltas in one step. Of values, only the newest of each key is written."""
        sections = self._sections(part, missing)
        self.report.rows += sum(section.data.num_rows for section in sections)
        changes = [changes_of(section) for section in sections]
        backend.apply(_newest_values(changes) if part == VALUES else changes, self.wanted)

    def _rebuild(self, part: str, backend: StateBackend) -> _Ready:
        """Load the whole chain, oldest first, in portions; the copy has no version until the last one is in."""
        self.report.how = "rebuilt" if self.chain else "empty"
        try:
            self._load(part, backend)
        except BaseException:
            backend.close()
            raise
        return backend, ()

    def _load(self, part: str, backend: StateBackend) -> None:
        """Merge the chain key group by key group: each key is written once, and values in the order of their keys,
        which is what a backend fills fastest and keeps in the best shape.
        """

        def mine(info: SectionInfo) -> bool:
            return (info.kind == "value") == (part == VALUES)

        pending: list[TableChanges] = []
        rows = 0
        for _, sections in compact(self._file, self.chain, self.groups, {}, 0, mine):
            for section in sections:
                pending.append(changes_of(section))
                rows += section.data.num_rows
                self.report.rows += section.data.num_rows
                if rows >= _LOAD_ROWS:
                    backend.apply(pending, None)
                    pending, rows = [], 0
        backend.apply(pending, self.wanted)


def _newest_values(changes: Sequence[TableChanges]) -> list[TableChanges]:
    """The same effect with each key written once, in key order."""
    tables: dict[str, dict[bytes, bytes | None]] = {}
    for change in changes:
        rows = tables.setdefault(change.table, {})
        rows.update(dict.fromkeys(change.deletes))
        rows.update(change.puts)
    return [
        TableChanges(
            table,
            puts=sorted((key, value) for key, value in rows.items() if value is not None),
            deletes=sorted(key for key, value in rows.items() if value is None),
        )
        for table, rows in tables.items()
    ]


def _parse_version(version: str) -> tuple[int, str, int, str]:
    run, epoch, commit = version.split(":", 2)
    number, token = run.split(".", 1)
    return int(number), token, int(epoch), commit
