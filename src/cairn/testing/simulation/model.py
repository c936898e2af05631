"""What must be true of a job whatever happens to it, checked at every change of the disk.

The model replays what the manifests say with plain dicts: the state of an epoch is that of its parent and the rows
between their positions. Everything else is compared with it: the durable chain that a manifest or a checkpoint names,
what the sink shows, what is deleted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from cairn.errors import CairnError
from cairn.model.checkpoint import Checkpoint
from cairn.model.manifest import Manifest, StateHandle, gave_up, inline_key
from cairn.storage import layout
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.manifests import decode_manifest
from cairn.storage.statefile import StateFile
from cairn.testing.simulation.disk import Disk, SimulatedFileSystem
from cairn.testing.simulation.spark import UID, Row, Source, State, decode_rows, position_of


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
    at: int
    """When it was committed."""
    displaced: list[Committed] = field(default_factory=list)
    """Commits of older runs that it passed over."""
    shown: dict[str, None] = field(default_factory=dict)
    """The files that its sink shows once it is published."""

    @property
    def epoch(self) -> int:
        return self.manifest.epoch


@dataclass(frozen=True)
class Declared:
    """A restore that somebody asked for: the state and position that it must come to."""

    state: State
    position: int
    epoch: int
    own: bool


class JobModel:
    """The model of one job directory and its sink."""

    def __init__(self, disk: Disk, root: str, sink: str, source: Source, retained: int, num_retained: int) -> None:
        self._disk = disk
        self._root = root
        self._sink = sink
        self._source = source
        self._retained = retained
        self._num_retained = num_retained
        self.commits: dict[int, Committed] = {}
        self.order: list[int] = []
        self.listed: dict[int, Checkpoint] = {}
        self.declared: list[Declared] = []
        """Restores under way."""
        self.restores = 0
        self.void: set[str] = set()
        """Commits of overtaken runs that came after a commit of a newer one."""
        self._late: list[tuple[int, int]] = []
        """Run and epoch of those: nobody can tell them from others afterwards, so they count for retention."""
        self._completed_any = False
        self._taken: dict[int, int] = {}
        """When each run took the job over."""
        self._decoded: dict[str, dict[bytes, int | None]] = {}

    @property
    def newest(self) -> Committed | None:
        return self.commits[self.order[-1]] if self.order else None

    def _kept(self) -> list[int]:
        """The epochs within retention."""
        if not self._late:
            return self.order[-self._retained :]
        lineage = {(self.commits[epoch].manifest.run, epoch) for epoch in self.order[-self._retained :]}
        return [epoch for run, epoch in sorted(lineage.union(self._late))[-self._retained :] if (run, epoch) in lineage]

    # Changes.

    def changed(self, what: str, path: str, data: bytes) -> None:
        """Called for every change of the disk."""
        if path.startswith(f"{self._root}/"):
            inside = path[len(self._root) + 1 :]
            top, _, rest = inside.partition("/")
            if top == layout.EPOCHS:
                number = layout.number_of(inside)
                if number is not None:
                    self._epoch(what, number, path, data)
            elif top == layout.RUNS:
                self._taken[layout.number_of(inside) or 0] = self._disk.calls
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
            manifest = decode_manifest(data, path)
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
        if newest is not None and manifest.run < newest.manifest.run:
            # A newer run has committed since: the manifest comes too late and counts for nothing.
            self.void.add(manifest.commit_id)
            self._late.append((manifest.run, number))
            return
        displaced: list[Committed] = []
        while newest is not None and self._passed_over(newest, manifest):
            self._make_void(newest)
            displaced.append(newest)
            newest = self.newest
        if newest is not None and number <= newest.epoch:
            raise Violation("one lineage", f"run {manifest.run} committed epoch {number} after epoch {newest.epoch}")
        if manifest.restored:
            state, outputs = self._restored(manifest)
        else:
            parent = newest.epoch if newest is not None else -1
            if manifest.parent != parent:
                raise Violation(
                    "one lineage", f"epoch {number} goes on from {manifest.parent}, but the newest is {parent}"
                )
            if newest is not None and manifest.lineage.get(parent) != newest.manifest.commit_id:
                raise Violation("one lineage", f"epoch {number} goes on from another commit of epoch {parent}")
            before = newest.state if newest is not None else {}
            start = position_of(newest.manifest.offsets) if newest is not None else 0
            state, outputs = self._source.after(before, start, position_of(manifest.offsets))
        at = self._disk.calls
        commit = Committed(manifest, state, outputs, set(manifest.files()), set(manifest.inline_epochs()), at)
        for committable in manifest.sinks:
            for move in msgspec.msgpack.decode(committable.data):
                commit.shown[move["to"]] = None
        self._there(commit.files, f"epoch {number}")
        for epoch in commit.inline - {number}:
            if f"{self._root}/{layout.epoch_path(epoch)}" not in self._disk.files:
                raise Violation("what is committed is whole", f"epoch {number} needs the manifest of epoch {epoch}")
        commit.displaced = displaced
        self.commits[number] = commit
        self.order.append(number)
        self._compare(manifest, {}, state, f"epoch {number} of run {manifest.run}")
        self._list_checkpoints(completed=False)

    def _passed_over(self, newest: Committed, manifest: Manifest) -> bool:
        """Whether a run may go on without a commit: that of an older run, made after this one took the job over."""
        if newest.manifest.run >= manifest.run or newest.at < self._taken.get(manifest.run, 0):
            return False
        return manifest.restored > 0 or manifest.lineage.get(manifest.parent) != newest.manifest.commit_id

    def _make_void(self, commit: Committed) -> None:
        shown = [name for name in commit.shown if f"{self._sink}/{name}" in self._disk.files]
        if shown:
            raise Violation("one lineage", f"epoch {commit.epoch} is passed over, and {shown[0]} shows its rows")
        self.void.add(commit.manifest.commit_id)
        self._late.append((commit.manifest.run, commit.epoch))
        self.order.remove(commit.epoch)
        del self.commits[commit.epoch]
        for before in reversed(commit.displaced):  # what it had passed over counts again
            self.void.discard(before.manifest.commit_id)
            self.commits[before.epoch] = before
            self.order.append(before.epoch)

    def _restored(self, manifest: Manifest) -> tuple[State, list[Row]]:
        position = position_of(manifest.offsets)
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

    def _list_checkpoints(self, completed: bool) -> None:
        """Look which checkpoints the job has, as anybody would who asks for them; new ones must be whole."""
        if not self._completed_any and not completed:
            return
        self._completed_any = True
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
        if commit is None:
            raise Violation("shown once", f"{name} is shown, but epoch {epoch} is not committed")
        if name not in commit.shown:
            raise Violation("shown once", f"{name} is shown, which the commit of epoch {epoch} does not name")
        if Counter(decode_rows(data)) - Counter(commit.outputs):
            raise Violation("shown once", f"{name} shows other rows than epoch {epoch} has")

    # State as it is stored.

    def _compare(self, manifest: Manifest, inlined: dict[int, dict[str, bytes]], expected: State, name: str) -> None:
        stored = self.stored(manifest, inlined, name)
        if stored != expected:
            raise Violation("state is exact", f"{name} holds {_difference(stored, expected)}")

    def stored(self, manifest: Manifest, inlined: dict[int, dict[str, bytes]], name: str) -> State:
        """What the chain of a manifest comes to, file by file."""
        found: dict[bytes, int] = {}
        for operator in manifest.operators:
            for handle in operator.chain:
                if handle.snapshot:
                    for key in [k for k in found if handle.first_group <= k[0] << 8 | k[1] <= handle.last_group]:
                        del found[key]
                for key, value in self._changes(manifest, inlined, handle, name).items():
                    if value is None:
                        found.pop(key, None)
                    else:
                        found[key] = value
        return {key[2:].decode(): value for key, value in found.items()}

    def _changes(
        self, manifest: Manifest, inlined: dict[int, dict[str, bytes]], handle: StateHandle, name: str
    ) -> dict[bytes, int | None]:
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
        made: dict[bytes, int | None] = {}
        try:
            file = StateFile(data, name, handle.checksum, handle.size)
            for info in file.sections:
                table = file.read(info, handle.groups).data
                made.update(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
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


def _difference(stored: State, expected: State) -> str:
    wrong = sorted(key for key in stored.keys() | expected.keys() if stored.get(key) != expected.get(key))
    key = wrong[0]
    return f"{stored.get(key)} instead of {expected.get(key)} under {key}, and {len(wrong) - 1} more differ"
