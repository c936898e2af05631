"""Savepoints as folders: begin one, complete it, verify it at every read, list, dispose. See `docs/design/0003`.

`_metadata` is `"CAIRNSV1"`, the xxh3-64 of the body (8 bytes), the body's length (4 bytes) and the body in MessagePack.
It is the last file to be written, into a hidden folder; the rename of that folder is what makes the savepoint exist.

A savepoint may come from anywhere, so nothing in it is believed: sizes are looked at before anything is read, every
path is compared with an allow-list, links are not followed, and nothing in it can name code.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from cairn.errors import (
    CairnError,
    CorruptFileError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.keygroups import MAX_PARALLELISM_LIMIT
from cairn.model.limits import MAX_EPOCH, MAX_TIME_MS, read_positions, wrong_numbers, wrong_state
from cairn.model.manifest import BROADCAST
from cairn.model.savepoint_records import SavepointMetadata, SavepointOperator, SourceFile, StateTable, TableFile
from cairn.storage import layout, record_file, regular_files
from cairn.storage.filesystem import FileSystem, local_root, open_filesystem, sync
from cairn.storage.regular_files import MAX_METADATA

_log = get_logger("cairn.storage")
_MAGIC = b"CAIRNSV"
_VERSION = b"1"
_LEFTOVER_SECONDS = 24 * 3600

# The metadata file.


def encode_savepoint(metadata: SavepointMetadata) -> bytes:
    data = record_file.seal(_MAGIC, _VERSION, metadata)
    if len(data) - record_file.HEAD > MAX_METADATA:
        raise InvalidInputError(
            f"the metadata of a savepoint takes {len(data) - record_file.HEAD} bytes; at most {MAX_METADATA} are read"
        )
    return data


def decode_savepoint(data: bytes, name: str) -> SavepointMetadata:
    """Decode metadata. The error says whether the bytes are foreign, too new, damaged or impossible."""
    if not data.startswith(_MAGIC):
        kind = "a checkpoint's" if data.startswith(b"CAIRNCK") else "no savepoint's"
        raise CorruptFileError(f"{name} is {kind} metadata: it does not begin with {_MAGIC.decode()}", path=name)
    metadata = record_file.unseal(data, _VERSION, SavepointMetadata, name)
    _check(metadata, name)
    return metadata


def _check(metadata: SavepointMetadata, name: str) -> None:
    """Refuse metadata that contradicts itself or names paths outside of its folder."""

    def wrong(why: str) -> CorruptFileError:
        return CorruptFileError(f"{name} is refused: {why}", path=name)

    if not 1 <= metadata.max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise wrong(f"a max parallelism of {metadata.max_parallelism} is impossible")
    why = wrong_numbers(metadata.epoch, metadata.time_ms, metadata.watermark)
    if why:
        raise wrong(why)
    if not 0 <= metadata.id <= MAX_EPOCH or not 0 <= metadata.created_ms <= MAX_TIME_MS:
        raise wrong(f"number {metadata.id}, made at {metadata.created_ms} milliseconds, is impossible")
    try:
        read_positions(metadata.offsets)
    except InvalidInputError as error:
        raise wrong(error.message) from None
    uids = [operator.uid for operator in metadata.operators]
    if len(set(uids)) != len(uids):
        raise wrong("an operator appears twice")
    for operator in metadata.operators:
        if not 1 <= operator.parallelism <= metadata.max_parallelism:
            raise wrong(f"a parallelism of {operator.parallelism} of operator {operator.uid!r} is impossible")
        states = [table.spec.name for table in operator.tables]
        if len(set(states)) != len(states):
            raise wrong(f"a state of operator {operator.uid!r} appears twice")
        for table in operator.tables:
            try:
                layout.table_folder(operator.uid, table.spec.name)
            except InvalidInputError as error:
                raise wrong(error.message) from None
            why = wrong_state(table.spec, operator.key_type)
            if why:
                raise wrong(why)
            _check_files(operator, table, metadata.max_parallelism, wrong)
    for source in metadata.sources:
        if not layout.is_source_file(source.path) or source.size < 0:
            raise wrong(f"{source.path!r} is not a path of a source's log")


def _check_files(
    operator: SavepointOperator, table: StateTable, max_parallelism: int, wrong: Callable[[str], CorruptFileError]
) -> None:
    reached = -1
    for file in table.files:
        if not layout.is_table_part(file.path, operator.uid, table.spec.name):
            raise wrong(f"{file.path!r} is not a path of a file of {operator.uid}.{table.spec.name}")
        if file.size < 0 or file.rows < 0 or not 0 <= file.first_group <= file.last_group < max_parallelism:
            raise wrong(f"the numbers of {file.path} are impossible")
        if table.spec.kind == BROADCAST and file.last_group:
            raise wrong(f"{file.path} holds broadcast state under other key groups than 0")
        if file.first_group < reached:
            raise wrong(f"the key groups of {file.path} overlap those of another file")
        reached = file.last_group
    paths = [file.path for file in table.files]
    if len(set(paths)) != len(paths):
        raise wrong(f"a file of {operator.uid}.{table.spec.name} appears twice")


# Reading.


def read_savepoint(path: str) -> SavepointMetadata:
    """The metadata of the savepoint in a folder. Raises `NotFoundError` if it has none."""
    root = local_root(path)
    if layout.is_savepoint_progress(os.path.basename(root)):
        raise NotFoundError(f"{root} is a savepoint that was never completed; it can only be disposed of", path=root)
    name = os.path.join(root, layout.METADATA)
    try:
        data = regular_files.read(name, regular_files.limit_of(layout.METADATA))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{root} is not a savepoint: it has no {layout.METADATA}", path=root) from None
    except OSError as error:
        raise StorageError(f"cannot read {name}: {error.strerror or error}", path=name, errno=error.errno) from error
    return decode_savepoint(data, name)


def is_savepoint(path: str) -> bool:
    """Whether a folder is a completed savepoint that this cairn can read."""
    try:
        read_savepoint(path)
    except CairnError:
        return False
    return True


def holds_savepoint(folder: str) -> bool:
    """Whether the `_metadata` of a folder is that of a savepoint, intact or not."""
    try:
        data = regular_files.read(os.path.join(folder, layout.METADATA), regular_files.limit_of(layout.METADATA))
    except (OSError, CairnError):
        return False
    return data.startswith(_MAGIC)


def savepoint_there(info: CheckpointInfo) -> bool:
    """Whether a completed savepoint still exists. Users own savepoints and may have deleted or moved it."""
    return bool(info.path) and os.path.isfile(os.path.join(info.path, layout.METADATA))


def newest_savepoint(history: Iterable[CheckpointInfo]) -> CheckpointInfo | None:
    """The newest completed savepoint among these, newest first, that still exists."""
    saved = (info for info in history if info.type is CheckpointType.SAVEPOINT)
    done = (info for info in saved if info.status is CheckpointStatus.COMPLETED)
    return next((info for info in done if savepoint_there(info)), None)


def list_savepoints(target: str) -> list[tuple[str, SavepointMetadata]]:
    """The savepoints directly below a folder with their paths, oldest first; the folder itself counts if it is one.
    Those that cannot be read are logged and left out."""
    root = local_root(target)
    savepoints = []
    names = ["", *open_filesystem(root).folders("")]
    for name in names:
        path = os.path.join(root, name) if name else root
        if layout.is_savepoint_progress(name) or not os.path.lexists(os.path.join(path, layout.METADATA)):
            continue
        try:
            savepoints.append((path, read_savepoint(path)))
        except CairnError as error:
            if layout.checkpoint_number(name) is None:
                _log.warning("%s is left out: %s", path, error)
    return sorted(savepoints, key=lambda pair: (pair[1].created_ms, pair[0]))


def named_files(metadata: SavepointMetadata) -> list[TableFile | SourceFile]:
    """Every file that a savepoint consists of besides its metadata."""
    tables = [file for operator in metadata.operators for table in operator.tables for file in table.files]
    return [*tables, *metadata.sources]


def mapped(root: str, file: TableFile | SourceFile) -> pa.Buffer:
    """The bytes of a file, memory-mapped, verified as a whole before they are returned."""
    name = os.path.join(root, *file.path.split("/"))
    _refuse_links(root, file.path)
    try:
        descriptor = regular_files.open_file(name)
    except FileNotFoundError:
        raise CorruptFileError(f"{name} is missing", path=name) from None
    except OSError as error:
        raise StorageError(f"cannot read {name}: {error.strerror or error}", path=name, errno=error.errno) from error
    try:
        info = os.fstat(descriptor)
        if info.st_size != file.size:
            raise CorruptFileError(f"{name} is damaged: it has {info.st_size} bytes instead of {file.size}", path=name)
        data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if file.size else b""
    finally:
        os.close(descriptor)
    buffer = pa.py_buffer(data)
    if xxhash.xxh3_64_hexdigest(buffer) != file.checksum:
        raise CorruptFileError(f"{name} is damaged: it does not match its checksum", path=name)
    return buffer


def _refuse_links(root: str, path: str) -> None:
    at = root
    for part in path.split("/"):
        at = os.path.join(at, part)
        if os.path.islink(at):
            raise CorruptFileError(f"{at} is refused: it is a symbolic link", path=at)


# Writing.


class SavepointFolder:
    """A savepoint while it is written: `begin`, let tasks write below `path`, then `complete` or `abort`."""

    def __init__(self, target: FileSystem, token: str) -> None:
        self._target = target
        self.token = token
        self._name = layout.savepoint_progress(token)

    @classmethod
    def begin(cls, target: str, token: str = "", files: FileSystem | None = None) -> SavepointFolder:
        """A new hidden folder below `target`. Unfinished savepoints that are older than a day are removed."""
        token = layout.checked(token or uuid.uuid4().hex[:12], "token")
        root = local_root(target)
        try:
            os.makedirs(os.path.join(root, layout.savepoint_progress(token)), mode=0o750)
        except FileExistsError:
            raise InvalidInputError(f"a savepoint with token {token} is being written below {root}") from None
        except OSError as error:
            raise StorageError(
                f"cannot write a savepoint below {root}: {error.strerror or error}; the job is not touched", path=root
            ) from error
        with contextlib.suppress(CairnError, OSError):
            sweep(root, _LEFTOVER_SECONDS)
        return cls(files or open_filesystem(root), token)

    @property
    def path(self) -> str:
        return os.path.join(self._target.root, self._name)

    def complete(self, metadata: SavepointMetadata, name: str = "") -> str:
        """Rename the folder to `name`, which completes the savepoint. Returns its path.

        Every file that the metadata names must be there by now; what it does not name is removed. After an error the
        savepoint does not exist.
        """
        name = name or layout.savepoint_name(metadata.job_id, self.token)
        data = encode_savepoint(metadata)
        decode_savepoint(data, f"the metadata of {name}")
        here = {info.path: info.size for info in self._target.walk(self._name)}
        for file in named_files(metadata):
            if here.pop(f"{self._name}/{file.path}", None) != file.size:
                raise StorageError(f"savepoint {name} cannot be completed: {file.path} is missing or has another size")
        for stranger in here:  # what other attempts of the tasks wrote: readers of whole folders must not see it
            self._target.delete(stranger)
        self._target.create(f"{self._name}/{layout.METADATA}", data)
        self._sync_folders()
        try:
            self._target.rename(self._name, name)
        except FileExistsError:
            raise InvalidInputError(
                f"{os.path.join(self._target.root, name)} exists already; a savepoint overwrites nothing"
            ) from None
        return os.path.join(self._target.root, name)

    def _sync_folders(self) -> None:
        for folder, _, _ in os.walk(self.path):
            sync(folder)

    def abort(self) -> None:
        """Remove the folder. Never raises: a folder that cannot be removed now is hidden, and removed later."""
        try:
            _remove(self._target, self._name)
        except (CairnError, OSError) as error:
            _log.warning("%s could not be removed: %s", self.path, error)


def sweep(target: str, older_than: float, now: float | None = None) -> list[str]:
    """Remove unfinished savepoints below a folder that have not changed for `older_than` seconds."""
    files = open_filesystem(target)
    removed = []
    for name in files.folders(""):
        if not layout.is_savepoint_progress(name):
            continue
        full = os.path.join(files.root, name)
        newest = max((info.modified for info in files.walk(name)), default=os.lstat(full).st_mtime)
        if (now or time.time()) - max(newest, os.lstat(full).st_mtime) >= older_than:
            _remove(files, name)
            removed.append(full)
    return removed


def _remove(files: FileSystem, name: str) -> None:
    for info in list(files.walk(name)):
        files.delete(info.path)
    _prune(files, name)


def _prune(files: FileSystem, name: str) -> None:
    for folder, _, _ in os.walk(os.path.join(files.root, name) if name else files.root, topdown=False):
        relative = os.path.relpath(folder, files.root).replace(os.sep, "/")
        if relative != ".":
            files.prune(relative)


@dataclass(frozen=True, slots=True)
class DisposedFiles:
    """The files that disposing of a savepoint removes, or would remove, and those that are not part of it and stay."""

    path: str
    removed: list[str]
    size: int
    left: list[str]


def dispose(path: str, dry_run: bool = False, force: bool = False) -> DisposedFiles:
    """Delete a savepoint, `_metadata` first, which ends its existence. Only files that are part of it are deleted.

    A folder that a crash left unfinished is removed whole. A savepoint that a job has claimed is the job's, and is
    refused unless `force`.
    """
    root = local_root(path)
    parent, name = os.path.split(root)
    if layout.is_savepoint_progress(name) and os.path.isdir(root) and not os.path.islink(root):
        above = open_filesystem(parent)
        infos = list(above.walk(name))
        if not dry_run:
            _remove(above, name)
        return DisposedFiles(
            root, [info.path.partition("/")[2] for info in infos], sum(info.size for info in infos), []
        )
    metadata = read_savepoint(root)
    files = open_filesystem(root)
    if files.exists(layout.CLAIMED) and not force:
        owner = files.read(layout.CLAIMED)[:200].decode(errors="replace")
        raise InvalidInputError(
            f"{root} was handed to a job that started from it in CLAIM mode ({owner}) and is deleted by that job",
            path=root,
        )
    named = {layout.METADATA, layout.CLAIMED} | {file.path for file in named_files(metadata)}
    present = list(files.walk(""))
    mine = [info for info in present if info.path in named]
    mine.sort(key=lambda info: info.path != layout.METADATA)
    left = [info.path for info in present if info.path not in named]
    if not dry_run:
        for info in mine:
            _refuse_links(root, os.path.dirname(info.path))
            files.delete(info.path)
        _prune(files, "")
        if not left:
            open_filesystem(parent).prune(name)
    return DisposedFiles(root, [info.path for info in mine], sum(info.size for info in mine), left)
