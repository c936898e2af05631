"""Who owns the savepoint that a job started from: with CLAIM the job, which deletes it once it is not needed any more.

The claim is a file `_claimed` in the savepoint, created exclusively, so that one job only can have it. The job keeps a
note of its own, `claims/<epoch>`, and deletes the savepoint when as many newer checkpoints exist as it retains.
"""

from __future__ import annotations

import json
import logging

import msgspec

from cairn.api.snapshots import Snapshot
from cairn.errors import CairnError, InvalidInputError, NotFoundError
from cairn.storage import layout
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.filesystem import FileSystem, LocalFileSystem
from cairn.storage.manifests import JobIdentity
from cairn.storage.savepoints import dispose

_log = logging.getLogger("cairn.checkpoint")


class Claim(msgspec.Struct, frozen=True):
    """`claims/<epoch>`: a savepoint that the job owns since it was restored as that epoch."""

    path: str
    epoch: int


def check_claim(snapshot: Snapshot, mode: str, identity: JobIdentity | None, files: LocalFileSystem) -> None:
    """Refuse a snapshot that belongs to another job, and a claim that cannot be had."""
    owner = snapshot.owner()
    if owner is not None and (identity is None or owner.get("incarnation") != identity.incarnation):
        who = f"job '{owner.get('job', '?')}' in {owner.get('directory', '?')}"
        raise InvalidInputError(
            f"{snapshot.path} was claimed by {who}, which may delete it at any time. Take a savepoint of that job and "
            "start from it, or copy the folder without its _claimed while that job does not run.",
            path=snapshot.path,
        )
    if mode == "CLAIM" and snapshot.checkpoint is not None and snapshot.files.root != files.root:
        raise InvalidInputError(
            f"{snapshot.path} cannot be claimed: its files belong to the job in {snapshot.files.root}, too. "
            "Leave execution.state-recovery.claim-mode at NO_CLAIM: the new job takes copies and never touches the "
            "original.",
            path=snapshot.path,
        )


def claim(snapshot: Snapshot, identity: JobIdentity, files: LocalFileSystem, epoch: int) -> None:
    """Make a savepoint the job's own, just before the epoch that was restored from it is published."""
    if snapshot.savepoint is None:
        return
    told = {"job": identity.job_id, "incarnation": identity.incarnation, "directory": files.root}
    try:
        snapshot.files.create(layout.CLAIMED, json.dumps(told).encode())
    except FileExistsError:
        check_claim(snapshot, "CLAIM", identity, files)  # ours, from a start that was cut off, or an error
    try:
        files.create(layout.claim_path(epoch), msgspec.json.encode(Claim(snapshot.path, epoch)))
    except FileExistsError:
        _log.debug("the claim of %s is noted already", snapshot.path)


def release_claims(files: FileSystem, retained: int) -> list[str]:
    """Delete claimed savepoints that enough newer checkpoints have replaced. Returns their paths. Never raises."""
    released = []
    for info in files.list(layout.CLAIMS):
        try:
            held = msgspec.json.decode(files.read(info.path), type=Claim)
            store = CheckpointStore(files)
            newer = [number for number in store.numbers() if store.load(number).manifest.epoch >= held.epoch]
            if len(newer) < retained:
                continue
            try:
                dispose(held.path, force=True)
            except NotFoundError:
                _log.debug("%s is gone already", held.path)
            files.delete(info.path)
            released.append(held.path)
            _log.info("deleted savepoint %s, which the job owned: newer checkpoints have replaced it", held.path)
        except (CairnError, OSError, msgspec.MsgspecError) as error:
            _log.warning("a claimed savepoint could not be looked after: %s", error)
    return released
