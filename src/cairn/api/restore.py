"""Going back to a checkpoint: in place, or as the beginning of another job (docs/design/0002-checkpoints.md).

A restore never changes what was there. It builds a new folder with Spark's logs beside the old one, and adds an epoch
that stands for the checkpoint, above every epoch that ever was, and names that folder. Adding it is the commit.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from cairn.errors import CorruptFileError, InvalidInputError, NotFoundError
from cairn.model.checkpoint import Checkpoint
from cairn.model.manifest import NO_WATERMARK, Manifest, StateHandle
from cairn.state.files import StateFiles
from cairn.storage import layout
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.filesystem import FileSystem, LocalFileSystem, local_root, sync
from cairn.storage.manifests import ManifestStore, RunRecord

_log = logging.getLogger("cairn.checkpoint")
COMPACT_INTERVAL = 10
"""Spark's default of spark.sql.streaming.fileSource.log.compactInterval."""


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint and the job's directory that it lies in."""

    files: LocalFileSystem
    checkpoint: Checkpoint


def find(path: str) -> Source:
    """The checkpoint that a path names: its `chk-<n>` folder, or the `_metadata` in it."""
    folder = local_root(path)
    if os.path.basename(folder) == layout.METADATA:
        folder = os.path.dirname(folder)
    number = layout.checkpoint_number(os.path.basename(folder))
    if number is None:
        raise InvalidInputError(f"{path!r} is no checkpoint: name the folder chk-<n> of a job", path=path)
    files = LocalFileSystem(os.path.dirname(folder))
    store = CheckpointStore(files)
    if number not in store.numbers():
        there = ", ".join(f"chk-{known}" for known in store.numbers()) or "none"
        raise NotFoundError(f"there is no completed checkpoint {folder}; completed there: {there}", path=path)
    return Source(files, store.load(number))


def damage(files: FileSystem, manifest: Manifest, thorough: bool = False, checkpoint: Checkpoint | None = None) -> str:
    """What is missing or damaged of what a manifest needs; empty if nothing is. `thorough` reads every byte.

    Storage that fails is no damage: its error is raised.
    """
    state_files = StateFiles(files, manifest)
    manifests = ManifestStore(files)
    for operator in manifest.operators:
        for handle in operator.chain:
            where = f"{files.root}/{handle.path or layout.epoch_path(handle.epoch)} of operator '{operator.uid}'"
            try:
                if not handle.path and checkpoint is not None:
                    if checkpoint.inlined_bytes(operator.uid, handle) is None:
                        return f"{where}: its bytes are not in the checkpoint"
                    continue
                if handle.path:
                    path = files.local_path(handle.path)
                    if not files.exists(handle.path):
                        return f"{where} is missing"
                    if path is not None and os.path.getsize(path) != handle.size:
                        return f"{where} has {os.path.getsize(path)} bytes instead of {handle.size}"
                elif handle.epoch != manifest.epoch and not manifests.exists(handle.epoch):
                    return f"{where} is missing"
                if thorough:
                    file = state_files.open(operator.uid, handle)
                    for info in file.sections:
                        file.read(info)
            except (CorruptFileError, NotFoundError, FileNotFoundError) as error:
                return f"{where}: {error}"
    return ""


def newest_intact(files: LocalFileSystem) -> Checkpoint | None:
    """The newest checkpoint all of whose files are whole; every byte is read to know.

    One that was taken between a checkpoint and the restore that went back to it is passed over: it was given up.
    """
    abandoned = _abandoned(files)
    for checkpoint in reversed(CheckpointStore(files).all()):
        if any(first < checkpoint.manifest.epoch < last for first, last in abandoned):
            continue
        wrong = damage(files, checkpoint.manifest, thorough=True, checkpoint=checkpoint)
        if not wrong:
            return checkpoint
        _log.error("checkpoint %d cannot be used either: %s", checkpoint.id, wrong)
    return None


def _abandoned(files: LocalFileSystem) -> list[tuple[int, int]]:
    """The epochs that restores gave up, as the newest readable manifest tells."""
    store = ManifestStore(files)
    for epoch in reversed(store.epochs()):
        try:
            return store.load(epoch).abandoned
        except CorruptFileError:
            continue
    return []


def restore(
    source: Source,
    files: LocalFileSystem,
    run: RunRecord,
    incarnation: str,
    job_id: str,
    compact_interval: int = COMPACT_INTERVAL,
) -> Manifest:
    """Make a checkpoint, which was found intact, the newest epoch of a job's directory; returns its manifest."""
    checkpoint = source.checkpoint
    old = checkpoint.manifest
    # Above every epoch of this directory, and above those that the handles and list segments carry.
    used = [old.epoch, *ManifestStore(files).epochs(), *_numbers(files, "offsets"), *_numbers(files, "commits")]
    epoch = 1 + max(used)
    same_job = source.files.root == files.root
    operators = [
        msgspec.structs.replace(
            operator,
            chain=[_carried(source, files, run, operator.uid, handle, same_job) for handle in operator.chain],
            base=operator.base if same_job else -1,
        )
        for operator in old.operators
    ]
    manifest = msgspec.structs.replace(
        old,
        job_id=job_id,
        incarnation=incarnation,
        epoch=epoch,
        commit_id=uuid.uuid4().hex[:16],
        run=run.run,
        parent=old.epoch if same_job else -1,
        operators=operators,
        sinks=[],
        inlined={},
        lineage={**old.lineage, old.epoch: old.commit_id} if same_job else {},
        restored=checkpoint.id,
        spark=layout.restored_spark(epoch),
        abandoned=[*_abandoned(files), (old.epoch, epoch)] if same_job else [],
    )
    _build_spark_folder(source, files, manifest, checkpoint.in_flight, compact_interval)
    ManifestStore(files).publish(manifest)
    _log.warning(
        "Restoring job %s from Checkpoint %d @ %d located at %s, epoch %d, as epoch %d.",
        job_id, checkpoint.id, checkpoint.info.trigger_ms, checkpoint.info.path, old.epoch, epoch,
    )  # fmt: skip
    return manifest


