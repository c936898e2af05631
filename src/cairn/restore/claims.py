"""Who owns the savepoint that a job started from: with CLAIM the job, which deletes it once it is no longer needed.

The claim is a file `_claimed` in the savepoint, created exclusively, so that only one job can have it. The job keeps a
note of its own, `claims/<epoch>`, and deletes the savepoint when as many newer checkpoints exist as it retains. Both
are made before the restored epoch is published, so a crash can leave a claim of a restore that never happened: the
next run drops it before anything else.
"""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec

from cairn.errors import CairnError, CorruptFileError, InvalidInputError, NotFoundError
from cairn.logs import get_logger
from cairn.snapshots.snapshot import Snapshot
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem, LocalFileSystem
from cairn.storage.manifest_store import IncompleteManifestError, JobIdentity, ManifestStore, load_identity
from cairn.storage.savepoint_folder import dispose

_log = get_logger("cairn.checkpoint")


class Claim(msgspec.Struct, frozen=True):
    """`claims/<epoch>`: a savepoint that the job owns since it was restored as that epoch."""

    path: str
    epoch: int
    run: int = 0
    """The run that restored it; 0 in notes of older releases."""


def check_claim(snapshot: Snapshot, mode: str, identity: JobIdentity | None, files: LocalFileSystem) -> None:
    """Refuse a snapshot that belongs to another job, and a claim that is not possible."""
    owner = snapshot.owner()
    if owner is not None and (identity is None or owner.get("incarnation") != identity.incarnation):
        who = f"job '{owner.get('job', '?')}' in {owner.get('directory', '?')}"
        raise InvalidInputError(
            f"{snapshot.path} was claimed by {who}, which may delete it at any time. Take a savepoint of that job and "
            f"start from it, or copy the folder without its {layout.CLAIMED} while that job does not run.",
            path=snapshot.path,
        )
    if mode == "CLAIM" and snapshot.checkpoint is not None and snapshot.files.root != files.root:
        raise InvalidInputError(
            f"{snapshot.path} cannot be claimed: its files belong to the job in {snapshot.files.root}, too. "
            "Leave execution.state-recovery.claim-mode at NO_CLAIM: the new job takes copies and never touches the "
            "original.",
            path=snapshot.path,
        )


def claim(snapshot: Snapshot, identity: JobIdentity, files: LocalFileSystem, epoch: int, run: int = 0) -> None:
    """Make a savepoint the job's own, just before the epoch that was restored from it is published."""
    if snapshot.savepoint is None:
        return
    try:  # first, so that a claim is never left without a note of it
        files.create(layout.claim_path(epoch), msgspec.json.encode(Claim(snapshot.path, epoch, run)))
    except FileExistsError:
        _log.debug("the claim of %s is noted already", snapshot.path)
    owner = {"job": identity.job_id, "incarnation": identity.incarnation, "directory": files.root}
    try:
        snapshot.files.create(layout.CLAIMED, json.dumps(owner).encode())
    except FileExistsError:
        check_claim(snapshot, "CLAIM", identity, files)  # this job's from a start that was cut off, or an error


def drop_stale_claims(files: LocalFileSystem, identity: JobIdentity) -> list[str]:
    """Give back savepoints whose restore was cut off before it was published. Returns their paths.

    Called by a new run before it publishes anything: later the epoch of such a restore belongs to something else.
    """
    notes = _notes(files)
    stale = []
    for name, held in notes.items():
        try:
            if not _was_restored(files, held):
                stale.append(name)
        except CorruptFileError as error:  # unknown: the note stays, and nothing is deleted because of it
            _log.warning("it is not known whether the job was restored from %s: %s", held.path, error)
    for name in stale:
        held = notes[name]
        if not any(other.path == held.path for known, other in notes.items() if known not in stale):
            _give_back(held.path, identity)
        files.delete(name)
        _log.warning("the job was never restored from %s, which it had claimed: it is the user's again", held.path)
    return [notes[name].path for name in stale]


def _notes(files: FileSystem) -> dict[str, Claim]:
    notes = {}
    for info in files.list(layout.CLAIMS):
        try:
            notes[info.path] = msgspec.json.decode(files.read(info.path), type=Claim)
        except (NotFoundError, msgspec.MsgspecError) as error:
            _log.warning("the note of a claimed savepoint, %s, cannot be read: %s", info.path, error)
    return notes


def _was_restored(files: FileSystem, held: Claim) -> bool:
    """Whether the epoch of a claim is the restore that it was made for. An expired epoch was checked before."""
    store = ManifestStore(files)
    epochs = store.epochs()
    if held.epoch not in epochs:
        return bool(epochs) and held.epoch < epochs[-1]
    try:
        manifest = store.load(held.epoch)
    except IncompleteManifestError:
        return False
    return manifest.restored > 0 and held.run in (0, manifest.run)


def _is_ours(path: str, identity: JobIdentity) -> bool:
    files = LocalFileSystem(path)
    try:
        owner = json.loads(files.read(layout.CLAIMED))
    except (NotFoundError, ValueError):
        return False
    return isinstance(owner, dict) and owner.get("incarnation") == identity.incarnation


def _give_back(path: str, identity: JobIdentity) -> None:
    try:
        if _is_ours(path, identity):
            LocalFileSystem(path).delete(layout.CLAIMED)
    except (CairnError, OSError) as error:
        _log.warning("%s is still marked as claimed: %s. Delete its %s.", path, error, layout.CLAIMED)


def release_claims(files: FileSystem, retained: int) -> list[str]:
    """Delete claimed savepoints that enough newer checkpoints have replaced. Returns their paths. Never raises.

    A savepoint is deleted only if it is marked as this job's: another one may lie at the path by now.
    """
    released = []
    try:
        notes = _notes(files)
        identity = load_identity(files)
    except (CairnError, OSError) as error:
        _log.warning("claimed savepoints could not be looked after: %s", error)
        return []
    for name, held in notes.items():
        try:
            store = CheckpointStore(files)
            newer = [number for number in store.numbers() if store.load(number).manifest.epoch >= held.epoch]
            later = [other for other in notes.values() if other.path == held.path and other.epoch > held.epoch]
            if any(_was_restored(files, other) for other in later):
                files.delete(name)  # restored once more since: that claim counts
                continue
            if len(newer) < retained or identity is None or not _was_restored(files, held):
                continue
            if _is_ours(held.path, identity):
                with suppress(NotFoundError):
                    dispose(held.path, force=True)
                released.append(held.path)
                _log.info("deleted savepoint %s, which the job owned: newer checkpoints have replaced it", held.path)
            else:
                _log.warning("%s is no longer the savepoint that the job owned; it is not deleted", held.path)
            files.delete(name)
        except (CairnError, OSError) as error:
            _log.warning("a claimed savepoint could not be checked: %s", error)
    return released
