"""Manifests and the job's identity as files: publish once, verify at every read, find the newest.

A manifest file is `"CAIRNMF1"`, the xxh3-64 of the body (8 bytes), the body's length (4 bytes) and the body in
MessagePack. It is created, never replaced: the create is the commit.
"""

from __future__ import annotations

import uuid

import msgspec
import xxhash

from cairn.errors import (
    CorruptFileError,
    IncompatibleStateError,
    InternalError,
    InvalidInputError,
    NotFoundError,
)
from cairn.model.manifest import FORMAT_VERSION, Manifest
from cairn.storage import layout, record_file
from cairn.storage.filesystem import FileSystem
from cairn.storage.record_file import HEAD
from cairn.storage.run_bases import newest_base
from cairn.storage.run_records import Runs
from cairn.storage.state_owner import Writer

_MAGIC = b"CAIRNMF"
_decode = msgspec.msgpack.Decoder(Manifest).decode
_decode_restores = msgspec.json.Decoder(list[tuple[int, int]]).decode


class JobIdentity(msgspec.Struct, frozen=True):
    """`job.json`: what can never change while the directory lives."""

    job_id: str
    name: str
    incarnation: str
    max_parallelism: int
    format_version: int = FORMAT_VERSION
    restoring: str = ""
    """Where the job was told to start from. Until it has an epoch, it must not start with empty state."""

    def made(self, incarnation: str, job_id: str) -> bool:
        """Whether what carries these was made by this very job. Old releases wrote no incarnation everywhere."""
        return incarnation == self.incarnation if incarnation else job_id == self.job_id


class IncompleteManifestError(CorruptFileError):
    """The file was never written whole: the epoch did not happen."""

    code = "incomplete-manifest"


def encode_manifest(manifest: Manifest) -> bytes:
    return record_file.seal(_MAGIC, str(FORMAT_VERSION).encode(), manifest)


def decode_manifest(data: bytes, name: str) -> Manifest:
    """The manifest in these bytes. Tells apart what was never finished, what is damaged, and what is too new."""
    body = data[HEAD:]
    intact = xxhash.xxh3_64_digest(body) == data[len(_MAGIC) + 1 : HEAD - 4]
    if len(data) < HEAD or (not intact and len(body) < int.from_bytes(data[HEAD - 4 : HEAD], "little")):
        raise IncompleteManifestError(f"manifest {name} is cut short after {len(data)} bytes", path=name)
    if not data.startswith(_MAGIC):
        raise CorruptFileError(f"{name} is not a manifest of cairn", path=name)
    version = record_file.version_of(data)
    if version != str(FORMAT_VERSION).encode():
        raise IncompatibleStateError(
            f"manifest {name} has format {version!r}; this cairn reads format {FORMAT_VERSION}. "
            "Use the release that wrote it or a newer one; nothing was changed.",
            path=name,
        )
    if not intact:
        raise CorruptFileError(f"manifest {name} does not match its checksum", path=name)
    try:
        manifest = _decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptFileError(f"manifest {name} cannot be read: {error}", path=name) from error
    if manifest.requires:
        raise IncompatibleStateError(
            f"manifest {name} needs features that this cairn does not have: {', '.join(manifest.requires)}", path=name
        )
    return manifest