def _numbers(files: LocalFileSystem, log: str) -> list[int]:
    """Batch numbers in one of Spark's logs, in the present folder and in those from before restores."""
    found = []
    for name in files.folders(""):
        if layout.is_spark(name):
            folder = os.path.join(files.root, name, log)
            if os.path.isdir(folder):
                found += [int(entry) for entry in os.listdir(folder) if entry.isdigit()]
    return found


def _carried(
    source: Source, files: LocalFileSystem, run: RunRecord, uid: str, handle: StateHandle, same_job: bool
) -> StateHandle:
    """A handle as the restored job names it. Only shared files of the same job are taken as they are."""
    if same_job and handle.path.startswith(f"{layout.SHARED}/"):
        return handle
    token = f"{uuid.uuid4().hex[:8]}"
    path = layout.snapshot_path(uid, handle.epoch, run.run, handle.first_group, token)
    if not handle.snapshot:
        path = layout.restored_delta_path(uid, handle.epoch, run.run, handle.first_group, token)
    data = source.files.read(handle.path) if handle.path else source.checkpoint.inlined_bytes(uid, handle)
    if data is None:
        raise CorruptFileError(f"{source.checkpoint.info.path} lacks the state of operator '{uid}'", uid=uid)
    files.create(path, data)
    return msgspec.structs.replace(handle, path=path)


def _build_spark_folder(
    source: Source, files: LocalFileSystem, manifest: Manifest, in_flight: str, compact_interval: int
) -> None:
    """Logs that end with the restored epoch, committed, and the range in flight, not committed; a fresh query id."""
    folder = os.path.join(files.root, manifest.spark)
    shutil.rmtree(folder, ignore_errors=True)
    sources = os.path.join(source.files.root, source.checkpoint.manifest.spark, "sources")
    positions = _positions(in_flight or manifest.offsets)
    for number, position in enumerate(positions):
        if _is_file_position(position) and not os.path.isdir(os.path.join(sources, str(number))):
            raise CorruptFileError(
                f"{sources}/{number} is missing: without it nobody knows which files were read before the checkpoint, "
                "and going on would leave files out. Bring it back from a copy; nothing was changed.",
                path=sources,
            )
    for name in os.listdir(sources) if os.path.isdir(sources) else []:
        position = positions[int(name)] if name.isdigit() and int(name) < len(positions) else None
        _copy_source(os.path.join(sources, name), os.path.join(folder, "sources", name), position, compact_interval)
    watermark = manifest.watermark if manifest.watermark != NO_WATERMARK else 0
    written = {
        "metadata": msgspec.json.encode({"id": str(uuid.uuid4())}),
        f"offsets/{manifest.epoch}": manifest.offsets.encode(),
        f"commits/{manifest.epoch}": b"v1\n" + msgspec.json.encode({"nextBatchWatermarkMs": max(0, watermark)}),
    }
    if manifest.epoch > 0:  # Spark asks for the entry before its newest one, and takes it for the last committed
        written[f"offsets/{manifest.epoch - 1}"] = manifest.offsets.encode()
    if in_flight:
        written[f"offsets/{manifest.epoch + 1}"] = in_flight.encode()
    for name, data in written.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(data)
    for place, _, names in os.walk(folder):
        for name in names:
            sync(os.path.join(place, name))
        sync(place)
    sync(files.root)


def _positions(offsets: str) -> list[Any]:
    """The position of each source in an entry of Spark's offset log; None for one that has none."""
    return [None if line in ("-", "") else json.loads(line) for line in offsets.split("\n")[2:]]


def _is_file_position(position: Any) -> bool:
    return isinstance(position, dict) and "logOffset" in position


def _copy_source(folder: str, target: str, position: Any, interval: int) -> None:
    """A source's own log as it was at a position.

    The file source logs every batch of new files under a number, and all of them together in a `<n>.compact` now and
    then. What it logged after the position is left out: it finds those files again, and takes them as it did before.
    """
    names = [name for name in os.listdir(folder) if re.fullmatch(r"\d+(\.compact)?", name)]
    if not _is_file_position(position):
        shutil.copytree(folder, target)
        return
    last = int(position["logOffset"])
    entries: dict[int, dict[str, str]] = {}
    version = "v1"
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            version, *lines = file.read().split("\n")
        for line in filter(None, lines):
            entry = json.loads(line)
            entries.setdefault(int(entry["batchId"]), {})[entry["path"]] = line
    missing = [number for number in range(last + 1) if number not in entries]
    if missing:
        raise CorruptFileError(
            f"Spark's log of a file source in {folder} no longer says which files batch {missing[0]} had; the "
            "checkpoint's position cannot be found again",
            path=folder,
        )
    os.makedirs(target)
    for number in range((last + 1) // interval * interval - 1, last + 1):
        if number < 0:
            continue
        together = (number + 1) % interval == 0
        wanted = range(number + 1) if together else (number,)
        text = "\n".join([version, *(line for batch in wanted for line in entries[batch].values())])
        with open(
            os.path.join(target, f"{number}.compact" if together else str(number)), "x", encoding="utf-8"
        ) as file:
            file.write(text)
