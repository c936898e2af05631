"""What a compaction task does in a worker: merge one range of key groups of one operator into snapshot files."""

from __future__ import annotations

import uuid

import msgspec

from cairn.errors import NotFoundError
from cairn.model.keygroups import KeyGroupRange
from cairn.state.files import StateFiles
from cairn.storage import layout
from cairn.storage.compaction import compact, write_snapshot
from cairn.storage.filesystem import open_filesystem
from cairn.storage.manifests import ManifestStore


def compact_range(work: tuple[str, int, str, int, int, int]) -> list[bytes]:
    """Merge the chain as the manifest of an epoch has it. Returns encoded handles."""
    job_dir, epoch, uid, first, last, run = work
    files = open_filesystem(job_dir)
    manifest = ManifestStore(files).load(epoch)
    operator = manifest.operator(uid)
    if operator is None:
        raise NotFoundError(f"epoch {epoch} has no operator '{uid}'")
    groups = KeyGroupRange(first, last)
    handles = [handle for handle in operator.chain if handle.groups.intersects(groups)]
    state_files = StateFiles(files, manifest)
    specs = {spec.name: spec for spec in operator.states}
    made = []
    for covered, sections in compact(
        lambda handle: state_files.open(uid, handle), handles, groups, specs, manifest.time_ms
    ):
        path = layout.snapshot_path(uid, epoch, run, covered.start, uuid.uuid4().hex[:8])
        made.append(msgspec.msgpack.encode(write_snapshot(files, path, epoch, covered, sections)))
    return made