class ManifestStore:
    """The manifests of one job."""

    def __init__(self, files: FileSystem) -> None:
        self.files = files

    def publish(self, manifest: Manifest) -> None:
        """The commit. Raises `FileExistsError` if the epoch is committed already."""
        self.files.create(layout.epoch_path(manifest.epoch), encode_manifest(manifest))

    def exists(self, epoch: int) -> bool:
        return self.files.exists(layout.epoch_path(epoch))

    def load(self, epoch: int) -> Manifest:
        path = layout.epoch_path(epoch)
        manifest = decode_manifest(self.files.read(path), f"{self.files.root}/{path}")
        if manifest.epoch != epoch:
            raise CorruptFileError(f"{self.files.root}/{path} holds the manifest of epoch {manifest.epoch}")
        return manifest

    def epochs(self) -> list[int]:
        """All epochs with a manifest file, ascending. A listing may lag, so the next ones are asked for by name."""
        listed = (layout.number_of(info.path) for info in self.files.list(layout.EPOCHS))
        epochs = sorted(number for number in listed if number is not None)
        following = epochs[-1] + 1 if epochs else 0
        while self.exists(following):
            epochs.append(following)
            following += 1
        return epochs

    def newest(self) -> Manifest | None:
        """The newest manifest of the job's history; damaged ones are skipped.

        A run that was overtaken may create a manifest at any later time, with any epoch. It is void once a newer run
        has written down what it continues from.
        """
        latest_run = Runs(self.files).newest()
        base = newest_base(self.files)
        newest: Manifest | None = None
        void: Manifest | None = None
        for epoch in reversed(self.epochs()):
            try:
                manifest = self.load(epoch)
            except (CorruptFileError, NotFoundError):
                continue
            if manifest.run == latest_run:
                return manifest
            if base is not None and base.voids(manifest.run, manifest.commit_id):
                void = manifest if void is None or manifest.run > void.run else void
            elif newest is None or manifest.run > newest.run:
                newest = manifest
        return newest or void  # the manifest of the base may be lost: whoever starts the job finds that out

    def restores(self) -> list[tuple[int, int]]:
        """The restores in place of the job (`Manifest.abandoned`), as its newest readable manifest tells.

        A restore whose manifest is lost has left a note in the folder that it made for Spark. Without the note nobody
        knows where it went back to, and all before it counts as given up.
        """
        newest = self.newest()
        made = [name for name in self.files.folders("") if layout.is_spark(name)]
        for name in sorted(made, key=layout.spark_epoch, reverse=True):
            epoch = layout.spark_epoch(name)
            if epoch <= (newest.epoch if newest is not None else -1):
                break
            if any(info.path.rpartition("/")[2].isdigit() for info in self.files.list(f"{name}/commits")):
                try:
                    return _decode_restores(self.files.read(f"{name}/{layout.RESTORES}"))
                except (NotFoundError, msgspec.MsgspecError):
                    return [(-1, epoch)]
        return newest.abandoned if newest is not None else []

    def delete(self, epoch: int) -> None:
        self.files.delete(layout.epoch_path(epoch))

    def set_aside(self, epoch: int, run: int) -> str:
        """Move an unfinished manifest out of the way, so that its epoch can happen."""
        target = f"{layout.epoch_path(epoch)}.unfinished-{run}"
        self.files.move(layout.epoch_path(epoch), target)
        return target


def refuse_foreign(manifest: Manifest, identity: JobIdentity, root: str) -> None:
    """Raise the error that names both jobs if a manifest is not one of the job that its directory belongs to."""
    if manifest.incarnation == identity.incarnation:
        return
    path = f"{root}/{layout.epoch_path(manifest.epoch)}"
    raise CorruptFileError(
        f"{path} is the manifest of another job: it belongs to job '{manifest.job_id}' (incarnation "
        f"{manifest.incarnation}), and {root}/{layout.JOB} says that this is job '{identity.job_id}' (incarnation "
        f"{identity.incarnation}). One of the two files was copied here. Move the file away if it is the manifest, or "
        f"bring {layout.JOB} back from a copy, then start the job again; nothing was changed.",
        path=path,
    )


def load_identity(files: FileSystem) -> JobIdentity | None:
    """The job that a directory belongs to, or None for a directory without one."""
    if not files.exists(layout.JOB):
        return None
    where = f"{files.root}/{layout.JOB}"
    try:
        identity = msgspec.json.decode(files.read(layout.JOB), type=JobIdentity)
    except msgspec.MsgspecError as error:
        raise CorruptFileError(f"{where} cannot be read: {error}", path=where) from error
    try:
        layout.checked(identity.job_id, "job id")
    except InvalidInputError as error:
        raise CorruptFileError(f"{where} is refused: {error.message}", path=where) from None
    if identity.format_version > FORMAT_VERSION:
        raise IncompatibleStateError(
            f"{where} has format {identity.format_version}; this cairn reads up to {FORMAT_VERSION}", path=where
        )
    return identity


def writer_of(files: FileSystem, uid: str, run: int) -> Writer:
    """Who writes state files of an operator into this job's directory."""
    identity = load_identity(files)
    if identity is None:
        path = f"{files.root}/{layout.JOB}"
        raise NotFoundError(f"{path} is missing, so state files cannot say of which job they are", path=path)
    return Writer(identity.job_id, identity.incarnation, uid, run)


def create_identity(
    files: FileSystem, job_id: str, name: str, max_parallelism: int, restoring: str = ""
) -> JobIdentity:
    identity = JobIdentity(job_id, name, uuid.uuid4().hex, max_parallelism, restoring=restoring)
    try:
        files.create(layout.JOB, msgspec.json.format(msgspec.json.encode(identity)))
    except FileExistsError:
        found = load_identity(files)
        if found is None:
            raise InternalError(f"{files.root}/{layout.JOB} came and went") from None
        return found
    return identity
