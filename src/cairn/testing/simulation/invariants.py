"""What must be true of a job whatever happens to it, checked at every change of the disk.

The model replays what the manifests say with plain dicts: the state of an epoch is that of its parent and the rows
between their positions. Everything else is compared with it: the durable chain that a manifest or a checkpoint names,
what the sink shows, what is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from cairn.errors import CairnError
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.manifest import Manifest, StateHandle, gave_up, inline_key
from cairn.state.codec import time_value
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.manifest_store import decode_manifest
from cairn.storage.run_bases import Base
from cairn.storage.state_file import StateFile
from cairn.testing.simulation import system
from cairn.testing.simulation.disk import Disk, SimulatedFileSystem
from cairn.testing.simulation.simulated_spark import batch_time_of, decode_rows, position_of
from cairn.testing.simulation.totals import UID, Row, SimulatedSource, State, living, moment_of

_Name = tuple[bytes, str]
"""A key as it is stored, and what is added to it in the names of the model's state."""


_DECIDE_CHECKPOINTS = (layout.BASES, layout.DISCARDS, layout.JOB)


class Violation(Exception):
    """Something that must never happen has happened."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


@dataclass
class Committed:
    """A committed epoch and what must follow from it."""

    manifest: Manifest
    state: State
    outputs: list[Row]
    files: set[str]
    inline: set[int]
    before: list[Committed]
    """The history that it continues, oldest first."""
    shown: dict[str, None] = field(default_factory=dict)
    """The files that its sink shows once it is published."""

    @property
    def epoch(self) -> int:
        return self.manifest.epoch


@dataclass(frozen=True)
class RequestedRestore:
    """A restore that somebody asked for: the state and position that it must come to."""

    state: State
    position: int
    epoch: int
    own: bool


class JobModel:
    """The model of one job directory and its sink."""

    def __init__(
        self, disk: Disk, root: str, sink: str, source: SimulatedSource, retained: int, num_retained: int
    ) -> None:
        self._disk = disk
        self._root = root
        self._sink = sink
        self._source = source
        self._retained = retained
        self._num_retained = num_retained
        self.commits: dict[int, Committed] = {}
        self.order: list[int] = []
        self.listed: dict[int, Checkpoint] = {}
        self.declared: list[RequestedRestore] = []
        """Restores under way."""
        self.may_repeat = False
        """AT_LEAST_ONCE: rows are shown before their epoch is committed, and again if it never is."""
        self.restores = 0
        self.void: dict[str, Committed] = {}
        """Commits of overtaken runs that came after the base of a newer one, by commit id."""
        self._base_run = 0
        self._base_is_empty = True
        """The newest run that has written down what it goes on from."""
        self._base_checkpoints: list[int] = []
        self._completed_any = False
        self._list_is_stale = False
        """Something has changed that decides which checkpoints the job has."""
        self._decoded: dict[str, dict[_Name, Any]] = {}

    @property
    def newest(self) -> Committed | None:
        return self.commits[self.order[-1]] if self.order else None

    def lists(self, number: int) -> bool:
        """Whether the job has this checkpoint."""
        return number in self.listed

    def _kept(self) -> list[int]:
        """The epochs within retention."""
        if not self.void:
            return self.order[-self._retained :]
        # Nobody can tell void commits from others afterwards, so they count for retention.
        late = {commit.manifest.order for commit in self.void.values()}
        lineage = {self.commits[epoch].manifest.order for epoch in self.order[-self._retained :]}
        return [epoch for run, epoch in sorted(lineage | late)[-self._retained :] if (run, epoch) in lineage]

    # Changes.

    def changed(self, what: str, path: str, data: bytes) -> None:
        """Called for every change of the disk."""
        if path.startswith(f"{self._root}/"):
            inside = path[len(self._root) + 1 :]
            top, _, rest = inside.partition("/")
            if top in _DECIDE_CHECKPOINTS or top.startswith("chk-"):
                self._list_is_stale = True
            if top == layout.EPOCHS:
                number = layout.number_of(inside)
                if number is not None:
                    self._epoch(what, number, path, data)
            elif top == layout.BASES:
                self._based(msgspec.json.decode(data, type=Base))
                self._list_checkpoints(completed=False)
            elif top == layout.DISCARDS:
                self._discards(layout.number_of(inside) or 0)
            elif top == layout.SHARED:
                if what == "delete":
                    self._deleted(inside)
            elif top.startswith("chk-"):
                number = layout.checkpoint_number(top)
                if number is not None and rest == layout.METADATA:
                    self._checkpoint(what, number)
                elif what == "delete":
                    self._deleted(inside)
        elif path.startswith(f"{self._sink}/part-"):
            self._shown(what, path[len(self._sink) + 1 :], data)

    def _epoch(self, what: str, number: int, path: str, data: bytes) -> None:
        try:
            manifest: Manifest = system.machine().decoded(decode_manifest, data, path)
        except CairnError:
            return  # what is not whole: the epoch did not happen
        if manifest.commit_id in self.void:
            return
        if what == "create":
            self._committed(number, manifest)
            return
        for epoch in self._kept():
            if number == epoch or number in self.commits[epoch].inline:
                why = "is retained" if number == epoch else f"holds state of epoch {epoch}"
                raise Violation("what is needed stays", f"the manifest of epoch {number} was deleted, which {why}")

    def _committed(self, number: int, manifest: Manifest) -> None:
        newest = self.newest
        if self._base_is_empty:
            # Of a run that found nothing there is nothing to protect: a first commit of an older run counts until the
            # newer one commits.
            if newest is not None and manifest.run < newest.manifest.run:
                self.void[manifest.commit_id] = self._replayed(manifest, self._parent_of(manifest))
                return
            if newest is not None and newest.manifest.run < manifest.run and not manifest.lineage:
                self._go_on_from([])
                newest = None
        elif manifest.run < self._base_run:
            # A newer run has written down what it goes on from: the manifest comes too late and counts for nothing,
            # unless a run that had read it before writes its base later.
            self.void[manifest.commit_id] = self._replayed(manifest, self._parent_of(manifest))
            return
        if newest is not None and number <= newest.epoch:
            raise Violation("one lineage", f"run {manifest.run} committed epoch {number} after epoch {newest.epoch}")
        if not manifest.restored:
            parent = newest.epoch if newest is not None else -1
            if manifest.parent != parent:
                raise Violation(
                    "one lineage", f"epoch {number} goes on from {manifest.parent}, but the newest is {parent}"
                )
            if newest is not None and manifest.lineage.get(parent) != newest.manifest.commit_id:
                raise Violation("one lineage", f"epoch {number} goes on from another commit of epoch {parent}")
            self._time(manifest, newest)
        commit = self._replayed(manifest, newest)
        self.commits[number] = commit
        self.order.append(number)
        self._counts(commit)
        self._list_checkpoints(completed=False)

    def _time(self, manifest: Manifest, parent: Committed | None) -> None:
        """An epoch has the time of its batch, and time never runs back."""
        batch_ms = batch_time_of(manifest.offsets)
        expected = batch_ms if parent is None else max(batch_ms, parent.manifest.time_ms)
        if manifest.time_ms != expected:
            raise Violation("time is exact", f"epoch {manifest.epoch} has time {manifest.time_ms}, not {expected}")

    def _parent_of(self, manifest: Manifest) -> Committed | None:
        wanted = manifest.lineage.get(manifest.parent, "")
        every = (*self.commits.values(), *self.void.values())
        return next((commit for commit in every if commit.manifest.commit_id == wanted), None)

    def _replayed(self, manifest: Manifest, parent: Committed | None) -> Committed:
        """A commit with the state and the rows that it must have come to."""
        if manifest.restored:
            state, outputs = self._restored(manifest, parent)
        else:
            before = parent.state if parent is not None else {}
            start = position_of(parent.manifest.offsets) if parent is not None else 0
            at = moment_of(manifest, parent.manifest.time_reset_ms if parent is not None else 0)
            state, outputs = self._source.after(before, start, position_of(manifest.offsets), at)
        history = [*parent.before, parent] if parent is not None else []
        commit = Committed(manifest, state, outputs, set(manifest.files()), set(manifest.inline_epochs()), history)
        for committable in manifest.sinks:
            for move in msgspec.msgpack.decode(committable.data):
                commit.shown[move["to"]] = None
        return commit

    def _counts(self, commit: Committed) -> None:
        """A commit has become the newest of the history: all that it needs must be there, and be right."""
        number = commit.epoch
        self._there(commit.files, f"epoch {number}")
        for epoch in commit.inline - {number}:
            if f"{self._root}/{layout.epoch_path(epoch)}" not in self._disk.files:
                raise Violation("what is committed is whole", f"epoch {number} needs the manifest of epoch {epoch}")
        self._compare(commit.manifest, {}, commit.state, f"epoch {number} of run {commit.manifest.run}")

    def _based(self, base: Base) -> None:
        """A run has written down what it goes on from: the history ends there, for everybody."""
        if base.run < self._base_run:
            return
        self._base_run, self._base_is_empty = base.run, base.epoch < 0
        self._base_checkpoints = base.checkpoints
        newest = self.newest
        if base.epoch < 0 or (newest is not None and newest.manifest.commit_id == base.commit_id):
            return
        every = (*self.commits.values(), *self.void.values())
        end = next((commit for commit in every if commit.manifest.commit_id == base.commit_id), None)
        if end is None:
            raise Violation("one lineage", f"run {base.run} goes on from epoch {base.epoch}, which was never committed")
        self._go_on_from([*end.before, end])
        self._counts(end)

    def _go_on_from(self, history: list[Committed]) -> None:
        """All other commits are void, and nobody may have seen their output."""
        everything = {c.manifest.commit_id: c for c in (*self.commits.values(), *self.void.values())}
        counted = {commit.manifest.commit_id for commit in history}
        for commit in self.commits.values():
            shown = [name for name in commit.shown if f"{self._sink}/{name}" in self._disk.files]
            if shown and commit.manifest.commit_id not in counted and not self.may_repeat:
                raise Violation("one lineage", f"epoch {commit.epoch} is passed over, and {shown[0]} shows its rows")
        self.commits = {commit.epoch: commit for commit in history}
        self.order = list(self.commits)
        self.void = {key: commit for key, commit in everything.items() if key not in counted}

    def _restored(self, manifest: Manifest, parent: Committed | None) -> tuple[State, list[Row]]:
        position = position_of(manifest.offsets)
        if parent is not None and manifest.parent == parent.epoch and position == position_of(parent.manifest.offsets):
            return parent.state, []  # the name of the next epoch was taken by an overtaken run
        for declared in self.declared:
            if declared.position == position and (not declared.own or manifest.parent in (declared.epoch, -1)):
                self.restores += 1
                return declared.state, []
        raise Violation(
            "one lineage",
            f"run {manifest.run} went back to epoch {manifest.parent} as epoch {manifest.epoch}, and nobody asked for "
            "it",
        )

    def _there(self, files: set[str], what: str) -> None:
        for path in files:
            if f"{self._root}/{path}" not in self._disk.files:
                raise Violation("what is committed is whole", f"{what} names {path}, which is not there")

    def _deleted(self, inside: str) -> None:
        for epoch in self._kept():
            if inside in self.commits[epoch].files:
                raise Violation("what is needed stays", f"{inside} was deleted, which epoch {epoch} needs")
        for number, checkpoint in self.listed.items():
            if inside in checkpoint.files():
                raise Violation("what is needed stays", f"{inside} was deleted, which checkpoint {number} needs")

    def _checkpoint(self, what: str, number: int) -> None:
        if what == "create":
            self._list_checkpoints(completed=True)
        elif number in self.listed:
            raise Violation("what is needed stays", f"checkpoint {number} was deleted, which is listed")

    def _discards(self, run: int) -> None:
        """A run that has ended lets all its checkpoints go, but not those that a newer run goes on with."""
        before = list(self.listed)
        self._list_checkpoints(completed=False)
        gone = [number for number in before if number in self._base_checkpoints and number not in self.listed]
        if gone and run < self._base_run:
            raise Violation(
                "what is needed stays",
                f"run {run} let checkpoint {gone[0]} go, which run {self._base_run} goes on with",
            )

    def _list_checkpoints(self, completed: bool) -> None:
        """Look which checkpoints the job has, as anybody would who asks for them; new ones must be whole."""
        if not completed and not (self._completed_any and self._list_is_stale):
            return
        self._completed_any = True
        self._list_is_stale = False
        store = CheckpointStore(SimulatedFileSystem(self._root))
        listed = {}
        for number in store.numbers():
            checkpoint = self.listed.get(number)
            if checkpoint is None:
                checkpoint = store.load(number)
                self._whole(number, checkpoint)
            listed[number] = checkpoint
        if completed and len(listed) < min(self._num_retained, len(self.listed)):
            gone = ", ".join(str(number) for number in self.listed if number not in listed)
            raise Violation("what is needed stays", f"checkpoints {gone} were let go, and {len(listed)} are left")
        self.listed = listed

    def _whole(self, number: int, checkpoint: Checkpoint) -> None:
        commit = self.commits.get(checkpoint.manifest.epoch)
        name = f"checkpoint {number}"
        if commit is None or commit.manifest.commit_id != checkpoint.manifest.commit_id:
            raise Violation("what is listed restores", f"{name} is of an epoch that was never committed")
        for path in checkpoint.files():
            if f"{self._root}/{path}" not in self._disk.files:
                raise Violation("what is listed restores", f"{name} names {path}, which is not there")
        self._compare(checkpoint.manifest, checkpoint.inlined, commit.state, name)

    def abandoned(self, epoch: int) -> bool:
        newest = self.newest
        return newest is not None and gave_up(newest.manifest.abandoned, epoch)

    def _shown(self, what: str, name: str, data: bytes) -> None:
        epoch = int(name.split("-")[1])
        if what == "delete":
            raise Violation("shown once", f"{name} was shown and is gone")
        commit = self.commits.get(epoch)
        if self.may_repeat and (commit is None or name not in commit.shown):
            return
        if commit is None:
            raise Violation("shown once", f"{name} is shown, but epoch {epoch} is not committed")
        if name not in commit.shown:
            raise Violation("shown once", f"{name} is shown, which the commit of epoch {epoch} does not name")
        if Counter(decode_rows(data)) - Counter(commit.outputs):
            raise Violation("shown once", f"{name} shows other rows than epoch {epoch} has")

    # State as it is stored.

    def _compare(self, manifest: Manifest, inlined: dict[int, dict[str, bytes]], expected: State, name: str) -> None:
        stored = self.stored(manifest, inlined, name)
        if self._source.timed:
            at = moment_of(manifest, 0)
            stored, expected = living(stored, at), living(expected, at)
        if stored != expected:
            raise Violation("state is exact", f"{name} holds {_difference(stored, expected)}")

    def stored(self, manifest: Manifest, inlined: dict[int, dict[str, bytes]], name: str) -> State:
        """What the chain of a manifest comes to, file by file."""
        entries: dict[_Name, Any] = {}
        for operator in manifest.operators:
            for handle in operator.chain:
                if handle.snapshot:
                    for entry in [
                        e for e in entries if handle.first_group <= e[0][0] << 8 | e[0][1] <= handle.last_group
                    ]:
                        del entries[entry]
                entries.update(self._changes(manifest, inlined, handle, name))
        return {key[2:].decode() + suffix: value for (key, suffix), value in entries.items() if value is not None}

    def _changes(
        self, manifest: Manifest, inlined: dict[int, dict[str, bytes]], handle: StateHandle, name: str
    ) -> dict[_Name, Any]:
        known = self._decoded.get(handle.checksum)
        if known is not None:
            return known
        if handle.path:
            data = self._disk.files[f"{self._root}/{handle.path}"].data
        else:
            key = inline_key(UID, handle.first_group)
            held = inlined.get(handle.epoch)
            if held is None:
                own = handle.epoch == manifest.epoch
                held = manifest.inlined if own else self.commits[handle.epoch].manifest.inlined
            if key not in held:
                raise Violation("what is committed is whole", f"{name} lacks the inlined state of {handle.epoch}")
            data = held[key]
        made: dict[_Name, Any] = {}
        try:
            file = StateFile(data, name, handle.checksum, handle.size)
            for info in file.sections:
                table = file.read(info, handle.groups).data
                made.update(_entries(info.kind, table))
        except CairnError as error:
            raise Violation("what is committed is whole", f"{name}: {error.message}") from error
        self._decoded[handle.checksum] = made
        return made

    # At the end.

    def settled(self) -> None:
        """Everything that was committed and not given up is shown, once."""
        for epoch in self.order:
            commit = self.commits[epoch]
            if self.abandoned(epoch) or commit.manifest.restored:
                continue
            rows: list[Row] = []
            for name in commit.shown:
                stored = self._disk.files.get(f"{self._sink}/{name}")
                if stored is None:
                    raise Violation("shown once", f"epoch {epoch} is committed, and {name} is not shown")
                rows += decode_rows(stored.data)
            if Counter(rows) != Counter(commit.outputs):
                raise Violation("shown once", f"epoch {epoch} shows {len(rows)} rows of {len(commit.outputs)}")
        for number, checkpoint in self.listed.items():
            self._there(checkpoint.files(), f"checkpoint {number}")


def _entries(kind: str, table: pa.Table) -> Iterator[tuple[_Name, Any]]:
    """The rows of a section of a state file; None for what was removed."""
    keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
    if kind == "timer":
        for key, time, value in zip(keys, table.column("entry").to_pylist(), values, strict=True):
            yield (key, f" @{time_value(time)}"), None if value is None else 0
    elif "time" in table.column_names:
        for key, time, value in zip(keys, table.column("time").to_pylist(), values, strict=True):
            yield (key, " recent"), None if value is None else (value, time)
    else:
        for key, value in zip(keys, values, strict=True):
            yield (key, ""), value


def _difference(stored: State, expected: State) -> str:
    wrong = sorted(key for key in stored.keys() | expected.keys() if stored.get(key) != expected.get(key))
    key = wrong[0]
    return f"{stored.get(key)} instead of {expected.get(key)} under {key}, and {len(wrong) - 1} more differ"
