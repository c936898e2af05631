"""The task of a compaction: it merges one range of key groups of one operator into snapshot files."""

from __future__ import annotations

import uuid

import msgspec

from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import OperatorState
from cairn.state.section_changes import ChainFiles
from cairn.storage import layout
from cairn.storage.chain_merge import compact, write_snapshot
from cairn.storage.filesystem import open_filesystem
from cairn.storage.manifest_store import writer_of
from cairn.storage.retrying import RetryingFileSystem


def compact_range(work: tuple[str, int, int, bytes, int, int, int, int]) -> list[bytes]:
    """Merge an operator's chain as it was at an epoch. Returns encoded handles.

    The chain comes with the work: the manifest of that epoch may leave retention while this runs, the files of the
    chain cannot, since every later manifest names them until the result is adopted. With a checkpoint number, the
    snapshots are written into the folder of that checkpoint.
    """
    job_dir, epoch, time_ms, encoded, first, last, run, checkpoint = work
    operator = msgspec.msgpack.decode(encoded, type=OperatorState)
    uid = operator.uid
    files = RetryingFileSystem(open_filesystem(job_dir))
    groups = KeyGroupRange(first, last)
    handles = [handle for handle in operator.chain if handle.groups.intersects(groups)]
    writer = writer_of(files, uid, run)
    state_files = ChainFiles(files, None, writer.incarnation)
    specs = {spec.name: spec for spec in operator.states}
    made = []
    for covered, sections in compact(lambda handle: state_files.open(uid, handle), handles, groups, specs, time_ms):
        token = uuid.uuid4().hex[:8]
        if checkpoint:
            path = layout.full_snapshot_path(checkpoint, uid, covered.start, run, token)
        else:
            path = layout.snapshot_path(uid, epoch, run, covered.start, token)
        made.append(msgspec.msgpack.encode(write_snapshot(files, path, epoch, covered, sections, writer)))
    return made
