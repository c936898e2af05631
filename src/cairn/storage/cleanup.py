"""Which files nothing needs, and deleting them: from published manifests only, never by guess.

Two ways lead here. `plan_garbage` decides before a commit what that commit makes superfluous; the manifest records the
decision, and `collect` carries it out once the manifest is published. `sweep` looks at everything in a job's directory
and removes files that no manifest names; it spares whatever is younger than its age guard, since a running task may be
about to acknowledge it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from cairn.errors import CairnError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.manifest import Garbage, Manifest
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileInfo, FileSystem
from cairn.storage.manifest_store import ManifestStore

_log = get_logger("cairn.storage")
AGE_GUARD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Pins:
    """What checkpoints, retained or in the making, need: the manifests of these epochs, and these files."""

    epochs: frozenset[int] = frozenset()
    files: frozenset[str] = frozenset()
    released: frozenset[str] = frozenset()
    """Files of deleted checkpoints, which may have become garbage."""
    every_file: bool = False
    """There is a checkpoint whose files are unknown: no file may be deleted."""


def pins_of(checkpoints: Iterable[Checkpoint]) -> Pins:
    """What these checkpoints need. They hold their inlined bytes themselves."""
    return Pins(files=frozenset().union(*(checkpoint.files() for checkpoint in checkpoints)))


def plan_garbage(
    manifests: Mapping[int, Manifest],
    retained: int,
    pins: Pins = Pins(),  # noqa: B008
    left: Garbage = Garbage(),  # noqa: B008
) -> Garbage:
    """What nothing needs once the newest of these manifests is committed, with what earlier ones have `left`. Pure.

    Files go first when this is carried out, so that a crash in between leaves a manifest, never an orphan.
    """
    ordered = sorted(manifests, key=lambda epoch: manifests[epoch].order)
    newest = ordered[-1] if ordered else -1
    # One with a higher epoch is void. It stays until the history is past its number: who deletes by name must be sure
    # that nobody creates the name again.
    ordered = [epoch for epoch in ordered if epoch <= newest]
    kept = set(ordered[-retained:])
    needed = kept.union(pins.epochs, *(manifests[epoch].inline_epochs() for epoch in kept))
    files = set(pins.files).union(*(manifests[epoch].files() for epoch in kept))
    epochs = {*left.epochs, *ordered} - needed
    # A manifest that stays only for its inlined bytes keeps no files alive: nothing restores from it.
    loose = {*left.files, *pins.released}.union(*(manifests[epoch].files() for epoch in ordered)) - files
    return Garbage([] if pins.every_file else sorted(loose), sorted(epochs))


def collect(store: ManifestStore, garbage: Garbage) -> Garbage:
    """Delete what a published manifest calls garbage; returns what could not be deleted, for the next one to name.

    A delete that fails is logged: it must not stop the job.
    """
    files, epochs = [], []
    for path in garbage.files:
        try:
            store.files.delete(path)
        except CairnError as error:
            _log.warning("cannot delete %s, which no epoch needs: %s", path, error)
            files.append(path)
    for epoch in garbage.epochs:
        try:
            store.delete(epoch)
        except CairnError as error:
            _log.warning("cannot delete the manifest of epoch %d: %s", epoch, error)
            epochs.append(epoch)
    return Garbage(files, epochs)


def without_files(manifests: dict[int, Manifest], garbage: Garbage, retained: int, pins: Pins) -> None:
    """Forget expired manifests, and the files of those that stay for their inlined bytes alone."""
    for epoch in garbage.epochs:
        manifests.pop(epoch, None)
    for epoch in sorted(manifests, key=lambda epoch: manifests[epoch].order)[:-retained]:
        if epoch not in pins.epochs:  # what it names may go when the checkpoint goes
            manifests[epoch] = msgspec.structs.replace(manifests[epoch], operators=[])


def orphans(
    present: Iterable[FileInfo],
    manifests: Sequence[Manifest],
    now: float,
    age_guard: float = AGE_GUARD_SECONDS,
    pins: Pins = Pins(),  # noqa: B008
) -> list[FileInfo]:
    """State files that no manifest names, none ever will, and that are older than the guard. Pure.

    A file of a run before the one that committed last can no longer be committed; nor can a delta of that run for
    an epoch that is committed. Anything newer may still be named by a commit in progress.
    """
    if not manifests:
        return []
    newest = max(manifests, key=lambda manifest: manifest.order)
    named: set[str] = set(pins.files)
    for manifest in manifests:
        named |= manifest.files()
    found = []
    for info in present:
        made = layout.made_by(info.path)
        if info.path in named or made is None or info.modified >= now - age_guard:
            continue
        epoch, run, snapshot = made
        if run < newest.run or (run == newest.run and epoch <= newest.epoch and not snapshot):
            found.append(info)
    return found


def old_spark_folders(
    folders: Iterable[str], manifests: Sequence[Manifest], checkpoints: Sequence[Checkpoint]
) -> list[str]:
    """Spark's folders from before a restore that no manifest and no checkpoint names any more. Pure.

    A restore reads `sources/` of the folder that its checkpoint names, so that one stays with the checkpoint. A folder
    numbered above the newest manifest may be one that a restore is building.
    """
    if not manifests:
        return []
    newest = max(manifests, key=lambda manifest: manifest.order)
    named = {manifest.spark for manifest in manifests} | {checkpoint.manifest.spark for checkpoint in checkpoints}
    return [
        name
        for name in folders
        if layout.is_spark(name) and name not in named and layout.spark_epoch(name) <= newest.epoch
    ]


def sweep(
    files: FileSystem, dry_run: bool = False, age_guard: float = AGE_GUARD_SECONDS, now: float | None = None
) -> list[FileInfo]:
    """Delete orphans, what interrupted writes left, and Spark's folders that nothing can go back to; returns the files.

    With `dry_run` nothing is deleted.

    Every manifest and checkpoint must be readable: with one that is not, nobody knows what it names, and nothing is
    deleted.
    The files are listed before the manifests are read, so that one which a commit names meanwhile is spared.
    """
    now = time.time() if now is None else now
    present = list(files.walk(layout.SHARED))
    folders = files.folders("")
    store = ManifestStore(files)
    manifests = [store.load(epoch) for epoch in store.epochs()]
    kept = CheckpointStore(files)
    checkpoints = [kept.load(number) for number in kept.numbers()]
    found = orphans(present, manifests, now, age_guard, pins_of(checkpoints))
    for name in folders:
        if name in (layout.RUNS, layout.EPOCHS, layout.HISTORY, layout.CONTROL) or layout.checkpoint_number(name):
            unfinished = [info for info in files.walk(name) if layout.is_temporary(info.path)]
            found += [info for info in unfinished if info.modified < now - age_guard]
    gone = []
    for name in old_spark_folders(folders, manifests, checkpoints):
        logs = list(files.walk(name))
        if all(info.modified < now - age_guard for info in logs):  # else its query may still be alive
            found += logs
            gone.append(name)
    if not dry_run:
        for info in found:
            files.delete(info.path)
        for name in gone:
            _prune_all(files, name)
    return found


def _prune_all(files: FileSystem, folder: str) -> None:
    """Remove a folder and those in it, which are empty."""
    for name in files.folders(folder):
        _prune_all(files, f"{folder}/{name}")
    files.prune(folder)
